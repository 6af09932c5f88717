package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// date is some commit's.
const date = 1_700_000_000

// compile builds a program for a platform.
func compile(t *testing.T, platform, dir, from string, flags ...string) string {
	t.Helper()
	system, machine, _ := strings.Cut(platform, "/")
	out := filepath.Join(t.TempDir(), "kvsteer")
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-o", out}, flags...), from)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+machine)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, text)
	}
	return out
}

// other is a small program for a platform: the contents of binaries of other platforms do not matter here.
func other(t *testing.T, platform string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module other\n\ngo 1.26\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return compile(t, platform, dir, ".")
}

// TestImage builds the image of this host's kvsteer, with one of another platform beside it, and reads it back.
func TestImage(t *testing.T) {
	host := "linux/" + runtime.GOARCH
	platforms := []string{"linux/amd64", "linux/arm64"}
	if !slices.Contains(platforms, host) {
		t.Fatalf("the image is not built for %s", host)
	}
	own := map[string]string{}
	args := []string{"--version", "v1.2.3", "--revision", "abc", "--date", "1700000000"}
	for _, p := range platforms {
		if p == host {
			own[p] = compile(t, p, "../..", "./cmd/kvsteer", "-ldflags", "-X main.version=v1.2.3")
		} else {
			own[p] = other(t, p)
		}
		args = append(args, "--binary", p+"="+own[p])
	}
	dir := t.TempDir()
	if err := run(append(args, "--out", dir)); err != nil {
		t.Fatal(err)
	}
	index := reading(t, filepath.Join(dir, "oci"))
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range manifest.Manifests {
		platform := d.Platform.String()
		found = append(found, platform)
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c := config.Config; config.OS+"/"+config.Architecture != platform || c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/kvsteer"}) ||
			len(c.Cmd) > 0 || len(c.Env) > 0 || !config.Created.Equal(time.Unix(date, 0)) ||
			c.Labels["org.opencontainers.image.version"] != "v1.2.3" || c.Labels["org.opencontainers.image.revision"] != "abc" {
			t.Errorf("%s: configuration %+v", platform, config)
		}
		files := contents(t, image)
		if names := slices.Sorted(func(yield func(string) bool) {
			for name := range files {
				if !yield(name) {
					return
				}
			}
		}); !slices.Equal(names, []string{"LICENSE", "THIRD_PARTY_NOTICES", "kvsteer"}) {
			t.Errorf("%s: files %q", platform, names)
		}
		binary, err := os.ReadFile(own[platform])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(files["kvsteer"], binary) {
			t.Errorf("%s: /kvsteer is another binary, of %d bytes", platform, len(files["kvsteer"]))
		}
		if platform != host {
			continue
		}
		extracted := filepath.Join(t.TempDir(), "kvsteer")
		if err := os.WriteFile(extracted, files["kvsteer"], 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(extracted, "version")
		cmd.Env = []string{} // as in the image
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "kvsteer v1.2.3 ") {
			t.Errorf("the binary in the image says %q: %v", out, err)
		}
	}
	if !slices.Equal(found, platforms) {
		t.Errorf("platforms %q, want %q", found, platforms)
	}

	// The same input gives the same digest, and the same file.
	again := t.TempDir()
	if err := run(append(args, "--out", again)); err != nil {
		t.Fatal(err)
	}
	if a, b := digest(t, index), digest(t, reading(t, filepath.Join(again, "oci"))); a != b {
		t.Errorf("digests %s and %s of the same input", a, b)
	}
	for _, d := range []string{dir, again} {
		if err := isArchive(filepath.Join(d, "kvsteer.tar"), filepath.Join(dir, "oci")); err != nil {
			t.Errorf("kvsteer.tar: %v", err)
		}
	}
	one, two := content(t, filepath.Join(dir, "kvsteer.tar")), content(t, filepath.Join(again, "kvsteer.tar"))
	if !bytes.Equal(one, two) {
		t.Error("kvsteer.tar differs for the same input")
	}
	// Another date is another image.
	args[slices.Index(args, "1700000000")] = "1700000001"
	if err := run(append(args, "--out", again)); err != nil {
		t.Fatal(err)
	}
	if a, b := digest(t, index), digest(t, reading(t, filepath.Join(again, "oci"))); a == b {
		t.Errorf("digest %s of two dates", a)
	}
}

