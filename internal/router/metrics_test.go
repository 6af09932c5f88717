package router

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/subscriber"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, Options{Metrics: NewMetrics(reg)}, chat(2))
	a := address(0)
	w.hold(a, block, plain, run(1, 4*block))
	w.r.Decide(t.Context(), given("llama", run(1, 5*block)))
	w.r.Decide(t.Context(), given("gpt", run(1, 5*block)))
	w.pass(time.Minute)

	want := `
# HELP kvsteer_router_decisions_total Decisions by pool, mode, rung (what the choice rests on) and reason. The pool is empty when none could be told.
# TYPE kvsteer_router_decisions_total counter
kvsteer_router_decisions_total{mode="on",pool="chat",reason="prefix",rung="exact"} 1
kvsteer_router_decisions_total{mode="on",pool="chat",reason="unknown_model",rung="load"} 1
# HELP kvsteer_router_endpoint_backlog_tokens Prefill tokens routed to the endpoint, by this router and by others that tell it, that are reckoned not yet computed, of all its ranks together.
# TYPE kvsteer_router_endpoint_backlog_tokens gauge
kvsteer_router_endpoint_backlog_tokens{endpoint="10.0.0.1:8000",pool="chat"} 0
kvsteer_router_endpoint_backlog_tokens{endpoint="10.0.0.2:8000",pool="chat"} 0
# HELP kvsteer_router_endpoint_blocks Blocks of the endpoint in the index, of all its ranks together.
# TYPE kvsteer_router_endpoint_blocks gauge
kvsteer_router_endpoint_blocks{endpoint="10.0.0.1:8000",pool="chat",tier="any"} 4
kvsteer_router_endpoint_blocks{endpoint="10.0.0.1:8000",pool="chat",tier="device"} 4
# HELP kvsteer_router_endpoint_matchable 1 while prompts are matched against the endpoint's blocks, or those of some of its ranks; 0 while they cannot be. Only endpoints with an event source.
# TYPE kvsteer_router_endpoint_matchable gauge
kvsteer_router_endpoint_matchable{endpoint="10.0.0.1:8000",pool="chat"} 1
# HELP kvsteer_router_matched_tokens_total Leading prompt tokens that the chosen endpoint held, of prompts that were looked up; in rung approximate, estimated.
# TYPE kvsteer_router_matched_tokens_total counter
kvsteer_router_matched_tokens_total{mode="on",pool="chat",rung="exact"} 64
# HELP kvsteer_router_prompt_tokens_total Prompt tokens of prompts that were looked up, estimated where that was by text; in rung load, of those of which nothing was found.
# TYPE kvsteer_router_prompt_tokens_total counter
kvsteer_router_prompt_tokens_total{mode="on",pool="chat",rung="exact"} 80
`
	names := []string{
		"kvsteer_router_decisions_total", "kvsteer_router_endpoint_backlog_tokens", "kvsteer_router_endpoint_blocks",
		"kvsteer_router_endpoint_matchable", "kvsteer_router_endpoint_problem", "kvsteer_router_matched_tokens_total",
		"kvsteer_router_prompt_tokens_total",
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}

	// The queue is what prices decisions, so it is that of the endpoints which can be chosen.
	chosen := w.r.Decide(t.Context(), given("llama", run(500, 40_000))).Endpoint
	w.pass(time.Second)
	both := w.gauge(reg, "kvsteer_router_prefill_queue")
	w.drain(map[string]string{a: address(1), address(1): a}[chosen])
	if one := w.gauge(reg, "kvsteer_router_prefill_queue"); both <= 0 || one != 2*both {
		t.Errorf("prefill queue %v of two endpoints, %v of the busy one", both, one)
	}

	w.sources[a].Describe(subscriber.Description{Problem: subscriber.ProblemMirrorFull})
	if n, err := testutil.GatherAndCount(reg, "kvsteer_router_endpoint_problem"); err != nil || n != 1 {
		t.Errorf("%d problem series, error %v", n, err)
	}
	w.sources[a].Close()
	for _, name := range []string{"kvsteer_router_endpoint_blocks", "kvsteer_router_endpoint_matchable", "kvsteer_router_endpoint_problem"} {
		if n, err := testutil.GatherAndCount(reg, name); err != nil || n != 0 {
			t.Errorf("%s: %d series after Close, error %v", name, n, err)
		}
	}
}

// gauge is the value of the one series of a name.
func (w *world) gauge(reg *prometheus.Registry, name string) float64 {
	w.t.Helper()
	families, err := reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && len(f.GetMetric()) == 1 {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	w.t.Fatalf("not one series %s", name)
	return 0
}

// The cached share of a pool that is matched by text counts the prompts that nobody was sent before.
func TestMetricsOfTexts(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := textual(t, Options{Metrics: NewMetrics(reg)}, 2)
	one := w.sendAlone(chats("", message("user", "Hello there. ", 100)))
	two := w.sendAlone(chats("", message("user", "Hello there. ", 100)))
	none := w.sendAlone(given("gpt", run(1, 5*block))) // a model that the pool does not serve
	if one.Rung != RungLoad || one.Prompt == 0 || two.Rung != RungApproximate || two.Prompt != one.Prompt || none.Reason != ReasonUnknownModel {
		t.Fatalf("decisions %+v, %+v and %+v", one, two, none)
	}
	want := fmt.Sprintf(`
# HELP kvsteer_router_matched_tokens_total Leading prompt tokens that the chosen endpoint held, of prompts that were looked up; in rung approximate, estimated.
# TYPE kvsteer_router_matched_tokens_total counter
kvsteer_router_matched_tokens_total{mode="on",pool="chat",rung="approximate"} %d
kvsteer_router_matched_tokens_total{mode="on",pool="chat",rung="load"} 0
# HELP kvsteer_router_prompt_tokens_total Prompt tokens of prompts that were looked up, estimated where that was by text; in rung load, of those of which nothing was found.
# TYPE kvsteer_router_prompt_tokens_total counter
kvsteer_router_prompt_tokens_total{mode="on",pool="chat",rung="approximate"} %d
kvsteer_router_prompt_tokens_total{mode="on",pool="chat",rung="load"} %d
`, two.Matched, two.Prompt, one.Prompt)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_router_matched_tokens_total", "kvsteer_router_prompt_tokens_total"); err != nil {
		t.Error(err)
	}
}
