package subscriber

import (
	"math/rand/v2"
	"time"
)

// Bounds of what is kept for healing, per engine: some 190 bytes for each block of a shelf, 50 for each of the others, 9 MB in all. A prompt comes before
// its own events, by no more than the time that it waits for its prefill; what comes later than that finds the proof.
const (
	shelfBlocks   = MaxHashed   // blocks of a shelf, of which there are two; as many as the longest prompts have
	shelfAge      = time.Minute // after which a shelf takes no more
	waitPrompts   = 64          // that wait for the block size, or for their turn to be tried
	waitTokens    = 256 << 10
	provenParents = 8 << 10  // in each of two generations
	goneBlocks    = 16 << 10 // likewise
)

// healer roots orphans after a reset, by prompts that were routed to the engine. Time is counted in events, so that the order of
// stores and removals is certain.
type healer struct {
	hashing  *hashing
	complete bool // everything that the engine holds was announced since the last reset: there is nothing to heal
	clock    uint64

	shelves [2]*shelf // prompts by age; nil: none
	begun   time.Time // of the younger one
	waiting promptQueue

	// proven holds, by the engine hash of a parent, the event that last stored a block under it. At that moment the parent and
	// all its ancestors were resident, or the engine could not have used them.
	proven ages[proof]
	// gone holds, by engine hash, the last event that removed a copy of it. What was removed up to floor may be forgotten, so no
	// older proof counts.
	gone   ages[uint64]
	floor  uint64
	turned uint64 // clock when the younger generation of gone was begun

	// Of heal_content.go.
	runs    ages[run] // by the content of the orphan
	salted  bool      // a salted prompt was met: an orphan's tokens do not tell whether it follows a salt
	misfits int
	misfit  uint64    // run.above of the last one
	secret  uint64    // from which hashes are made that no engine has
	origin  time.Time // of block.fresh

	// Buffers.
	variants []variant
	contents []uint64
	ids      []uint32
	path     []step
}

// proof is an event that shows a block to be resident with all its ancestors.
type proof struct {
	at    uint64 // healer.clock
	class copyClass
}

// step is one block of a chain that is to be entered.
type step struct {
	hash    uint64
	content uint64
	proof   proof // zero: none
}

func newHealer(seed *string) *healer {
	return &healer{
		hashing: newHashing(seed),
		proven:  ages[proof]{size: provenParents},
		gone:    ages[uint64]{size: goneBlocks},
		runs:    ages[run]{size: runsKept},
		secret:  rand.Uint64(),
	}
}

// reset forgets all that was learned of the engine, prompts not yet looked at excepted.
func (h *healer) reset() {
	h.restart()
	h.complete = false
	h.hashing.reset()
}

// release lets go of buffers that one huge prompt grew.
func (h *healer) release() {
	if cap(h.contents) > keepBuffer {
		h.contents, h.ids, h.path = nil, nil, nil
	}
}

// restart forgets what is known of blocks.
func (h *healer) restart() {
	h.shelves = [2]*shelf{}
	h.proven.clear()
	h.gone.clear()
	h.runs.clear()
	h.salted, h.misfits, h.misfit = false, 0, 0
	h.turned = h.clock
}

// finish notes that everything the engine holds is known.
func (h *healer) finish() {
	h.restart()
	h.waiting = promptQueue{}
	h.complete = true
}

// shelf returns the shelf for a prompt of so many blocks.
func (h *healer) shelf(blocks int, now time.Time) *shelf {
	if s := h.shelves[0]; s != nil && s.len()+blocks > shelfBlocks {
		h.turn(now)
	}
	if h.shelves[0] == nil {
		h.shelves[0] = newShelf()
		if h.shelves[1] == nil {
			h.begun = now
		}
	}
	return h.shelves[0]
}

// turn makes the younger shelf the older one, which is let go.
func (h *healer) turn(now time.Time) {
	h.shelves[0], h.shelves[1] = nil, h.shelves[0]
	h.begun = now
}

// age lets go of shelves that are too old.
func (h *healer) age(now time.Time) {
	if h.shelves != [2]*shelf{} && now.Sub(h.begun) >= shelfAge {
		h.turn(now)
	}
}

// hearing is what became of a witness.
type hearing uint8

const (
	witnessHealed  hearing = iota // rooted orphans that were there before it
	witnessKept                   // kept for blocks to come
	witnessKnown                  // all its blocks are announced
	witnessShort                  // not one whole block
	witnessDropped                // too many, or too long
	witnessStale                  // hashed elsewhere for blocks of another size
	hearings

	witnessWaits // comes back later; not counted
)

