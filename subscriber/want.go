package subscriber

import "github.com/kvsteer/kvsteer/internal/blockhash"

// Want says whether prompts help to root what a [Subscriber] has of its engine, and what it has to know of them.
type Want struct {
	// Yes says that they do. All else is zero without it.
	Yes bool
	// BlockSize is the number of tokens per block, 0 while it is not known: prompts have to wait for it.
	BlockSize int
	// Tagged and Untagged say which forms of extra keys the engine may hash.
	Tagged, Untagged bool
	// Chains are the ways in which the engine may hash its blocks. None: by contents alone.
	Chains []Chain
}

// Chain is one way of hashing blocks.
type Chain struct {
	Algorithm string   // as vLLM's --prefix-caching-hash-algo names it, or "sglang"
	None      [32]byte // what first blocks have for a parent; for an algorithm of 128 bits the first 16 bytes count
}

// wanting is a Want in short. Chains are bits by algorithm.
type wanting struct {
	yes              bool
	blockSize        int
	tagged, untagged bool
	chains           uint8
}

func (f *fold) wanting() (w wanting) {
	h := f.heal.hashing
	if !f.wants() {
		return w
	}
	w = wanting{yes: true, blockSize: f.learned.blockSize, tagged: h.tagged, untagged: h.untagged}
	for a, c := range h.chains {
		if c != nil {
			w.chains |= 1 << a
		}
	}
	return w
}

// want is a wanting of this fold in full.
func (f *fold) want(w wanting) Want {
	full := Want{Yes: w.yes, BlockSize: w.blockSize, Tagged: w.tagged, Untagged: w.untagged}
	for a, c := range f.heal.hashing.all {
		if w.chains&(1<<a) != 0 {
			full.Chains = append(full.Chains, Chain{Algorithm: blockhash.Algorithm(a).String(), None: c.None()})
		}
	}
	return full
}

// ask tells of what is wanted, if that has changed.
func (f *fold) ask() {
	if f.o.wanted == nil {
		return
	}
	if w := f.wanting(); w != f.asked {
		f.asked = w
		f.o.wanted(f.want(w))
	}
}
