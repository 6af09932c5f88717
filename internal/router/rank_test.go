package router

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// ranked is a pool of n endpoints with so many ranks each.
func ranked(n, ranks int, pin bool) pool.Config {
	c := chat(n)
	c.Ranks, c.PinRank = map[string]int{}, pin
	for _, e := range c.Endpoints {
		c.Ranks[e] = ranks
	}
	return c
}

// rank makes the events of one rank known: blocks of so many tokens.
func (w *world) rank(endpoint string, rank, blockSize int) *Source {
	w.t.Helper()
	name := fmt.Sprintf("%s/%d", endpoint, rank)
	s := w.sources[name]
	if s == nil {
		var err error
		if s, err = w.r.Source("chat", endpoint, rank); err != nil {
			w.t.Fatal(err)
		}
		w.sources[name] = s
	}
	s.Describe(subscriber.Description{Connected: true, BlockSize: blockSize, ExtraKeys: true})
	return s
}

// holdAt makes a rank announce the blocks of a prompt.
func (w *world) holdAt(endpoint string, rank, blockSize int, tokens []uint32) *Source {
	w.t.Helper()
	s := w.rank(endpoint, rank, blockSize)
	ns := blockhash.Namespace{Pool: "chat", BlockSize: blockSize}
	keys := blockhash.AppendKeys(nil, ns.Root(), tokens, blockSize)
	s.Store(subscriber.Any, keys)
	s.Store(subscriber.Device, keys)
	return s
}

// asking is a request with a header that names a rank.
func asking(req Request, rank string) Request {
	req.Header = func(name string) string {
		if name == "x-data-parallel-rank" {
			return rank
		}
		return ""
	}
	return req
}

func TestMeanOverRanks(t *testing.T) {
	a, long := address(0), run(1, 10*block)
	tests := []struct {
		name    string
		ranks   int
		prepare func(w *world)
		asked   string // value of the request's own header
		matched int
		problem string
	}{
		{"one of two holds it", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.rank(a, 1, block) }, "", 4 * block, ""},
		{"both hold it", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.holdAt(a, 1, block, long[:8*block]) }, "", 8 * block, ""},
		{"both hold some of it", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.holdAt(a, 1, block, long[:3*block]) }, "", 11 * block / 2, ""},
		{"rounded down", 3, func(w *world) { w.holdAt(a, 2, block, long[:block]) }, "", block / 3, ""},
		{"one has never connected", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]) }, "", 4 * block, ""},
		{"one is disconnected", 2, func(w *world) {
			w.holdAt(a, 0, block, long[:8*block])
			w.holdAt(a, 1, block, long[:8*block]).Describe(subscriber.Description{BlockSize: block})
		}, "", 4 * block, ""},
		{"one was reset", 2, func(w *world) {
			w.holdAt(a, 0, block, long[:8*block])
			w.holdAt(a, 1, block, long[:6*block]).Reset(subscriber.CauseGap)
		}, "", 4 * block, ""},
		{"the last block is computed in any case", 2, func(w *world) { w.holdAt(a, 0, block, long); w.holdAt(a, 1, block, long) }, "", 9 * block, ""},
		{"blocks of different sizes", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.holdAt(a, 1, 2*block, long[:8*block]) }, "", 0, "ranks_differ"},
		{"asked for the one that holds it", 2, func(w *world) { w.holdAt(a, 0, block, long[:block]); w.holdAt(a, 1, block, long[:8*block]) }, "1", 8 * block, ""},
		{"asked for the other one", 2, func(w *world) { w.holdAt(a, 0, block, long[:block]); w.holdAt(a, 1, block, long[:8*block]) }, "0", block, ""},
		{"asked for one that is not there", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.rank(a, 1, block) }, "2", 0, ""},
		{"asked for no number", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.rank(a, 1, block) }, "one", 4 * block, ""},
		{"asked for a negative one", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.rank(a, 1, block) }, "-1", 4 * block, ""},
		{"the engine has more ranks", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.r.Offer("chat", a, 4) }, "", 0, "ranks_mismatch"},
		{"the engine has fewer ranks", 2, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.r.Offer("chat", a, 1) }, "", 0, "ranks_mismatch"},
		{"the engine has as many ranks again", 2, func(w *world) {
			w.holdAt(a, 0, block, long[:8*block])
			w.r.Offer("chat", a, 1)
			w.r.Offer("chat", a, 2)
		}, "", 4 * block, ""},
		{"the engine does not say any more", 2, func(w *world) {
			w.holdAt(a, 0, block, long[:8*block])
			w.r.Offer("chat", a, 1)
			w.r.Offer("chat", a, 0)
		}, "", 4 * block, ""},
		{"one rank, and the engine has two", 1, func(w *world) { w.holdAt(a, 0, block, long[:8*block]); w.r.Offer("chat", a, 2) }, "", 0, "ranks_mismatch"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			w := newWorld(t, Options{Metrics: NewMetrics(reg)}, ranked(2, tt.ranks, false))
			w.drain(address(1))
			w.undrain(address(1)) // two candidates, of which one is known
			tt.prepare(w)
			req := given("llama", long)
			if tt.asked != "" {
				req = asking(req, tt.asked)
			}
			best := 0
			for range 24 { // a match below the near tie does not decide
				d := w.sendAlone(req)
				best = max(best, d.Matched)
				if d.Pinned {
					t.Errorf("%+v", d)
				}
			}
			if best != tt.matched {
				t.Errorf("%d tokens matched, want %d", best, tt.matched)
			}
			if got := w.r.State().Pools[0].Endpoints[0].Problem; got != tt.problem {
				t.Errorf("problem %q, want %q", got, tt.problem)
			}
			want := 0
			if tt.problem != "" {
				want = 1
			}
			if n, err := testutil.GatherAndCount(reg, "kvsteer_router_endpoint_problem"); n != want || err != nil {
				t.Errorf("%d problems exported, error %v", n, err)
			}
		})
	}
}

