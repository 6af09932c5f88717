package subscriber

import "time"

// lapses ends copies by time: those that no event will end. A copy of a class
// that lapses is there once at most, however often it is entered, and has its
// end here: a heap by time, in which a table finds it by block and class.
//
// The queue is bounded. When it is full, the copy that would end first ends
// early: too little is announced then, never too much.
type lapses struct {
	max    int
	heap   []uint32 // ids of ends, the earliest first
	ends   []lapseEnd
	free   uint32 // first free id, chained by lapseEnd.place
	byCopy table  // lapseKey to id
	origin time.Time
}

// lapseEnd is the end of one copy.
type lapseEnd struct {
	until time.Duration // since lapses.origin, by the monotonic clock where there is one
	block uint32
	place uint32 // in the heap
	class copyClass
}

func newLapses(most int) lapses {
	return lapses{max: max(most, 1), ends: make([]lapseEnd, 1), byCopy: newTable()}
}

func lapseKey(block uint32, c copyClass) uint64 { return uint64(c)<<32 | uint64(block) }

// since turns a time into what ends are compared by.
func (l *lapses) since(t time.Time) time.Duration {
	if l.origin.IsZero() {
		l.origin = t
	}
	return t.Sub(l.origin)
}

// has tells whether a copy has an end, which it has exactly while it is there.
func (l *lapses) has(block uint32, c copyClass) bool { return l.byCopy.get(lapseKey(block, c)) != 0 }

// set gives a copy an end, or moves the one that it has to a later time.
func (l *lapses) set(block uint32, c copyClass, until time.Duration) {
	key := lapseKey(block, c)
	if id := l.byCopy.get(key); id != 0 {
		if until > l.ends[id].until {
			l.ends[id].until = until
			l.down(int(l.ends[id].place))
		}
		return
	}
	id := l.free
	if id != 0 {
		l.free = l.ends[id].place
	} else {
		l.ends = append(l.ends, lapseEnd{})
		id = uint32(len(l.ends) - 1)
	}
	l.ends[id] = lapseEnd{until: until, block: block, class: c, place: uint32(len(l.heap))}
	l.heap = append(l.heap, id)
	l.byCopy.put(key, id)
	l.up(len(l.heap) - 1)
}

// cancel takes the end of a copy away. It does nothing when there is none.
func (l *lapses) cancel(block uint32, c copyClass) {
	key := lapseKey(block, c)
	id := l.byCopy.get(key)
	if id == 0 {
		return
	}
	l.byCopy.del(key)
	at, last := int(l.ends[id].place), len(l.heap)-1
	l.swap(at, last)
	l.heap = l.heap[:last]
	if at < last {
		l.down(at)
		l.up(at)
	}
	l.ends[id] = lapseEnd{place: l.free}
	l.free = id
}

// first returns the copy that ends first.
func (l *lapses) first() (lapseEnd, bool) {
	if len(l.heap) == 0 {
		return lapseEnd{}, false
	}
	return l.ends[l.heap[0]], true
}

func (l *lapses) less(i, j int) bool { return l.ends[l.heap[i]].until < l.ends[l.heap[j]].until }

func (l *lapses) swap(i, j int) {
	l.heap[i], l.heap[j] = l.heap[j], l.heap[i]
	l.ends[l.heap[i]].place = uint32(i)
	l.ends[l.heap[j]].place = uint32(j)
}

func (l *lapses) up(i int) {
	for i > 0 && l.less(i, (i-1)/2) {
		l.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (l *lapses) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(l.heap); c++ {
			if l.less(c, least) {
				least = c
			}
		}
		if least == i {
			return
		}
		l.swap(i, least)
		i = least
	}
}

// lapseAt enters a copy of a class that lapses, or puts off the end of the one
// that is there. It is false when there are too many copies. The block may be
// gone when it returns, since what ends early for want of room may be its own
// last copy.
func (m *mirror) lapseAt(id uint32, c copyClass, until time.Time) bool {
	if !m.lapses.has(id, c) && !m.addCopy(id, c) {
		return false
	}
	m.lapses.set(id, c, m.lapses.since(until))
	for len(m.lapses.heap) > m.lapses.max {
		end, _ := m.lapses.first()
		m.removeCopy(end.block, end.class)
	}
	return true
}

// addUntil is add for a copy of a class that lapses.
func (m *mirror) addUntil(s storeBlock, c copyClass, until time.Time) drop {
	id, reason := m.enter(s)
	if id == 0 {
		return reason
	}
	if !m.lapseAt(id, c, until) && reason == dropNone {
		reason = dropCopies
	}
	return reason
}

// unlapse takes the ends of all copies of a block away.
func (m *mirror) unlapse(id uint32) {
	l := &m.blocks[id].copies
	if l.none() || len(m.lapses.heap) == 0 {
		return
	}
	for c, n := l.class, l.more; ; c, n = m.copies.more[n].class, m.copies.more[n].next {
		if m.copies.classes[c].lapses {
			m.lapses.cancel(id, c)
		}
		if n == 0 {
			return
		}
	}
}

// lapse ends the copies whose time has come and returns how many.
func (m *mirror) lapse(now time.Time) int {
	n, at := 0, m.lapses.since(now)
	for {
		end, ok := m.lapses.first()
		if !ok || end.until > at {
			return n
		}
		m.removeCopy(end.block, end.class)
		n++
	}
}
