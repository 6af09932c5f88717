package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// worstBytes stores chains of 64 blocks, each held by as many of the slots as asked for, one after the other, and then
// removes them. It returns the most bytes per block seen while there were at least least blocks.
func worstBytes(tb testing.TB, r *rand.Rand, blocks, holders, slots, least int) float64 {
	const length = 64
	x := newIndex(tb, Options{CheckEvery: -1})
	all := acquire(tb, x, slots)
	worst := 0.0
	look := func() {
		if st := x.Stats(); st.Blocks >= int64(least) {
			worst = max(worst, float64(st.Bytes)/float64(st.Blocks))
		}
	}
	chains := make([][]uint64, blocks/length)
	owners := make([][]Slot, len(chains))
	for i := range chains {
		chains[i] = chain(r, length)
		from := r.IntN(slots - holders + 1) // neighbours hold a chain: every chain has another set when there are many
		owners[i] = all[from : from+holders]
		for _, s := range owners[i] {
			store(tb, x, s, chains[i])
		}
		look()
	}
	for i, keys := range chains {
		for _, s := range owners[i] {
			for _, t := range []Tier{Device, Any} {
				if err := x.Remove(s, t, reversed(keys)); err != nil {
					tb.Fatal(err)
				}
			}
		}
		look()
	}
	if st := x.Stats(); st.Blocks != 0 {
		tb.Fatalf("%d blocks left", st.Blocks)
	}
	return worst
}

// TestBytesPerBlock looks at every fill of the tables on the way up and down, by the index's own account, which
// TestBytesAreTrue holds against the heap.
func TestBytesPerBlock(t *testing.T) {
	for _, holders := range []int{1, 8, 64, 256} {
		t.Run(fmt.Sprintf("holders=%d", holders), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(holders), 1))
			blocks := max(20_000, 200_000/holders)
			if got := worstBytes(t, r, blocks, holders, 256+16, 15_000); got > 40 {
				t.Errorf("%.1f bytes per block, want at most 40", got)
			}
		})
	}
}

func TestBytesAreTrue(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	keys := chain(rand.New(rand.NewPCG(1, 1)), 300_000)
	before := heap()
	x := newIndex(t, Options{})
	s := acquire(t, x, 3)
	for i, slot := range s {
		store(t, x, slot, keys[i*1000:])
	}
	if got, want := heap()-before, x.Stats().Bytes; got > want*11/10 || got < want*9/10 {
		t.Errorf("heap grew by %d bytes, the index counts %d", got, want)
	}

	for _, slot := range s {
		x.Release(slot)
	}
	if got := heap() - before; got > 300_000 {
		t.Errorf("%d bytes are left after all slots are released", got)
	}
	checkInvariants(t, x)
	runtime.KeepAlive(keys)
}

// Sets that no block has any more are used again, and their memory is given back.
func TestSetsAreCollected(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	x := newIndex(t, Options{})
	slots := acquire(t, x, 64)
	keys := chain(r, 5000)
	most := 0
	for range 5 {
		for _, key := range keys { // thousands of different sets
			for range 4 {
				if err := x.Store(slots[r.IntN(64)], Any, []uint64{key}); err != nil {
					t.Fatal(err)
				}
			}
		}
		most = max(most, x.Stats().Sets)
		for _, s := range slots {
			if err := x.Remove(s, Any, keys); err != nil {
				t.Fatal(err)
			}
		}
		checkInvariants(t, x)
	}
	if st := x.Stats(); most < 2000 || most > 12_000 || st.Sets > 1000 || st.Bytes > 1<<20 {
		t.Errorf("at most %d sets; at the end %+v", most, st)
	}
	for _, s := range slots {
		x.Release(s)
	}
	checkInvariants(t, x)
}

func TestMatchDoesNotAllocate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := newIndex(t, Options{CheckEvery: 2})
	slots := acquire(t, x, 64)
	keys := chain(r, 4096)
	for i, s := range slots {
		store(t, x, s, keys[:64*i])
	}
	held := make([]Held, len(slots))
	for range 2 * len(x.matchers.nests) { // each keeps what it notes for checks
		match(x, keys, slots...)
	}
	shapes := map[string][]uint64{"spread": keys, "aligned": keys[:1], "miss": chain(r, 4096)}
	for name, keys := range shapes {
		t.Run(name, func(t *testing.T) {
			if n := testing.AllocsPerRun(20, func() { x.Match(keys, slots, held) }); n != 0 {
				t.Errorf("%v allocations, want 0", n)
			}
		})
	}
	x.walking.Store(true)
	if n := testing.AllocsPerRun(20, func() { x.Match(keys, slots, held) }); n != 0 {
		t.Errorf("walking: %v allocations, want 0", n)
	}
	churn := chain(r, 64)
	back := reversed(churn)
	store(t, x, slots[0], churn)
	if n := testing.AllocsPerRun(20, func() {
		_ = x.Remove(slots[0], Device, back)
		_ = x.Remove(slots[0], Any, back)
		_ = x.Store(slots[0], Any, churn)
		_ = x.Store(slots[0], Device, churn)
	}); n > 1 { // a shard may grow or shrink
		t.Errorf("turnover of 64 blocks: %v allocations, want less than 2", n)
	}
}

// BenchmarkBytes reports the bytes per block at the worst fill, each chain of 64 blocks having another set of holders.
func BenchmarkBytes(b *testing.B) {
	for _, holders := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("holders=%d", holders), func(b *testing.B) {
			r := rand.New(rand.NewPCG(uint64(holders), 1))
			worst := 0.0
			for b.Loop() {
				worst = worstBytes(b, r, max(1<<16, 1_000_000/holders), holders, 1000, 1<<15)
			}
			b.ReportMetric(worst, "bytes/block")
		})
	}
}