func TestPinnedRanks(t *testing.T) {
	w := newWorld(t, Options{}, ranked(3, 2, true))
	a, b := address(0), address(1)
	long := run(1, 100*block)
	w.holdAt(a, 0, block, long[:10*block])
	w.holdAt(a, 1, block, long[:80*block])
	w.holdAt(b, 1, block, long[:20*block])
	w.holdAt(b, 0, block, long[:40*block])

	want := func(what, endpoint string, rank, matched int, second string) {
		t.Helper()
		d := w.sendAlone(asking(given("llama", long), "0")) // what the client asks for counts for nothing
		if d.Endpoint != endpoint || !d.Pinned || d.Rank != rank || d.Matched != matched*block || second != "*" && d.Second != second {
			t.Errorf("%s: %+v, want rank %d of %s with %d blocks, then %s", what, d, rank, endpoint, matched, second)
		}
	}
	want("the rank that holds most", a, 1, 80, b) // and b with the same rank, though its other one holds more
	w.sources[a+"/1"].Reset(subscriber.CauseGap)
	want("after its reset", b, 0, 40, a)
	w.r.Offer("chat", b, 1)
	want("b has another number of ranks", a, 0, 10, "*") // nothing of b is matched
	w.r.Offer("chat", b, 2)
	want("and as many again", b, 0, 40, a)
	w.drain(b)
	want("drained", a, 0, 10, address(2))
	w.fail(address(2))
	want("no other endpoint", a, 0, 10, "")
}

