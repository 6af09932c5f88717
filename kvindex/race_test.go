package kvindex

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// TestConcurrentUse runs matches, writers, resets and Stats at once. Each writer's slot always holds between low and high
// keys of the chain, so every match must say so; every match is checked, and none may differ.
func TestConcurrentUse(t *testing.T) {
	const (
		writers = 4
		length  = 300
		matches = 700
	)
	x := newIndex(t, Options{MaxSlots: 20, CheckEvery: 1})
	x.sets.slack = 0
	keys := chain(rand.New(rand.NewPCG(1, 2)), length)
	slots := acquire(t, x, writers)
	low, high := make([]int, writers), make([]int, writers)
	for i, s := range slots {
		low[i], high[i] = 40*i, min(length, 40*i+150)
		store(t, x, s, keys[:low[i]])
	}
	moving := acquire(t, x, 1)[0]
	var current atomic.Pointer[Slot]
	current.Store(&moving)

	var done atomic.Bool
	var helpers sync.WaitGroup
	for i, s := range slots {
		helpers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for !done.Load() {
				to := low[i] + r.IntN(high[i]-low[i]+1)
				store(t, x, s, keys[:to])
				for _, tier := range []Tier{Device, Any} {
					if err := x.Remove(s, tier, reversed(keys[low[i]:to])); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	helpers.Go(func() {
		for r := rand.New(rand.NewPCG(9, 3)); !done.Load(); {
			fresh, err := x.Reset(*current.Load())
			if err != nil {
				t.Error(err)
				return
			}
			current.Store(&fresh)
			store(t, x, fresh, keys[:r.IntN(length)])
			x.Stats()
			x.Blocks(fresh)
		}
	})

	var matchers sync.WaitGroup
	for range 3 {
		matchers.Go(func() {
			held := make([]Held, writers+1)
			for range matches {
				x.Match(keys, append(slots[:writers:writers], *current.Load()), held)
				for i, h := range held[:writers] {
					if int(h.Any) < low[i] || int(h.Any) > high[i] || int(h.Device) < low[i] || h.Device > h.Any {
						t.Errorf("slot %d holds %+v, want %d to %d", i, h, low[i], high[i])
					}
				}
			}
		})
	}
	matchers.Wait()
	done.Store(true)
	helpers.Wait()

	st := x.Stats()
	if st.Differences != 0 || st.Walking {
		t.Errorf("%d of %d checks differ", st.Differences, st.Checks)
	}
	checkInvariants(t, x)
	for _, s := range append(slots, *current.Load()) {
		x.Release(s)
	}
	if st := x.Stats(); st.Blocks != 0 || st.Slots != 0 {
		t.Errorf("after all releases: %+v", st)
	}
	checkInvariants(t, x)
}
