package router

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestSleepingEngines(t *testing.T) {
	asleep, awake, stale := Load{Sleeping: true}, Load{}, Load{Sleeping: true, Stale: true}
	const any = -1
	tests := []struct {
		name  string
		loads []Load // of endpoints 0 and 1, in the order of telling
		want  int    // endpoint chosen
	}{
		{"awake", []Load{awake, awake}, any},
		{"one sleeps", []Load{asleep, awake}, 1},
		{"the other sleeps", []Load{awake, asleep}, 0},
		{"both sleep", []Load{asleep, asleep}, any},
		{"one slept when it was last heard", []Load{stale, awake}, any},
		{"one sleeps, the other did when it was last heard", []Load{asleep, stale}, 1},
		{"one has woken up", []Load{asleep, awake, awake}, any},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2))
			for i, l := range tt.loads {
				w.r.Report("chat", address(i%2), l)
			}
			chosen := map[string]bool{}
			for range 40 {
				chosen[w.sendAlone(given("llama", run(1, 5))).Endpoint] = true
			}
			if tt.want == any && len(chosen) != 2 || tt.want != any && (len(chosen) != 1 || !chosen[address(tt.want)]) {
				t.Errorf("chosen: %v", chosen)
			}
		})
	}
}

// An engine that falls asleep while the tokenizer is asked is no first choice.
func TestFallingAsleepMeanwhile(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	for i := range 2 {
		w.hold(address(i), block, plain, tokensOf("hello"))
	}
	w.hold(address(0), block, plain, tokensOf(strings.Repeat("x", 10*block)))
	w.words.during = func() { w.r.Report("chat", address(0), Load{Sleeping: true}) }
	d := w.r.Decide(t.Context(), completion(`"model":"llama","prompt":"`+strings.Repeat("x", 10*block)+`"`))
	if d.Endpoint != address(1) || w.words.count() == 0 {
		t.Errorf("%+v", d)
	}
}

func TestReport(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, Options{Metrics: NewMetrics(reg)}, chat(3))
	engine := func(i int) *EngineState { return w.r.State().Pools[0].Endpoints[i].Engine }
	w.r.Report("chat", address(9), Load{Running: 1})
	w.r.Report("none", address(0), Load{Running: 1})
	if engine(0) != nil {
		t.Errorf("%+v of an engine that said nothing", engine(0))
	}
	w.r.Report("chat", address(0), Load{Running: 3, Waiting: 2, KVUsage: 0.5, PrefixHits: 40, PrefixQueries: 100, Age: time.Second})
	w.r.Report("chat", address(1), Load{Running: -1, Waiting: -5, KVUsage: math.NaN(), Age: -time.Hour})
	w.r.Report("chat", address(2), Load{KVUsage: math.Inf(1), Stale: true, Sleeping: true})
	w.pass(2 * time.Second)
	want := []*EngineState{
		{Running: 3, Waiting: 2, KVUsage: 0.5, PrefixHits: 40, PrefixQueries: 100, Age: 3},
		{Age: 2},
		{KVUsage: 1, Stale: true, Sleeping: true, Age: 2},
	}
	for i := range want {
		if diff := cmp.Diff(want[i], engine(i)); diff != "" {
			t.Errorf("engine %d, -want +got:\n%s", i, diff)
		}
	}
	const series = `
# HELP kvsteer_router_engine_kv_usage_ratio Share of its KV cache that the engine says is used.
# TYPE kvsteer_router_engine_kv_usage_ratio gauge
kvsteer_router_engine_kv_usage_ratio{endpoint="10.0.0.1:8000",pool="chat"} 0.5
kvsteer_router_engine_kv_usage_ratio{endpoint="10.0.0.2:8000",pool="chat"} 0
# HELP kvsteer_router_engine_prefix_hit_tokens_total Prompt tokens that the engine says it has found in its prefix cache.
# TYPE kvsteer_router_engine_prefix_hit_tokens_total counter
kvsteer_router_engine_prefix_hit_tokens_total{endpoint="10.0.0.1:8000",pool="chat"} 40
# HELP kvsteer_router_engine_sleeping 1 while the engine says that it sleeps: it gets no requests unless all of the pool's do.
# TYPE kvsteer_router_engine_sleeping gauge
kvsteer_router_engine_sleeping{endpoint="10.0.0.1:8000",pool="chat"} 0
kvsteer_router_engine_sleeping{endpoint="10.0.0.2:8000",pool="chat"} 0
# HELP kvsteer_router_engine_stale 1 while a node could not read lately what the engine says of itself.
# TYPE kvsteer_router_engine_stale gauge
kvsteer_router_engine_stale{endpoint="10.0.0.1:8000",pool="chat"} 0
kvsteer_router_engine_stale{endpoint="10.0.0.2:8000",pool="chat"} 0
kvsteer_router_engine_stale{endpoint="10.0.0.3:8000",pool="chat"} 1
# HELP kvsteer_router_engine_waiting_requests Requests that the engine says wait, of all its ranks together.
# TYPE kvsteer_router_engine_waiting_requests gauge
kvsteer_router_engine_waiting_requests{endpoint="10.0.0.1:8000",pool="chat"} 2
kvsteer_router_engine_waiting_requests{endpoint="10.0.0.2:8000",pool="chat"} 0
`
	names := []string{
		"kvsteer_router_engine_kv_usage_ratio", "kvsteer_router_engine_prefix_hit_tokens_total", "kvsteer_router_engine_sleeping", "kvsteer_router_engine_stale",
		"kvsteer_router_engine_waiting_requests",
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(series), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	// What an engine has said stays with its endpoint, and goes with it.
	w.apply(ranked(3, 2, false))
	if got := engine(0); got == nil || got.Running != 3 {
		t.Errorf("%+v after the endpoint was given ranks", got)
	}
	w.apply(coder())
	if n, err := testutil.GatherAndCount(reg, append(names, "kvsteer_router_engine_running_requests", "kvsteer_router_engine_prefix_query_tokens_total")...); err != nil || n != 0 {
		t.Errorf("%d series of endpoints that are gone, error %v", n, err)
	}
}