// An engine that says it has fewer ranks gets no request for those that it has not: it would refuse them.
func TestPinnedToNoMissingRank(t *testing.T) {
	w := newWorld(t, Options{}, ranked(2, 2, true))
	w.r.Offer("chat", address(0), 1)
	seen := map[string]bool{}
	for range 100 {
		d := w.sendAlone(Request{Unread: true, Host: "x", Ranked: 8})
		seen[fmt.Sprintf("%s/%d", d.Endpoint, d.Rank)] = true
		if d.Rank == 1 && (d.Second != "" || len(d.Ranked) != 1) {
			t.Fatalf("%+v: no other endpoint has rank 1", d)
		}
		if d.Rank == 0 && len(d.Ranked) != 2 {
			t.Fatalf("%+v: both endpoints have rank 0", d)
		}
	}
	want := map[string]bool{address(0) + "/0": true, address(1) + "/0": true, address(1) + "/1": true}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Each rank is charged for itself where decisions choose it; else their endpoint is.
func TestChargesOfRanks(t *testing.T) {
	for _, pin := range []bool{true, false} {
		w := newWorld(t, Options{PrefillRate: 1000}, ranked(1, 2, pin))
		var ds []Decision
		for range 4 {
			ds = append(ds, w.decide(1000))
		}
		var backlogs []float64
		for _, l := range w.loads(w.clock()) {
			backlogs = append(backlogs, l.backlog)
		}
		want := []float64{4000}
		if pin {
			want = []float64{2000, 2000}
		}
		if diff := cmp.Diff(want, backlogs); diff != "" {
			t.Errorf("pinned %v: (-want +got):\n%s", pin, diff)
		}
		if e := w.r.State().Pools[0].Endpoints[0]; e.Backlog != 4000 || len(e.Ranks) != 2 || (e.Ranks[0].Backlog == 2000) != pin {
			t.Errorf("pinned %v: state %+v", pin, e)
		}
		w.pass(time.Second) // two ranks compute a thousand tokens each
		if e := w.r.State().Pools[0].Endpoints[0]; e.Backlog != 2000 {
			t.Errorf("pinned %v: backlog %d after a second", pin, e.Backlog)
		}
		for _, d := range ds {
			w.r.Complete(answered(d, d.Endpoint))
		}
		w.pass(20 * time.Minute)
		for i, l := range w.loads(w.clock()) {
			if l != (load{}) {
				t.Errorf("pinned %v: account %d: %+v at rest", pin, i, l)
			}
		}
	}
}

// A request that ran at another endpoint than it was sent to ran at the rank that its header names.
func TestPinnedChargeMoves(t *testing.T) {
	w := newWorld(t, Options{PrefillRate: 1000}, ranked(2, 2, true))
	d := w.decide(1000)
	w.r.Complete(answered(d, d.Second))
	for i, l := range w.loads(w.clock()) {
		target := w.r.all()[0].all()[i]
		want := 0.0
		if target.seat() == (seat{w.r.at(d.Second)[0].endpoint, d.Rank}) {
			want = 1000
		}
		if l.memory != want || l.backlog != 0 {
			t.Errorf("%s rank %d: %+v, want %v recent tokens", target.endpoint.Addr(), target.seat().rank, l, want)
		}
	}
}

func TestAccountOfRanks(t *testing.T) {
	at := func(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }
	tests := []struct {
		name    string
		charges []float64
		confirm []uint64 // keys; that of charge i is i+1
		at      float64
		backlog float64
		waiting int
	}{
		{"one request is computed by one rank", []float64{1000}, nil, 0.5, 500, 1},
		{"two by two", []float64{1000, 1000}, nil, 0.5, 1000, 1},
		{"the first of four ends before the others, which are no further", []float64{1000, 1000, 1000, 1000}, nil, 0.5, 2250, 3},
		{"eight by four", []float64{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000}, nil, 1, 4000, 4},
		{"all done", []float64{1000, 1000}, nil, 3, 0, 0},
		{"the second is complete, the first goes on", []float64{1000, 1000}, []uint64{2}, 0, 1000, 1},
		{"both are complete", []float64{1000, 1000}, []uint64{2, 1}, 0, 0, 0},
		{"somebody else's blocks", []float64{1000}, []uint64{7}, 0, 1000, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, p := account{ranks: 4}, &pace{rate: 1000}
			a.advance(epoch, p)
			for i, tokens := range tt.charges {
				a.charge(tokens, 0, uint64(i+1))
			}
			a.confirm(tt.confirm)
			a.advance(at(tt.at), p)
			if got := a.load(false).backlog; !near(got, tt.backlog, 1e-6) || a.queued.len() != tt.waiting {
				t.Errorf("backlog %v with %d charges, want %v with %d", got, a.queued.len(), tt.backlog, tt.waiting)
			}
		})
	}
}

