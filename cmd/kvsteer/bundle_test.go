package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/logtest"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/router"
)

// Marks of a request and of key files. None of them may leave the router by its admin listener or its log.
const (
	markPrompt = "marzipan-in-the-prompt"
	markSalt   = "marzipan-in-the-salt"
	markHeader = "marzipan-in-a-header"
	markModel  = "marzipan-in-the-model"
	markPath   = "marzipan-in-the-path"
	markHost   = "marzipan.in.the.host"
	markToken  = 9048571
	markKey    = "marzipan-in-the-key-file"
	markAdmin  = "marzipan-in-the-admin-token"
)

// TestNoTextInBundle sends requests of every kind through the real router, and looks for them in everything that the admin listener tells.
func TestNoTextInBundle(t *testing.T) {
	engine := startEngine(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := write("kvsteer.yaml", fmt.Sprintf(`
admin: {listen: "127.0.0.1:0", token_file: %q}
pools:
- name: chat
  models: [tiny]
  api_key_file: %q
  match: {path_prefix: /chat}
  endpoints:
  - {address: %q, events: {dial: %q}}
  - {address: "127.0.0.1:9"}
- name: code
  models: [coder]
  match: {header: {name: x-api-key, value: %q}}
  endpoints: [{address: "127.0.0.1:10"}]
`, write("token", markAdmin), write("key", markKey), engine.Addr(), "tcp://"+engine.EventsAddr(), markHeader))
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	log := new(logtest.Buffer)
	s, err := newService(path, cfg, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	background(t, s.followers.run)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return s.admin.Run(ctx, l) })
	r := &running{service: s, t: t, log: log}
	r.until("the engine is connected", func() bool { return r.endpoint(engine.Addr()).Connected })
	// Known blocks, so that prompts are tokenized and matched.
	tell(t, "the engine's blocks are known", engine, func() bool { return r.endpoint(engine.Addr()).Matchable }, strings.Repeat(markPrompt+" ", 20))

	tokens := strings.TrimSuffix(strings.Repeat(fmt.Sprint(markToken)+",", 64), ",")
	bodies := []string{
		fmt.Sprintf(`{"model":"tiny","prompt":%q}`, strings.Repeat(markPrompt+" ", 20)),
		fmt.Sprintf(`{"model":"tiny","cache_salt":%q,"messages":[{"role":"user","content":%q}]}`, markSalt, markPrompt),
		fmt.Sprintf(`{"model":"tiny","prompt":[%s]}`, tokens),
		fmt.Sprintf(`{"model":%q,"prompt":%q}`, markModel, markPrompt),
		fmt.Sprintf(`{"model":"tiny","prompt":%q`, markPrompt),
		markPrompt,
		fmt.Sprintf(`{"model":"tiny","prompt":{"a":%q}}`, markPrompt),
	}
	reasons := map[router.Reason]bool{}
	for _, p := range []string{"/v1/completions", "/chat/v1/chat/completions", "/" + markPath} {
		for _, body := range bodies {
			d := s.router.Decide(t.Context(), router.Request{
				Meta: openai.Meta{Method: "POST", Path: p, ContentType: "application/json"}, Host: markHost,
				Header: func(string) string { return markHeader }, Body: []byte(body),
			})
			reasons[d.Reason] = true
		}
	}
	if len(reasons) < 4 || !reasons[router.ReasonPrefix] {
		t.Errorf("only the reasons %v came up", reasons)
	}

	get := func(path string) []byte {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+markAdmin)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer http.DefaultClient.CloseIdleConnections()
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %d %s %v", path, resp.StatusCode, text, err)
		}
		return text
	}
	told := unpack(t, get("/api/v1/bundle"))
	for _, p := range []string{"/metrics", "/api/v1/state", "/api/v1/decisions?n=1000", "/api/v1/config"} {
		told[p] = string(get(p))
	}
	told["log"] = log.String()
	if n := strings.Count(told["decisions.jsonl"], "\n"); n != 3*len(bodies) {
		t.Errorf("%d decisions in the bundle, want %d", n, 3*len(bodies))
	}
	if len(told) != 8+4+1 {
		t.Errorf("%d texts looked at", len(told))
	}
	for name, text := range told {
		if text == "" && name != "ready.txt" {
			t.Errorf("%s is empty", name)
		}
		for _, mark := range []string{"marzipan", fmt.Sprint(markToken)} {
			if at := strings.Index(text, mark); at >= 0 {
				t.Errorf("%s tells %q: …%s…", name, mark, text[max(0, at-80):min(len(text), at+80)])
			}
		}
	}
	var shown map[string]any
	if err := json.Unmarshal([]byte(told["config.json"]), &shown); err != nil || shown["pools"] == nil {
		t.Errorf("config.json: %v", err)
	}
}

// unpack reads a bundle: text by name without the folder.
func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(text)
	}
}
