package router

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func chain(tokens []uint32) []uint64 {
	ns := blockhash.Namespace{Pool: "chat", BlockSize: block}
	return blockhash.AppendKeys(nil, ns.Root(), tokens, block)
}

func TestSourceFollowsEvents(t *testing.T) {
	tokens := run(1, 8*block+1)
	keys := chain(tokens)
	reversed := func(keys []uint64) []uint64 {
		keys = slices.Clone(keys)
		slices.Reverse(keys)
		return keys
	}
	tests := []struct {
		name    string
		events  func(s *Source)
		matched int
	}{
		{"nothing", func(*Source) {}, 0},
		{"stored", func(s *Source) { s.Store(subscriber.Any, keys); s.Store(subscriber.Device, keys) }, 8 * block},
		{"leaves removed", func(s *Source) {
			s.Store(subscriber.Any, keys)
			s.Store(subscriber.Device, keys)
			s.Remove(subscriber.Device, reversed(keys[3:]))
			s.Remove(subscriber.Any, reversed(keys[3:]))
		}, 3 * block},
		{"all removed", func(s *Source) {
			s.Store(subscriber.Any, keys)
			s.Store(subscriber.Device, keys)
			s.Remove(subscriber.Device, reversed(keys))
			s.Remove(subscriber.Any, reversed(keys))
		}, 0},
		{"reset", func(s *Source) { s.Store(subscriber.Any, keys); s.Reset(subscriber.CauseCleared) }, 0},
		{"stored after a reset", func(s *Source) {
			s.Store(subscriber.Any, keys)
			s.Reset(subscriber.CauseCleared)
			s.Store(subscriber.Any, keys[:2])
		}, 2 * block},
		{"reset twice, and before anything", func(s *Source) {
			s.Reset(subscriber.CauseDisconnect)
			s.Reset(subscriber.CauseDisconnect)
			s.Store(subscriber.Any, keys[:3])
		}, 3 * block},
		{"removed before anything", func(s *Source) { s.Remove(subscriber.Any, keys); s.Store(subscriber.Any, keys[:3]) }, 3 * block},
		{"disconnected", func(s *Source) {
			s.Store(subscriber.Any, keys)
			s.Describe(subscriber.Description{BlockSize: block})
		}, 0},
		{"block size not known", func(s *Source) {
			s.Store(subscriber.Any, keys)
			s.Describe(subscriber.Description{Connected: true})
		}, 0},
		{"block size changed", func(s *Source) {
			s.Store(subscriber.Any, keys)
			s.Reset(subscriber.CauseBlockSize)
			s.Describe(subscriber.Description{Connected: true, BlockSize: 4 * block})
			ns := blockhash.Namespace{Pool: "chat", BlockSize: 4 * block}
			s.Store(subscriber.Any, blockhash.AppendKeys(nil, ns.Root(), tokens, 4*block))
		}, 8 * block},
		{"problem that leaves plain prompts right", func(s *Source) {
			s.Store(subscriber.Any, keys)
			s.Describe(subscriber.Description{Connected: true, BlockSize: block, Problem: subscriber.ProblemHybrid})
		}, 8 * block},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2))
			tt.events(w.connect(address(0), block))
			got := w.r.Decide(t.Context(), given("llama", tokens))
			if got.Matched != tt.matched {
				t.Errorf("%+v, want %d tokens matched", got, tt.matched)
			}
		})
	}
}

func TestSourceNeedsAnEndpoint(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	for _, tt := range []struct{ pool, endpoint string }{{"chat", "10.9.9.9:1"}, {"code", address(0)}, {"", ""}} {
		if _, err := w.r.Source(tt.pool, tt.endpoint, 0); err == nil {
			t.Errorf("Source(%q, %q): no error", tt.pool, tt.endpoint)
		}
	}
	s, err := w.r.Source("chat", address(0), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.Source("chat", address(0), 0); err == nil {
		t.Error("two sources of one endpoint")
	}
	s.Close()
	if _, err := w.r.Source("chat", address(0), 0); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// An endpoint that does not fit into the index is not matched in part, and gives its room to others until its events start over.
func TestSourceThatDoesNotFit(t *testing.T) {
	index, err := kvindex.New(kvindex.Options{MaxBlocks: indexBlocks})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	w := newWorld(t, Options{Index: index, Metrics: NewMetrics(reg)}, chat(2))
	s := w.connect(address(0), block)
	long := run(1, 2*indexBlocks*block)
	keys := chain(long)
	for part := range slices.Chunk(keys, 100) {
		s.Store(subscriber.Any, part)
	}
	if got := w.r.Decide(t.Context(), given("llama", long[:10*block])); got.Matched != 0 || got.Reason != ReasonNoIndex {
		t.Errorf("%+v, want no match", got)
	}
	want := `
# HELP kvsteer_router_endpoint_problem 1 for the problem that keeps the endpoint's blocks from being fully known.
# TYPE kvsteer_router_endpoint_problem gauge
kvsteer_router_endpoint_problem{endpoint="10.0.0.1:8000",pool="chat",problem="index_full"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_router_endpoint_problem"); err != nil {
		t.Error(err)
	}
	w.pass(time.Hour)
	w.hold(address(1), block, plain, long[:4*block])
	if got := w.r.Decide(t.Context(), given("llama", long[:10*block])); got.Matched != 4*block {
		t.Errorf("%+v: no room for the other endpoint", got)
	}
	w.pass(time.Hour)
	s.Reset(subscriber.CauseGap)
	s.Store(subscriber.Any, keys[:9])
	if got := w.r.Decide(t.Context(), given("llama", long[:10*block])); got.Matched != 9*block {
		t.Errorf("%+v: not matched after a reset", got)
	}
}

const indexBlocks = 1000

// A peer can make an engine's problem come and go with every message, so that says nothing in the log.
func TestSourceDescribeIsQuiet(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, chat(1))
	s := w.connect(address(0), block)
	for range 100 {
		s.Describe(subscriber.Description{Connected: true, BlockSize: block, Problem: subscriber.ProblemNoExtraKeys})
		s.Reset(subscriber.CauseGap)
		s.Describe(subscriber.Description{Connected: true})
	}
	if log.Len() > 0 {
		t.Errorf("logged:\n%s", log.String())
	}
}
