package kvindex

// A match trusts that whoever holds a block holds all blocks before it. A walk trusts nothing: it reads every key and drops
// the slots that do not hold it. One match of Options.CheckEvery is followed by a walk over the same keys, and must have
// the same results for every slot whose holdings did not change from before the match to after the walk; slots that
// were written to in that time say nothing and are left out. A difference therefore is never an accident of timing: what
// was stored was not closed under prefix, or the index is broken. From then on every match walks, which is right for any
// holdings, only slower.

// noteWrites notes how far the asked slots have been written to.
func (m *matcher) noteWrites() {
	for _, s := range m.slots {
		writes := uint64(1) // odd: not comparable
		if st := m.x.slots.state(s); st != nil {
			writes = st.writes.Load()
		}
		m.writes = append(m.writes, writes)
	}
}

// check compares results with those of a walk, and replaces them if there is a difference.
func (m *matcher) check(held []Held) {
	m.start(walk)
	for m.more() {
		m.read()
		m.use()
	}
	m.walked = append(m.walked[:0], held...)
	m.results(m.walked)
	if !m.compare(held) {
		return
	}
	m.x.differences.Add(1)
	m.x.walking.Store(true)
	copy(held, m.walked)
}

// compare counts the check and reports whether a slot that stood still has another result by walking.
func (m *matcher) compare(held []Held) (different bool) {
	compared := false
	for i, s := range m.slots {
		st := m.x.slots.state(s)
		if st == nil || !st.valid(s) || m.writes[i]&1 != 0 || st.writes.Load() != m.writes[i] {
			continue
		}
		compared = true
		different = different || held[i] != m.walked[i]
	}
	if compared {
		m.x.checks.Add(1)
	}
	return different
}
