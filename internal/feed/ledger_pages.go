package feed

// drop takes an empty page out of the list.
func (l *ledger) drop(n uint32) {
	p := l.pages[n]
	to := cursor{page: p.next}
	if p.next == noPage && p.prev != noPage {
		to = cursor{page: p.prev, at: l.pages[p.prev].used}
	}
	for _, c := range l.cursors {
		if c.page == n {
			*c = to
		}
	}
	l.unlink(n)
}

func (l *ledger) unlink(n uint32) {
	p := l.pages[n]
	if p.prev == noPage {
		l.first = p.next
	} else {
		l.pages[p.prev].next = p.next
	}
	if p.next == noPage {
		l.last = p.prev
	} else {
		l.pages[p.next].prev = p.prev
	}
	l.pages[n] = nil
	l.free = append(l.free, n)
}

// merge moves the blocks of page b to the end of page a, which precedes it, and closes the gaps of both.
func (l *ledger) merge(a, b uint32) {
	pa, pb := l.pages[a], l.pages[b]
	for _, c := range l.cursors {
		switch c.page {
		case a:
			c.at = pa.before(c.at)
		case b:
			*c = cursor{page: a, at: pa.live + pb.before(c.at)}
		}
	}
	used := l.move(a, a, 0)
	pa.used = l.move(b, a, used)
	pa.live = pa.used
	clear(pa.tiers[pa.used:])
	l.unlink(b)
}

// move puts the blocks of a page into another from a place on, and returns the place after them.
func (l *ledger) move(from, to uint32, place int) int {
	pf, pt := l.pages[from], l.pages[to]
	for i := range pf.used {
		if pf.tiers[i] == 0 {
			continue
		}
		if from != to || i != place {
			key := pf.keys[i]
			l.places.move(l.slot(key, from<<pageBits|uint32(i)), to<<pageBits|uint32(place))
			pt.keys[place], pt.tiers[place] = key, pf.tiers[i]
		}
		place++
	}
	return place
}

// before counts the blocks before a place.
func (p *page) before(place int) (n int) {
	for _, t := range p.tiers[:place] {
		if t != 0 {
			n++
		}
	}
	return n
}

// bytes is the memory that the ledger takes.
func (l *ledger) bytes() int {
	return l.places.bytes() + (len(l.pages)-len(l.free))*pageBytes + 8*cap(l.pages) + 4*(cap(l.free)+cap(l.sparse))
}
