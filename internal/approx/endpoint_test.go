package approx

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/kvindex"
)

// run returns n keys counted from a start.
func run(start uint64, n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = start + uint64(i)
	}
	return keys
}

var wide = Limits{Blocks: 1000, Lifetime: time.Hour}

func TestForgetting(t *testing.T) {
	a, b := run(1, 10), run(101, 10)
	tests := []struct {
		name string
		do   func(x *Index, e *Endpoint) (life uint64, l Limits, now time.Time)
		a, b int // keys held afterwards
	}{
		{"both are held", func(_ *Index, _ *Endpoint) (uint64, Limits, time.Time) { return 0, wide, epoch }, 10, 10},
		{"went down", func(_ *Index, _ *Endpoint) (uint64, Limits, time.Time) { return 1, wide, epoch }, 0, 0},
		{"went down and was sent one again", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) {
			e.Learn(b, 1, wide, epoch)
			return 1, wide, epoch
		}, 0, 10},
		{"a decision from before it went down comes late", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) {
			e.Learn(b, 1, wide, epoch)
			e.Learn(a, 0, wide, epoch)
			return 1, wide, epoch
		}, 0, 10},
		{"forgotten", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) { e.Forget(); return 0, wide, epoch }, 0, 0},
		{"closed", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) {
			e.Close()
			e.Learn(a, 0, wide, epoch)
			return 0, wide, epoch
		}, 0, 0},
		{"cache is full: the tail of the oldest goes first", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) {
			e.Learn(run(201, 5), 0, Limits{Blocks: 20, Lifetime: time.Hour}, epoch)
			return 0, wide, epoch
		}, 5, 10},
		{"a use makes it the latest", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) {
			e.Learn(a, 0, wide, epoch)
			e.Learn(run(201, 5), 0, Limits{Blocks: 20, Lifetime: time.Hour}, epoch)
			return 0, wide, epoch
		}, 10, 5},
		{"a cache that became small", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) {
			e.Learn(a, 0, Limits{Blocks: 3, Lifetime: time.Hour}, epoch)
			return 0, wide, epoch
		}, 3, 0},
		{"switched off", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) {
			e.Learn(run(201, 5), 0, Limits{Lifetime: time.Hour}, epoch)
			return 0, wide, epoch
		}, 10, 10},
		{"lifetime", func(_ *Index, _ *Endpoint) (uint64, Limits, time.Time) { return 0, wide, epoch.Add(time.Hour + 1) }, 0, 0},
		{"lifetime of what was not used", func(_ *Index, e *Endpoint) (uint64, Limits, time.Time) {
			e.Learn(a[:4], 0, wide, epoch.Add(time.Minute))
			return 0, wide, epoch.Add(time.Hour + 1)
		}, 4, 0},
		{"share of the bound", func(x *Index, e *Endpoint) (uint64, Limits, time.Time) {
			for range 99 {
				x.Endpoint("chat", "other")
			}
			e.Learn(b, 0, wide, epoch)
			return 0, wide, epoch
		}, 0, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := strict(t, Options{MaxBlocks: 1000})
			e := x.Endpoint("chat", "e")
			e.Learn(a, 0, wide, epoch)
			e.Learn(b, 0, wide, epoch)
			life, l, now := tt.do(x, e)
			got := [2]int{}
			for i, keys := range [][]uint64{a, b} {
				got[i] = x.held(keys, []*Endpoint{e}, []uint64{life}, l, now)[0]
			}
			if want := [2]int{tt.a, tt.b}; got != want {
				t.Errorf("holds %v, want %v", got, want)
			}
			if !x.Sound() {
				t.Error("a check found a difference")
			}
		})
	}
}

