package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/enginesim"
)

// TestStateDir holds that a mirror is saved when its subscriber ends and taken up by the next one, and that its file goes when the
// endpoint leaves the configuration or is reset.
func TestStateDir(t *testing.T) {
	engines := make([]*enginesim.Engine, 2)
	for i := range engines {
		e, err := enginesim.New(enginesim.Options{Events: enginesim.Events{Bind: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Topic: "kv-events"}})
		if err != nil {
			t.Fatal(err)
		}
		background(t, e.Run)
		ready(t, e)
		engines[i] = e
	}
	dir := filepath.Join(t.TempDir(), "state")
	text := func(topic string, engines ...*enginesim.Engine) string {
		s := fmt.Appendf(nil, "state_dir: %q\npools:\n- name: chat\n  models: [tiny]\n  endpoints:\n", dir)
		for _, e := range engines {
			s = fmt.Appendf(s, "  - {address: %q, events: {dial: \"tcp://%s\", replay: \"tcp://%s\", topic: %q}}\n", e.Addr(), e.EventsAddr(), e.ReplayAddr(), topic)
		}
		return string(s)
	}
	saved := func(e *enginesim.Engine) int {
		files, err := filepath.Glob(filepath.Join(dir, "chat_"+strings.ReplaceAll(e.Addr(), ":", "_")+"_0-*.mirror"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	r := startRunning(t, text("kv", engines...))
	if err := r.followers.prepare(followedBy(r.reloads.config())); err != nil {
		t.Fatal(err)
	}
	known := func(e *enginesim.Engine) func() bool {
		return func() bool { return r.endpoint(e.Addr()).Blocks > 0 }
	}
	for _, e := range engines {
		r.until("events are followed", func() bool { return r.endpoint(e.Addr()).Connected })
		complete(t, e, strings.Repeat("some words ", 100))
		r.until("blocks are known", known(e))
	}
	r.change(text("kv-", engines...)) // ends both subscribers and begins others
	for _, e := range engines {
		r.until("blocks are known again", known(e))
		if saved(e) != 1 {
			t.Errorf("%d files of %s, want 1", saved(e), e.Addr())
		}
	}
	if n := strings.Count(r.log.String(), "mirror restored"); n != 2 {
		t.Errorf("%d mirrors restored, want 2", n)
	}

	r.change(text("kv-", engines[0]))
	r.until("the file of the endpoint that left is gone", func() bool { return saved(engines[1]) == 0 })
	if saved(engines[0]) != 1 {
		t.Error("the file of the endpoint that stayed is gone")
	}
	r.followers.restart(engines[0].Addr())
	r.until("the file of the endpoint that was reset is gone", func() bool { return saved(engines[0]) == 0 })
	r.until("blocks are learned anew", known(engines[0]))
	if n := strings.Count(r.log.String(), "mirror restored"); n != 2 {
		t.Errorf("%d mirrors restored, want 2: a reset is to learn anew", n)
	}
}

// TestStateDirRefused holds that a folder that cannot be used ends the start, and names the key.
func TestStateDirRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		cfg, err := config.Parse("a", fmt.Appendf(nil, "state_dir: %q\npools: [{name: chat, models: [tiny], endpoints: [{address: \"10.0.0.1:8000\"}]}]", dir))
		if err != nil {
			t.Fatal(err)
		}
		r, err := newService("kvsteer.yaml", cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer r.reloads.tokenizers.current.Close()
		if err := r.run(t.Context()); err == nil || !strings.Contains(err.Error(), "state_dir: ") {
			t.Errorf("%s: error %v, want one of state_dir", dir, err)
		}
	}
}
