package router

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Problems that the index adds to those of package subscriber. Such an endpoint is routed by load until its next reset or copy: it has missed blocks,
// and their descendants may not be stored without them.
const (
	problemIndexFull  = "index_full"  // its blocks exceed what the index may hold
	problemIndexShare = "index_share" // its node has more than a fair share of a crowded index
	problemNotClosed  = "not_closed"  // it had a block without one before it
	problemIndexSlots = "index_slots" // the index has no slot left
	problemIndexError = "index_error" // the index refused its blocks for another reason
	problemForgotten  = "forgotten"   // its blocks were forgotten by a call
)

// Source writes the blocks of one rank of an endpoint into the index and keeps what is known of the engine for candidates. It is a [subscriber.Sink]:
// Store, Remove, Reset, Describe, Begin and End are called from one goroutine. Candidates read its state at any time.
type Source struct {
	fleet    *fleet
	endpoint *pool.Endpoint
	rank     *rank
	owner    *owner
	index    *kvindex.Index
	swaps    *atomic.Uint64 // of the router
	now      func() time.Time
	log      *slog.Logger
	state    atomic.Pointer[sourceState] // written by the sink's goroutine
	counted  int64                       // blocks that count as the owner's; the sink's goroutine's

	forgotten atomic.Pointer[sourceState] // whose slots are not to be matched; nil for none
	hearer    atomic.Pointer[Hearer]      // nil while nobody hears of prompts
}

var _ subscriber.Sink = (*Source)(nil)

// sourceState is never changed once stored.
type sourceState struct {
	slot    kvindex.Slot // that is matched; zero after a reset until the first block
	copying bool         // a copy is under way
	copy    kvindex.Slot // of it; zero until its first block
	about   subscriber.Description
	problem string // of the index; "" for none
}

// writing is the slot that blocks go to.
func (s *sourceState) writing() *kvindex.Slot {
	if s.copying {
		return &s.copy
	}
	return &s.slot
}

// readable says whether the blocks of the state's slot may be matched.
func (s *Source) readable(state *sourceState) bool {
	return state.about.Connected && state.about.BlockSize > 0 && state.problem == "" && state.slot != kvindex.Slot{} && !s.isForgotten(state)
}

// matchable is the source's state when it has blocks that may be matched, nil otherwise.
func (s *Source) matchable() *sourceState {
	for {
		state := s.state.Load()
		if !s.readable(state) {
			return nil
		}
		if _, any := s.index.Blocks(state.slot); any > 0 {
			return state
		}
		if s.state.Load() == state { // else a copy may have taken its place
			return nil
		}
	}
}

// forget lets no block be matched that is known at this time, nor the rest of a copy under way. Each reset and each copy takes a fresh slot, and
// what comes under that one is matched.
func (s *Source) forget() { s.forgotten.Store(s.state.Load()) }

func (s *Source) isForgotten(state *sourceState) bool {
	f := s.forgotten.Load()
	return f != nil && (f.slot == state.slot || f.copy == state.slot) && state.slot != kvindex.Slot{}
}

func (s *Source) problemName(state *sourceState) string {
	switch {
	case state.problem != "":
		return state.problem
	case s.index.Open(state.slot):
		return problemNotClosed
	case s.isForgotten(state):
		return problemForgotten
	}
	return string(state.about.Problem)
}

// Source returns the sink for the events of one data-parallel rank of an endpoint, 0 where it has one alone. There is one at a time per rank; Close
// ends it. While the index is crowded its engine has a fair share of it.
func (r *Router) Source(pool, endpoint string, rank int) (*Source, error) {
	return r.SourceOf("engine "+endpoint, pool, endpoint, rank)
}