// TestAccountOfRanksAtRest holds that whatever order charges, confirmations, releases and time come in, nothing is ever negative and nothing is left.
func TestAccountOfRanksAtRest(t *testing.T) {
	type open struct {
		number   uint64
		uncached float64
		prompt   int
		since    time.Time
	}
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		a, p, now := account{ranks: 1 + rnd.IntN(8)}, &pace{rate: 1000}, epoch
		var running []open
		sum := 0.0
		for range 20_000 {
			now = now.Add(time.Duration(rnd.IntN(200)) * time.Millisecond)
			a.advance(now, p)
			switch n := rnd.IntN(3); {
			case n == 0 || n == 1 && len(running) < 400 && rnd.IntN(2) == 0: // beyond what is told apart, too
				o := open{uncached: float64(rnd.IntN(500)), prompt: 500, since: now}
				o.number = a.charge(o.uncached, o.prompt, uint64(rnd.IntN(50)))
				running, sum = append(running, o), sum+o.uncached
			case n == 1:
				a.confirm([]uint64{uint64(rnd.IntN(50)), uint64(rnd.IntN(50))})
			case len(running) > 0:
				i := rnd.IntN(len(running))
				o := running[i]
				running[i] = running[len(running)-1]
				running, sum = running[:len(running)-1], sum-o.uncached
				a.release(o.number, o.uncached, o.prompt, now.Sub(o.since))
			}
			if l := a.load(true); l.backlog < 0 || l.running != float64(500*len(running)) || len(a.awaited) > a.queued.len() {
				t.Fatalf("seed %d: %+v with %d running, %d keys awaited for %d charges", seed, l, len(running), len(a.awaited), a.queued.len())
			}
		}
		for _, o := range running {
			a.release(o.number, o.uncached, o.prompt, now.Sub(o.since))
		}
		if l := a.load(true); l.backlog != 0 || l.running != 0 || a.queued.len() != 0 || len(a.awaited) != 0 {
			t.Errorf("seed %d: %+v, %d charges, %d keys with nothing open", seed, l, a.queued.len(), len(a.awaited))
		}
	}
}

// TestRanksStay: another configuration keeps the blocks of the ranks that it has.
func TestRanksStay(t *testing.T) {
	a, long := address(0), run(1, 10*block)
	w := newWorld(t, Options{}, ranked(2, 2, false))
	zero, one := w.holdAt(a, 0, block, long[:4*block]), w.holdAt(a, 1, block, long[:8*block])
	matched := func(what string, want int, pinned bool) {
		t.Helper()
		w.pass(time.Hour)
		d := w.sendAlone(given("llama", long))
		if d.Matched != want*block || d.Pinned != pinned {
			t.Errorf("%s: %+v, want %d blocks", what, d, want)
		}
	}
	matched("two ranks", 6, false)
	w.apply(ranked(2, 2, true))
	matched("pinned", 8, true)
	one.Remove(subscriber.Device, nil) // the source goes on
	w.apply(ranked(2, 2, false))
	matched("not pinned any more", 6, false)
	before := w.r.at(a)[0]
	w.apply(ranked(2, 2, false))
	if w.r.at(a)[0] != before {
		t.Error("the same configuration makes another target of an endpoint")
	}
	w.apply(ranked(2, 4, false))
	matched("four ranks", 3, false)
	w.apply(ranked(2, 1, false))
	matched("one rank", 4, false)
	if one.problemName(one.state.Load()) != problemForgotten || zero.problemName(zero.state.Load()) != "" {
		t.Error("the rank that is gone is not forgotten, or the one that stays is")
	}
	if _, err := w.r.Source("chat", a, 1); err == nil {
		t.Error("a source of a rank that is gone")
	}
	one.Close()
	zero.Close()
	if n := w.index.Stats().Blocks; n != 0 {
		t.Errorf("%d blocks are left", n)
	}
}

