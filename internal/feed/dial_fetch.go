package feed

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

const (
	fetchStall   = 15 * time.Second // from one part of a file to the next
	fetchTimeout = 10 * time.Minute // for a whole file
)

// Fetch reads a file that the node at an address offers into dir and returns its path there. The file is there whole or not at all: size and hash
// have been checked. One that is longer than limit bytes is not asked for. The file's name must be a plain one.
func (r *Router) Fetch(ctx context.Context, node string, file File, dir string, limit int64) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("fetch file %q of node %s: %w", clip(file.Name), node, err)
	}
	addr, err := netip.ParseAddrPort(node)
	switch {
	case err != nil:
		return fail(err)
	case !isPlain(file.Name):
		return fail(errors.New("the name is no plain file name"))
	case file.Size < 0 || file.Size > limit:
		return fail(fmt.Errorf("it has %d bytes, more than %d", file.Size, limit))
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	f, err := os.CreateTemp(dir, ".fetch-*")
	if err != nil {
		return fail(err)
	}
	defer os.Remove(f.Name()) // nothing once it has its name
	err = r.download(ctx, addr, file, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fail(err)
	}
	path := filepath.Join(dir, file.Name)
	if err := os.Rename(f.Name(), path); err != nil {
		return fail(err)
	}
	return path, nil
}

// download writes what the node sends and checks it.
func (r *Router) download(ctx context.Context, addr netip.AddrPort, file File, to io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(r.stallTimeout, func() { cancel(fmt.Errorf("nothing came for %s", r.stallTimeout)) })
	defer stall.Stop()
	c, err := r.connection(addr, func(int) {})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := feedpb.NewFeedClient(c).Fetch(ctx, &feedpb.FetchRequest{Sha256: file.SHA256[:]})
	if err != nil {
		return causeOr(ctx, err)
	}
	hash, size := sha256.New(), int64(0)
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return causeOr(ctx, err)
		}
		stall.Reset(r.stallTimeout)
		if size += int64(len(m.GetContent())); size > file.Size {
			return fmt.Errorf("it is longer than the %d bytes that were announced", file.Size)
		}
		hash.Write(m.GetContent()) // never fails
		if _, err := to.Write(m.GetContent()); err != nil {
			return err
		}
	}
	switch {
	case size != file.Size:
		return fmt.Errorf("%d bytes came, %d were announced", size, file.Size)
	case [sha256.Size]byte(hash.Sum(nil)) != file.SHA256:
		return errors.New("its content has another hash than was announced")
	}
	return nil
}

// isPlain says whether a name can only be that of a file in the folder it is put into.
func isPlain(name string) bool {
	if name == "" || len(name) > 255 || name[0] == '.' {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// causeOr is why ctx has ended, or err while it has not.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
