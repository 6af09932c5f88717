package kvindex

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkMatchBesideOpen is BenchmarkMatch for 4,096 blocks that 63 endpoints hold, with one more endpoint that has announced every other one of them and was
// found out.
func BenchmarkMatchBesideOpen(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x := newIndex(b, Options{})
	slots := acquire(b, x, 64)
	keys := chain(r, 4096)
	for i, s := range slots {
		store(b, x, s, chain(r, 200_000/len(slots)))
		if i > 0 {
			store(b, x, s, keys)
			continue
		}
		for k := 1; k < len(keys); k += 2 {
			store(b, x, s, keys[k:k+1])
		}
	}
	held := make([]Held, len(slots))
	for range 3 * x.options.CheckEvery {
		x.Match(keys, slots, held)
	}
	b.ReportAllocs()
	for b.Loop() {
		x.Match(keys, slots, held)
	}
}
