package kvindex

// A match trusts that whoever holds a block holds all blocks before it. A walk trusts nothing: it reads every key and drops
// the slots that do not hold it. One match of Options.CheckEvery is followed by a walk over the same keys, and must have
// the same results for every slot whose holdings did not change from before the match to after the walk; slots that
// were written to in that time say nothing and are left out. A difference therefore is never an accident of timing: what
// was stored was not closed under prefix, or the index is broken.
//
// The slot's own blocks tell which: a missing block before one that is held, with nobody writing meanwhile, is the fault of who
// stored there. That slot is not matched any more, and nobody else is concerned, since what a match says of a slot rests
// on that slot's blocks alone. A difference without such a block is the index's own: from then on every match walks, which
// is right for any holdings, only slower.

// ahead plans a walk's next round of reads.
func (m *matcher) ahead(from int) {
	m.at = m.at[:0]
	for i := from; i < min(from+walkStep, len(m.keys)); i++ {
		m.at = append(m.at, int32(i))
	}
}

// useWalk drops the items that do not hold the keys of the round. Keys with equal words have equal holders.
func (m *matcher) useWalk() {
	var word uint64
	for i, at := range m.at {
		if i > 0 && m.words[i] == word {
			continue
		}
		word = m.words[i]
		in := m.part(m.items, word)
		m.result(m.items[in:], at)
		m.items = m.items[:in]
	}
	done := int(m.at[len(m.at)-1]) + 1
	if done == len(m.keys) {
		m.result(m.items, int32(done))
	}
	if done == len(m.keys) || len(m.items) == 0 {
		m.phase = ended
		return
	}
	m.ahead(done)
}

// noteWrites notes how far the asked slots have been written to.
func (m *matcher) noteWrites() {
	for _, s := range m.slots {
		writes := uint64(1) // odd: not comparable
		if m.x.slots.isKnown(s) {
			writes = m.x.slots.places[s.index].writes.Load()
		}
		m.writes = append(m.writes, writes)
	}
}

// check compares results with those of a walk, and replaces them if there is a difference. Slots that are not closed under prefix are put aside.
func (m *matcher) check(held []Held) {
	m.start(walk, false)
	m.run()
	m.walked = append(m.walked[:0], held...)
	m.results(m.walked)
	different := m.compare(held)
	for i, s := range m.slots {
		if !m.x.slots.isValid(s) {
			held[i], m.walked[i] = Held{}, Held{}
		}
	}
	if !different {
		return
	}
	m.x.differences.Add(1)
	if m.x.walking.CompareAndSwap(false, true) {
		m.x.options.Log.Error("a match differs from the walk over its blocks: every match walks from here on, slower and right; please report this")
	}
	copy(held, m.walked)
}

// compare counts the check and reports whether a slot that stood still, and is closed under prefix, has another result by walking.
func (m *matcher) compare(held []Held) (different bool) {
	compared := false
	for i, s := range m.slots {
		if m.writes[i]&1 != 0 || !m.x.slots.isValid(s) || m.x.slots.places[s.index].writes.Load() != m.writes[i] {
			continue
		}
		compared = true
		if held[i] == m.walked[i] {
			continue
		}
		switch open := m.isOpen(s); {
		case m.x.slots.places[s.index].writes.Load() != m.writes[i]: // what was read just now says nothing
		case !open:
			different = true
		case m.x.slots.states[s.index].CompareAndSwap(s.state(), s.state()|openFlag):
			m.x.opened.Add(1)
		}
	}
	if compared {
		m.x.checks.Add(1)
	}
	return different
}

// isOpen reads all keys and reports whether a slot holds one without the one before it, or on Device alone. While the slot is written to that says nothing.
func (m *matcher) isOpen(s Slot) bool {
	ended := [2]bool{}
	for _, key := range m.keys {
		device, any := m.holders(m.x.word(key))
		has := [2]bool{Device: device[s.index/64]>>(s.index%64)&1 != 0, Any: any[s.index/64]>>(s.index%64)&1 != 0}
		for tier, is := range has {
			if is && ended[tier] || is && !has[Any] {
				return true
			}
			ended[tier] = !is
		}
	}
	return false
}
