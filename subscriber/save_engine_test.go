package subscriber

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/enginesim"
	"github.com/kvsteer/kvsteer/internal/logtest"
)

// setSink keeps what is announced, for a look from another goroutine.
type setSink struct {
	mu          sync.Mutex
	set         map[uint64]bool
	resets      int
	description Description
}

func (s *setSink) Store(tier Tier, keys []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if tier == Any {
			s.set[k] = true
		}
	}
}

func (s *setSink) Remove(tier Tier, keys []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if tier == Any {
			delete(s.set, k)
		}
	}
}

func (s *setSink) Reset(Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.set)
	s.resets++
}

func (s *setSink) Describe(d Description) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.description = d
}

func (s *setSink) look() (set map[uint64]bool, connected bool, resets int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.set), s.description.Connected, s.resets
}

// followed is an engine with a Subscriber at work.
type followed struct {
	sink    *setSink
	log     *logtest.Buffer
	reg     *prometheus.Registry
	skipped atomic.Int64 // time that its clock is ahead
	stop    func()
}

func followSaved(t *testing.T, e *enginesim.Engine, state string) *followed {
	t.Helper()
	f := &followed{sink: &setSink{set: map[uint64]bool{}}, log: new(logtest.Buffer), reg: prometheus.NewRegistry()}
	s, err := New(Options{
		Pool: "chat", Endpoint: "127.0.0.1:8000", Dial: "tcp://" + e.EventsAddr(), Replay: "tcp://" + e.ReplayAddr(), StateDir: NewStateDir(state),
		BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond, Keep: time.Hour,
		Sink: f.sink, Log: slog.New(slog.NewTextHandler(f.log, nil)), Metrics: NewMetrics(f.reg),
		Now: func() time.Time { return time.Now().Add(time.Duration(f.skipped.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// counted returns the values of a counter by outcome that are not 0.
func (f *followed) counted(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := f.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" && m.GetCounter().GetValue() > 0 {
					out[l.GetValue()] = m.GetCounter().GetValue()
				}
			}
		}
	}
	return out
}

// simulated is an engine whose prompts the test sends.
type simulated struct {
	t    *testing.T
	e    *enginesim.Engine
	stop func()
	next int
	http *http.Client
}

func simulate(t *testing.T, bind, replay string) *simulated {
	t.Helper()
	e, err := enginesim.New(enginesim.Options{
		BlockSize: 4, Blocks: 60, Events: enginesim.Events{Bind: bind, Replay: replay, BufferSteps: 6, Topic: "kv"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	select {
	case <-e.Ready():
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	s := &simulated{t: t, e: e, http: &http.Client{Transport: &http.Transport{}}}
	s.stop = sync.OnceFunc(func() {
		s.http.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// prompts sends n prompts of 3 blocks, each of which gives one batch; the cache evicts.
func (s *simulated) prompts(n int) {
	s.t.Helper()
	for range n {
		var ids []string
		for i := range 12 {
			ids = append(ids, fmt.Sprint(s.next*12+i))
		}
		s.next++
		body := fmt.Sprintf(`{"max_tokens":1,"prompt":[%s]}`, strings.Join(ids, ","))
		resp, err := s.http.Post("http://"+s.e.Addr()+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// last is the fingerprint of the last prompt's first block.
func (s *simulated) last() uint64 {
	tokens := make([]uint32, 4)
	for i := range tokens {
		tokens[i] = uint32((s.next-1)*12 + i)
	}
	return blockhash.Chain(blockhash.Namespace{Pool: "chat", BlockSize: 4}.Root(), blockhash.Content(tokens, nil))
}

func (f *followed) until(t *testing.T, what string, ok func(set map[uint64]bool, connected bool) bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		set, connected, _ := f.sink.look()
		if ok(set, connected) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s: %d blocks, connected %v\n%s", what, len(set), connected, f.log)
		}
		<-tick.C
	}
}

// TestResume stops a subscriber, has the engine go on, and starts another one on the same folder. What it announces is compared with
// what a subscriber announces that was there all the time.
func TestResume(t *testing.T) {
	file := func(dir string) string {
		return newSavedFile(dir, identity{pool: "chat", endpoint: "127.0.0.1:8000"}).path()
	}
	for name, tc := range map[string]struct {
		meanwhile func(t *testing.T, e *simulated, dir string)
		want      string // outcome
		all       bool   // everything is announced at once
		aside     bool
	}{
		"nothing happened":                   {func(*testing.T, *simulated, string) {}, "resumed", true, false},
		"a few batches":                      {func(_ *testing.T, e *simulated, _ string) { e.prompts(5) }, "resumed", true, false},
		"more batches than the engine keeps": {func(_ *testing.T, e *simulated, _ string) { e.prompts(9) }, "not_proven", false, false},
		"another engine": {func(t *testing.T, e *simulated, _ string) {
			bind, replay := "tcp://"+e.e.EventsAddr(), "tcp://"+e.e.ReplayAddr()
			e.stop()
			*e = *simulate(t, bind, replay)
			e.next = 1000
			e.prompts(30)
		}, "not_proven", false, false},
		"another engine that has not come as far": {func(t *testing.T, e *simulated, _ string) {
			bind, replay := "tcp://"+e.e.EventsAddr(), "tcp://"+e.e.ReplayAddr()
			e.stop()
			*e = *simulate(t, bind, replay)
			e.next = 1000
			e.prompts(3)
		}, "not_proven", true, false},
		"no file": {func(t *testing.T, _ *simulated, dir string) {
			if err := os.Remove(file(dir)); err != nil {
				t.Fatal(err)
			}
		}, "none", false, false},
		"a damaged file": {func(t *testing.T, _ *simulated, dir string) {
			b, err := os.ReadFile(file(dir))
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2]++
			if err := os.WriteFile(file(dir), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "damaged", false, true},
		"the file of another endpoint": {func(t *testing.T, _ *simulated, dir string) {
			id := identity{pool: "chat", endpoint: "127.0.0.1:8001"}
			f := savedFile{dir: dir, name: strings.TrimSuffix(filepath.Base(file(dir)), savedSuffix), create: newSavedFile(dir, id).create}
			if err := f.write(newFold(foldOptions{sink: &nullSink{}}).snapshot(id, position{}, time.Now())); err != nil {
				t.Fatal(err)
			}
		}, "foreign", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			e := simulate(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
			always := followSaved(t, e.e, "")
			first := followSaved(t, e.e, dir)
			for _, f := range []*followed{always, first} {
				f.until(t, "connected", func(_ map[uint64]bool, connected bool) bool { return connected })
			}
			e.prompts(20) // more than the engine keeps
			for _, f := range []*followed{always, first} {
				f.until(t, "all batches", func(set map[uint64]bool, connected bool) bool {
					return connected && set[e.last()] && len(set) > 40
				})
			}
			first.stop()
			if got := first.counted(t, "kvsteer_subscriber_saves_total"); len(got) > 0 {
				t.Errorf("series are left: %v", got)
			}
			if _, err := os.Stat(file(dir)); err != nil {
				t.Fatalf("%v\n%s", err, first.log)
			}
			tc.meanwhile(t, e, dir)
			second := followSaved(t, e.e, dir)
			second.until(t, "connected", func(_ map[uint64]bool, connected bool) bool { return connected })
			if got := second.counted(t, "kvsteer_subscriber_restores_total"); !cmp.Equal(got, map[string]float64{tc.want: 1}) {
				t.Errorf("restores %v, want one %s\n%s", got, tc.want, second.log)
			}
			if set, _, resets := second.sink.look(); tc.all && (len(set) == 0 || resets > 0) {
				t.Errorf("%d blocks announced at once after %d resets", len(set), resets)
			}
			if _, err := os.Stat(strings.TrimSuffix(file(dir), savedSuffix) + damagedSuffix); (err == nil) != tc.aside {
				t.Errorf("set aside: %v, want %v", err, tc.aside)
			}
			if tc.aside && !strings.Contains(second.log.String(), "level=WARN msg=\"the saved mirror is set aside") {
				t.Errorf("not said:\n%s", second.log)
			}
			switch {
			case tc.all:
				second.until(t, "all blocks", func(set map[uint64]bool, _ bool) bool {
					want, _, _ := always.sink.look()
					return len(want) > 0 && cmp.Equal(want, set)
				})
			default:
				// Never a block that the engine does not hold.
				always.until(t, "settled", func(_ map[uint64]bool, connected bool) bool { return connected })
			}
			e.prompts(3)
			second.until(t, "new blocks", func(set map[uint64]bool, _ bool) bool {
				want, _, _ := always.sink.look()
				for k := range set {
					if !want[k] {
						return false
					}
				}
				return len(set) >= 9 && (!tc.all || len(set) == len(want))
			})
		})
	}
}

// TestSavePeriodically wants a mirror to be saved while its subscriber runs, so that one that is killed loses little; and a folder that
// cannot be written to be said, counted, and to disturb nothing.
func TestSavePeriodically(t *testing.T) {
	dir := t.TempDir()
	e := simulate(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	f := followSaved(t, e.e, dir)
	f.until(t, "connected", func(_ map[uint64]bool, connected bool) bool { return connected })
	e.prompts(4)
	f.until(t, "blocks", func(set map[uint64]bool, _ bool) bool { return len(set) == 12 })
	count := func(outcome string, n float64) {
		t.Helper()
		f.until(t, outcome, func(map[uint64]bool, bool) bool {
			f.skipped.Add(int64(time.Minute))
			return f.counted(t, "kvsteer_subscriber_saves_total")[outcome] >= n
		})
	}
	f.skipped.Add(int64(firstSave))
	count("saved", 1)
	path := newSavedFile(dir, identity{pool: "chat", endpoint: "127.0.0.1:8000"}).path()
	saved, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	e.prompts(1)
	count("failed", 1)
	if !strings.Contains(f.log.String(), "the mirror cannot be saved") {
		t.Errorf("not said:\n%s", f.log)
	}
	e.prompts(1)
	f.until(t, "blocks", func(set map[uint64]bool, _ bool) bool { return len(set) == 18 })
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	count("saved", 2)
	f.stop()

	// Killed after the first save.
	if err := os.WriteFile(path, saved, 0o600); err != nil {
		t.Fatal(err)
	}
	e.prompts(1)
	g := followSaved(t, e.e, dir)
	g.until(t, "all blocks", func(set map[uint64]bool, connected bool) bool { return connected && len(set) == 21 })
	if got := g.counted(t, "kvsteer_subscriber_restores_total"); !cmp.Equal(got, map[string]float64{"resumed": 1}) {
		t.Errorf("restores %v", got)
	}
	if problems, err := testutil.GatherAndLint(g.reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
