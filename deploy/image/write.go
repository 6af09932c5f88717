package main

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// Write writes an index to dir/oci as an OCI layout, which crane push takes, and to dir/kvsteer.tar as the same in one file, which
// docker load, podman load and ctr images import take. What stood there is replaced. It returns the digest of the index.
func Write(index v1.ImageIndex, dir, name, tag string) (string, error) {
	digest, err := index.Digest()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "oci")
	if err := os.RemoveAll(path); err != nil {
		return "", err
	}
	l, err := layout.Write(path, empty.Index)
	if err != nil {
		return "", err
	}
	// One image for several platforms, known by one name: containerd and Docker read the first of these, others the tag alone.
	err = l.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          name + ":" + tag,
		"org.opencontainers.image.ref.name": tag,
	}))
	if err != nil {
		return "", err
	}
	return digest.String(), archive(path, filepath.Join(dir, "kvsteer.tar"))
}

// archive writes the files of a folder into a tar file, in the order of their names and without what varies.
func archive(dir, to string) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(name), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if d.IsDir() {
			header.Typeflag, header.Mode = tar.TypeDir, 0o755
			header.Name += "/"
			return w.WriteHeader(header)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		header.Typeflag, header.Mode, header.Size = tar.TypeReg, 0o644, info.Size()
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		return err
	})
	for _, close := range []func() error{w.Close, out.Close} {
		if e := close(); err == nil {
			err = e
		}
	}
	return err
}
