package subscriber

import (
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// Bounds of what is kept for healing, per engine: some 170 bytes for each block of a shelf, 50 for each of the others, 8 MB in all. A prompt comes before
// its own events, by no more than the time that it waits for its prefill; what comes later than that finds the proof.
const (
	shelfBlocks   = 16 << 10    // blocks of a shelf, of which there are two; as many as the longest prompts have
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
	hearings

	witnessWaits // comes back later; not counted
)

func (o hearing) String() string {
	return [hearings]string{"healed", "kept", "known", "short", "dropped"}[o]
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
		if !f.testify(p) {
			return
		}
	}
}

// testify is false when the prompt has to wait.
func (f *fold) testify(p Prompt) bool {
	o := f.hear(p)
	if o == witnessWaits {
		f.stats.witnesses[witnessDropped] += f.heal.waiting.push(p, waitPrompts, waitTokens)
		return false
	}
	f.stats.witnesses[o]++
	return true
}

// hear enters a prompt's chain into the shelf, and into the mirror as far as it is proven.
func (f *fold) hear(p Prompt) hearing {
	h, size := f.heal, f.learned.blockSize
	if size == 0 {
		return witnessWaits
	}
	blocks := min(len(p.Tokens)/size, shelfBlocks)
	if blocks == 0 {
		return witnessShort
	}
	keyed := p.Adapter != "" || p.Salt != ""
	h.variants = h.hashing.variantsOf(h.variants[:0], &p)
	hashed := blocks
	if trial := !h.hashing.settled(keyed); trial && len(h.variants) > 0 {
		hashed = min(blocks, trialPrompt/len(h.variants))
		if !h.hashing.afford(hashed*len(h.variants), f.now) {
			return witnessWaits
		}
	}
	root := blockhash.Namespace{Pool: f.o.pool, Adapter: p.Adapter, BlockSize: size, Salt: p.Salt}.Root()
	if f.announced(root, p.Tokens, size, blocks) {
		return witnessKnown
	}
	s := h.shelf(blocks, f.now)
	h.ids = h.ids[:0]
	h.salted = h.salted || p.Salt != ""
	node := shelfNode{root: root, keyed: keyed, loose: p.Adapter != "" && p.AdapterPath == "" && h.hashing.tagged}
	key := root
	for i := range blocks {
		node.content = h.contents[i]
		key = blockhash.Chain(key, node.content)
		node.key = key
		id := s.add(node)
		h.ids = append(h.ids, id)
		node.parent = id
	}
	s.nodes[node.parent].last = true
	healed := 0
	for _, v := range h.variants {
		h.digest(s, v, &p, size, hashed)
		healed += f.prove(s, v, keyed)
		if h.hashing.settled(keyed) {
			break // the others are not it
		}
	}
	if !f.complete && (h.hashing.hopeless() || node.loose) {
		before := f.stats.healed[healedByContent]
		f.hearRuns(s)
		healed += f.stats.healed[healedByContent] - before
	}
	if healed > 0 {
		return witnessHealed
	}
	return witnessKept
}

// announced computes the contents of a prompt's blocks, and tells whether all the blocks are announced.
func (f *fold) announced(root uint64, tokens []uint32, size, blocks int) bool {
	c := f.heal.contents[:0]
	key := root
	for i := range blocks {
		c = append(c, blockhash.Content(tokens[i*size:(i+1)*size], nil))
		key = blockhash.Chain(key, c[i])
	}
	f.heal.contents = c
	id := f.mirror.prints.byKey.get(key)
	return id != 0 && f.mirror.prints.prints[id].any > 0
}

// digest computes the engine's hashes of a prompt's first blocks where the shelf does not have them.
func (h *healer) digest(s *shelf, v variant, p *Prompt, size, blocks int) {
	chain, keys := h.hashing.chains[v.algorithm()], v.keysOf(p)
	var parent *blockhash.Digest
	for i, id := range h.ids[:blocks] {
		d := s.digest(v, id)
		if d == nil {
			digest := chain.Block(parent, p.Tokens[i*size:(i+1)*size], keys)
			s.setDigest(v, id, digest, chain.Uint64(&digest))
			d = s.digest(v, id)
		}
		parent = d
	}
}

// prove enters the blocks of the prompt in h.ids, hashed under v, as far as events prove them, and returns how many. The proof of a
// block is the latest one of itself and of all that follow it.
func (f *fold) prove(s *shelf, v variant, keyed bool) int {
	h, chain := f.heal, f.heal.hashing.chains[v.algorithm()]
	h.path = h.path[:0]
	fits := false
	for _, id := range h.ids {
		d := s.digest(v, id)
		if d == nil {
			break
		}
		t := step{hash: chain.Uint64(d), content: s.nodes[id].content}
		t.proof, _ = h.proven.get(t.hash)
		fits = fits || t.proof.at > 0
		if !h.hashing.settled(keyed) {
			fits = fits || f.mirror.byHash.get(t.hash) != 0
		}
		h.path = append(h.path, t)
	}
	if !fits {
		return 0
	}
	f.learnHashing(v, keyed)
	for i := len(h.path) - 2; i >= 0; i-- {
		if h.path[i+1].proof.at > h.path[i].proof.at {
			h.path[i].proof = h.path[i+1].proof
		}
	}
	return f.enter(s.nodes[h.ids[0]].root)
}

// learnHashing notes under which variant a hash of the engine was met.
func (f *fold) learnHashing(v variant, keyed bool) {
	h := f.heal
	if h.hashing.settled(keyed) {
		return
	}
	h.hashing.learn(v, keyed)
	for other := range variant(variants) {
		if h.hashing.chains[other.algorithm()] != nil {
			continue
		}
		for _, s := range h.shelves {
			if s != nil {
				s.forget(other)
			}
		}
	}
}

// enter enters the blocks of h.path, whose first follows root, that are proven to be resident and are not known, and returns how many.
// Each has one copy then, of the class that the proof is of: the engine may have more, whose removals are of nothing, so that
// the block is gone too soon at worst.
func (f *fold) enter(root uint64) (n int) {
	m, h := f.mirror, f.heal
	if bits.OnesCount32(m.groups.need) > 1 {
		return 0 // a proof is of one group only
	}
	above := root
	for i, t := range h.path {
		if m.overworked() {
			break
		}
		s := storeBlock{hash: t.hash, above: above, first: i == 0, content: t.content}
		above = t.hash
		if t.proof.at <= h.floor {
			break // those that follow have no later one
		}
		if gone, ok := h.gone.get(t.hash); ok && gone >= t.proof.at {
			continue
		}
		if id := m.byHash.get(t.hash); id != 0 && m.copies.onDevice(&m.blocks[id].copies) {
			continue
		}
		switch m.add(s, t.proof.class) {
		case dropNone:
			m.blocks[m.byHash.get(t.hash)].inferred = true
			n++
		case dropFull, dropOrphanFull:
			return n
		}
	}
	f.stats.healed[healedByHash] += n
	return n
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
		chain := h.hashing.chains[v.algorithm()]
		d := s.digest(v, id)
		if d == nil || chain == nil || chain.Uint64(d) != hash {
			continue
		}
		f.learnHashing(v, s.nodes[id].keyed)
		depth := int(s.nodes[id].depth)
		h.path = append(h.path[:0], make([]step, depth)...)
		for n := id; n != 0; n = s.nodes[n].parent {
			depth--
			h.path[depth] = step{hash: chain.Uint64(s.digest(v, n)), content: s.nodes[n].content, proof: p}
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
