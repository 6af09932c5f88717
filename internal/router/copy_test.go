package router

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// store enters blocks in both tiers.
func store(s *Source, keys []uint64) {
	s.Store(subscriber.Any, keys)
	s.Store(subscriber.Device, keys)
}

// withdraw removes blocks from both tiers, the last one first.
func withdraw(s *Source, keys []uint64) {
	keys = slices.Clone(keys)
	slices.Reverse(keys)
	s.Remove(subscriber.Device, keys)
	s.Remove(subscriber.Any, keys)
}

func TestSourceTakesCopies(t *testing.T) {
	tokens := run(1, 8*block+1)
	keys := chain(tokens)
	stale := subscriber.Description{BlockSize: block}
	fresh := subscriber.Description{Connected: true, BlockSize: block}
	tests := []struct {
		name    string
		events  func(s *Source)
		matched int
		slots   int // of the index, in use afterwards
	}{
		{"known blocks stay until the end", func(s *Source) { store(s, keys[:4]); s.Begin(); store(s, keys) }, 4 * block, 2},
		{"the end counts", func(s *Source) { store(s, keys[:4]); s.Begin(); store(s, keys[:6]); s.End() }, 6 * block, 1},
		{"a smaller copy", func(s *Source) { store(s, keys); s.Begin(); store(s, keys[:2]); s.End() }, 2 * block, 1},
		{"an empty copy", func(s *Source) { store(s, keys); s.Begin(); s.End() }, 0, 0},
		{"the first copy", func(s *Source) { s.Begin(); store(s, keys[:3]); s.End() }, 3 * block, 1},
		{"the first copy before its end", func(s *Source) { s.Begin(); store(s, keys[:3]) }, 0, 1},
		{"removed in a copy", func(s *Source) {
			store(s, keys)
			s.Begin()
			store(s, keys[:6])
			withdraw(s, keys[3:6])
			s.End()
		}, 3 * block, 1},
		{"removed from the copy alone", func(s *Source) { store(s, keys); s.Begin(); store(s, keys); withdraw(s, keys) }, 8 * block, 2},
		{"removed before it has come", func(s *Source) { s.Begin(); withdraw(s, keys[:5]); store(s, keys[:4]); s.End() }, 4 * block, 1},
		{"stored after the end", func(s *Source) { s.Begin(); store(s, keys[:1]); s.End(); store(s, keys[1:5]) }, 5 * block, 1},
		{"reset during a copy", func(s *Source) { store(s, keys); s.Begin(); store(s, keys); s.Reset(subscriber.CauseCleared) }, 0, 0},
		{"what follows a reset during a copy", func(s *Source) {
			store(s, keys)
			s.Begin()
			store(s, keys)
			s.Reset(subscriber.CauseCleared)
			store(s, keys[:2])
		}, 2 * block, 1},
		{"the end after a reset", func(s *Source) {
			s.Begin()
			store(s, keys)
			s.Reset(subscriber.CauseCleared)
			store(s, keys[:2])
			s.End()
		}, 2 * block, 1},
		{"the end of nothing", func(s *Source) { store(s, keys[:2]); s.End(); s.End() }, 2 * block, 1},
		{"a copy starts over", func(s *Source) {
			store(s, keys[:1])
			s.Begin()
			store(s, keys)
			s.Begin()
			store(s, keys[:5])
			s.End()
		}, 5 * block, 1},
		{"a copy that starts over leaves known blocks", func(s *Source) { store(s, keys[:3]); s.Begin(); store(s, keys); s.Begin() }, 3 * block, 1},
		{"stale", func(s *Source) { store(s, keys); s.Describe(stale) }, 0, 1},
		{"stale and back", func(s *Source) { store(s, keys); s.Describe(stale); s.Describe(fresh) }, 8 * block, 1},
		{"a copy while stale", func(s *Source) {
			store(s, keys)
			s.Describe(stale)
			s.Begin()
			store(s, keys[:3])
			s.End()
			s.Describe(fresh)
		}, 3 * block, 1},
		{"back before the end of a copy begun while stale", func(s *Source) {
			store(s, keys)
			s.Describe(stale)
			s.Begin()
			store(s, keys[:3])
			s.Describe(fresh)
		}, 0, 1},
		{"stale during a copy", func(s *Source) {
			store(s, keys)
			s.Begin()
			store(s, keys[:3])
			s.Describe(stale)
			s.Describe(fresh)
		}, 0, 1},
		{"the end of a copy that went stale", func(s *Source) {
			store(s, keys)
			s.Begin()
			store(s, keys[:3])
			s.Describe(stale)
			store(s, keys[3:5])
			s.End()
			s.Describe(fresh)
		}, 5 * block, 1},
		{"forgotten during a copy", func(s *Source) {
			store(s, keys)
			s.Begin()
			store(s, keys[:3])
			s.forget()
			s.End()
		}, 0, 1},
		{"a copy after it was forgotten", func(s *Source) { store(s, keys); s.forget(); s.Begin(); store(s, keys[:3]); s.End() }, 3 * block, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2))
			s := w.connect(address(0), block)
			tt.events(s)
			if got := w.r.Decide(t.Context(), given("llama", tokens)); got.Matched != tt.matched {
				t.Errorf("%+v, want %d tokens matched", got, tt.matched)
			}
			if got := w.index.Stats().Slots; got != tt.slots {
				t.Errorf("%d slots in use, want %d", got, tt.slots)
			}
			s.Close()
			if got := w.index.Stats(); got.Slots != 0 || got.Blocks != 0 {
				t.Errorf("%+v in the index after Close", got)
			}
		})
	}
}

