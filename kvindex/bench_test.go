package kvindex

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// chain returns n keys of a chain of its own.
func chain(r *rand.Rand, n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = r.Uint64()
	}
	return keys
}

func newIndex(tb testing.TB, o Options) *Index {
	tb.Helper()
	x, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

func acquire(tb testing.TB, x *Index, n int) []Slot {
	tb.Helper()
	slots := make([]Slot, n)
	for i := range slots {
		s, err := x.Acquire()
		if err != nil {
			tb.Fatal(err)
		}
		slots[i] = s
	}
	return slots
}

func store(tb testing.TB, x *Index, s Slot, keys []uint64) {
	tb.Helper()
	for _, t := range []Tier{Any, Device} {
		if err := x.Store(s, t, keys); err != nil {
			tb.Fatal(err)
		}
	}
}

// reversed returns keys in the order for Remove.
func reversed(keys []uint64) []uint64 {
	r := make([]uint64, len(keys))
	for i, k := range keys {
		r[len(r)-1-i] = k
	}
	return r
}

// benchShapes say how many of n keys slot i of m holds.
var benchShapes = []struct {
	name  string
	depth func(i, m, n int) int
}{
	{"aligned", func(_, _, n int) int { return n }},
	{"spread", func(i, m, n int) int { return (2*i + 1) * n / (2 * m) }},
	{"miss", func(_, _, _ int) int { return 0 }},
}

// BenchmarkMatch has 200,000 other blocks in the index, so that it does not fit into the first caches. In the cases named
// writing another goroutine stores and removes blocks of one more slot at full rate: a chain of its own, and the tail of
// the matched one.
func BenchmarkMatch(b *testing.B) {
	for _, blocks := range []int{512, 4096} {
		for _, endpoints := range []int{8, 64, 256} {
			for _, shape := range benchShapes {
				b.Run(fmt.Sprintf("blocks=%d/endpoints=%d/%s", blocks, endpoints, shape.name), func(b *testing.B) {
					benchmarkMatch(b, blocks, endpoints, shape.depth, false)
				})
				b.Run(fmt.Sprintf("blocks=%d/endpoints=%d/%s/writing", blocks, endpoints, shape.name), func(b *testing.B) {
					benchmarkMatch(b, blocks, endpoints, shape.depth, true)
				})
			}
		}
	}
}

func benchmarkMatch(b *testing.B, blocks, endpoints int, depth func(i, m, n int) int, writing bool) {
	r := rand.New(rand.NewPCG(1, 2))
	x := newIndex(b, Options{})
	slots := acquire(b, x, endpoints)
	keys := chain(r, blocks)
	for i, s := range slots {
		store(b, x, s, chain(r, 200_000/endpoints))
		store(b, x, s, keys[:depth(i, endpoints, blocks)])
	}
	held := make([]Held, len(slots))
	stop := func() {}
	if writing {
		stop = writeAtFullRate(b, x, chain(r, 4096), keys)
	}
	b.ReportAllocs()
	for b.Loop() {
		x.Match(keys, slots, held)
	}
	b.StopTimer()
	stop()
	for i := range slots {
		if want := int32(depth(i, endpoints, blocks)); held[i] != (Held{want, want}) {
			b.Fatalf("slot %d: %+v, want %d", i, held[i], want)
		}
	}
}

func writeAtFullRate(tb testing.TB, x *Index, own, shared []uint64) (stop func()) {
	s := acquire(tb, x, 1)[0]
	store(tb, x, s, shared[:len(shared)/2])
	tail := shared[len(shared)/2:]
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			for _, keys := range [][]uint64{own, tail} {
				select {
				case <-done:
					return
				default:
				}
				store(tb, x, s, keys)
				for _, t := range []Tier{Device, Any} {
					if err := x.Remove(s, t, reversed(keys)); err != nil {
						tb.Error(err)
					}
				}
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// BenchmarkStore stores blocks on one tier, 64 to a call as engines announce them: blocks that no slot holds yet, blocks
// that other slots hold, and blocks that are stored and removed again in a full index.
func BenchmarkStore(b *testing.B) {
	const batch = 64
	r := rand.New(rand.NewPCG(1, 2))
	perBlock := func(b *testing.B, blocks int) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
	}
	b.Run("new", func(b *testing.B) {
		const n = 1 << 20
		keys := chain(r, n)
		b.ReportAllocs()
		total := 0
		for b.Loop() {
			x := newIndex(b, Options{})
			s := acquire(b, x, 1)[0]
			for i := 0; i < n; i += batch {
				if err := x.Store(s, Any, keys[i:i+batch]); err != nil {
					b.Fatal(err)
				}
			}
			total += n
		}
		perBlock(b, total)
	})
	b.Run("shared", func(b *testing.B) {
		const n = 1 << 16
		keys := chain(r, n)
		b.ReportAllocs()
		total := 0
		for b.Loop() {
			x := newIndex(b, Options{})
			for _, s := range acquire(b, x, 16) {
				for i := 0; i < n; i += batch {
					if err := x.Store(s, Any, keys[i:i+batch]); err != nil {
						b.Fatal(err)
					}
				}
			}
			total += 16 * n
		}
		perBlock(b, total)
	})
	b.Run("turnover", func(b *testing.B) {
		const n = 1 << 20
		x := newIndex(b, Options{})
		s := acquire(b, x, 1)[0]
		keys := chain(r, n)
		if err := x.Store(s, Any, keys); err != nil {
			b.Fatal(err)
		}
		fresh := chain(r, batch)
		b.ReportAllocs()
		total := 0
		for b.Loop() {
			at := total % n
			if err := x.Remove(s, Any, keys[at:at+batch]); err != nil {
				b.Fatal(err)
			}
			for i := range fresh {
				fresh[i] = r.Uint64()
			}
			copy(keys[at:], fresh)
			if err := x.Store(s, Any, fresh); err != nil {
				b.Fatal(err)
			}
			total += batch
		}
		perBlock(b, 2*total)
	})
}

// BenchmarkRelease releases a slot that shares an index of a million blocks with another.
func BenchmarkRelease(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x := newIndex(b, Options{})
	slots := acquire(b, x, 2)
	keys := chain(r, 1<<20)
	store(b, x, slots[0], keys)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		store(b, x, slots[1], keys[:len(keys)/2])
		b.StartTimer()
		s, err := x.Reset(slots[1])
		if err != nil {
			b.Fatal(err)
		}
		slots[1] = s
	}
}
