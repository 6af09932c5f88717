package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// echo answers each chat with the number of its messages and keeps them by system prompt.
type echo struct {
	mu    sync.Mutex
	chats map[string][][]lab.Message
	fail  bool
}

func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var chat lab.ChatRequest
	_ = json.NewDecoder(r.Body).Decode(&chat)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.chats == nil {
		e.chats = map[string][][]lab.Message{}
	}
	e.chats[chat.Messages[0].Content] = append(e.chats[chat.Messages[0].Content], chat.Messages)
	if e.fail {
		http.Error(w, "no", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"answer %d\"}}],\"usage\":{\"prompt_tokens\":7}}\n\ndata: [DONE]\n\n", len(chat.Messages))
}

// Every turn sends the whole conversation so far, with the answers that came.
func TestPlay(t *testing.T) {
	e := &echo{}
	server := httptest.NewServer(e)
	defer server.Close()
	script := []conversation{
		{system: "s1", turns: []turn{{user: "a"}, {user: "b"}}},
		{system: "s2", turns: []turn{{user: "c"}}, start: time.Millisecond},
	}
	done := 0
	var mu sync.Mutex
	all := play(t.Context(), &lab.Site{URL: server.URL}, "sim", script, func(r lab.Reply) {
		mu.Lock()
		defer mu.Unlock()
		if done++; !r.OK() {
			t.Errorf("reply %+v", r)
		}
	})
	turns := map[int]int{}
	for _, p := range all {
		turns[p.turn]++
	}
	if diff := cmp.Diff(map[int]int{0: 2, 1: 1}, turns); diff != "" || done != 3 {
		t.Errorf("%d replies; turns (-want +got):\n%s", done, diff)
	}
	want := map[string][][]lab.Message{
		"s1": {
			{{Role: "system", Content: "s1"}, {Role: "user", Content: "a"}},
			{{Role: "system", Content: "s1"}, {Role: "user", Content: "a"}, {Role: "assistant", Content: "answer 2"}, {Role: "user", Content: "b"}},
		},
		"s2": {{{Role: "system", Content: "s2"}, {Role: "user", Content: "c"}}},
	}
	if diff := cmp.Diff(want, e.chats); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestPlayGoesOnAfterAnError(t *testing.T) {
	server := httptest.NewServer(&echo{fail: true})
	defer server.Close()
	all := play(t.Context(), &lab.Site{URL: server.URL}, "other", []conversation{{turns: make([]turn, 3)}}, func(lab.Reply) {})
	if len(all) != 3 || all[0].reply.OK() {
		t.Errorf("%d played, the first %+v; want 3 that failed", len(all), all[0].reply)
	}
}

func TestPlayEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(&echo{})
	defer server.Close()
	script := []conversation{{turns: []turn{{}, {think: time.Hour}}}, {start: time.Hour, turns: make([]turn, 1)}}
	all := play(ctx, &lab.Site{URL: server.URL}, "sim", script, func(lab.Reply) { cancel() })
	if len(all) > 1 {
		t.Errorf("%d requests were sent, want at most the first", len(all))
	}
}

// What the demo cannot start with is said, and no folder is left.
func TestRunWithoutPrograms(t *testing.T) {
	envoy := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(envoy, []byte("#!/bin/sh\necho envoy version: 00/1.40.0/Clean/RELEASE/BoringSSL\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		o    Options
	}{
		{"no Envoy", Options{Kvsteer: "/bin/sh", Envoy: "/none"}},
		{"no kvsteer", Options{Kvsteer: "/none", Envoy: envoy}},
		{"Envoy is another program", Options{Kvsteer: "/bin/sh", Envoy: "/bin/true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			var out strings.Builder
			tt.o.Out = &out
			if err := Run(t.Context(), tt.o); err == nil {
				t.Error("no error")
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestPortHint(t *testing.T) {
	err := portHint(t.Context(), fmt.Errorf("127.0.0.1:18001: %w", lab.ErrPortTaken), 18000, 25)
	if err == nil || !strings.Contains(err.Error(), "18000 to 18024") || !strings.Contains(err.Error(), "--port") {
		t.Errorf("a taken port: %v", err)
	}
	other := errors.New("disk is full")
	if err := portHint(t.Context(), other, 18000, 22); !errors.Is(err, other) {
		t.Errorf("another error: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("took too long")
	cancel(why)
	if err := portHint(ctx, other, 18000, 22); !errors.Is(err, why) {
		t.Errorf("after the end: %v, want its cause", err)
	}
}

// The sites of the arms take ports one after the other, and only the first has engines that publish events.
func TestSites(t *testing.T) {
	next, silent := 18080, []bool{}
	all := sites(next, "1.40.0")
	for _, s := range all {
		if s.BasePort != next {
			t.Errorf("site %s begins at port %d, want %d", s.Name, s.BasePort, next)
		}
		next += s.Ports()
		silent = append(silent, s.Pools[0].Silent)
	}
	if diff := cmp.Diff([]bool{false, true, true}, silent); diff != "" || ports(all) != 29 {
		t.Errorf("%d ports; engines without events (-want +got):\n%s", ports(all), diff)
	}
}
