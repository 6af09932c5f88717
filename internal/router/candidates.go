package router

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// candidate is one target of a request's pool that is healthy and does not drain.
type candidate struct {
	target    *target
	endpoint  *pool.Endpoint
	from, to  int // its ranks with known blocks, in scratch.known
	share     int // ranks over which the mean is taken of what these hold
	blockSize int // tokens per block; 0 when the prompt is not matched here
	coldest   subscriber.Medium
	extraKeys bool
	life      uint64 // of the endpoint's engine
}

// scratch is the memory of one decision, used again by later ones.
type scratch struct {
	settings   *Settings // that the decision goes by
	candidates []candidate
	known      []kvindex.Slot // of candidates' ranks
	swaps      uint64         // of the router, before known was read
	asked      int            // rank that the request itself asks its engine for, −1 for none
	salted     bool           // candidates whose events do not tell salted blocks from plain ones are not indexed
	standings  []standing     // of candidates, by position
	costs      []float64      // of candidates, by position
	over       []uint64       // decisions that have expired meanwhile and that peers are to be told of

	// One lookup: candidates of one block size, or those that may be asked for token ids.
	keys  []uint64
	slots []kvindex.Slot
	held  []kvindex.Held
	at    []int // position in candidates
	sizes []int // block sizes looked up

	text approx.Keyer
}

// gather takes the targets of the fleet that can get a request for candidates, those whose engines sleep only where all do, and of these the ones for indexed whose blocks are known. asked is
// the rank that the request itself asks its engine for, −1 for none: where decisions do not choose ranks it runs there. swaps is the router's.
func (sc *scratch) gather(f *fleet, asked int, swaps uint64) (indexed bool) {
	sc.candidates, sc.standings, sc.known = sc.candidates[:0], sc.standings[:0], sc.known[:0]
	sc.asked, sc.swaps, sc.salted = asked, swaps, false
	asleep := f.asleep.Load()
	indexed = sc.take(f, asleep)
	if asleep && len(sc.candidates) == 0 {
		indexed = sc.take(f, false)
	}
	return indexed
}

// take is gather for all targets, or for those whose engines do not sleep.
func (sc *scratch) take(f *fleet, awake bool) (indexed bool) {
	for _, t := range f.all() {
		if !t.available() || awake && t.asleep() {
			continue
		}
		c := candidate{target: t, endpoint: t.endpoint, share: len(t.ranks), life: t.endpoint.Life()}
		sc.index(&c)
		indexed = indexed || c.blockSize > 0
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

// ranked lists so many candidates by the costs of the last placement: the two choices first, whatever tie made them so, then the others. Those that
// cannot be a second choice are left out: all attempts carry the one rank.
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
		if math.IsInf(rank(i), 1) {
			break
		}
		if addr := sc.candidates[i].endpoint.Addr(); !slices.Contains(addrs, addr) {
			if addrs = append(addrs, addr); len(addrs) == most {
				break
			}
		}
	}
	return addrs
}

// reindex reads the candidates' blocks anew, as copies have replaced some since. swaps is the router's.
func (sc *scratch) reindex(swaps uint64) {
	sc.known, sc.swaps = sc.known[:0], swaps
	for i := range sc.candidates {
		c := &sc.candidates[i]
		c.blockSize, c.coldest, c.extraKeys = 0, subscriber.MediumNone, false
		sc.index(c)
		sc.standings[i] = standing{}
	}
	if sc.salted {
		sc.dropPlain()
	}
}

// index enters the ranks of a candidate whose blocks are known.
func (sc *scratch) index(c *candidate) {
	c.from = len(sc.known)
	if c.target.of.mismatched() {
		return
	}
	if sc.asked >= 0 && !c.target.pinned {
		c.share = 1
	}
	for _, k := range c.target.ranks {
		if c.share < len(c.target.ranks) && k.number != sc.asked {
			continue
		}
		s := k.source.Load()
		if s == nil {
			continue
		}
		state := s.matchable()
		if state == nil {
			continue
		}
		switch size := state.about.BlockSize; c.blockSize {
		case 0:
			c.blockSize, c.extraKeys = size, state.about.ExtraKeys
		case size:
			c.extraKeys = c.extraKeys && state.about.ExtraKeys
		default:
			c.blockSize = 0
			return
		}
		c.coldest = max(c.coldest, state.about.Coldest)
		sc.known = append(sc.known, state.slot)
	}
	c.to = len(sc.known)
}

// second is the choice for when the first cannot be reached: at another endpoint. Where decisions choose ranks it has the same one, since
// all attempts of a request carry the one header that tells the engine.
func (sc *scratch) second(first int, w weights, random func(int) int) int {
	if chosen := sc.candidates[first].target; chosen.pinned {
		at := chosen.seat()
		for i := range sc.candidates {
			if other := sc.candidates[i].target.seat(); other.endpoint == at.endpoint || other.rank != at.rank {
				sc.costs[i] = math.Inf(1)
			}
		}
	}
	second := pick(sc.costs, first, w.near, random)
	if second >= 0 && math.IsInf(sc.costs[second], 1) {
		return -1
	}
	return second
}

// dropPlain leaves only those indexed whose events tell salted blocks from plain ones.
func (sc *scratch) dropPlain() (indexed bool) {
	sc.salted = true
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

// leastBusy is the indexed candidate with the least prefill before it, other than except, at random among equals; nil when there is none. With no
// candidate indexed all count.
func (sc *scratch) leastBusy(f *fleet, except *pool.Endpoint, now time.Time, random func(int) int) *pool.Endpoint {
	f.mu.Lock()
	defer f.mu.Unlock()
	sc.costs, sc.at = sc.costs[:0], sc.at[:0]
	indexed := slices.ContainsFunc(sc.candidates, func(c candidate) bool { return c.blockSize > 0 })
	for i := range sc.candidates {
		c := &sc.candidates[i]
		if indexed && c.blockSize == 0 || c.endpoint == except || !c.endpoint.Healthy() {
			continue
		}
		c.target.account.advance(now, &f.pace)
		cost := c.target.account.load(false).mean(len(c.target.ranks)).backlog
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