// SourceOf is Source for an endpoint of an owner, such as a node: all sources of one owner together have a fair share of a crowded index.
func (r *Router) SourceOf(owner, pool, endpoint string, rank int) (*Source, error) {
	fail := func(why string) (*Source, error) {
		return nil, fmt.Errorf("source of rank %d of endpoint %q in pool %q: %s", rank, endpoint, pool, why)
	}
	f := r.fleet(pool)
	if f == nil {
		return fail("no such pool")
	}
	t := f.target(endpoint)
	if t == nil {
		return fail("no such endpoint")
	}
	if rank < 0 || rank >= len(t.of.all) {
		return fail(fmt.Sprintf("it has %d", len(t.of.all)))
	}
	k := t.of.all[rank]
	s := &Source{
		fleet: f, endpoint: t.endpoint, rank: k, index: r.index, swaps: &r.swaps, now: r.now, log: r.log.With("pool", pool, "endpoint", endpoint, "rank", rank),
	}
	s.state.Store(&sourceState{})
	if !k.source.CompareAndSwap(nil, s) {
		return fail("already in use")
	}
	s.owner = r.owners.join(owner)
	return s, nil
}

// Connected says whether the rank's engine is connected. It may be called at any time.
func (s *Source) Connected() bool { return s.state.Load().about.Connected }

// settled says that the rank's engine is connected and what it holds is known, or will be as it announces it: no first copy is under way.
func (s *Source) settled() bool {
	state := s.state.Load()
	return state.about.Connected && (!state.copying || state.slot != kvindex.Slot{})
}

// Life numbers the lives of the endpoint's engine, as [pool.Endpoint.Life] says. It may be called at any time.
func (s *Source) Life() uint64 { return s.endpoint.Life() }

// Close forgets the rank's blocks and ends its series. No other method may be called after it.
func (s *Source) Close() {
	s.rank.source.CompareAndSwap(s, nil)
	s.release(*s.state.Load())
	s.count(sourceState{})
	s.owner.leave()
}

// count has what the source holds count as its owner's. A copy takes the place of what is known, so of the two the larger one counts.
func (s *Source) count(state sourceState) {
	_, known := s.index.Blocks(state.slot)
	_, copied := s.index.Blocks(state.copy)
	n := max(known, copied)
	s.owner.held.Add(n - s.counted)
	s.counted = n
}

// Dropped says whether what came was dropped, because of a problem of the index: only all blocks anew can be matched again. It is called from the
// sink's goroutine. What a check of the index has found wrong with the blocks, and that others need their room, comes to light here too.
func (s *Source) Dropped() bool {
	state := s.state.Load()
	switch {
	case state.problem != "":
	case !state.copying && s.index.Open(state.slot):
		s.fail(kvindex.ErrOpen)
	case s.counted > 0 && s.owner.exceeds(s.index):
		s.fail(errShare)
	}
	return s.state.Load().problem != ""
}

// Store enters blocks, and lets the load ledger know of those that the engine has just computed: those of a copy tell nothing of when. The first
// block after a reset, and of a copy, takes a slot.
func (s *Source) Store(tier subscriber.Tier, keys []uint64) {
	state := *s.state.Load()
	if tier == subscriber.Device && !state.copying {
		s.fleet.confirm(s.rank.target.Load(), keys, s.now())
	}
	if state.problem != "" {
		return
	}
	if s.owner.exceeds(s.index) {
		s.fail(errShare)
		return
	}
	to := state.writing()
	if *to == (kvindex.Slot{}) {
		slot, err := s.index.Acquire()
		if err != nil {
			s.fail(err)
			return
		}
		*to = slot
		s.state.Store(&state)
	}
	if err := s.index.Store(*to, indexTier(tier), keys); err != nil {
		s.fail(err)
		return
	}
	s.count(state)
}

// Remove withdraws blocks. During a copy they are withdrawn from the copy alone: what was known before may hold descendants that the engine has
// dropped unheard, and must stay closed under prefix until End releases it.
func (s *Source) Remove(tier subscriber.Tier, keys []uint64) {
	state := s.state.Load()
	from := *state.writing()
	if state.problem != "" || from == (kvindex.Slot{}) {
		return
	}
	if err := s.index.Remove(from, indexTier(tier), keys); err != nil {
		// A block that stays although the engine dropped it would be matched for ever.
		s.fail(err)
		return
	}
	s.count(*state)
}

