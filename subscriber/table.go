package subscriber

import (
	"math/bits"
	"math/rand/v2"
)

// table maps 64-bit keys to ids other than 0. The mirror looks up several of
// them per block, mostly in vain and in memory that is in no cache, so it
// probes in line where a Go map touches three places.
//
// Keys come from the engine. The multiplier is drawn at random, so that nobody
// can choose keys that all fall on one slot.
type table struct {
	slots []tableSlot // a power of two, at most 2/3 full
	n     int
	mul   uint64

	warmed uint32 // takes what warm reads, so that it is read
}

type tableSlot struct {
	key uint64
	id  uint32 // 0 = free
}

const minTable = 64

func newTable() table {
	return table{slots: make([]tableSlot, minTable), mul: rand.Uint64() | 1}
}

// newTableFor returns a table with room for n keys.
func newTableFor(n int) table {
	t := newTable()
	if size := 1 << bits.Len(uint(n+n/2)); size > minTable {
		t.slots = make([]tableSlot, size)
	}
	return t
}

// home is the slot where the search for a key begins. High and low half of the
// product are mixed, as any bit of the key may be the only one that differs.
func (t *table) home(key uint64) int {
	hi, lo := bits.Mul64(key^t.mul, t.mul)
	return int(hi^lo) & (len(t.slots) - 1)
}

// get returns the id of a key, 0 when it has none.
func (t *table) get(key uint64) uint32 {
	for i := t.home(key); ; i = (i + 1) & (len(t.slots) - 1) {
		s := &t.slots[i]
		if s.id == 0 || s.key == key {
			return s.id
		}
	}
}

// warm reads the slot where the search for a key begins. Called for many keys
// before they are looked up, it lets their cache misses overlap.
func (t *table) warm(key uint64) { t.warmed ^= t.slots[t.home(key)].id }

// put enters a key that is not there.
func (t *table) put(key uint64, id uint32) {
	if 3*(t.n+1) > 2*len(t.slots) {
		old := t.slots
		t.slots = make([]tableSlot, 2*len(old))
		for _, s := range old {
			if s.id != 0 {
				t.place(s)
			}
		}
	}
	t.n++
	t.place(tableSlot{key, id})
}

func (t *table) place(s tableSlot) {
	i := t.home(s.key)
	for t.slots[i].id != 0 {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = s
}

// del takes a key out and closes the gap: whatever follows without a free slot
// in between moves up, unless that would put it before its home.
func (t *table) del(key uint64) {
	mask := len(t.slots) - 1
	i := t.home(key)
	for t.slots[i].key != key || t.slots[i].id == 0 {
		if t.slots[i].id == 0 {
			return
		}
		i = (i + 1) & mask
	}
	t.n--
	for j := (i + 1) & mask; t.slots[j].id != 0; j = (j + 1) & mask {
		if home := t.home(t.slots[j].key); (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = tableSlot{}
}
