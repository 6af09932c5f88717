package subscriber

import (
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// Where an engine's hashes cannot be computed, the tokens of an orphan and of those that follow it tell where in a prompt they stand. What precedes
// them there is taken for resident for a limited time, since its engine hashes, and so its removals, are not known. Where the history is complete, and
// only what a full mirror forgot is missing, this is not done: then nothing is announced that is not held.

const (
	assumedFor  = 10 * time.Minute // unless shown again
	assumeSteps = 8                // a time is put off when this share of it has passed
	refreshWalk = 4 << 10          // blocks looked at upwards to put times off

	runBlocks   = 8  // of an orphan's run that are compared
	runTokens   = 32 // tokens that a run has at least, so that it is not met by chance
	runClimb    = 64 // orphans above a stored block that are looked at for the topmost
	runTwins    = 64 // blocks of the same content among which one position is looked for
	runsKept    = 4 << 10
	runsPerHear = 16 // runs that one prompt is compared with
	misfitsMost = 2  // runs that fill prompts to their ends and whose parents' hashes do not fit, after which no chain is taken to be the engine's
)

// run is an orphan that no present block precedes, and what follows it.
type run struct {
	above    uint64 // engine hash of the parent
	root     uint64 // of the orphan's adapter
	contents [runBlocks]uint64
	n        int
	proof    proof
	seen     time.Time
	several  bool // there is another orphan of the same content
}

// evidenceByContent looks at a stored run whose first block's parent is not rooted.
func (f *fold) evidenceByContent(e *event, p proof) {
	h := f.heal
	if f.complete || h.salted || len(f.blocks) == 0 || f.blocks[0].above != e.parent {
		return
	}
	r, ok := f.topmost(e, p)
	if !ok {
		return
	}
	if old, ok := h.runs.get(r.contents[0]); ok && f.now.Sub(old.seen) < assumedFor && (old.several || old.above != r.above || old.root != r.root) {
		r.several = true
	}
	h.runs.put(r.contents[0], r)
	s, id, ok := h.find(&r, f.learned.blockSize)
	if !ok || r.several {
		return
	}
	switch node := &s.nodes[id]; {
	case h.hashing.hopeless(), node.loose:
		f.assume(s, node.parent, &r)
	case !h.hashing.known && r.above != h.misfit && s.fills(id, &r, f.learned.blockSize) && h.refutes(s, node.parent):
		h.misfit = r.above
		if h.misfits++; h.misfits >= misfitsMost {
			h.hashing.giveUp()
			f.assume(s, node.parent, &r)
		}
	}
}

// topmost returns the run of the topmost orphan that an event's blocks hang on.
func (f *fold) topmost(e *event, p proof) (r run, ok bool) {
	m := f.mirror
	var above [runClimb]uint64 // contents, the lowest first
	n := 0
	r = run{above: e.parent, proof: p, seen: f.made}
	for id := m.byHash.get(e.parent); id != 0; id = m.blocks[id].parent {
		b := &m.blocks[id]
		if n == runClimb || b.first || b.ambiguous {
			return r, false
		}
		m.work++
		above[n], r.above = b.content, b.above
		n++
	}
	for n > 0 && r.n < runBlocks {
		n--
		r.contents[r.n] = above[n]
		r.n++
	}
	for i := 0; i < len(f.blocks) && r.n < runBlocks; i++ {
		if i > 0 && f.blocks[i].above != f.blocks[i-1].hash {
			break
		}
		r.contents[r.n] = f.blocks[i].content
		r.n++
	}
	r.root = blockhash.Namespace{Pool: f.o.pool, Adapter: string(e.loraName), BlockSize: f.learned.blockSize}.Root()
	return r, true
}

// find returns the one block of the prompts kept at which a run stands, not at a prompt's beginning.
func (h *healer) find(r *run, size int) (in *shelf, id uint32, ok bool) {
	var key uint64
	for _, s := range h.shelves {
		if s == nil {
			continue
		}
		twins := 0
		for n := s.byContent.get(r.contents[0]); n != 0; n = s.nodes[n].twin {
			if twins++; twins > runTwins {
				return nil, 0, false
			}
			node := &s.nodes[n]
			if node.root != r.root || node.parent == 0 || s.follow(n, r)*size < runTokens {
				continue
			}
			if ok && node.key != key {
				return nil, 0, false
			}
			in, id, key, ok = s, n, node.key, true
		}
	}
	return in, id, ok
}

// follow returns how many blocks of a run stand one after the other from a node on.
func (s *shelf) follow(id uint32, r *run) int {
	key := s.nodes[id].key
	for n := 1; n < r.n; n++ {
		key = blockhash.Chain(key, r.contents[n])
		if s.byKey.get(key) == 0 {
			return n
		}
	}
	return r.n
}

// fills tells whether a run that stands at a node goes on to the end of a prompt, over twice the tokens that it has at least: then
// it is hardly met by chance.
func (s *shelf) fills(id uint32, r *run, size int) bool {
	n := s.follow(id, r)
	if n*size < 2*runTokens {
		return false
	}
	key := s.nodes[id].key
	for i := 1; i < n; i++ {
		key = blockhash.Chain(key, r.contents[i])
	}
	return n == runBlocks || s.nodes[s.byKey.get(key)].last
}

// refutes tells whether every chain that could be the engine's was computed for a block and, as the caller knows, does not give its hash.
func (h *healer) refutes(s *shelf, id uint32) bool {
	if s.nodes[id].keyed {
		return false
	}
	for _, c := range h.hashing.chains {
		if c != nil && s.hash(variantOf(c.Algorithm(), false), id) == 0 {
			return false
		}
	}
	return true
}

// assume enters a chain up to a block that precedes the orphan of r, all for a limited time. Only the last one has its engine hash; the
// others are named by hashes that no engine has.
func (f *fold) assume(s *shelf, last uint32, r *run) {
	h, m := f.heal, f.mirror
	until := r.seen.Add(assumedFor)
	if gone, ok := h.gone.get(r.above); ok && gone >= r.proof.at || r.proof.at <= h.floor || m.byHash.get(r.above) != 0 || !until.After(f.now) {
		return
	}
	kind := m.copies.classes[r.proof.class]
	class, ok := m.copies.assume(MediumDevice, kind.group, kind.hasGroup, &m.groups)
	if !ok {
		return
	}
	h.ids = h.ids[:0]
	for n := last; n != 0; n = s.nodes[n].parent {
		h.ids = append(h.ids, n)
	}
	above := s.nodes[last].root
	for i := len(h.ids) - 1; i >= 0 && !m.overworked(); i-- {
		node := &s.nodes[h.ids[i]]
		b := storeBlock{hash: r.above, above: above, first: node.parent == 0, content: node.content}
		if i > 0 {
			b.hash = blockhash.Chain(node.key, h.secret)
		}
		above = b.hash
		known := m.byHash.get(b.hash) != 0
		if m.addUntil(b, class, until) != dropNone {
			return
		}
		if id := m.byHash.get(b.hash); id != 0 && !known {
			m.blocks[id].inferred = true
			f.stats.healed[healedByContent]++
		}
	}
}

// rename makes room for a block that is there as one whose ancestors are assumed: the store of it names its parent, which is assumed under
// its own hash from then on.
func (f *fold) rename(s storeBlock) {
	m := f.mirror
	if len(m.lapses.heap) == 0 {
		return
	}
	id := m.byHash.get(s.hash)
	if id == 0 {
		return
	}
	b := &m.blocks[id]
	class, ok := m.copies.lapsing(&b.copies)
	if !ok || b.first || b.above == s.above || b.content != s.content {
		return
	}
	above := b.parent
	m.removeCopy(id, class)
	if above == 0 {
		return
	}
	parent := m.blocks[above]
	if class, ok := m.copies.lapsing(&parent.copies); ok && parent.child == 0 {
		m.removeCopy(above, class)
	}
	if m.byHash.get(s.above) != 0 {
		return
	}
	named := storeBlock{hash: s.above, above: parent.above, first: parent.first, content: parent.content}
	if m.addUntil(named, class, f.made.Add(assumedFor)) == dropNone {
		if id := m.byHash.get(s.above); id != 0 {
			m.blocks[id].inferred = true
		}
	}
}

// lapsing returns the class of an assumed copy on the device.
func (s *copySet) lapsing(l *copyList) (copyClass, bool) {
	if l.count == 0 {
		return 0, false
	}
	for c, n := l.class, l.more; ; c, n = s.more[n].class, s.more[n].next {
		if k := &s.classes[c]; k.assumed && k.medium == MediumDevice {
			return c, true
		}
		if n == 0 {
			return 0, false
		}
	}
}

// refresh puts off the end of what is assumed above a block that the engine has just stored something under.
func (f *fold) refresh(id uint32) {
	m, h := f.mirror, f.heal
	if len(m.lapses.heap) == 0 || id == 0 {
		return
	}
	if h.origin.IsZero() {
		h.origin = f.made
	}
	stamp := uint16(f.made.Sub(h.origin)/(assumedFor/assumeSteps)) + 1
	until := f.made.Add(assumedFor)
	for range refreshWalk {
		b := &m.blocks[id]
		if b.fresh == stamp {
			return // and so is all above
		}
		m.work++
		b.fresh = stamp
		above := b.parent
		if b.inferred {
			if c, ok := m.copies.lapsing(&b.copies); ok && !m.lapseAt(id, c, until) {
				return
			}
		}
		if id = above; id == 0 {
			return
		}
	}
}

// hearRuns compares a prompt with the orphans that came before it. Its blocks are in h.ids.
func (f *fold) hearRuns(s *shelf) {
	h := f.heal
	ids, tried := h.ids, 0
	if len(h.runs.now) == 0 && len(h.runs.old) == 0 || h.salted {
		return
	}
	for _, id := range ids[1:] {
		r, ok := h.runs.get(s.nodes[id].content)
		if !ok || r.several || r.root != s.nodes[id].root {
			continue
		}
		if tried++; tried > runsPerHear {
			return
		}
		if in, at, ok := h.find(&r, f.learned.blockSize); ok && in.nodes[at].key == s.nodes[id].key {
			before := h.ids
			h.ids = nil
			f.assume(in, in.nodes[at].parent, &r)
			h.ids = before
		}
	}
}
