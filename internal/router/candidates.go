package router

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/kvindex"
)

// candidate is one endpoint of a request's pool that is healthy and does not drain.
type candidate struct {
	target    *target
	endpoint  *pool.Endpoint
	slot      kvindex.Slot
	blockSize int // tokens per block; 0 when the prompt is not matched here
	extraKeys bool
	life      uint64 // of the endpoint's engine
}

// scratch is the memory of one decision, used again by later ones.
type scratch struct {
	settings   *Settings // that the decision goes by
	candidates []candidate
	standings  []standing // of candidates, by position
	costs      []float64  // of candidates, by position

	// One lookup: candidates of one block size, or those that may be asked for token ids.
	keys  []uint64
	slots []kvindex.Slot
	held  []kvindex.Held
	at    []int // position in candidates
	sizes []int // block sizes looked up

	text approx.Keyer
}

// gather takes the endpoints of the fleet that can get a request for candidates, and of these the ones for indexed whose blocks are known.
func (sc *scratch) gather(f *fleet) (indexed bool) {
	sc.candidates, sc.standings = sc.candidates[:0], sc.standings[:0]
	for _, t := range f.all() {
		if !t.available() {
			continue
		}
		c := candidate{target: t, endpoint: t.endpoint, life: t.endpoint.Life()}
		if s := t.source.Load(); s != nil {
			if state := s.state.Load(); s.readable(state) {
				if _, any := s.index.Blocks(state.slot); any > 0 {
					c.slot, c.blockSize, c.extraKeys = state.slot, state.about.BlockSize, state.about.ExtraKeys
					indexed = true
				}
			}
		}
		sc.candidates = append(sc.candidates, c)
		sc.standings = append(sc.standings, standing{})
	}
	return indexed
}

// restrict leaves only the candidates that a request may go to.
func (sc *scratch) restrict(allowed func(addr string) bool) (indexed bool) {
	sc.candidates = slices.DeleteFunc(sc.candidates, func(c candidate) bool { return !allowed(c.endpoint.Addr()) })
	sc.standings = sc.standings[:len(sc.candidates)] // nothing is entered in them yet
	return slices.ContainsFunc(sc.candidates, func(c candidate) bool { return c.blockSize > 0 })
}

// ranked lists so many candidates by the costs of the last placement: the two choices first, whatever tie made them so, then the others.
func (sc *scratch) ranked(first, second, most int) []string {
	if most <= 0 {
		return nil
	}
	sc.at = sc.at[:0]
	for i := range sc.candidates {
		sc.at = append(sc.at, i)
	}
	rank := func(i int) float64 {
		switch i {
		case first:
			return math.Inf(-1)
		case second:
			return -math.MaxFloat64
		}
		return sc.costs[i]
	}
	slices.SortStableFunc(sc.at, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	addrs := make([]string, 0, min(most, len(sc.at)))
	for _, i := range sc.at {
		if addr := sc.candidates[i].endpoint.Addr(); !slices.Contains(addrs, addr) {
			if addrs = append(addrs, addr); len(addrs) == most {
				break
			}
		}
	}
	return addrs
}

// dropPlain leaves only those indexed whose events tell salted blocks from plain ones.
func (sc *scratch) dropPlain() (indexed bool) {
	for i := range sc.candidates {
		if c := &sc.candidates[i]; !c.extraKeys {
			c.blockSize = 0
		}
		indexed = indexed || sc.candidates[i].blockSize > 0
	}
	return indexed
}

// allIndexed says whether the blocks of every candidate are known.
func (sc *scratch) allIndexed() bool {
	return !slices.ContainsFunc(sc.candidates, func(c candidate) bool { return c.blockSize == 0 })
}

// leastBusy is the indexed candidate with the least prefill before it, other than except, at random among equals; nil when there is none.
func (sc *scratch) leastBusy(f *fleet, except *pool.Endpoint, now time.Time, random func(int) int) *pool.Endpoint {
	f.mu.Lock()
	defer f.mu.Unlock()
	sc.costs, sc.at = sc.costs[:0], sc.at[:0]
	for i := range sc.candidates {
		c := &sc.candidates[i]
		if c.blockSize == 0 || c.endpoint == except || !c.endpoint.Healthy() {
			continue
		}
		c.target.account.advance(now, &f.pace)
		cost := c.target.account.load(false).backlog
		if c.endpoint.Suspect() {
			cost += suspectCost
		}
		sc.costs = append(sc.costs, cost)
		sc.at = append(sc.at, i)
	}
	if best := pick(sc.costs, -1, 0, random); best >= 0 {
		return sc.candidates[sc.at[best]].endpoint
	}
	return nil
}
