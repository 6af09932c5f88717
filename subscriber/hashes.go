package subscriber

import (
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// MaxHashed bounds the blocks of one prompt that are hashed: as many as the longest prompts have.
const MaxHashed = 16 << 10

// Hashes are a [Prompt] as its witness needs it: not its tokens, but what its whole blocks hash to.
type Hashes struct {
	// BlockSize is the number of tokens per block.
	BlockSize int
	// Root is what the first block's fingerprint is chained to; it stands for pool, adapter, block size and salt.
	Root uint64
	// Adapter and Salted say that the prompt has one; Pathless that it has an adapter whose path is not known.
	Adapter, Salted, Pathless bool
	// Contents are the content hashes of the blocks, the first one first; at most MaxHashed.
	Contents []uint64
	// Chains are the hashes that the engine may have for the first of these blocks.
	Chains []ChainHashes
}

// ChainHashes are hashes under one algorithm and one form of extra keys.
type ChainHashes struct {
	Algorithm string // as in [Chain]
	Tagged    bool
	Hashes    []uint64 // as events have them
}

// Numbers is how many hashes there are in all.
func (h *Hashes) Numbers() int {
	n := len(h.Contents)
	for _, c := range h.Chains {
		n += len(c.Hashes)
	}
	return n
}

// Hasher computes the Hashes of prompts. It belongs to one goroutine.
type Hasher struct {
	pool     string
	size     int
	hashing  hashing
	variants []variant
}

// NewHasher returns a Hasher for what a Subscriber of a pool wants. Algorithms that are not known are left out, and computed is nothing while
// the block size is not known.
func NewHasher(pool string, w Want) *Hasher {
	h := &Hasher{pool: pool, size: w.BlockSize, hashing: hashing{tagged: w.Tagged, untagged: w.Untagged}}
	for _, c := range w.Chains {
		if a, ok := blockhash.ParseAlgorithm(c.Algorithm); ok && h.hashing.chains[a] == nil {
			h.hashing.chains[a] = blockhash.EngineChainFrom(a, c.None)
		}
	}
	return h
}

// Hash computes the hashes of a prompt. It is false for one without a whole block. Where there are several ways of hashing, each hashes a part of a long
// prompt: together no more blocks than one alone.
func (h *Hasher) Hash(p Prompt) (Hashes, bool) {
	if h.size < 1 || len(p.Tokens) < h.size {
		return Hashes{}, false
	}
	blocks := min(len(p.Tokens)/h.size, MaxHashed)
	c := p.chain()
	out := Hashes{
		BlockSize: h.size, Adapter: p.Adapter != "", Salted: c.salted, Pathless: c.pathless,
		Root:     blockhash.Namespace{Pool: h.pool, Adapter: p.Adapter, BlockSize: h.size, Salt: p.Salt}.Root(),
		Contents: appendContents(make([]uint64, 0, blocks), p.Tokens, h.size, blocks),
	}
	h.variants = h.hashing.variantsOf(h.variants[:0], &p)
	if n := len(h.variants); n > 1 {
		blocks = min(blocks, trialPrompt/n)
	}
	for _, v := range h.variants {
		chain, keys := h.hashing.chains[v.algorithm()], v.keysOf(&p)
		list := make([]uint64, blocks)
		var digest blockhash.Digest
		var parent *blockhash.Digest
		for i := range list {
			digest = chain.Block(parent, p.Tokens[i*h.size:(i+1)*h.size], keys)
			parent = &digest
			list[i] = chain.Uint64(parent)
		}
		out.Chains = append(out.Chains, ChainHashes{Algorithm: v.algorithm().String(), Tagged: v.tagged(), Hashes: list})
	}
	return out, true
}

// hashed takes the hashes of a prompt that was routed to the engine.
func (f *fold) hashed(p *Hashes, now time.Time) foldStats {
	f.begin(now)
	if !f.heal.complete {
		f.stats.witnesses[f.hearHashes(p)]++
		f.release()
		f.count()
		f.tell()
	}
	return f.stats
}

// hearHashes is hear for a prompt that was hashed elsewhere. Whoever did that is believed about which hash is of which content; that the engine holds a block is
// for its events to say.
func (f *fold) hearHashes(p *Hashes) hearing {
	h := f.heal
	if f.learned.blockSize == 0 || p.BlockSize != f.learned.blockSize {
		return witnessStale
	}
	contents := p.Contents[:min(len(p.Contents), MaxHashed)]
	if len(contents) == 0 {
		return witnessShort
	}
	c := chainKind{root: p.Root, keyed: p.Adapter || p.Salted, salted: p.Salted, pathless: p.Pathless}
	if f.announced(c.root, contents) {
		return witnessKnown
	}
	s, loose := f.shelve(c, contents)
	healed := 0
	for _, list := range p.Chains {
		a, ok := blockhash.ParseAlgorithm(list.Algorithm)
		if !ok || h.hashing.chains[a] == nil {
			continue
		}
		v := variantOf(a, list.Tagged)
		for i, hash := range list.Hashes[:min(len(list.Hashes), len(contents))] {
			if hash == 0 {
				break // stands for none
			}
			if s.hash(v, h.ids[i]) == 0 {
				s.setHash(v, h.ids[i], hash)
			}
		}
		healed += f.prove(s, v, c.keyed)
		if h.hashing.settled(c.keyed) {
			break
		}
	}
	return f.heard(s, loose, healed)
}