// A rank's events confirm what its endpoint was charged with, also after the configuration has changed who is charged.
func TestConfirmedByRank(t *testing.T) {
	for _, pin := range []bool{false, true} {
		w := newWorld(t, Options{PrefillRate: 1}, ranked(1, 2, !pin))
		prompt := run(1, 10*block)
		w.holdAt(address(0), 0, block, run(5000, block))
		w.holdAt(address(0), 1, block, run(5000, block))
		w.apply(ranked(1, 2, pin), coder())
		d := w.r.Decide(t.Context(), given("llama", prompt))
		if !pin && d.Reason != ReasonSingle {
			t.Fatalf("%+v", d)
		}
		rank := d.Rank
		keys := chain(prompt)
		target := w.r.all()[0].all()[rank]
		if !pin { // a single candidate is not matched, so its charge has no key
			target.account.charge(100, 0, keys[8])
		}
		before := w.loads(w.clock())[rank].backlog
		w.sources[fmt.Sprintf("%s/%d", address(0), rank)].Store(subscriber.Device, keys)
		if after := w.loads(w.clock())[rank].backlog; after >= before {
			t.Errorf("pinned %v: backlog %v, before %v", pin, after, before)
		}
	}
}

func TestSourceOfARank(t *testing.T) {
	w := newWorld(t, Options{}, ranked(2, 2, true))
	for _, rank := range []int{-1, 2, 64} {
		if _, err := w.r.Source("chat", address(0), rank); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rank %d", rank)) {
			t.Errorf("rank %d: error %v", rank, err)
		}
	}
	settled := func(want, wantAll int) {
		t.Helper()
		if got, all := w.r.Sources(); got != want || all != wantAll {
			t.Errorf("%d of %d settled, want %d of %d", got, all, want, wantAll)
		}
	}
	settled(0, 0)
	w.rank(address(0), 0, block)
	settled(1, 1)
	one, err := w.r.Source("chat", address(0), 1)
	if err != nil {
		t.Fatal(err)
	}
	settled(0, 1) // an endpoint is connected when all of its ranks are
	one.Describe(subscriber.Description{Connected: true})
	settled(1, 1)
	if !one.Connected() || one.Life() != w.r.at(address(0))[0].endpoint.Life() {
		t.Error("the source does not know its endpoint")
	}
}

func TestOfferIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, ranked(1, 2, false))
	for _, n := range []int{2, 4, 4, 4, 0, 0, 2, 2} {
		w.r.Offer("chat", address(0), n)
		w.r.Offer("chat", "10.9.9.9:1", n)
		w.r.Offer("none", address(0), n)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "offered=4 configured=2") {
		t.Errorf("logged:\n%s", log.String())
	}
}

