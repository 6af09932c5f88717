package subscriber

// coldLinks joins a block into the coldList.
type coldLinks struct {
	next, prev uint32
	in         bool
}

// coldList orders the blocks that have no copy on the device by the time they
// left it. Some connectors store and never say that they removed, so these
// are what the mirror parts with when it is full.
type coldList struct {
	head, tail uint32
}

// evictTries bounds how many cold blocks one eviction looks at for a leaf.
const evictTries = 8

// keepCold puts a block into the list or takes it out, as its copies say.
func (m *mirror) keepCold(id uint32) {
	b := &m.blocks[id]
	want := !b.copies.none() && !m.copies.onDevice(&b.copies)
	switch {
	case want && !b.cold.in:
		b.cold = coldLinks{prev: m.cold.tail, in: true}
		if m.cold.tail != 0 {
			m.blocks[m.cold.tail].cold.next = id
		} else {
			m.cold.head = id
		}
		m.cold.tail = id
	case !want && b.cold.in:
		if b.cold.prev != 0 {
			m.blocks[b.cold.prev].cold.next = b.cold.next
		} else {
			m.cold.head = b.cold.next
		}
		if b.cold.next != 0 {
			m.blocks[b.cold.next].cold.prev = b.cold.prev
		} else {
			m.cold.tail = b.cold.prev
		}
		b.cold = coldLinks{}
	}
}

// evict makes room by forgetting the block longest off the device, leaves
// only, so that nothing is withdrawn but the block itself. It spares keep, the
// parent of the block that wants the room. It is false when no leaf is found
// among the first few.
func (m *mirror) evict(keep uint32) bool {
	for range evictTries {
		id := m.cold.head
		if id == 0 {
			return false
		}
		if m.blocks[id].child == 0 && id != keep {
			m.delete(id)
			return true
		}
		m.toTail(id)
	}
	return false
}

func (m *mirror) toTail(id uint32) {
	if m.cold.tail == id {
		return
	}
	b := &m.blocks[id]
	m.cold.head = b.cold.next
	m.blocks[b.cold.next].cold.prev = 0
	b.cold.next, b.cold.prev = 0, m.cold.tail
	m.blocks[m.cold.tail].cold.next = id
	m.cold.tail = id
}
