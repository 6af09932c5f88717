package subscriber

import "github.com/kvsteer/kvsteer/internal/blockhash"

// Which block precedes which, and what follows from that when one comes, goes
// or gets another copy.

// attach joins a block to its parent, or to those that wait for it when it is
// not present (parent 0).
func (m *mirror) attach(id, parent uint32) {
	b := &m.blocks[id]
	b.parent = parent
	if parent != 0 {
		b.next = m.blocks[parent].child
		m.blocks[parent].child = id
		m.blocks[parent].used = m.clock
		m.parented(parent)
	} else {
		b.next = m.waiting[b.above]
		m.waiting[b.above] = id
		m.waited = max(m.waited, len(m.waiting))
	}
	if b.next != 0 {
		m.blocks[b.next].prev = id
	}
}

func (m *mirror) detach(id uint32) {
	b := &m.blocks[id]
	switch {
	case b.prev != 0:
		m.blocks[b.prev].next = b.next
	case b.first:
	case b.parent != 0:
		m.blocks[b.parent].child = b.next
		if b.next == 0 {
			m.bereft(b.parent)
		}
	case b.next != 0:
		m.waiting[b.above] = b.next
	default:
		delete(m.waiting, b.above)
	}
	if b.next != 0 {
		m.blocks[b.next].prev = b.prev
	}
	b.next, b.prev = 0, 0
}

// adopt makes those that wait for a block its children.
func (m *mirror) adopt(id uint32) {
	b := &m.blocks[id]
	first, ok := m.waiting[b.hash]
	if !ok {
		return
	}
	delete(m.waiting, b.hash)
	b.child = first
	for c := first; c != 0; c = m.blocks[c].next {
		m.blocks[c].parent = id
	}
}

// descends tells whether a block under parent, or waiting for the hash above
// when parent is 0, would be an ancestor of itself once hash is present. That
// can only be so if some block waits for hash.
func (m *mirror) descends(parent uint32, above, hash uint64) bool {
	if above == hash {
		return true
	}
	if _, waited := m.waiting[hash]; !waited {
		return false
	}
	for parent != 0 {
		m.work++
		b := &m.blocks[parent]
		if b.first {
			return false
		}
		above, parent = b.above, b.parent
	}
	return above == hash
}

// settle works out again, for a block whose copies or parent changed and for
// all that depends on it, in which tiers it is rooted.
func (m *mirror) settle(id uint32) {
	if !m.settleOne(id) || m.blocks[id].child == 0 {
		return
	}
	m.stack = append(m.stack[:0], id)
	for len(m.stack) > 0 {
		id := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		for c := m.blocks[id].child; c != 0; c = m.blocks[c].next {
			if m.settleOne(c) {
				m.stack = append(m.stack, c)
			}
		}
	}
}

// settleOne is settle for the block alone. It tells whether anything changed.
func (m *mirror) settleOne(id uint32) bool {
	m.work++
	b := &m.blocks[id]
	anyTier, device := m.copies.resident(&b.copies, m.groups.need)
	key, depth := b.above, uint32(0)
	switch {
	case b.ambiguous, !b.first && b.parent == 0:
		anyTier, device = false, false
	case !b.first:
		p := &m.blocks[b.parent]
		anyTier, device = anyTier && p.rooted, device && p.rootedDev
		if anyTier && !b.rooted {
			key, depth = m.prints.at(p.print)
		}
	}
	if anyTier == b.rooted && device == b.rootedDev {
		return false
	}
	if anyTier && !b.rooted {
		b.print = m.prints.hold(blockhash.Chain(key, b.content), depth+1)
		m.rooted++
	}
	if device != b.rootedDev {
		m.prints.device(b.print, device)
	}
	if !anyTier && b.rooted {
		m.prints.release(b.print)
		b.print = 0
		m.rooted--
	}
	b.rooted, b.rootedDev = anyTier, device
	return true
}

// addGroup notes a full-attention group. It is false when there are too many.
func (m *mirror) addGroup(group int64) bool {
	added, ok := m.groups.add(group)
	if !added {
		return ok
	}
	m.copies.regroup(&m.groups)
	for id := 1; id < len(m.blocks); id++ {
		if !m.blocks[id].copies.none() {
			m.settle(uint32(id))
		}
	}
	return true
}
