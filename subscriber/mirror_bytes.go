package subscriber

import (
	"math/bits"
	"unsafe"
)

// bytes returns how much memory the mirror takes, ghosts and fingerprints included, by the capacity of what it is made of. What is kept for healing is
// not in it; that has bounds of its own.
func (m *mirror) bytes() int {
	return sliceBytes(m.blocks) + m.byHash.bytes() + m.prints.bytes() + waitingBytes(m.waited) +
		sliceBytes(m.copies.more) + sliceBytes(m.lapses.heap) + sliceBytes(m.lapses.ends) + m.lapses.byCopy.bytes() +
		sliceBytes(m.ghosts.ring) + m.ghosts.byHash.bytes() + sliceBytes(m.stack)
}

func (s *printSet) bytes() int {
	n := sliceBytes(s.prints) + s.byKey.bytes() + sliceBytes(s.dirty) + sliceBytes(s.keys)
	for t := range s.stored {
		n += sliceBytes(s.stored[t]) + sliceBytes(s.removed[t])
	}
	return n
}

func (t *table) bytes() int { return sliceBytes(t.slots) }

func sliceBytes[E any](s []E) int {
	var e E
	return cap(s) * int(unsafe.Sizeof(e))
}

// waitingBytes estimates what mirror.waiting takes, which has had at most n keys at a time and never shrinks: Go's maps double when they are 7/8 full, and
// take a byte for each place beside its key and value, here 16 bytes.
func waitingBytes(n int) int {
	if n == 0 {
		return 0
	}
	return 17 << bits.Len(uint((8*n+6)/7-1))
}
