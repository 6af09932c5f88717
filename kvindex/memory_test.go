package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// hold makes slots hold a chain on both tiers, with what Store leaves in tables and sets, but goes through the slots once per
// chain and not once per key. It returns the set.
func hold(x *Index, keys []uint64, slots []Slot) uint32 {
	set, refs := uint32(0), int32(2*len(keys))
	for _, s := range slots {
		set, _ = x.sets.change([2]given{{set, refs}}, set, s.index, refs, true)
	}
	for _, key := range keys {
		h := hash(x.seed, key)
		s := x.shard(h)
		s.insert(s.table.Load().seek(h, key), h, key, uint64(set)<<32|uint64(set))
	}
	x.blocks.Add(int64(len(keys)))
	return set
}

// drop undoes hold.
func drop(x *Index, keys []uint64, set uint32) {
	for _, key := range keys {
		h := hash(x.seed, key)
		s := x.shard(h)
		s.remove(s.table.Load().seek(h, key))
		s.shrink()
	}
	x.blocks.Add(-int64(len(keys)))
	x.sets.giveBack([2]given{{set, int32(2 * len(keys))}})
}

// worstBytes fills an index with chains of 64 blocks and empties it again. Each chain is held by other slots: as many as
// holders says, out of slots. It returns the most bytes per block seen while there were at least least blocks.
func worstBytes(tb testing.TB, r *rand.Rand, blocks, holders, slots, least int) float64 {
	x := newIndex(tb, Options{CheckEvery: -1})
	all := acquire(tb, x, slots)
	worst := 0.0
	look := func() {
		if st := x.Stats(); st.Blocks >= int64(least) {
			worst = max(worst, float64(st.Bytes)/float64(st.Blocks))
		}
	}
	chains := make([][]uint64, blocks/64)
	sets := make([]uint32, len(chains))
	for i := range chains {
		chains[i] = chain(r, 64)
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		sets[i] = hold(x, chains[i], all[:holders])
		look()
	}
	checkInvariants(tb, x)
	for i, keys := range chains {
		drop(x, keys, sets[i])
		look()
	}
	checkInvariants(tb, x)
	return worst
}

// TestBytesPerBlock looks at every fill of the tables on the way up and down, by the index's own account, which
// TestBytesAreTrue holds against the heap.
func TestBytesPerBlock(t *testing.T) {
	for _, holders := range []int{1, 8, 64, 256} {
		t.Run(fmt.Sprintf("holders=%d", holders), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(holders), 1))
			if got := worstBytes(t, r, 40_000, holders, 300, 16_000); got > 40 {
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
	keys := chain(rand.New(rand.NewPCG(1, 1)), 60_000)
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
	keys := chain(r, 2000)
	most := 0
	for range 2 {
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
	if st := x.Stats(); most < 1000 || most > 5000 || st.Sets > 200 || st.Bytes > 400_000 {
		t.Errorf("at most %d sets; at the end %+v", most, st)
	}
	store(t, x, slots[0], keys[:1])
	for _, s := range slots {
		x.Release(s)
	}
	if st := x.Stats(); st.Sets != 0 || st.Bytes > 150_000 {
		t.Errorf("after all releases: %+v", st)
	}
	checkInvariants(t, x)
}

// What an index takes whatever the number of blocks is said in the package comment.
func TestBytesOfEmptyIndex(t *testing.T) {
	if got := newIndex(t, Options{}).Stats().Bytes; got < 90_000 || got > 110_000 {
		t.Errorf("an empty index takes %d bytes", got)
	}
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
	store(t, x, slots[0], chain(r, 1<<17)) // shards of a few blocks grow and shrink with each of them
	churn := chain(r, 64)
	back := reversed(churn)
	store(t, x, slots[0], churn)
	if n := testing.AllocsPerRun(20, func() {
		_ = x.Remove(slots[0], Device, back)
		_ = x.Remove(slots[0], Any, back)
		_ = x.Store(slots[0], Any, churn)
		_ = x.Store(slots[0], Device, churn)
	}); n > 1 { // one may, once
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
				worst = worstBytes(b, r, 1<<20, holders, 1000, 1<<15)
			}
			b.ReportMetric(worst, "bytes/block")
		})
	}
}
