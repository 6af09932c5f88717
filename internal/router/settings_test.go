package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// only is the pool chat with these endpoints.
func only(endpoints ...string) pool.Config {
	c := chat(0)
	c.Endpoints = endpoints
	return c
}

// What stays in the configuration keeps blocks and charges; what goes leaves nothing behind.
func TestApplyKeepsWhatStays(t *testing.T) {
	a, b, c := address(0), address(1), address(2)
	reg := prometheus.NewRegistry()
	w := newWorld(t, Options{Metrics: NewMetrics(reg)}, chat(2))
	prompt := run(1, 10*block)
	w.hold(a, block, plain, prompt[:4*block])
	w.hold(b, block, plain, prompt[:2*block])
	before := w.r.Decide(t.Context(), given("llama", prompt))
	charged := w.loads(w.clock())[0].backlog
	if charged == 0 || before.Endpoint != a {
		t.Fatalf("decision %+v charged %v", before, charged)
	}

	w.apply(only(c, a))
	if got := w.loads(w.clock())[1].backlog; got != charged {
		t.Errorf("the endpoint that stays is charged with %v, want %v", got, charged)
	}
	w.pass(time.Hour)
	after := w.r.Decide(t.Context(), given("llama", prompt))
	if after.Endpoint != a || after.Second != c || after.Matched != before.Matched {
		t.Errorf("decision %+v, want %s with %d tokens, then %s", after, a, before.Matched, c)
	}
	if err := w.r.Drain(b, true); !errors.Is(err, ErrUnknown) {
		t.Errorf("drain of an endpoint that is gone: %v", err)
	}
	if _, err := w.r.Source("chat", c, 0); err != nil {
		t.Errorf("source of the endpoint that came: %v", err)
	}
	w.sources[b].Store(subscriber.Any, []uint64{1}) // its subscriber has not ended yet
	w.sources[b].Close()
	if got := w.index.Stats().Slots; got != 1 {
		t.Errorf("%d slots in use, want that of the endpoint that stays", got)
	}
	families, err := reg.Gather()
	if err != nil || strings.Contains(fmt.Sprint(families), b) {
		t.Errorf("series of an endpoint that is gone, error %v", err)
	}

	// Back again, nothing is known of it, and it can be subscribed to.
	w.apply(only(a, b))
	if _, err := w.r.Source("chat", b, 0); err != nil {
		t.Errorf("source of an endpoint that is back: %v", err)
	}
	w.pass(time.Hour)
	if d := w.r.Decide(t.Context(), given("llama", prompt)); d.Endpoint != a {
		t.Errorf("decision %+v", d)
	}
}

func TestApplyMovesAnEndpoint(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	b := address(1)
	w.hold(b, block, plain, run(1, 4*block))
	other := pool.Config{Name: "other", Models: []string{"qwen"}, Endpoints: []string{b}}
	w.apply(only(address(0)), other)
	d := w.r.Decide(t.Context(), given("qwen", run(1, 5*block)))
	if d.Pool != "other" || d.Endpoint != b || d.Reason != ReasonSingle {
		t.Errorf("decision %+v", d)
	}
	if _, err := w.r.Source("chat", b, 0); err == nil {
		t.Error("a source in the pool that it left")
	}
	if _, err := w.r.Source("other", b, 0); err != nil {
		t.Errorf("source in the pool that it came to: %v", err)
	}
}

func TestApplyRefusesAll(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	state := w.r.State()
	tests := []struct {
		name     string
		pools    []pool.Config
		settings Settings
		want     string
	}{
		{"no pools", nil, Settings{}, "none given"},
		{"bad address", []pool.Config{only("engine:1")}, Settings{}, "engine:1"},
		{"bad budget", []pool.Config{only(address(9))}, Settings{Budget: -1}, "budget"},
	}
	for _, tt := range tests {
		if err := w.r.Apply(tt.pools, tt.settings); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
		if diff := cmp.Diff(state, w.r.State()); diff != "" {
			t.Errorf("%s: changed (- before, + after):\n%s", tt.name, diff)
		}
	}
	if got := w.r.settings.Load().Budget; got != 400*time.Millisecond {
		t.Errorf("budget %v", got)
	}
}

