package feed

// window gathers what changes in a source until it goes out. What is undone within it leaves no trace.
//
// A change is remembered by its last call in each tier, and net changes go out in the order of those calls. That keeps every prefix of the
// order prefix-closed: a block that is gone at the end was last removed after its children, and one that has come was last stored after its parents.
type window struct {
	touched []touched // by number
	byKey   table
	calls   []call // in order
}

// touched is a block that has changed.
type touched struct {
	key    uint64
	at     uint32   // position in the ledger, if before is not 0
	last   [2]int32 // calls of any tier and of the device; −1 for none
	before byte     // tiers at the window's begin
	tiers  byte     // tiers at this time
}

// call is one key in a call of the sink.
type call struct {
	number int32 // of the touched block
	tier   byte  // one bit
}

// keepWindow bounds what an empty window keeps allocated, in blocks.
const keepWindow = 1 << 14

func newWindow() *window { return &window{byKey: newTable()} }

func (w *window) empty() bool { return len(w.calls) == 0 }

// find returns the number of a block that has changed.
func (w *window) find(key uint64) (number int32, ok bool) {
	h := w.byKey.hash(key)
	for slot := w.byKey.first(h); ; {
		found, n, ok := w.byKey.next(h, slot)
		if !ok {
			return 0, false
		}
		if w.touched[n].key == key {
			return int32(n), true
		}
		slot = w.byKey.after(found)
	}
}

// touch enters a block with what the ledger has of it.
func (w *window) touch(l *ledger, key uint64) int32 {
	n := int32(len(w.touched))
	t := touched{key: key, last: [2]int32{-1, -1}}
	if at, ok := l.find(key); ok {
		t.at, t.before = at, l.tiers(at)
		t.tiers = t.before
	}
	w.touched = append(w.touched, t)
	w.byKey.add(w.byKey.hash(key), uint32(n))
	return n
}

// change enters a call for one key. It has no effect where the key is or is not there already.
func (w *window) change(number int32, tier byte, on bool) {
	t := &w.touched[number]
	if t.tiers&tier != 0 == on {
		return
	}
	t.tiers ^= tier
	t.last[tier>>1] = int32(len(w.calls))
	w.calls = append(w.calls, call{number, tier})
}

// changes are the net changes of a window, as in a Delta.
type changes struct {
	removed, removedTiers, added, addedTiers []byte
}

func (c *changes) keys() int { return len(c.removedTiers) + len(c.addedTiers) }

// close folds the window into the ledger, appends the net changes to c, and empties the window.
//
// A key stands in a list once, for both tiers, so a list comes in two parts. Removed first is what leaves any tier, in the order of those removals, and
// then what leaves the device alone: such a block may be the ancestor of one that leaves both, and never its descendant. Added is the reverse: first what
// joins the device alone.
func (w *window) close(l *ledger, c *changes) {
	w.pick(tierAny, func(t *touched) {
		if t.before&tierAny != 0 && t.tiers&tierAny == 0 {
			c.removed, c.removedTiers = appendKey(c.removed, t.key), append(c.removedTiers, t.before)
			l.remove(t.key, t.at)
		}
	})
	w.pick(tierDevice, func(t *touched) {
		if t.before == tierBoth && t.tiers == tierAny {
			c.removed, c.removedTiers = appendKey(c.removed, t.key), append(c.removedTiers, tierDevice)
			l.set(t.at, tierAny)
		}
	})
	w.pick(tierDevice, func(t *touched) {
		if t.before == tierAny && t.tiers == tierBoth {
			c.added, c.addedTiers = appendKey(c.added, t.key), append(c.addedTiers, tierDevice)
			l.set(t.at, tierBoth)
		}
	})
	w.pick(tierAny, func(t *touched) {
		if t.before&tierAny == 0 && t.tiers&tierAny != 0 {
			c.added, c.addedTiers = appendKey(c.added, t.key), append(c.addedTiers, t.tiers)
			l.add(t.key, t.tiers)
		}
	})
	w.clear()
	l.tidy()
}

// pick calls f for each block whose last call in a tier it was, in order.
func (w *window) pick(tier byte, f func(*touched)) {
	for i, c := range w.calls {
		if c.tier != tier {
			continue
		}
		if t := &w.touched[c.number]; t.last[tier>>1] == int32(i) {
			f(t)
		}
	}
}

// cancelled counts blocks that are as they were at the window's begin.
func (w *window) cancelled() (n int) {
	for i := range w.touched {
		if w.touched[i].tiers == w.touched[i].before {
			n++
		}
	}
	return n
}

func (w *window) clear() {
	if cap(w.touched) > keepWindow {
		w.touched = nil
	}
	if cap(w.calls) > 4*keepWindow {
		w.calls = nil
	}
	w.touched, w.calls = w.touched[:0], w.calls[:0]
	w.byKey.clear(2 * keepWindow)
}