// reading reads the one index of a layout as crane push does.
func reading(t *testing.T, path string) v1.ImageIndex {
	t.Helper()
	l, err := layout.ImageIndexFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := l.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 || !m.Manifests[0].MediaType.IsIndex() || m.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" ||
		m.Manifests[0].Annotations["io.containerd.image.name"] != "docker.io/library/kvsteer:v1.2.3" {
		t.Fatalf("the layout holds %+v", m.Manifests)
	}
	index, err := l.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func digest(t *testing.T, index v1.ImageIndex) string {
	t.Helper()
	d, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func content(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// contents are the files of an image's layers. Each is root's, and nobody may write it.
func contents(t *testing.T, image v1.Image) map[string][]byte {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers: %v", len(layers), err)
	}
	files := map[string][]byte{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for archive := tar.NewReader(r); ; {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 || !h.ModTime.Equal(time.Unix(date, 0)) || h.Typeflag != tar.TypeReg {
				t.Errorf("%s: owner %d:%d, mode %o, time %v", h.Name, h.Uid, h.Gid, h.Mode, h.ModTime)
			}
			if files[h.Name], err = io.ReadAll(archive); err != nil {
				t.Fatal(err)
			}
		}
	}
	return files
}

// isArchive is an error unless a tar file holds the files of a folder.
func isArchive(name, dir string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	files := 0
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		files++
		got, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		want, err := os.ReadFile(filepath.Join(dir, h.Name))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return errors.New(h.Name + " differs")
		}
		if h.Name == "index.json" && !json.Valid(got) {
			return errors.New("index.json is no JSON")
		}
	}
	if files < 10 { // 2 of the layout; an index, and for each platform a manifest, a configuration, a layer; the licences
		return errors.New("files are missing")
	}
	return nil
}

// TestImageRefuses holds what is no binary to put into an image.
func TestImageRefuses(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	dynamic, err := exec.LookPath("ls")
	if err != nil {
		t.Fatal(err)
	}
	host := "linux/" + runtime.GOARCH
	elsewhere := map[string]string{"linux/amd64": "linux/arm64", "linux/arm64": "linux/amd64"}[host]
	static := other(t, host)
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"none", nil, "no binary is given"},
		{"no platform", []string{"--binary", static}, "is not PLATFORM=FILE"},
		{"an unknown platform", []string{"--binary", "linux/mips=" + static}, "an unknown platform"},
		{"a missing one", []string{"--binary", host + "=" + filepath.Join(dir, "none")}, "no such file"},
		{"a script", []string{"--binary", host + "=" + text}, "no binary of Linux"},
		{"a dynamic one", []string{"--binary", host + "=" + dynamic}, "not static"},
		{"one of another platform", []string{"--binary", elsewhere + "=" + static}, "it is a binary for"},
		{"a platform twice", []string{"--binary", host + "=" + static, "--binary", host + "=" + static}, "given twice"},
		{"no licences", []string{"--binary", host + "=" + static, "--licences", dir}, "LICENSE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := t.TempDir()
			err := run(append(c.args, "--out", out))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if left, _ := filepath.Glob(filepath.Join(out, "*")); len(left) > 0 {
				t.Errorf("it leaves %q", left)
			}
		})
	}
	if err := run([]string{"--binary", host + "=" + static}); err == nil || !strings.Contains(err.Error(), "--out is needed") {
		t.Errorf("without --out: %v", err)
	}
}