func TestApplySettings(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	w.hold(address(0), block, plain, run(1, 4*block))
	prompt := completion(`"model":"llama","prompt":"` + strings.Repeat("x", 100) + `"`)
	other := &words{}
	keyed := chat(2)
	keyed.PrefillRate = 1
	s := Settings{Tokenizer: other, APIKeys: map[string]string{"chat": "secret"}, Limits: openai.Limits{PromptTokens: 1000}}
	if err := w.r.Apply([]pool.Config{keyed}, s); err != nil {
		t.Fatal(err)
	}
	if d := w.r.Decide(t.Context(), prompt); d.Prompt == 0 {
		t.Errorf("decision %+v", d)
	}
	if other.count() != 1 || w.words.count() != 0 || other.last.APIKey != "secret" {
		t.Errorf("%d calls of the new tokenizer with key %q, %d of the old one", other.count(), other.last.APIKey, w.words.count())
	}
	before := w.loads(w.clock())[0].backlog + w.loads(w.clock())[1].backlog
	w.pass(10 * time.Second)
	if after := w.loads(w.clock())[0].backlog + w.loads(w.clock())[1].backlog; after != before-10 {
		t.Errorf("%v tokens worked off in 10 s at one a second", before-after)
	}
	s.Limits.PromptTokens = 50
	if err := w.r.Apply([]pool.Config{keyed}, s); err != nil {
		t.Fatal(err)
	}
	if d := w.r.Decide(t.Context(), prompt); d.Reason != Reason(openai.ReasonTooLong) {
		t.Errorf("reason %q with a lower limit", d.Reason)
	}
}

// What an engine told of its model holds as long as the model's names do.
func TestApplyForgetsTheLengthOfAnotherModel(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	f := w.r.fleet("chat")
	f.maxLen.Store(4096)
	w.apply(chat(3))
	if f.modelLen() != 4096 {
		t.Errorf("length %d with the same model", f.modelLen())
	}
	other := chat(3)
	other.Models = []string{"qwen"}
	w.apply(other)
	if f.modelLen() != 0 {
		t.Errorf("length %d with another model", f.modelLen())
	}
}

// Blocks known at a reset are not matched any more; those that come after the events start anew are.
func TestReset(t *testing.T) {
	a := address(0)
	w := newWorld(t, Options{}, chat(2))
	prompt := run(1, 10*block)
	w.hold(a, block, plain, prompt[:4*block])
	if err := w.r.Reset(a); err != nil {
		t.Fatal(err)
	}
	if err := w.r.Reset(address(1)); err != nil {
		t.Fatal(err) // without a source
	}
	w.hold(a, block, plain, prompt[:6*block])
	if d := w.r.Decide(t.Context(), given("llama", prompt)); d.Reason != ReasonNoIndex {
		t.Errorf("after the reset: %+v", d)
	}
	if s := w.r.State().Pools[0].Endpoints[0]; s.Matchable || s.Problem != problemForgotten {
		t.Errorf("state %+v", s)
	}
	w.sources[a].Reset(subscriber.CauseDisconnect)
	if s := w.r.State().Pools[0].Endpoints[0]; s.Problem != "" {
		t.Errorf("problem %q after events started anew", s.Problem)
	}
	w.pass(time.Hour)
	w.hold(a, block, plain, prompt[:3*block])
	if d := w.r.Decide(t.Context(), given("llama", prompt)); d.Endpoint != a || d.Matched != 3*block {
		t.Errorf("after events started anew: %+v", d)
	}

	// A reset of an endpoint that has no blocks hides none that come.
	w.sources[a].Reset(subscriber.CauseDisconnect)
	if err := w.r.Reset(a); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Hour)
	w.hold(a, block, plain, prompt[:2*block])
	if d := w.r.Decide(t.Context(), given("llama", prompt)); d.Matched != 2*block {
		t.Errorf("after a reset of nothing: %+v", d)
	}
}

func TestState(t *testing.T) {
	a := address(0)
	w := newWorld(t, Options{}, chat(2), code())
	w.hold(a, block, plain, run(1, 4*block))
	w.drain(address(1))
	w.mode("code", ModeObserve, 10)
	w.r.Decide(t.Context(), given("llama", run(1, 4*block)))
	got := w.r.State()
	want := State{Time: epoch, Pools: []PoolState{
		{Name: "chat", Models: []string{"llama"}, Adapters: []string{"sql"}, Mode: ModeOn, Percent: 100, Endpoints: []EndpointState{
			{Address: a, Healthy: true, Events: true, Connected: true, Matchable: true, BlockSize: block, Blocks: 4, DeviceBlocks: 4, Backlog: 64, Memory: 128},
			{Address: address(1), Healthy: true, Draining: true},
		}},
		{Name: "code", Models: []string{"qwen"}, Mode: ModeObserve, Percent: 10},
	}}
	for _, e := range code().Endpoints {
		want.Pools[1].Endpoints = append(want.Pools[1].Endpoints, EndpointState{Address: e, Healthy: true})
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("state (- want, + got):\n%s", diff)
	}
}