// Begin opens a copy of all blocks: what is stored and removed from here on goes to a fresh slot, and counts from End on. What was known stays
// matched until then while the rank is connected. While it is not, it is forgotten at once, since nobody knows how old it is. A
// Begin during a copy starts over. A problem of the index ends.
func (s *Source) Begin() {
	before := *s.state.Load()
	after := sourceState{copying: true, about: before.about}
	if before.about.Connected {
		after.slot, before.slot = before.slot, kvindex.Slot{}
	}
	s.replace(before, after)
}

// End has the copy count in place of what was known before it, from one moment to the next. Without a copy under way it does nothing: a reset, or a
// problem of the index, has ended it.
func (s *Source) End() {
	before := *s.state.Load()
	if !before.copying {
		return
	}
	after := sourceState{slot: before.copy, about: before.about}
	before.copy = kvindex.Slot{}
	s.replace(before, after)
}

// replace stores a state, and then releases the slots of the one before that are not part of it.
func (s *Source) replace(before, after sourceState) {
	s.state.Store(&after)
	s.swaps.Add(1) // before the release, which makes matches find nothing
	s.release(before)
	s.count(after)
}

// Reset forgets all blocks, and with them the problem of having missed some. It ends a copy under way: whatever is stored next counts at once.
func (s *Source) Reset(cause subscriber.Cause) {
	if cause == subscriber.CauseBackwards || cause == subscriber.CauseCleared {
		s.rank.target.Load().forgetSent() // other causes say something about events, not about the cache
	}
	state := *s.state.Load()
	if state.problem != "" || state.slot != (kvindex.Slot{}) || state.copying {
		s.log.Debug("blocks forgotten", "cause", string(cause))
	}
	s.release(state)
	s.state.Store(&sourceState{about: state.about})
	s.count(sourceState{})
}

// Describe takes over what is known of the engine. An engine that connects or disconnects may have been restarted, so its health is looked at
// at once. Blocks of a rank that is not connected stay, and are matched again when it is. During a copy, what was known before it does not
// stay: nothing has kept it up to date since. Problems are logged by the subscriber, which says each one once: a peer can make them come and
// go with every message.
func (s *Source) Describe(d subscriber.Description) {
	before := *s.state.Load()
	if before.about.Connected != d.Connected {
		s.endpoint.Recheck()
	}
	after := before
	after.about = d
	if before.copying && !d.Connected && before.slot != (kvindex.Slot{}) {
		after.slot, before.copy = kvindex.Slot{}, kvindex.Slot{}
		s.replace(before, after)
		return
	}
	s.state.Store(&after)
}

// fail gives the endpoint's room in the index to others until the next reset or copy.
func (s *Source) fail(err error) {
	problem := problemIndexError
	switch {
	case errors.Is(err, kvindex.ErrFull):
		problem = problemIndexFull
	case errors.Is(err, errShare):
		problem = problemIndexShare
	case errors.Is(err, kvindex.ErrOpen):
		problem = problemNotClosed
	case errors.Is(err, kvindex.ErrSlots):
		problem = problemIndexSlots
	}
	s.log.Warn("the endpoint is routed by load until its blocks come anew", "problem", problem, "error", err)
	state := *s.state.Load()
	s.release(state)
	s.state.Store(&sourceState{about: state.about, problem: problem})
	s.count(sourceState{})
}

// release gives back the slots of a state.
func (s *Source) release(state sourceState) {
	for _, slot := range [...]kvindex.Slot{state.slot, state.copy} {
		if slot != (kvindex.Slot{}) {
			s.index.Release(slot)
		}
	}
}

func indexTier(t subscriber.Tier) kvindex.Tier {
	if t == subscriber.Device {
		return kvindex.Device
	}
	return kvindex.Any
}
