package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// debugCmd groups what helps to find out what is wrong.
type debugCmd struct {
	Bundle bundleCmd `cmd:"" help:"Write what a router holds and has decided to one file, for a report."`
}

type bundleCmd struct {
	Output string `short:"o" help:"File to write; - is standard output. Default: kvsteer-bundle-TIME.tar.gz." placeholder:"FILE"`
	connection
}

// Help tells what is in a bundle.
func (bundleCmd) Help() string {
	return `The bundle is a tar.gz of the configuration without secrets, the state of pools and endpoints, metrics, the last 1,000 decisions and
what the program is doing. It has no text or token ids of requests and no content of key files. It does have names of pools and models,
addresses and paths of files: look through it before you pass it on.`
}

// Run fetches the bundle.
func (c *bundleCmd) Run(ctx context.Context, out io.Writer) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	resp, err := cl.send(ctx, http.MethodGet, "/api/v1/bundle", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := &bounded{r: resp.Body, left: maxAnswer}
	if c.Output == "-" {
		_, err := io.Copy(out, body)
		return err
	}
	path := c.Output
	if path == "" {
		path = "kvsteer-bundle-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
	}
	n, err := writeWhole(path, body)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %d KiB\n", path, (n+1023)/1024)
	return err
}

// bounded reads no more than it may. What is longer is an error, so that no part of it passes for the whole.
type bounded struct {
	r    io.Reader
	left int64 // bytes
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errors.New("the answer is longer than any router's")
	}
	return n, err
}

// writeWhole writes a file that only its owner may read, all of it or nothing.
func writeWhole(path string, r io.Reader) (int64, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if e := new(fs.PathError); errors.As(err, &e) {
		return 0, fmt.Errorf("write %s: %w", path, e.Err) // without the name of the file that would have become it
	} else if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	n, err := io.Copy(f, r)
	if err != nil {
		f.Close()
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	return n, os.Rename(f.Name(), path)
}
