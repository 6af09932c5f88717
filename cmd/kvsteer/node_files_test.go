package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/logtest"
)

func TestModelFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	of := func(name, text string) feed.File {
		return feed.File{Name: name, SHA256: sha256.Sum256([]byte(text)), Size: int64(len(text))}
	}
	write("tokenizer.json", `{"model": 1}`)
	write("chat_template.jinja", "{{ x }}")
	write("model.safetensors", "weights are nobody's business")
	write("vocab.json", strings.Repeat("x", 2000))
	if err := os.Symlink(filepath.Join(dir, "tokenizer.json"), filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "merges.txt"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "tokenizer.model"), 0o600); err != nil { // whose open would wait for a writer
		t.Fatal(err)
	}
	cfg, err := config.ParseNode("n", fmt.Appendf(nil, "state_dir: s\npools:\n- {name: chat, models: [tiny], tokenizer: {dir: %q, max_size: 1KiB}, engines: [{address: \":9\"}]}\n- {name: code, models: [big], engines: [{address: \":10\"}]}\n", dir))
	if err != nil {
		t.Fatal(err)
	}
	log := new(logtest.Buffer)
	m, err := newModelFiles(cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	m.changed = func() { changes++ }
	want := []feed.File{of("chat_template.jinja", "{{ x }}"), of("config.json", `{"model": 1}`), of("tokenizer.json", `{"model": 1}`)}
	if diff := cmp.Diff(want, m.offered("chat")); diff != "" {
		t.Errorf("offered (-want +got):\n%s", diff)
	}
	if got := m.offered("code"); len(got) > 0 {
		t.Errorf("a pool that offers nothing offers %v", got)
	}
	for _, text := range []string{"vocab.json", "more than tokenizer.max_size", "merges.txt", "not a regular file", "tokenizer.model"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("%q is not said:\n%s", text, log)
		}
	}
	read := func(text string) (string, bool) {
		t.Helper()
		f, size, ok := m.Open(sha256.Sum256([]byte(text)))
		if !ok {
			return "", false
		}
		defer f.Close()
		got, err := io.ReadAll(f)
		if err != nil || int64(len(got)) != size {
			t.Errorf("%d bytes of %d, %v", len(got), size, err)
		}
		return string(got), true
	}
	if got, ok := read("{{ x }}"); !ok || got != "{{ x }}" {
		t.Errorf("read %q, %v", got, ok)
	}
	if _, ok := read("weights are nobody's business"); ok {
		t.Error("a file that is not offered is read")
	}

	// What has changed is not what was offered, and is offered anew.
	write("chat_template.jinja", "{{ y }}")
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "chat_template.jinja"), later, later); err != nil {
		t.Fatal(err)
	}
	if got, ok := read("{{ x }}"); ok {
		t.Errorf("a changed file is read as %q", got)
	}
	m.again()
	if got, ok := read("{{ y }}"); !ok || got != "{{ y }}" || changes != 1 {
		t.Errorf("read %q, %v after %d changes", got, ok, changes)
	}

	// A named pipe has come in its place.
	if err := errors.Join(os.Remove(filepath.Join(dir, "chat_template.jinja")), syscall.Mkfifo(filepath.Join(dir, "chat_template.jinja"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, ok := read("{{ y }}"); ok {
		t.Errorf("a named pipe is read as %q", got)
	}

	// Nothing is offered any more.
	cfg.Pools[0].Tokenizer.Dir = ""
	looked := make(chan struct{}, 1)
	m.changed = func() { looked <- struct{}{} }
	background(t, m.run)
	m.set(cfg)
	<-looked
	if _, ok := read("{{ y }}"); ok || len(m.offered("chat")) > 0 {
		t.Errorf("offered are %v", m.offered("chat"))
	}
}

func TestModelFilesRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{file: "is no folder", file + "/none": "not a directory", "": ""} {
		cfg := &config.Node{Pools: []config.NodePool{{Name: "chat", Tokenizer: config.Tokenizer{Dir: dir}}}}
		_, err := newModelFiles(cfg, slog.New(slog.DiscardHandler))
		if (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "pools[0].tokenizer.dir: ")) {
			t.Errorf("%q: error %v", dir, err)
		}
	}
}