// TestRanksByText: where decisions choose ranks, what each was sent is known; else it may be at any of them.
func TestRanksByText(t *testing.T) {
	first := []string{message("system", "You are kind. ", 60), message("user", "Hello there. ", 400)}
	more := append(append([]string(nil), first...), message("assistant", "Hi. ", 20), message("user", "And so on. ", 40))
	share := map[bool]int{}
	for _, pin := range []bool{false, true} {
		texts, err := approx.New(approx.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := ranked(2, 2, pin)
		c.CacheTokens, c.CacheLifetime = 400_000, time.Hour
		w := newWorld(t, Options{Texts: texts}, c)
		sent := w.sendAlone(chats("", first...))
		for range 20 {
			d := w.sendAlone(chats("", more...))
			if d.Rung != RungApproximate || d.Endpoint != sent.Endpoint || d.Rank != sent.Rank || d.Pinned != pin {
				t.Fatalf("%+v, first %+v", d, sent)
			}
			if share[pin] == 0 {
				share[pin] = d.Matched
			}
		}
	}
	if whole, half := share[true], share[false]; whole == 0 || half < whole/2-1 || half > whole/2 {
		t.Errorf("%d tokens matched when pinned, %d when not", whole, half)
	}
}

func TestEndpointSeriesSumRanks(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, Options{Metrics: NewMetrics(reg)}, ranked(2, 2, true))
	long := run(1, 10*block)
	w.holdAt(address(0), 0, block, long[:4*block])
	w.holdAt(address(0), 1, block, long[:6*block])
	for range 4 {
		w.decide(7)
	}
	want := `
# HELP kvsteer_router_endpoint_blocks Blocks of the endpoint in the index, of all its ranks together.
# TYPE kvsteer_router_endpoint_blocks gauge
kvsteer_router_endpoint_blocks{endpoint="10.0.0.1:8000",pool="chat",tier="any"} 10
kvsteer_router_endpoint_blocks{endpoint="10.0.0.1:8000",pool="chat",tier="device"} 10
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_router_endpoint_blocks"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(reg, "kvsteer_router_endpoint_backlog_tokens"); n != 2 || err != nil {
		t.Errorf("%d series of backlog for 2 endpoints, error %v", n, err)
	}
}

// A salted prompt is matched only where every rank's events tell salted blocks from plain ones.
func TestSaltAtRanks(t *testing.T) {
	w := newWorld(t, Options{}, ranked(2, 2, false))
	long := run(1, 10*block)
	salted := blockhash.Namespace{Pool: "chat", BlockSize: block, Salt: "s"}
	for rank := range 2 {
		s := w.rank(address(0), rank, block)
		s.Store(subscriber.Any, blockhash.AppendKeys(nil, salted.Root(), long[:8*block], block))
	}
	req := given("llama", long)
	req.Body = append(req.Body[:len(req.Body)-1], `,"cache_salt":"s"}`...)
	if d := w.sendAlone(req); d.Matched != 8*block {
		t.Errorf("%+v", d)
	}
	w.sources[address(0)+"/1"].Describe(subscriber.Description{Connected: true, BlockSize: block})
	if d := w.sendAlone(req); d.Reason != ReasonNoExtra {
		t.Errorf("%+v", d)
	}
}

// BenchmarkDecideRanks is BenchmarkDecide where each endpoint has ranks.
func BenchmarkDecideRanks(b *testing.B) {
	for _, ranks := range []int{1, 2, 8} {
		for _, pin := range []bool{false, true} {
			if pin && ranks == 1 {
				continue
			}
			b.Run(fmt.Sprintf("endpoints=8/ranks=%d/pinned=%v", ranks, pin), func(b *testing.B) {
				index, err := kvindex.New(kvindex.Options{})
				if err != nil {
					b.Fatal(err)
				}
				w := newWorld(b, Options{Now: time.Now, Index: index}, ranked(8, ranks, pin))
				prompt := run(1, 1<<10)
				for i := range 8 {
					for r := range ranks {
						w.holdAt(address(i), r, block, prompt[:(i+1)*len(prompt)/8])
					}
				}
				req := given("llama", prompt)
				b.ReportAllocs()
				for b.Loop() {
					if d := w.r.Decide(b.Context(), req); d.Reason != ReasonPrefix && d.Reason != ReasonLoad {
						b.Fatal(d.Reason)
					}
				}
			})
		}
	}
}