func (o hearing) String() string {
	return [hearings]string{"healed", "kept", "known", "short", "dropped", "stale"}[o]
}

// witness takes a prompt that was routed to the engine.
func (f *fold) witness(p Prompt, now time.Time) foldStats {
	f.begin(now)
	if !f.heal.complete {
		f.testify(p)
		f.release()
		f.count()
		f.tell()
	}
	return f.stats
}

// wants says whether prompts help.
func (f *fold) wants() bool { return f.online && !f.heal.complete }

// drain looks again at the prompts that wait.
func (f *fold) drain() {
	for n := len(f.heal.waiting.prompts); n > 0 && !f.mirror.overworked(); n-- {
		p, _ := f.heal.waiting.pop()
		if !f.testify(p.Prompt) {
			return
		}
	}
}

// testify is false when the prompt has to wait.
func (f *fold) testify(p Prompt) bool {
	o := f.hear(p)
	if o == witnessWaits {
		f.stats.witnesses[witnessDropped] += f.heal.waiting.push(witness{Prompt: p}, waitPrompts, waitTokens)
		return false
	}
	f.stats.witnesses[o]++
	return true
}

// means says by what a block was healed.
type means uint8

const (
	healedByHash means = iota
	healedByContent
	allMeans
)

func (m means) String() string { return [allMeans]string{"hash", "content"}[m] }

// evidence looks at the blocks of a device store that were entered: what they say of blocks that are not known.
func (f *fold) evidence(e *event, class copyClass) {
	h, m := f.heal, f.mirror
	if h.complete {
		return
	}
	if len(h.waiting.prompts) > 0 {
		f.drain()
	}
	if !e.hasParent {
		return
	}
	if id := m.byHash.get(e.parent); id != 0 && m.blocks[id].rooted {
		f.refresh(id)
		return
	}
	p := proof{at: h.clock, class: class}
	h.proven.put(e.parent, p)
	for _, s := range h.shelves {
		if s == nil {
			continue
		}
		if id := s.byHash.get(e.parent); id != 0 && f.recall(s, id, e.parent, p) {
			return
		}
	}
	f.evidenceByContent(e, p)
}

// recall enters the chain of a shelf up to a block that is proven just now. It is false when the shelf does not have the chain.
func (f *fold) recall(s *shelf, id uint32, hash uint64, p proof) bool {
	h := f.heal
	for v := range variant(variants) {
		if h.hashing.chains[v.algorithm()] == nil || hash == 0 || s.hash(v, id) != hash {
			continue
		}
		f.learnHashing(v, s.nodes[id].keyed)
		depth := int(s.nodes[id].depth)
		h.path = append(h.path[:0], make([]step, depth)...)
		for n := id; n != 0; n = s.nodes[n].parent {
			depth--
			h.path[depth] = step{hash: s.hash(v, n), content: s.nodes[n].content, proof: p}
		}
		f.enter(s.nodes[id].root)
		return true
	}
	return false
}

// firstBlock looks at how the engine hashes a chain's first block.
func (f *fold) firstBlock(e *event, salt, extra []byte) {
	h := f.heal
	keyed := len(e.loraName) > 0 || len(salt) > 0
	h.salted = h.salted || len(salt) > 0
	if h.complete || len(extra) > 0 || h.hashing.settled(keyed) {
		return
	}
	p := Prompt{Adapter: string(e.loraName), Salt: string(salt), Tokens: e.tokens[:e.blockSize]}
	h.hashing.first(e.hashes[0], p, e.hasExtra)
}

// removedBlock notes that a copy of a block has left the device, of a class that the mirror knows or not. A copy that was
// inferred goes whatever its class.
func (f *fold) removedBlock(hash uint64, class copyClass, known bool) {
	h, m := f.heal, f.mirror
	if h.gone.put(hash, h.clock) {
		h.floor, h.turned = h.turned, h.clock
	}
	id := m.byHash.get(hash)
	if id == 0 || !m.blocks[id].inferred {
		return
	}
	copies := &m.blocks[id].copies
	if c, ok := m.copies.lapsing(copies); ok {
		m.removeCopy(id, c)
		return
	}
	if known && m.copies.has(copies, class) {
		return
	}
	if c, ok := m.copies.deviceClass(copies); ok {
		m.removeCopy(id, c)
	}
}
