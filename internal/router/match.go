package router

import (
	"slices"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/kvindex"
)

// maxBlockSizes bounds the block sizes of one pool that a prompt is matched for: each costs a pass over the prompt.
const maxBlockSizes = 4

// match enters what each indexed candidate holds of the prompt into sc.standings. usable is the number of tokens that could have been reused:
// an engine computes at least the last token of a prompt, so that it has something to sample from, and reuses whole blocks only.
func (r *Router) match(sc *scratch, ns blockhash.Namespace, tokens []uint32, watch *stopwatch) (usable int) {
	sc.sizes = sc.sizes[:0]
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
			if sc.candidates[j].blockSize == size {
				sc.slots = append(sc.slots, sc.candidates[j].slot)
				sc.held = append(sc.held, kvindex.Held{})
				sc.at = append(sc.at, j)
			}
		}
		r.index.Match(sc.keys, sc.slots, sc.held)
		for k, j := range sc.at {
			sc.standings[j].device = int(sc.held[k].Device) * size
			sc.standings[j].last = sc.keys[blocks-1]
			sc.standings[j].any = int(sc.held[k].Any) * size
		}
		watch.lap(stageMatch)
	}
	return usable
}
