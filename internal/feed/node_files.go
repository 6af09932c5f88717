package feed

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// Folder is a FileSource: files of a model's tokenizer in one folder, as they were when they were listed.
type Folder struct {
	path  string
	files []File
}

// tokenizerFiles are the names that are offered; no other file of a folder is.
func tokenizerFiles() []string {
	return []string{
		"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
	}
}

// Files lists the tokenizer's files of a folder, none of them larger than most bytes. Symbolic links are followed within the folder only.
func Files(folder string, most int64) (*Folder, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("tokenizer files: %w", err)
	}
	defer root.Close()
	o := &Folder{path: folder}
	for _, name := range tokenizerFiles() {
		file, err := list(root, name, most)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("tokenizer file %q: %w", filepath.Join(folder, name), err)
		}
		o.files = append(o.files, file)
	}
	if len(o.files) == 0 {
		return nil, fmt.Errorf("tokenizer files: %q has none of %q", folder, tokenizerFiles())
	}
	return o, nil
}

func list(root *os.Root, name string, most int64) (File, error) {
	info, err := root.Stat(name) // a named pipe would block the open for ever
	if err != nil {
		return File{}, err
	}
	if !info.Mode().IsRegular() {
		return File{}, errors.New("not a regular file")
	}
	f, err := root.Open(name)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, io.LimitReader(f, most+1))
	if err != nil {
		return File{}, err
	}
	if size > most {
		return File{}, fmt.Errorf("longer than %d bytes", most)
	}
	return File{Name: name, SHA256: [sha256.Size]byte(h.Sum(nil)), Size: size}, nil
}

// List is for Replica.Files.
func (o *Folder) List() []File { return slices.Clone(o.files) }

// Open opens a file by its hash. What it reads may have changed since; whoever reads it checks.
func (o *Folder) Open(sum [sha256.Size]byte) (io.ReadCloser, int64, bool) {
	i := slices.IndexFunc(o.files, func(f File) bool { return f.SHA256 == sum })
	if i < 0 {
		return nil, 0, false
	}
	root, err := os.OpenRoot(o.path)
	if err != nil {
		return nil, 0, false
	}
	defer root.Close()
	info, err := root.Stat(o.files[i].Name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != o.files[i].Size {
		return nil, 0, false
	}
	f, err := root.Open(o.files[i].Name)
	if err != nil {
		return nil, 0, false
	}
	return f, o.files[i].Size, true
}