// One call drops a bounded number of what has expired; the calls after it drop the rest.
func TestExpiryIsBounded(t *testing.T) {
	x := strict(t, Options{MaxBlocks: 10_000})
	e := x.Endpoint("chat", "e")
	e.Learn(run(1, 1000), 0, wide, epoch)
	later := epoch.Add(2 * time.Hour)
	for _, want := range []int{744, 488, 232, 0} {
		e.Slot(0, time.Hour, later)
		if got := e.Blocks(); got != want {
			t.Fatalf("%d keys, want %d", got, want)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Options
		want string
	}{
		{"defaults", Options{}, ""},
		{"too few blocks", Options{MaxBlocks: 999}, "max blocks: 999"},
		{"negative", Options{MaxBlocks: -1}, "max blocks: -1"},
		{"too many slots", Options{MaxSlots: 1 << 20}, "MaxSlots"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.o)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// Without a slot an endpoint is not remembered, and nothing else happens.
func TestSlotsAreAllTaken(t *testing.T) {
	x, err := New(Options{MaxSlots: 1})
	if err != nil {
		t.Fatal(err)
	}
	a, b := x.Endpoint("chat", "a"), x.Endpoint("chat", "b")
	a.Learn(run(1, 5), 0, wide, epoch)
	b.Learn(run(1, 5), 0, wide, epoch)
	if got := x.held(run(1, 5), []*Endpoint{a, b}, []uint64{0, 0}, wide, epoch); !slices.Equal(got, []int{5, 0}) {
		t.Errorf("holds %v", got)
	}
	a.Close()
	b.Learn(run(1, 5), 0, wide, epoch)
	if b.Blocks() != 5 {
		t.Errorf("%d keys after a slot became free", b.Blocks())
	}
}

// Prompts are noted, looked up and forgotten by many at once. In the end what is counted is what is there.
func TestConcurrentUse(t *testing.T) {
	x := strict(t, Options{MaxBlocks: 2000})
	var all []*Endpoint
	for range 4 {
		all = append(all, x.Endpoint("chat", "e"))
	}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 2))
			for n := range 400 {
				e := all[rnd.IntN(len(all))]
				now := epoch.Add(time.Duration(n) * time.Second)
				// A key stands for all that comes before it, so what follows other keys is other keys.
				trunk := rnd.IntN(20)
				keys := append(run(1, trunk), run(uint64(100_000*(1+trunk)+1000*rnd.IntN(50)), rnd.IntN(20))...)
				l := Limits{Blocks: 50 + rnd.IntN(200), Lifetime: time.Minute}
				switch rnd.IntN(50) {
				case 0:
					e.Forget()
				case 1:
					e.Learn(keys, uint64(n), l, now)
				default:
					e.Learn(keys, 0, l, now)
				}
				if s, ok := e.Slot(0, l.Lifetime, now); ok {
					held := make([]kvindex.Held, 1)
					x.Match(keys, []kvindex.Slot{s}, held)
					if int(held[0].Any) > len(keys) {
						t.Errorf("%d of %d keys", held[0].Any, len(keys))
					}
				}
			}
		})
	}
	wg.Wait()
	if !x.Sound() {
		t.Error("a check found a difference")
	}
	for _, e := range all {
		if e.Blocks() != len(e.list.at) || e.Blocks() > 500 {
			t.Errorf("%d keys are told, %d are there, and the share is 500", e.Blocks(), len(e.list.at))
		}
		e.Close()
	}
	if st := x.blocks.Stats(); st.Blocks != 0 || st.Slots != 0 {
		t.Errorf("after all closed: %+v", st)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	x, err := New(Options{Metrics: NewMetrics(reg)})
	if err != nil {
		t.Fatal(err)
	}
	a, b := x.Endpoint("chat", "a"), x.Endpoint("chat", "b")
	a.Learn(run(1, 10), 0, wide, epoch)
	a.Learn(run(11, 10), 0, Limits{Blocks: 15, Lifetime: time.Hour}, epoch)
	a.Slot(0, time.Hour, epoch.Add(2*time.Hour))
	b.Learn(run(1, 10), 0, wide, epoch)
	b.Learn(run(1, 3), 1, wide, epoch)
	want := `
# HELP kvsteer_approx_dropped_blocks_total Text blocks dropped, by cause: capacity, bound, lifetime, forgotten.
# TYPE kvsteer_approx_dropped_blocks_total counter
kvsteer_approx_dropped_blocks_total{cause="bound"} 0
kvsteer_approx_dropped_blocks_total{cause="capacity"} 5
kvsteer_approx_dropped_blocks_total{cause="forgotten"} 10
kvsteer_approx_dropped_blocks_total{cause="lifetime"} 15
# HELP kvsteer_approx_endpoint_blocks Text blocks that the endpoint was sent and is taken to hold.
# TYPE kvsteer_approx_endpoint_blocks gauge
kvsteer_approx_endpoint_blocks{endpoint="a",pool="chat"} 0
kvsteer_approx_endpoint_blocks{endpoint="b",pool="chat"} 3
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_approx_dropped_blocks_total", "kvsteer_approx_endpoint_blocks"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	a.Close()
	b.Close()
	if n, err := testutil.GatherAndCount(reg, "kvsteer_approx_endpoint_blocks"); err != nil || n != 0 {
		t.Errorf("%d series after Close, error %v", n, err)
	}
}
