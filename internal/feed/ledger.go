package feed

// ledger holds the announced blocks of a source in the order in which they came: parents before children, as a parent is announced first, and what comes
// back goes to the end. The log is a list of pages. A block that goes leaves a gap; two neighbours that fit into one page are merged, so that the
// log is more than half full.
//
// Positions are page number and place in the page. They are valid until the next tidy.
type ledger struct {
	places      table
	pages       []*page // by number; nil for none
	free        []uint32
	first, last uint32 // of the list
	blocks      int
	sparse      []uint32 // pages that may have become small enough to be merged
	cursors     []*cursor
}

const (
	pageBits = 11
	pageSize = 1 << pageBits
	noPage   = ^uint32(0)
)

// page is a run of the log: 18 KiB.
type page struct {
	keys       [pageSize]uint64
	tiers      [pageSize]byte // 0 for a gap
	used       int            // places given, gaps among them
	live       int
	prev, next uint32
	sparse     bool // listed in ledger.sparse
}

const pageBytes = pageSize*9 + 32

// cursor is how far a copy has come: everything before it is copied.
type cursor struct {
	page uint32 // noPage: the beginning, as long as there is none
	at   int
}

func newLedger() *ledger { return &ledger{places: newTable(), first: noPage, last: noPage} }

// find returns the position of a key.
func (l *ledger) find(key uint64) (at uint32, ok bool) {
	h := l.places.hash(key)
	for slot := l.places.first(h); ; {
		found, at, ok := l.places.next(h, slot)
		if !ok {
			return 0, false
		}
		if l.pages[at>>pageBits].keys[at&(pageSize-1)] == key {
			return at, true
		}
		slot = l.places.after(found)
	}
}

// slot is the table's slot of a position whose key is known.
func (l *ledger) slot(key uint64, position uint32) int {
	h := l.places.hash(key)
	for slot := l.places.first(h); ; {
		found, at, ok := l.places.next(h, slot)
		if !ok || at == position {
			return found
		}
		slot = l.places.after(found)
	}
}

// tiers are those of the block at a position.
func (l *ledger) tiers(at uint32) byte { return l.pages[at>>pageBits].tiers[at&(pageSize-1)] }

// set changes the tiers of the block at a position, to others than none.
func (l *ledger) set(at uint32, tiers byte) { l.pages[at>>pageBits].tiers[at&(pageSize-1)] = tiers }

// add puts a block at the end.
func (l *ledger) add(key uint64, tiers byte) {
	if l.last == noPage || l.pages[l.last].used == pageSize {
		l.grow()
	}
	p := l.pages[l.last]
	at := l.last<<pageBits | uint32(p.used)
	p.keys[p.used], p.tiers[p.used] = key, tiers
	p.used++
	p.live++
	l.blocks++
	l.places.add(l.places.hash(key), at)
}

func (l *ledger) grow() {
	var n uint32
	if free := len(l.free); free > 0 {
		n = l.free[free-1]
		l.free = l.free[:free-1]
	} else {
		n = uint32(len(l.pages))
		l.pages = append(l.pages, nil)
	}
	l.pages[n] = &page{prev: l.last, next: noPage}
	if l.last == noPage {
		l.first = n
	} else {
		l.pages[l.last].next = n
	}
	l.last = n
}

// remove takes the block at a position out.
func (l *ledger) remove(key uint64, at uint32) {
	l.places.remove(l.slot(key, at))
	n := at >> pageBits
	p := l.pages[n]
	p.tiers[at&(pageSize-1)] = 0
	p.live--
	l.blocks--
	if !p.sparse {
		p.sparse = true
		l.sparse = append(l.sparse, n)
	}
}

// clear forgets all blocks. Copies that are under way are at the end.
func (l *ledger) clear() {
	cursors := l.cursors
	*l = *newLedger()
	for _, c := range cursors {
		*c = cursor{page: noPage}
	}
	l.cursors = cursors
}

// follow begins a copy.
func (l *ledger) follow(c *cursor) {
	*c = cursor{page: l.first}
	l.cursors = append(l.cursors, c)
}

// leave ends a copy.
func (l *ledger) leave(c *cursor) {
	for i, other := range l.cursors {
		if other == c {
			l.cursors[i] = l.cursors[len(l.cursors)-1]
			l.cursors[len(l.cursors)-1] = nil
			l.cursors = l.cursors[:len(l.cursors)-1]
			return
		}
	}
}

// read appends the next blocks of a copy, at most limit, and says whether they are the last.
func (l *ledger) read(c *cursor, limit int, keys, tiers []byte) (allKeys, allTiers []byte, done bool) {
	if c.page == noPage {
		c.page, c.at = l.first, 0 // the log was empty
	}
	for n := 0; c.page != noPage; {
		p := l.pages[c.page]
		for ; c.at < p.used; c.at++ {
			t := p.tiers[c.at]
			if t == 0 {
				continue
			}
			if n == limit {
				return keys, tiers, false
			}
			keys = appendKey(keys, p.keys[c.at])
			tiers = append(tiers, t)
			n++
		}
		if p.next == noPage {
			break
		}
		c.page, c.at = p.next, 0
	}
	return keys, tiers, true
}

// maxMerges bounds the work of one tidy: 2,048 blocks each at most, 0.2 ms.
const maxMerges = 8

// tidy frees empty pages and merges small ones. What does not fit in the bound waits for the next time. A merge frees a page, and a page takes pageSize
// blocks to come about, so that it costs each block one move at most.
func (l *ledger) tidy() {
	for merges := 0; len(l.sparse) > 0 && merges < maxMerges; {
		n := l.sparse[len(l.sparse)-1]
		p := l.pages[n]
		switch {
		case p == nil: // merged into another
		case p.live == 0:
			l.drop(n)
		case p.prev != noPage && l.pages[p.prev].live+p.live <= pageSize:
			prev := p.prev
			l.merge(prev, n)
			l.sparse[len(l.sparse)-1] = prev // whose own neighbours may fit in, too
			l.pages[prev].sparse = true
			merges++
			continue
		case p.next != noPage && l.pages[p.next].live+p.live <= pageSize:
			l.merge(n, p.next)
			merges++
			continue
		default:
			p.sparse = false
		}
		l.sparse = l.sparse[:len(l.sparse)-1]
	}
}
