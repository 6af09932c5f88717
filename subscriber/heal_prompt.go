package subscriber

import (
	"math/bits"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

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
	c := p.chain()
	h.variants = h.hashing.variantsOf(h.variants[:0], &p)
	hashed := blocks
	if trial := !h.hashing.settled(c.keyed); trial && len(h.variants) > 0 {
		hashed = min(blocks, trialPrompt/len(h.variants))
		if !h.hashing.afford(hashed*len(h.variants), f.now) {
			return witnessWaits
		}
	}
	c.root = blockhash.Namespace{Pool: f.o.pool, Adapter: p.Adapter, BlockSize: size, Salt: p.Salt}.Root()
	h.contents = appendContents(h.contents[:0], p.Tokens, size, blocks)
	if f.announced(c.root, h.contents) {
		return witnessKnown
	}
	s, loose := f.shelve(c, h.contents)
	healed := 0
	for _, v := range h.variants {
		h.digest(s, v, &p, size, hashed)
		healed += f.prove(s, v, c.keyed)
		if h.hashing.settled(c.keyed) {
			break // the others are not it
		}
	}
	return f.heard(s, loose, healed)
}

// chainKind is what is known of a prompt's chain beside its blocks.
type chainKind struct {
	root     uint64
	keyed    bool // it has an adapter or a salt
	salted   bool
	pathless bool // the path of its adapter is not known
}

func (p *Prompt) chain() chainKind {
	return chainKind{keyed: p.Adapter != "" || p.Salt != "", salted: p.Salt != "", pathless: p.Adapter != "" && p.AdapterPath == ""}
}

// appendContents appends the contents of a prompt's first blocks.
func appendContents(dst []uint64, tokens []uint32, size, blocks int) []uint64 {
	for i := range blocks {
		dst = append(dst, blockhash.Content(tokens[i*size:(i+1)*size], nil))
	}
	return dst
}

// shelve enters a chain into the shelf and its nodes into h.ids. loose says that its hashes cannot be computed for want of a path.
func (f *fold) shelve(c chainKind, contents []uint64) (s *shelf, loose bool) {
	h := f.heal
	s = h.shelf(len(contents), f.now)
	h.ids = h.ids[:0]
	h.salted = h.salted || c.salted
	node := shelfNode{root: c.root, keyed: c.keyed, loose: c.pathless && h.hashing.tagged}
	key := c.root
	for _, content := range contents {
		node.content = content
		key = blockhash.Chain(key, content)
		node.key = key
		id := s.add(node)
		h.ids = append(h.ids, id)
		node.parent = id
	}
	s.nodes[node.parent].last = true
	return s, node.loose
}

// heard looks for what the hashes of the prompt in h.ids did not prove.
func (f *fold) heard(s *shelf, loose bool, healed int) hearing {
	if !f.complete && (f.heal.hashing.hopeless() || loose) {
		before := f.stats.healed[healedByContent]
		f.hearRuns(s)
		healed += f.stats.healed[healedByContent] - before
	}
	if healed > 0 {
		return witnessHealed
	}
	return witnessKept
}

// announced tells whether all blocks of a prompt are announced.
func (f *fold) announced(root uint64, contents []uint64) bool {
	key := root
	for _, c := range contents {
		key = blockhash.Chain(key, c)
	}
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
	h := f.heal
	h.path = h.path[:0]
	fits := false
	for _, id := range h.ids {
		t := step{hash: s.hash(v, id), content: s.nodes[id].content}
		if t.hash == 0 {
			break
		}
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