// Tools and people get whole tokens, rounded.
func TestStateRounds(t *testing.T) {
	w := newWorld(t, Options{PrefillRate: 1000}, chat(1))
	w.decide(5000)
	w.pass(300 * time.Microsecond) // 0.3 tokens are worked off
	if e := w.r.State().Pools[0].Endpoints[0]; e.Backlog != 5000 {
		t.Errorf("backlog %d after 0.3 tokens, want 5000", e.Backlog)
	}
	w.pass(500 * time.Microsecond)
	if e := w.r.State().Pools[0].Endpoints[0]; e.Backlog != 4999 {
		t.Errorf("backlog %d after 0.8 tokens, want 4999", e.Backlog)
	}
}

func TestSources(t *testing.T) {
	w := newWorld(t, Options{}, chat(4))
	check := func(what string, settled, all int) {
		t.Helper()
		if s, a := w.r.Sources(); s != settled || a != all {
			t.Errorf("%s: %d of %d settled, want %d of %d", what, s, a, settled, all)
		}
	}
	check("none configured", 0, 0)
	for i := range 3 {
		s, err := w.r.Source("chat", address(i), 0)
		if err != nil {
			t.Fatal(err)
		}
		w.sources[address(i)] = s
	}
	check("none connected", 0, 3)
	w.connect(address(0), block)
	check("one connected", 1, 3)
	w.fail(address(1), address(3))
	check("one down", 2, 3)
	w.sources[address(0)].Describe(subscriber.Description{})
	check("one gone", 1, 3)
}

func TestRecent(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	if got := w.r.Recent(10); len(got) != 0 {
		t.Errorf("%d decisions before the first", len(got))
	}
	var ids []string
	for range recentSize + 10 {
		ids = append(ids, w.r.Decide(t.Context(), Request{Unread: true}).ID)
		w.pass(time.Second)
	}
	tests := []struct{ n, want int }{{-1, 0}, {0, 0}, {1, 1}, {10, 10}, {recentSize, recentSize}, {recentSize + 1, recentSize}, {1 << 40, recentSize}}
	for _, tt := range tests {
		got := w.r.Recent(tt.n)
		if len(got) != tt.want {
			t.Errorf("Recent(%d): %d records, want %d", tt.n, len(got), tt.want)
			continue
		}
		for i, r := range got {
			n := len(ids) - 1 - i
			if r.Decision.ID != ids[n] || !r.Time.Equal(epoch.Add(time.Duration(n)*time.Second)) {
				t.Fatalf("Recent(%d)[%d] = %+v, want decision %s", tt.n, i, r, ids[n])
			}
		}
	}
}

// Decisions, calls and reads go on beside other configurations, and each decision names an endpoint of some of them.
func TestApplyBesideDecisions(t *testing.T) {
	index, err := kvindex.New(kvindex.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// What is charged weighs nothing, so that the holder is always the choice.
	o := Options{Index: index, Metrics: NewMetrics(prometheus.NewRegistry()), Now: time.Now, PrefillRate: 1e15, MemoryWeight: -1, NearTie: -1}
	w := newWorld(t, o, chat(3))
	prompt := run(1, 10*block)
	w.hold(address(0), block, plain, prompt[:8*block])
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	beside := func(f func()) {
		wg.Go(func() {
			for ctx.Err() == nil {
				f()
			}
		})
	}
	for range 2 {
		beside(func() {
			d := w.r.Decide(t.Context(), given("llama", prompt))
			if d.Endpoint != address(0) || d.Matched != 8*block {
				t.Errorf("decision %+v", d)
				stop()
			}
		})
	}
	beside(func() {
		w.r.State()
		w.r.Sources()
		for _, r := range w.r.Recent(20) {
			if r.Decision.ID == "" {
				t.Error("a past decision of nothing")
			}
		}
	})
	for i := range 300 {
		w.apply(only(address(0), address(3+i%5), address(8+i%3)))
	}
	stop()
	wg.Wait()
	if got := index.Stats().Slots; got != 1 {
		t.Errorf("%d slots in use", got)
	}
}
