package router

import (
	"fmt"

	"github.com/kvsteer/kvsteer/kvindex"
)

// HeldBlocks are the blocks that a rank of an endpoint is believed to hold, by fingerprint and in no order. Device is part of Any.
type HeldBlocks struct {
	Rank   int
	Any    []uint64
	Device []uint64
}

// Blocks returns what the ranks of an endpoint are believed to hold, for inspection: it looks at the whole index. Of each rank and tier there are at
// most limit blocks; more are an error. A rank that is not matched at this moment has none.
func (r *Router) Blocks(endpoint string, limit int) ([]HeldBlocks, error) {
	for _, f := range r.all() {
		t := f.target(endpoint)
		if t == nil {
			continue
		}
		var all []HeldBlocks
		for _, k := range t.of.all {
			held := HeldBlocks{Rank: k.number}
			if s := k.source.Load(); s != nil {
				if state := s.state.Load(); s.readable(state) && !t.of.mismatched() {
					var whole [2]bool
					held.Any, whole[0] = r.index.AppendKeys(nil, state.slot, kvindex.Any, limit)
					held.Device, whole[1] = r.index.AppendKeys(nil, state.slot, kvindex.Device, limit)
					if !whole[0] || !whole[1] {
						return nil, fmt.Errorf("rank %d of endpoint %s holds more than %d blocks", k.number, endpoint, limit)
					}
				}
			}
			all = append(all, held)
		}
		return all, nil
	}
	return nil, fmt.Errorf("there is no endpoint %q", endpoint)
}
