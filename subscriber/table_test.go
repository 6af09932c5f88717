package subscriber

import (
	"math/rand/v2"
	"testing"
)

// TestTable compares with a Go map over random operations on few keys, in a
// table whose probe runs wrap around its end.
func TestTable(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		tab, want := newTable(), map[uint64]uint32{}
		keys := 1 + rnd.IntN(200)
		for range 20_000 {
			key := uint64(rnd.IntN(keys)) << (seed % 3 * 28)
			switch id := want[key]; {
			case id == 0 && rnd.IntN(2) == 0:
				want[key] = 1 + rnd.Uint32N(1000)
				tab.put(key, want[key])
			case rnd.IntN(2) == 0:
				delete(want, key)
				tab.del(key)
			}
			if got := tab.get(key); got != want[key] {
				t.Fatalf("seed %d: key %x is %d, want %d", seed, key, got, want[key])
			}
		}
		got := 0
		for key, id := range tab.all {
			got++
			if want[key] != id || tab.get(key) != id {
				t.Fatalf("seed %d: key %x is %d, want %d", seed, key, id, want[key])
			}
		}
		if got != len(want) || tab.n != len(want) {
			t.Fatalf("seed %d: %d keys, counted %d, want %d", seed, got, tab.n, len(want))
		}
	}
}

// all calls yield for every key.
func (t *table) all(yield func(key uint64, id uint32) bool) {
	for _, s := range t.slots {
		if s.id != 0 && !yield(s.key, s.id) {
			return
		}
	}
}