// A copy that finds no room is as any event that finds none: routed by load until the blocks start over.
func TestCopyWithoutRoom(t *testing.T) {
	tokens := run(1, 8*block+1)
	keys := chain(tokens)
	for _, tt := range []struct {
		name    string
		options kvindex.Options
		problem string
	}{
		{"no slot", kvindex.Options{MaxSlots: 1}, problemIndexSlots},
		{"no block", kvindex.Options{MaxBlocks: 4}, problemIndexFull},
	} {
		t.Run(tt.name, func(t *testing.T) {
			index, err := kvindex.New(tt.options)
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, Options{Index: index}, chat(2))
			s := w.connect(address(0), block)
			store(s, keys[:2])
			s.Begin()
			store(s, keys)
			for _, stage := range []string{"during the copy", "after its end"} {
				es := w.r.State().Pools[0].Endpoints[0]
				if es.Problem != tt.problem || es.Matchable || es.Blocks != 0 {
					t.Errorf("%s: %+v, want problem %s", stage, es, tt.problem)
				}
				store(s, keys[:1])
				s.End()
			}
			s.Begin()
			store(s, keys[:3])
			s.End()
			if got := w.r.Decide(t.Context(), given("llama", tokens)); got.Matched != 3*block {
				t.Errorf("%+v after another copy, want %d tokens matched", got, 3*block)
			}
		})
	}
}

// Blocks of a copy say nothing of when they were computed.
func TestCopiesConfirmNothing(t *testing.T) {
	w := newWorld(t, Options{}, chat(1))
	s := w.connect(address(0), block)
	tokens := run(1, 4*block+1)
	backlog := func() float64 { return w.loads(w.clock())[0].backlog }
	for _, f := range w.r.all() { // one candidate is not matched, so its charges have no key
		f.mu.Lock()
		f.target(address(0)).account.advance(w.clock(), &f.pace)
		f.target(address(0)).account.charge(100, 100, chain(tokens)[3])
		f.mu.Unlock()
	}
	s.Begin()
	store(s, chain(tokens))
	s.End()
	if got := backlog(); got != 100 {
		t.Errorf("backlog %v after a copy, want 100", got)
	}
	store(s, chain(tokens))
	if got := backlog(); got != 0 {
		t.Errorf("backlog %v after events, want 0", got)
	}
}

// While one copy follows the other, every decision finds what all of them have.
func TestNoMomentWithoutBlocks(t *testing.T) {
	w := newWorld(t, Options{Now: time.Now}, chat(2))
	tokens := run(1, 20*block+1)
	keys := chain(tokens)
	s := w.connect(address(0), block)
	store(s, keys)
	var decisions atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		for before := int64(-1); ; {
			select {
			case <-stop:
				return
			default:
			}
			n := decisions.Load()
			if n == before { // one copy for each decision, at any moment of it
				runtime.Gosched()
				continue
			}
			before = n
			s.Begin()
			store(s, keys[:10+rnd.IntN(11)])
			if rnd.IntN(4) == 0 {
				s.Begin()
				store(s, keys[:10+rnd.IntN(11)])
			}
			s.End()
		}
	})
	req := given("llama", tokens)
	for range 3000 {
		d := w.r.Decide(t.Context(), req)
		decisions.Add(1)
		w.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Undelivered: true})
		if d.Reason != ReasonPrefix || d.Matched < 10*block {
			t.Errorf("%+v while copies replace each other", d)
			break
		}
	}
	close(stop)
	wg.Wait()
}

func TestSourcesWaitForTheFirstCopy(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	s := w.connect(address(0), block)
	check := func(when string, want int) {
		t.Helper()
		if settled, all := w.r.Sources(); settled != want || all != 1 {
			t.Errorf("%s: %d of %d settled, want %d of 1", when, settled, all, want)
		}
	}
	check("before", 1)
	s.Begin()
	check("during the first copy", 0)
	store(s, chain(run(1, block)))
	check("with a part of it", 0)
	s.End()
	check("after it", 1)
	s.Begin()
	check("during the second copy", 1)
	s.Describe(subscriber.Description{})
	check("stale", 0)
}
