package feed

import (
	"crypto/sha256"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// FileSource has the files that replicas name. It may be called from many goroutines.
type FileSource interface {
	// Open returns the content with a SHA-256, and its size.
	Open(sum [sha256.Size]byte) (io.ReadCloser, int64, bool)
}

const (
	filePart   = 64 << 10 // bytes of one message
	maxFetches = 4        // at a time
)

// Fetch sends a file in parts. The handler waits for whatever ends it: sending to a router that does not read would not.
func (s *service) Fetch(r *feedpb.FetchRequest, g grpc.ServerStreamingServer[feedpb.FetchReply]) error {
	ctx, n := g.Context(), s.node
	if len(r.GetSha256()) != sha256.Size {
		return s.refuse(ctx, refusedInvalid, codes.InvalidArgument, "a hash of %d bytes", len(r.GetSha256()))
	}
	select {
	case s.fetches <- struct{}{}:
	default:
		return s.refuse(ctx, refusedFetches, codes.ResourceExhausted, "the node sends as many files as it does at a time")
	}
	defer func() { <-s.fetches }()
	if n.o.Files == nil {
		return status.Error(codes.NotFound, "the node offers no files")
	}
	f, size, ok := n.o.Files.Open([sha256.Size]byte(r.GetSha256()))
	if !ok {
		return status.Error(codes.NotFound, "the node offers no such file")
	}
	n.o.Metrics.fetches.Inc()
	sent := make(chan error, 1)
	s.tasks.Go(func() {
		defer f.Close()
		sent <- sendFile(f, size, g, n.o.Metrics)
	})
	timer := time.NewTimer(n.o.Stall)
	defer timer.Stop()
	select {
	case err := <-sent:
		return err
	case <-timer.C:
		return s.refuse(ctx, refusedStalled, codes.DeadlineExceeded, "the file took longer than %v", n.o.Stall)
	case <-s.closing:
		return errClosing
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sendFile(f io.Reader, size int64, g grpc.ServerStreamingServer[feedpb.FetchReply], m *NodeMetrics) error {
	part := make([]byte, filePart)
	for left := size; left > 0; {
		n, err := io.ReadFull(f, part[:min(filePart, left)])
		if err != nil {
			return status.Error(codes.DataLoss, "the file has changed")
		}
		if err := g.Send(&feedpb.FetchReply{Content: part[:n]}); err != nil {
			return err
		}
		left -= int64(n)
		m.fetchBytes.Add(float64(n))
	}
	return nil
}
