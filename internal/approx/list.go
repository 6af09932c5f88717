package approx

// list is a set of keys in the order of their last use.
type list struct {
	at      map[uint64]int32 // position in entries by key
	entries []entry          // a ring through entries[0]: its next is the latest used, its prev the last of the list
	free    []int32          // positions not in use
}

// entry is one key. It holds no pointer for the garbage collector to follow.
type entry struct {
	key        uint64
	used       int64 // Unix nanoseconds
	prev, next int32
}

// last is the position of the least recently used key, 0 when there is none.
func (l *list) last() int32 {
	if len(l.entries) == 0 {
		return 0
	}
	return l.entries[0].prev
}

// add gives a key a position. It is not in the order until push.
func (l *list) add(key uint64) int32 {
	if l.at == nil {
		l.at = map[uint64]int32{}
		l.entries = append(l.entries, entry{})
	}
	i := int32(len(l.entries))
	if n := len(l.free); n > 0 {
		i = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		l.entries = append(l.entries, entry{})
	}
	l.entries[i].key = key
	l.at[key] = i
	return i
}

// push puts a position first.
func (l *list) push(i int32, used int64) {
	next := l.entries[0].next
	l.entries[i].used, l.entries[i].prev, l.entries[i].next = used, 0, next
	l.entries[next].prev = i
	l.entries[0].next = i
}

// unlink takes a position out of the order; its key stays in the set.
func (l *list) unlink(i int32) {
	e := l.entries[i]
	l.entries[e.prev].next = e.next
	l.entries[e.next].prev = e.prev
}

// dropLast removes the least recently used key and returns it.
func (l *list) dropLast() uint64 {
	i := l.last()
	key := l.entries[i].key
	l.unlink(i)
	delete(l.at, key)
	l.free = append(l.free, i)
	return key
}
