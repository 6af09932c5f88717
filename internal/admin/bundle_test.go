package admin

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unpacked reads a bundle: text by name without the folder.
func unpacked(t testing.TB, data io.Reader) map[string]string {
	t.Helper()
	plain, err := gzip.NewReader(data)
	check(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		check(t, err)
		text, err := io.ReadAll(archive)
		check(t, err)
		_, name, _ := strings.Cut(header.Name, "/")
		if !strings.HasPrefix(header.Name, "kvsteer-bundle-20270115-080000/") || header.Mode != 0o600 {
			t.Errorf("%s with mode %o", header.Name, header.Mode)
		}
		files[name] = string(text)
	}
}

func TestBundle(t *testing.T) {
	s, err := New(options(newFleet()))
	check(t, err)
	status, body, header := request{method: "GET", path: "/api/v1/bundle"}.send(s.handler())
	if status != 200 || header.Get("Content-Disposition") != `attachment; filename="kvsteer-bundle-20270115-080000.tar.gz"` {
		t.Fatalf("%d, %v", status, header)
	}
	files := unpacked(t, strings.NewReader(body))
	want := map[string]string{
		"README.txt":      "no text or token ids",
		"version.json":    `"version": "1.2.3"`,
		"config.json":     `"listen": "unix:x.sock"`,
		"ready.txt":       "pool chat: no endpoint is up\n",
		"state.json":      `"address": "10.0.0.11:8000"`,
		"metrics.txt":     "kvsteer_test_level 7",
		"decisions.jsonl": `"id":"r-2"`,
		"goroutines.txt":  "goroutine profile: total",
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files, -want +got:\n%s", diff)
	}
	for name, text := range want {
		if !strings.Contains(files[name], text) {
			t.Errorf("%s lacks %q:\n%.500s", name, text, files[name])
		}
		if name != "README.txt" && !strings.Contains(files["README.txt"], name) {
			t.Errorf("README.txt does not tell of %s", name)
		}
	}
	lines := strings.Split(strings.TrimSpace(files["decisions.jsonl"]), "\n")
	if len(lines) != 2 {
		t.Errorf("%d decisions", len(lines))
	}
	for _, l := range lines {
		if !json.Valid([]byte(l)) {
			t.Errorf("not JSON: %s", l)
		}
	}
}

// TestOneBundleAtATime holds one while another is asked for.
func TestOneBundleAtATime(t *testing.T) {
	s, err := New(options(newFleet()))
	check(t, err)
	s.packs <- struct{}{}
	if status, body, _ := (request{method: "GET", path: "/api/v1/bundle"}).send(s.handler()); status != 503 || !strings.Contains(body, "another bundle") {
		t.Errorf("%d %s", status, body)
	}
	<-s.packs
	if status, _, _ := (request{method: "GET", path: "/api/v1/bundle"}).send(s.handler()); status != 200 {
		t.Errorf("afterwards: %d", status)
	}
}

// badConfig cannot be written.
type badConfig struct{}

func (badConfig) MarshalJSON() ([]byte, error) { return nil, errors.New("torn") }

func TestBundleFails(t *testing.T) {
	o := options(newFleet())
	o.Config = func() json.Marshaler { return badConfig{} }
	s, err := New(o)
	check(t, err)
	if status, body, _ := (request{method: "GET", path: "/api/v1/bundle"}).send(s.handler()); status != 500 || !strings.Contains(body, "bundle config.json: ") {
		t.Errorf("bundle: %d %s", status, body)
	}
	if status, _, _ := (request{method: "GET", path: "/api/v1/config"}).send(s.handler()); status != 500 {
		t.Errorf("config: %d", status)
	}
}
