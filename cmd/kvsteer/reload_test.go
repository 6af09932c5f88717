package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/enginesim"
	"github.com/kvsteer/kvsteer/internal/logtest"
	"github.com/kvsteer/kvsteer/internal/router"
)

// ready returns when an engine listens. One that was given a port which somebody else has taken meanwhile never does.
func ready(t *testing.T, e *enginesim.Engine) {
	t.Helper()
	select {
	case <-e.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the engine does not listen within a minute")
	}
}

// startEngine runs a simulated engine until the test ends.
func startEngine(t *testing.T) *enginesim.Engine {
	t.Helper()
	e, err := enginesim.New(enginesim.Options{Events: enginesim.Events{Bind: "tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	background(t, e.Run)
	ready(t, e)
	return e
}

// background runs a part until the test ends, and wants it to end then without an error.
func background(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// complete has an engine compute, and announce, a prompt.
func complete(t *testing.T, e *enginesim.Engine, prompt string) {
	t.Helper()
	post(t, e, "/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":1}`, prompt))
}

// tell has an engine compute prompts until what it publishes of them is known. It may publish the first ones before it has read the subscription of who is
// connected already, and without a replay these are lost; so it forgets them and computes them again.
func tell(t *testing.T, what string, e *enginesim.Engine, known func() bool, prompts ...string) {
	t.Helper()
	var next time.Time
	until(t, what, func() bool {
		if known() {
			return true
		}
		if now := time.Now(); now.After(next) {
			if !next.IsZero() {
				post(t, e, "/reset_prefix_cache", "")
			}
			for _, p := range prompts {
				complete(t, e, p)
			}
			next = now.Add(3 * time.Second)
		}
		return known()
	})
}

func post(t *testing.T, e *enginesim.Engine, path, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+e.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
}

// running is a service whose parts for events and configuration run.
type running struct {
	*service
	t    *testing.T
	path string
	log  *logtest.Buffer
}

func startRunning(t *testing.T, text string) *running {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kvsteer.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	log := new(logtest.Buffer)
	s, err := newService(path, cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	background(t, s.pools.Run)
	background(t, s.followers.run)
	background(t, func(ctx context.Context) error { return s.reloads.run(ctx, nil) })
	return &running{service: s, t: t, path: path, log: log}
}

// change replaces the file and waits until what it says is in use.
func (r *running) change(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.path+".new", []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.path+".new", r.path); err != nil {
		r.t.Fatal(err)
	}
	want, err := config.Load(r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.until("the configuration is in use", func() bool { return len(config.Diff(want, r.reloads.config())) == 0 })
}

func (r *running) endpoint(address string) router.EndpointState {
	for _, p := range r.router.State().Pools {
		for _, e := range p.Endpoints {
			if e.Address == address {
				return e
			}
		}
	}
	return router.EndpointState{}
}

func (r *running) until(what string, condition func() bool) {
	r.t.Helper()
	until(r.t, what, condition)
}

func site(endpoints ...string) string {
	return "probe: {interval: 500ms}\npools:\n- name: chat\n  models: [tiny]\n  endpoints:\n  - " + strings.Join(endpoints, "\n  - ") + "\n"
}

func dialled(e *enginesim.Engine, more string) string {
	return fmt.Sprintf("{address: %q, events: {dial: %q%s}}", e.Addr(), "tcp://"+e.EventsAddr(), more)
}

func TestReloadKeepsSubscribers(t *testing.T) {
	a, b, c := startEngine(t), startEngine(t), startEngine(t)
	r := startRunning(t, site(dialled(a, ""), dialled(b, "")))
	known := func(e *enginesim.Engine) bool { return r.endpoint(e.Addr()).Matchable }
	connected := func(e *enginesim.Engine) bool { return r.endpoint(e.Addr()).Connected }
	r.until("both are connected", func() bool { return connected(a) && connected(b) })
	prompt := strings.Repeat("one two three four ", 20)
	for _, e := range []*enginesim.Engine{a, b} {
		tell(t, "it has blocks", e, func() bool { return known(e) }, prompt)
	}
	blocks := r.endpoint(a.Addr()).Blocks

	// Another topic replaces the subscriber of this endpoint, another order nothing.
	r.change(site(dialled(b, `, topic: ""`), dialled(c, ""), dialled(a, "")))
	if !known(a) || !known(b) || r.endpoint(a.Addr()).Blocks != blocks {
		t.Error("blocks of an endpoint that stays are forgotten")
	}
	r.until("the endpoint that came is connected", func() bool { return connected(c) })
	r.change(site(dialled(c, ""), dialled(a, `, topic: "kv"`)))
	if known(a) {
		t.Error("blocks of another topic are matched")
	}
	r.until("the other topic is connected", func() bool { return connected(a) })
	if got := r.endpoint(b.Addr()); got.Address != "" {
		t.Errorf("an endpoint that has gone is there: %+v", got)
	}

	// Without events it stays and is routed by load; with them again it starts anew.
	r.change(site(fmt.Sprintf("address: %s", a.Addr()), dialled(c, "")))
	r.until("the endpoint has no events", func() bool { return !r.endpoint(a.Addr()).Events })
	r.change(site(dialled(a, ""), dialled(c, "")))
	r.until("it is connected again", func() bool { return connected(a) })
	tell(t, "it has blocks again", a, func() bool { return known(a) }, strings.Repeat("five six seven eight ", 20))
}

func TestResetStartsAnew(t *testing.T) {
	a := startEngine(t)
	r := startRunning(t, site(dialled(a, "")))
	ctl := control{r.router, r.followers, r.feed}
	r.until("the engine is connected", func() bool { return r.endpoint(a.Addr()).Connected })
	known := func() bool { return r.endpoint(a.Addr()).Matchable }
	tell(t, "it has blocks", a, known, strings.Repeat("one two three four ", 40))
	if err := ctl.Reset(a.Addr()); err != nil {
		t.Fatal(err)
	}
	r.until("it is connected with nothing known", func() bool {
		e := r.endpoint(a.Addr())
		return e.Connected && e.Blocks == 0 && e.Problem == ""
	})
	tell(t, "it has blocks again", a, known, strings.Repeat("five six seven eight ", 40))
	if err := ctl.Reset("10.9.9.9:1"); !errors.Is(err, router.ErrUnknown) {
		t.Errorf("reset of no endpoint: %v", err)
	}
}

// An address that cannot be listened on after a reload is tried again, and ends nothing.
func TestReloadListensWhenItCan(t *testing.T) {
	a := startEngine(t)
	r := startRunning(t, site(dialled(a, "")))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listening := fmt.Sprintf("{address: %q, events: {listen: %q}}", "127.0.0.1:9", "tcp://"+taken.Addr().String())
	r.change(site(dialled(a, ""), listening))
	r.until("it is said", func() bool { return strings.Contains(r.log.String(), "events cannot be received") })
	taken.Close()
	r.until("it listens", func() bool { return strings.Contains(r.log.String(), "waiting for the engine") })
	r.until("the other one is connected", func() bool { return r.endpoint(a.Addr()).Connected })

	// The address passes to another endpoint in one step.
	r.change(site(dialled(a, ""), strings.Replace(listening, "127.0.0.1:9", "127.0.0.1:10", 1)))
	r.until("it listens for the other one", func() bool { return strings.Count(r.log.String(), "waiting for the engine") == 2 })
	if n := strings.Count(r.log.String(), "events cannot be received"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// Keys of engines are read again when their file changes.
func TestReloadReadsKeys(t *testing.T) {
	r := startRunning(t, site("address: 127.0.0.1:9"))
	key := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keys := func() map[string]string {
		r.reloads.mu.Lock()
		defer r.reloads.mu.Unlock()
		return r.reloads.keys
	}
	write("very-secret")
	r.change(strings.Replace(site("address: 127.0.0.1:9"), "models:", "api_key_file: "+key+"\n  models:", 1))
	if keys()["chat"] != "very-secret" {
		t.Error("the key is not in use")
	}
	write("more-secret")
	r.until("the other key is in use", func() bool { return keys()["chat"] == "more-secret" })
	write("")
	r.until("an empty key is refused", func() bool { return strings.Contains(r.log.String(), "does not hold one line of text") })
	if keys()["chat"] != "more-secret" || strings.Contains(r.log.String(), "-secret") {
		t.Error("the key is lost, or in the log")
	}
}

func TestNames(t *testing.T) {
	var many []string
	for i := range maxNamed + 5 {
		many = append(many, fmt.Sprint(i))
	}
	tests := []struct {
		name string
		keys []string
		want string
	}{
		{"none", nil, ""},
		{"one", []string{"budget"}, "budget"},
		{"as many as fit", many[:maxNamed], strings.Join(many[:maxNamed], " ")},
		{"too many", many, strings.Join(many[:maxNamed], " ") + " and 5 more"},
	}
	for _, tt := range tests {
		before := slices.Clone(tt.keys)
		if got := names(tt.keys); got != tt.want || !slices.Equal(before, tt.keys) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
