package kvindex

import (
	"math/rand/v2"
	"testing"
)

// TestCopyIsNotAskedFor fills a slot in any order, as a copy with changes in between does: blocks before their parents, twice, removed without
// being there. While nobody asks for it, matches of the others are true, as each of them is checked; and once its set is what it should be, so are its own.
func TestCopyIsNotAskedFor(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, seed, 60, 6, Options{CheckEvery: 1, MaxSlots: 16})
		r := rand.New(rand.NewPCG(seed, 2))
		match := func() {
			t.Helper()
			var slots []Slot
			for _, h := range w.holders {
				slots = append(slots, h.slot)
			}
			w.match(slots)
			checkInvariants(t, w.x)
		}
		fresh := newHolder(acquire(t, w.x, 1)[0])
		write := func(tier Tier, node int, on bool) {
			t.Helper()
			do := w.x.Remove
			if on {
				do = w.x.Store
			}
			if err := do(fresh.slot, tier, []uint64{w.forest.keys[node]}); err != nil {
				t.Fatal(err)
			}
			if fresh.nodes[tier][node] = on; !on {
				delete(fresh.nodes[tier], node)
			}
		}
		for n := range 200 {
			switch node := r.IntN(len(w.forest.keys)); r.IntN(4) {
			case 0:
				write(Device, node, false)
				write(Any, node, false)
			case 1:
				write(Any, node, true)
			default:
				write(Any, node, true)
				write(Device, node, true)
			}
			w.write()
			if n%10 == 0 {
				match()
			}
		}
		// The copy ends with whole chains.
		for node := range w.forest.keys {
			for _, tier := range []Tier{Device, Any} {
				write(tier, node, false)
			}
		}
		for range 3 {
			for _, node := range w.forest.path(r.IntN(len(w.forest.keys))) {
				write(Any, node, true)
			}
		}
		w.holders = append(w.holders, fresh)
		w.compare()
		if s := w.x.Stats(); s.Walking || s.Differences != 0 || s.Opened != 0 {
			t.Fatalf("seed %d: %+v", seed, s)
		}
	}
}
