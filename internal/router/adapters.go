package router

import "github.com/kvsteer/kvsteer/internal/pool"

// dropWithout leaves only candidates that serve an adapter, when some are known to: the others would answer 404. An engine that has not said what it
// serves is taken at the configuration's word. It says whether the blocks of any that are left are known.
func (sc *scratch) dropWithout(p *pool.Pool, adapter string) (indexed bool) {
	configured := p.Configures(adapter)
	left := 0
	for _, c := range sc.candidates {
		if serves, known := c.endpoint.Serves(adapter); serves || !known && configured {
			sc.candidates[left], left = c, left+1
			indexed = indexed || c.blockSize > 0
		}
	}
	if left == 0 { // nothing was overwritten
		for _, c := range sc.candidates {
			indexed = indexed || c.blockSize > 0
		}
		return indexed
	}
	sc.candidates, sc.standings = sc.candidates[:left], sc.standings[:left]
	return indexed
}
