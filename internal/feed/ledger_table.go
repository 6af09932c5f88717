package feed

import (
	"math/bits"
	"math/rand/v2"
)

// table finds the positions of keys that stand elsewhere: a slot is half of a key's hash and its position + 1, 8 bytes, 11 to 21 per key. Whoever looks
// up compares the key at the positions that next gives, of which nearly all are right.
//
// The multiplier is drawn at random, so that nobody can choose keys that all fall on one slot.
type table struct {
	slots []uint64 // a power of two, at most 3/4 full; 0 = free
	n     int
	mul   uint64
}

const minTable = 64

func newTable() table { return table{slots: make([]uint64, minTable), mul: rand.Uint64() | 1} }

// hash is never the same for all keys that differ in some bits only: high and low half of the product are mixed.
func (t *table) hash(key uint64) uint32 {
	hi, lo := bits.Mul64(key^t.mul, t.mul)
	x := hi ^ lo
	return uint32(x ^ x>>32)
}

// first is where the search for a hash begins.
func (t *table) first(hash uint32) int { return int(hash) & (len(t.slots) - 1) }

// next looks from a slot on for one of the hash. Without another it returns the free slot at the end of the search.
func (t *table) next(hash uint32, from int) (slot int, at uint32, ok bool) {
	for i := from; ; i = (i + 1) & (len(t.slots) - 1) {
		s := t.slots[i]
		if s == 0 {
			return i, 0, false
		}
		if uint32(s>>32) == hash {
			return i, uint32(s) - 1, true
		}
	}
}

// after is the slot that follows.
func (t *table) after(slot int) int { return (slot + 1) & (len(t.slots) - 1) }

// add enters the position of a key that is not there.
func (t *table) add(hash, at uint32) {
	if 4*(t.n+1) > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]uint64, 2*len(old))
		for _, s := range old {
			if s != 0 {
				t.place(s)
			}
		}
	}
	t.n++
	t.place(uint64(hash)<<32 | uint64(at+1))
}

func (t *table) place(s uint64) {
	i := t.first(uint32(s >> 32))
	for t.slots[i] != 0 {
		i = t.after(i)
	}
	t.slots[i] = s
}

// move changes the position that stands in a slot.
func (t *table) move(slot int, at uint32) { t.slots[slot] = t.slots[slot]>>32<<32 | uint64(at+1) }

// remove frees a slot and closes the gap: whatever follows without a free slot in between moves up, unless that would put it before its
// first slot.
func (t *table) remove(slot int) {
	t.n--
	mask := len(t.slots) - 1
	i := slot
	for j := (i + 1) & mask; t.slots[j] != 0; j = (j + 1) & mask {
		if home := t.first(uint32(t.slots[j] >> 32)); (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = 0
}

// clear empties the table and keeps at most a small one.
func (t *table) clear(keep int) {
	t.n = 0
	if len(t.slots) > keep {
		t.slots = make([]uint64, minTable)
		return
	}
	clear(t.slots)
}

func (t *table) bytes() int { return 8 * len(t.slots) }
