package subscriber

// What a full mirror parts with to make room for newer blocks. Only leaves go, so that nothing is withdrawn but the block itself, and what was
// announced stays prefix-closed. What has gone is not known any more: its removal is one of an unknown block, and what the engine stores
// under it later is an orphan, unless its content is still known (withdraw).
//
// First go blocks that are off the device, since some connectors store and never say that they removed; then the leaves on it
// that were used longest ago, as far as events tell: when they were stored, or something was stored under them.

// roomList joins blocks in the order in which they are to go, the next one first.
type roomList struct {
	head, tail uint32
}

// roomKind says in which list a block is.
type roomKind uint8

const (
	roomNone roomKind = iota // an inner block on the device
	roomCold                 // no copy on the device
	roomLeaf                 // on the device, without children
	roomKinds
)

// roomLinks joins a block into a roomList.
type roomLinks struct {
	next, prev uint32
	in         roomKind
}

// roomTries bounds how many blocks of each list one eviction looks at.
const roomTries = 8

// place puts a block into the list that it belongs to, as its copies and children say. One that comes into a list is the last to go.
func (m *mirror) place(id uint32) {
	b := &m.blocks[id]
	kind := roomNone
	switch {
	case b.copies.none():
	case !m.copies.onDevice(&b.copies):
		kind = roomCold
	case b.child == 0:
		kind = roomLeaf
	}
	if b.room.in == kind {
		return
	}
	m.unlist(id)
	if kind != roomNone {
		m.list(id, kind)
	}
}

// list joins a block to the end of a list.
func (m *mirror) list(id uint32, kind roomKind) {
	l, b := &m.room[kind], &m.blocks[id]
	b.room = roomLinks{prev: l.tail, in: kind}
	if l.tail != 0 {
		m.blocks[l.tail].room.next = id
	} else {
		l.head = id
	}
	l.tail = id
}

// unlist takes a block out of the list that it is in.
func (m *mirror) unlist(id uint32) {
	b := &m.blocks[id]
	if b.room.in == roomNone {
		return
	}
	l := &m.room[b.room.in]
	if b.room.prev != 0 {
		m.blocks[b.room.prev].room.next = b.room.next
	} else {
		l.head = b.room.next
	}
	if b.room.next != 0 {
		m.blocks[b.room.next].room.prev = b.room.prev
	} else {
		l.tail = b.room.prev
	}
	b.room = roomLinks{}
}

// requeue makes a block the last of its list.
func (m *mirror) requeue(id uint32) {
	kind := m.blocks[id].room.in
	if kind == roomNone || m.room[kind].tail == id {
		return
	}
	m.unlist(id)
	m.list(id, kind)
}

// parented takes a block that has got its first child out of the leaves.
func (m *mirror) parented(id uint32) {
	if m.blocks[id].room.in == roomLeaf {
		m.unlist(id)
	}
}

// bereft makes a block on the device that has lost its last child the next leaf to go, as a rule it was used with that child. If it was used
// since, evict sees that and makes it the last.
func (m *mirror) bereft(id uint32) {
	b := &m.blocks[id]
	if b.room.in != roomNone || b.copies.none() {
		return
	}
	l := &m.room[roomLeaf]
	b.room = roomLinks{next: l.head, in: roomLeaf}
	if l.head != 0 {
		m.blocks[l.head].room.prev = id
	} else {
		l.tail = id
	}
	l.head = id
}

// use notes that an event has to do with a block: it is there, or was a moment ago.
func (m *mirror) use(id uint32) {
	m.blocks[id].used = m.clock
	m.requeue(id)
}

// evict makes room by forgetting one block. It spares keep, the parent of the block that wants the room. It is false when none is found that
// may go.
func (m *mirror) evict(keep uint32) bool {
	for range roomTries {
		id := m.room[roomCold].head
		if id == 0 {
			break
		}
		if m.blocks[id].child == 0 && id != keep {
			m.withdraw(id)
			return true
		}
		m.requeue(id)
	}
	leaves := &m.room[roomLeaf]
	for range roomTries {
		id := leaves.head
		if id == 0 {
			return false
		}
		next := m.blocks[id].room.next
		newer := next != 0 && int32(m.blocks[id].used-m.blocks[next].used) > 0
		if id != keep && !newer {
			m.withdraw(id)
			return true
		}
		if next == 0 {
			return false
		}
		m.requeue(id)
	}
	id := leaves.head
	if id == keep {
		id = m.blocks[id].room.next
	}
	m.withdraw(id)
	return true
}

// withdraw forgets a leaf. Its content is kept as a ghost: when the engine stores something under it, prove enters it again.
func (m *mirror) withdraw(id uint32) {
	b := m.blocks[id]
	m.delete(id)
	m.withdrawn++
	m.keepGhosts = true
	if !b.ambiguous && !b.inferred {
		m.ghosts.add(storeBlock{hash: b.hash, above: b.above, first: b.first, content: b.content}, m.now)
	}
}
