package subscriber

import (
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// mirror is what one engine holds: its blocks by engine hash, how many copies
// of each there are, and which block precedes which. From that follows the set
// of fingerprints that may be announced.
//
// Three ideas keep it honest:
//
//   - A block is present while it has a copy; stores and removals come per
//     copy. It is resident in a tier while every full-attention group has a
//     copy there, since the engine can use it only then.
//   - A block is rooted in a tier when it and all its ancestors are resident in
//     it. A block whose parent is not known is held, not announced, and joined
//     to the parent when that comes.
//   - Several engine hashes can mean one fingerprint. Rootedness follows engine
//     hashes; a fingerprint is announced while any block of that key is rooted.
//
// Announcements are made by flush, as the difference to the last flush, so
// what cancels out within a batch is never seen outside.
type mirror struct {
	maxBlocks  int
	maxOrphans int
	maxWork    int

	blocks []block // by id; 0 is no block
	free   uint32  // first free id, chained by block.next
	byHash table
	// waiting holds, by engine hash, the first of the present blocks whose
	// parent has that hash and is not present.
	waiting map[uint64]uint32
	waited  int // keys of waiting, at most so far
	present int // blocks in use
	rooted  int // of those, rooted in Any

	groups groupSet
	copies copySet
	prints printSet
	room   [roomKinds]roomList
	lapses lapses
	ghosts ghostSet
	// keepGhosts says that removed blocks become ghosts: the engine was seen to
	// use an offload tier, or to announce again what it holds; or the mirror was full.
	keepGhosts bool
	proofs     int // blocks that prove has looked at in a batch

	stack     []uint32 // of settle
	clock     uint32   // counts events
	now       time.Time
	withdrawn int // blocks that went to make room in a batch
	// work counts the blocks that settle and descends have looked at in a batch.
	// Beyond maxWork the batch is given up: a few bytes can make a chain of all
	// blocks come and go, which no engine does.
	work int
}

// block is one engine hash. Its id is its index in mirror.blocks.
type block struct {
	hash    uint64 // engine hash
	above   uint64 // engine hash of the parent; the chain's root for a first block
	content uint64

	parent     uint32 // id, 0 when not present and for first blocks
	child      uint32 // first of its children, which are joined by next and prev
	next, prev uint32 // siblings: children of one parent, or waiters for one hash
	print      uint32 // fingerprint, while rooted in Any

	copies copyList
	room   roomLinks
	used   uint32 // mirror.clock when an event last had to do with it

	first     bool // starts a sequence
	rooted    bool // in Any
	rootedDev bool // in Device
	// ambiguous: stored with two parents or contents. Engines whose hash does
	// not cover the parent do that (SGLang until November 2025). Neither it
	// nor what follows it can be told from the other, so it is not resident.
	ambiguous bool
	// inferred: a copy was never announced but follows from something else. It
	// may be of another class than the engine's removal says.
	inferred bool
	fresh    uint16 // when fold.refresh last came by, 0 for never
}

func newMirror(maxBlocks int) *mirror {
	m := &mirror{maxBlocks: maxBlocks, maxOrphans: maxBlocks / 2, maxWork: 1<<20 + 8*maxBlocks}
	m.clear()
	m.forgetGhosts()
	return m
}

// clear forgets all blocks, announced or not, and the media and groups seen.
// Ghosts stay.
func (m *mirror) clear() {
	m.blocks = make([]block, 1, 64)
	m.free = 0
	m.byHash = newTable()
	m.waiting, m.waited = make(map[uint64]uint32), 0
	m.present, m.rooted = 0, 0
	m.groups = groupSet{}
	m.copies = newCopySet(m.maxBlocks)
	m.prints.clear()
	m.room = [roomKinds]roomList{}
	m.lapses = newLapses(m.maxBlocks / lapsesPerBlocks)
}

// forgetGhosts forgets the ghosts.
func (m *mirror) forgetGhosts() {
	m.ghosts, m.keepGhosts = newGhosts(m.maxBlocks), false
}

// empty tells whether nothing was stored since the last clear.
func (m *mirror) empty() bool { return len(m.blocks) == 1 && len(m.copies.classes) == 0 }

func (m *mirror) orphans() int { return m.present - m.rooted }

// storeBlock is one block of a stored event, ready to be entered.
type storeBlock struct {
	hash    uint64
	above   uint64 // engine hash of the parent; the chain's root when first
	first   bool
	content uint64
}

// warm prepares for the blocks of one event, which are about to be added.
func (m *mirror) warm(run []storeBlock) {
	if len(run) == 0 {
		return
	}
	for i := range run {
		m.byHash.warm(run[i].hash)
	}
	key := run[0].above
	if !run[0].first {
		p := &m.blocks[m.byHash.get(key)]
		if !p.rooted {
			return
		}
		key, _ = m.prints.at(p.print)
	}
	for i := range run {
		key = blockhash.Chain(key, run[i].content)
		m.prints.byKey.warm(key)
	}
}

// add enters a copy of class c of a block, which may be known already.
func (m *mirror) add(s storeBlock, c copyClass) drop {
	id, reason := m.enter(s)
	if id == 0 {
		return reason
	}
	if !m.addCopy(id, c) && reason == dropNone {
		reason = dropCopies
	}
	return reason
}

// enter returns the id of a block, which is made when it is not known. The
// caller adds a copy at once: blocks without one are not kept. A reason beside
// an id is a conflict with what is known.
func (m *mirror) enter(s storeBlock) (uint32, drop) {
	if id := m.byHash.get(s.hash); id != 0 {
		m.use(id)
		b := &m.blocks[id]
		if b.first == s.first && b.above == s.above && b.content == s.content {
			return id, dropNone
		}
		b.ambiguous = true
		m.settle(id)
		return id, dropConflict
	}
	var parent uint32
	if !s.first {
		parent = m.byHash.get(s.above)
		if parent == 0 || !m.blocks[parent].rooted {
			if m.orphans() >= m.maxOrphans {
				return 0, dropOrphanFull
			}
			if m.descends(parent, s.above, s.hash) {
				return 0, dropLoop
			}
		}
	}
	if m.present >= m.maxBlocks && !m.evict(parent) {
		return 0, dropFull
	}
	id := m.alloc()
	b := &m.blocks[id]
	b.hash, b.above, b.content, b.first = s.hash, s.above, s.content, s.first
	b.used = m.clock
	m.byHash.put(s.hash, id)
	m.present++
	if !s.first {
		m.attach(id, parent)
	}
	m.adopt(id)
	return id, dropNone
}

// addFirst is add for a block of a run that begins a sequence. Such a run may
// be a second announcement of what the engine holds (see fold.storedBlocks), so
// it gives a block its first copy of a class and never another one.
func (m *mirror) addFirst(s storeBlock, c copyClass) drop {
	id, reason := m.enter(s)
	switch {
	case id == 0:
	case m.copies.has(&m.blocks[id].copies, c):
		m.keepGhosts = true // there may be a copy more than are counted
	case !m.addCopy(id, c) && reason == dropNone:
		reason = dropCopies
	}
	return reason
}

// known returns the block of a hash that is known, be it as a ghost.
func (m *mirror) known(hash uint64, now time.Time) (storeBlock, bool) {
	if id := m.byHash.get(hash); id != 0 {
		b := &m.blocks[id]
		return storeBlock{hash: b.hash, above: b.above, first: b.first, content: b.content}, true
	}
	if !m.keepGhosts {
		return storeBlock{}, false
	}
	return m.ghosts.find(hash, now)
}

// addCopy is false when there are too many copies to count this one too.
func (m *mirror) addCopy(id uint32, c copyClass) bool {
	first, ok := m.copies.add(&m.blocks[id].copies, c)
	if first {
		m.place(id)
		m.settle(id)
	}
	return ok
}

// overworked tells whether the batch has cost too much.
func (m *mirror) overworked() bool { return m.work > m.maxWork }

// remove takes away one copy of class c. Removals of what is not there are
// ignored: engines send them after a clear.
func (m *mirror) remove(hash uint64, c copyClass, now time.Time) {
	id := m.byHash.get(hash)
	if id == 0 {
		return
	}
	if !m.keepGhosts {
		m.removeCopy(id, c)
		return
	}
	b := m.blocks[id]
	m.removeCopy(id, c)
	if !b.ambiguous && m.byHash.get(hash) == 0 {
		m.ghosts.add(storeBlock{hash: hash, above: b.above, first: b.first, content: b.content}, now)
	}
}

// demote gives a block an assumed copy until a time, if a removal is about to
// take its last copy of a class.
func (m *mirror) demote(hash uint64, from, to copyClass, until time.Time) {
	id := m.byHash.get(hash)
	if id != 0 && m.copies.count(&m.blocks[id].copies, from) == 1 {
		m.lapseAt(id, to, until)
	}
}

func (m *mirror) removeCopy(id uint32, c copyClass) {
	b := &m.blocks[id]
	if !m.copies.remove(&b.copies, c) {
		return
	}
	if m.copies.classes[c].lapses {
		m.lapses.cancel(id, c)
	}
	if b.copies.none() {
		m.delete(id)
		return
	}
	m.place(id)
	m.settle(id)
}

// delete takes a block out. Its descendants stay, as orphans.
func (m *mirror) delete(id uint32) {
	m.unlapse(id)
	m.copies.drop(&m.blocks[id].copies)
	m.unlist(id)
	m.settle(id) // not resident without copies: withdraws the subtree
	m.detach(id)
	b := &m.blocks[id]
	if b.child != 0 {
		for c := b.child; c != 0; c = m.blocks[c].next {
			m.blocks[c].parent = 0
		}
		m.waiting[b.hash] = b.child
		m.waited = max(m.waited, len(m.waiting))
	}
	m.byHash.del(b.hash)
	m.present--
	m.blocks[id] = block{next: m.free}
	m.free = id
}

func (m *mirror) alloc() uint32 {
	if id := m.free; id != 0 {
		m.free = m.blocks[id].next
		m.blocks[id] = block{}
		return id
	}
	m.blocks = append(m.blocks, block{})
	return uint32(len(m.blocks) - 1)
}
