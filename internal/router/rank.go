package router

import (
	"strconv"
	"sync/atomic"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/pool"
)

// Problems of an endpoint with ranks. Nothing of it is matched.
const (
	problemRanksMismatch = "ranks_mismatch" // its engine says that it has another number of ranks
	problemRanksDiffer   = "ranks_differ"   // its ranks have blocks of different sizes
)

// rank is one data-parallel rank of an endpoint: an engine with a cache and events of its own behind the endpoint's address. It lives as long as
// the endpoint has so many ranks, whether decisions choose it or not.
type rank struct {
	number int
	source atomic.Pointer[Source] // nil while nobody subscribes to its events
	target atomic.Pointer[target] // that is charged with what runs here
}

// ranks are those of one endpoint.
type ranks struct {
	all     []*rank
	offered atomic.Int32 // how many the engine says it has, 0 while it has not said

	reported atomic.Pointer[report] // what the engine last said of itself; nil while it has said nothing
}

// resized are n ranks, of which those that are there stay; r may be nil.
func (r *ranks) resized(n int) *ranks {
	if r != nil && len(r.all) == n {
		return r
	}
	next := &ranks{}
	if r != nil {
		next.all = append(next.all, r.all[:min(n, len(r.all))]...)
		next.offered.Store(r.offered.Load())
		next.reported.Store(r.reported.Load())
	}
	for len(next.all) < n {
		next.all = append(next.all, &rank{number: len(next.all)})
	}
	return next
}

// mismatched says that the engine has another number of ranks than the configuration. With too few configured, a mean over them would be above
// that of all.
func (r *ranks) mismatched() bool {
	n := r.offered.Load()
	return n != 0 && int(n) != len(r.all)
}

// seat is what one request is sent to: an endpoint, or one rank of it where decisions choose ranks. Other than a target, two can be compared.
type seat struct {
	endpoint *pool.Endpoint
	rank     int // −1: the engine chooses
}

func (t *target) seat() seat {
	if t.pinned {
		return seat{t.endpoint, t.ranks[0].number}
	}
	return seat{t.endpoint, -1}
}

// seats are those of an endpoint with so many ranks.
func seats(e *pool.Endpoint, n int, pin bool) []seat {
	if !pin {
		return []seat{{e, -1}}
	}
	all := make([]seat, n)
	for i := range all {
		all[i] = seat{e, i}
	}
	return all
}

// missing says that the engine has told that it has no such rank: it would refuse the request.
func (t *target) missing() bool {
	n := t.of.offered.Load()
	return t.pinned && n != 0 && t.ranks[0].number >= int(n)
}

// blockSize is the number of tokens in a block of the target's ranks, 0 while none is known, and −1 when they differ.
func (t *target) blockSize() int {
	size := 0
	for _, k := range t.ranks {
		s := k.source.Load()
		if s == nil {
			continue
		}
		switch n := s.state.Load().about.BlockSize; {
		case n == 0 || n == size:
		case size == 0:
			size = n
		default:
			return -1
		}
	}
	return size
}

// problem is what keeps the target's blocks from being fully known: its own, else the first of its ranks; "" for none.
func (t *target) problem() string {
	switch {
	case t.of.mismatched():
		return problemRanksMismatch
	case t.blockSize() < 0:
		return problemRanksDiffer
	}
	for _, k := range t.ranks {
		if s := k.source.Load(); s != nil {
			if p := s.problemName(s.state.Load()); p != "" {
				return p
			}
		}
	}
	return ""
}

// asked is the rank that a request asks its engine for, −1 when it does not or when decisions choose the rank in its place.
func (f *fleet) asked(req Request) int {
	if !f.spreads.Load() || req.Header == nil {
		return -1
	}
	n, err := strconv.Atoi(req.Header(envoy.HeaderRank))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// Offer takes over how many data-parallel ranks an endpoint's engine says it has, 0 when that is not known any more. While the number is not that of
// the configuration, nothing of the endpoint is matched.
func (r *Router) Offer(pool, endpoint string, n int) {
	f := r.fleet(pool)
	if f == nil {
		return
	}
	t := f.target(endpoint)
	if t == nil {
		return
	}
	before := t.of.mismatched()
	if was := int(t.of.offered.Swap(int32(n))); was == n {
		return
	}
	log := r.log.With("pool", pool, "endpoint", endpoint, "offered", n, "configured", len(t.of.all))
	switch after := t.of.mismatched(); {
	case after:
		log.Warn("the engine has another number of data-parallel ranks than events.ranks; the endpoint is routed by load")
	case before && n != 0:
		log.Info("the engine has as many data-parallel ranks as events.ranks again")
	}
}
