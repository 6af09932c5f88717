package router

import (
	"slices"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/kvindex"
)

// maxBlockSizes bounds the block sizes of one pool that a prompt is matched for: each costs a pass over the prompt.
const maxBlockSizes = 4

// maxRematches bounds how often a decision looks its prompt up again because a copy has replaced blocks meanwhile. Copies end seldom.
const maxRematches = 4

// match enters what each indexed candidate holds of the prompt into sc.standings, the mean over its ranks where the engine chooses among them. usable is the number of tokens that could have been reused:
// an engine computes at least the last token of a prompt, so that it has something to sample from, and reuses whole blocks only.
//
// Blocks that a copy has replaced since the candidates were gathered are not found any more, so the copy is asked in their place.
func (r *Router) match(sc *scratch, ns blockhash.Namespace, tokens []uint32, watch *stopwatch) (usable int) {
	for range maxRematches {
		if swaps := r.swaps.Load(); swaps != sc.swaps {
			sc.reindex(swaps)
		}
		usable = max(usable, r.lookUp(sc, ns, tokens, watch))
		if r.swaps.Load() == sc.swaps {
			break
		}
	}
	return usable
}

// lookUp does what match says with the blocks known to sc.
func (r *Router) lookUp(sc *scratch, ns blockhash.Namespace, tokens []uint32, watch *stopwatch) (usable int) {
	sc.sizes = sc.sizes[:0]
	tiers := sc.settings.tiers(ns.Pool)
	for i := range sc.candidates {
		size := sc.candidates[i].blockSize
		if size == 0 || slices.Contains(sc.sizes, size) {
			continue
		}
		if len(sc.sizes) == maxBlockSizes {
			break
		}
		sc.sizes = append(sc.sizes, size)
		blocks := (len(tokens) - 1) / size
		if blocks < 1 {
			continue
		}
		usable = max(usable, blocks*size)

		ns.BlockSize = size
		sc.keys = blockhash.AppendKeys(sc.keys[:0], ns.Root(), tokens[:blocks*size], size)
		watch.lap(stageFingerprint)

		sc.slots, sc.held, sc.at = sc.slots[:0], sc.held[:0], sc.at[:0]
		for j := i; j < len(sc.candidates); j++ {
			if c := &sc.candidates[j]; c.blockSize == size {
				for _, slot := range sc.known[c.from:c.to] {
					sc.slots = append(sc.slots, slot)
					sc.held = append(sc.held, kvindex.Held{})
					sc.at = append(sc.at, j)
				}
			}
		}
		r.index.Match(sc.keys, sc.slots, sc.held)
		for k := 0; k < len(sc.at); {
			j, device, any := sc.at[k], 0, 0
			for ; k < len(sc.at) && sc.at[k] == j; k++ {
				device, any = device+int(sc.held[k].Device), any+int(sc.held[k].Any)
			}
			// A rank whose blocks are not known counts as one without blocks.
			s, share := &sc.standings[j], sc.candidates[j].share
			s.device, s.any, s.last = device*size/share, any*size/share, sc.keys[blocks-1]
			s.colder = tiers.of(sc.candidates[j].coldest)
		}
		watch.lap(stageMatch)
	}
	return usable
}
