package subscriber

import (
	"math/bits"
	"math/rand/v2"
)

// hashSet tells repeated engine hashes within one event. It is emptied by
// raising the generation. The multiplier is drawn at random, so that a peer
// cannot choose hashes that all fall on one slot.
type hashSet struct {
	slots []hashSlot
	gen   uint32
	mul   uint64
}

type hashSlot struct {
	hash uint64
	gen  uint32
}

// begin empties the set and makes room for n hashes.
func (s *hashSet) begin(n int) {
	size := 1 << bits.Len(uint(2*n)) // at most half full
	if len(s.slots) < size || len(s.slots) > keepBuffer && size < keepBuffer {
		*s = hashSet{slots: make([]hashSlot, size), mul: rand.Uint64() | 1}
	}
	s.gen++
	if s.gen == 0 {
		clear(s.slots)
		s.gen = 1
	}
}

// add enters a hash and tells whether it was there already.
func (s *hashSet) add(hash uint64) bool {
	mask := uint64(len(s.slots) - 1)
	// High and low half of the product, as any bit of hash may be the only
	// one that differs.
	hi, lo := bits.Mul64(hash^s.mul, s.mul)
	for i := (hi ^ lo) & mask; ; i = (i + 1) & mask {
		slot := &s.slots[i]
		if slot.gen != s.gen {
			*slot = hashSlot{hash: hash, gen: s.gen}
			return false
		}
		if slot.hash == hash {
			return true
		}
	}
}
