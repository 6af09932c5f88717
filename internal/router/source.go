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

// Problems that the index adds to those of package subscriber. Such an endpoint is routed by load until its next reset: it has missed blocks,
// and their descendants may not be stored without them.
const (
	problemIndexFull  = "index_full"  // its blocks exceed what the index may hold
	problemIndexSlots = "index_slots" // the index has no slot left
	problemIndexError = "index_error" // the index refused its blocks for another reason
	problemForgotten  = "forgotten"   // its blocks were forgotten by a call
)

// Source writes the blocks of one rank of an endpoint into the index and keeps what is known of the engine for candidates. It is a [subscriber.Sink]:
// Store, Remove, Reset and Describe are called from one goroutine. Candidates read its state at any time.
type Source struct {
	fleet    *fleet
	endpoint *pool.Endpoint
	rank     *rank
	index    *kvindex.Index
	now      func() time.Time
	log      *slog.Logger
	state    atomic.Pointer[sourceState] // written by the sink's goroutine

	forgotten atomic.Pointer[kvindex.Slot] // the slot of which nothing is to be matched; nil for none
	hearer    atomic.Pointer[Hearer]       // nil while nobody hears of prompts
}

var _ subscriber.Sink = (*Source)(nil)

// sourceState is never changed once stored.
type sourceState struct {
	slot    kvindex.Slot // zero after a reset until the first block
	about   subscriber.Description
	problem string // of the index; "" for none
}

// readable says whether the blocks of the state's slot may be matched.
func (s *Source) readable(state *sourceState) bool {
	return state.about.Connected && state.about.BlockSize > 0 && state.problem == "" && state.slot != kvindex.Slot{} && !s.isForgotten(state)
}

// forget lets no block be matched that is known at this time. Each reset takes a fresh slot, and what comes under that one is matched.
func (s *Source) forget() {
	slot := s.state.Load().slot
	s.forgotten.Store(&slot)
}

func (s *Source) isForgotten(state *sourceState) bool {
	f := s.forgotten.Load()
	return f != nil && *f == state.slot && state.slot != kvindex.Slot{}
}

func (s *Source) problemName(state *sourceState) string {
	switch {
	case state.problem != "":
		return state.problem
	case s.isForgotten(state):
		return problemForgotten
	}
	return string(state.about.Problem)
}

// Source returns the sink for the events of one data-parallel rank of an endpoint, 0 where it has one alone. There is one at a time per rank; Close
// ends it.
func (r *Router) Source(pool, endpoint string, rank int) (*Source, error) {
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
		fleet: f, endpoint: t.endpoint, rank: k, index: r.index, now: r.now, log: r.log.With("pool", pool, "endpoint", endpoint, "rank", rank),
	}
	s.state.Store(&sourceState{})
	if !k.source.CompareAndSwap(nil, s) {
		return fail("already in use")
	}
	return s, nil
}

// Connected says whether the rank's engine is connected. It may be called at any time.
func (s *Source) Connected() bool { return s.state.Load().about.Connected }

// Life numbers the lives of the endpoint's engine, as [pool.Endpoint.Life] says. It may be called at any time.
func (s *Source) Life() uint64 { return s.endpoint.Life() }

// Close forgets the rank's blocks and ends its series. No other method may be called after it.
func (s *Source) Close() {
	s.rank.source.CompareAndSwap(s, nil)
	s.release()
}

// Store enters blocks, and lets the load ledger know of those that the engine has just computed. The first block after a reset takes a slot.
func (s *Source) Store(tier subscriber.Tier, keys []uint64) {
	if tier == subscriber.Device {
		s.fleet.confirm(s.rank.target.Load(), keys, s.now())
	}
	state := *s.state.Load()
	if state.problem != "" {
		return
	}
	if state.slot == (kvindex.Slot{}) {
		slot, err := s.index.Acquire()
		if err != nil {
			s.fail(err)
			return
		}
		state.slot = slot
		s.state.Store(&state)
	}
	if err := s.index.Store(state.slot, indexTier(tier), keys); err != nil {
		s.fail(err)
	}
}

// Remove withdraws blocks.
func (s *Source) Remove(tier subscriber.Tier, keys []uint64) {
	state := s.state.Load()
	if state.problem != "" || state.slot == (kvindex.Slot{}) {
		return
	}
	if err := s.index.Remove(state.slot, indexTier(tier), keys); err != nil {
		// A block that stays although the engine dropped it would be matched for ever.
		s.fail(err)
	}
}

// Reset forgets all blocks, and with them the problem of having missed some.
func (s *Source) Reset(cause subscriber.Cause) {
	if cause == subscriber.CauseBackwards || cause == subscriber.CauseCleared {
		s.rank.target.Load().forgetSent() // other causes say something about events, not about the cache
	}
	state := *s.state.Load()
	if state.problem != "" || state.slot != (kvindex.Slot{}) {
		s.log.Debug("blocks forgotten", "cause", string(cause))
	}
	s.release()
	s.state.Store(&sourceState{about: state.about})
}

// Describe takes over what is known of the engine. An engine that connects or disconnects may have been restarted, so its health is looked at
// at once. Problems are logged by the subscriber, which says each one once: a peer can make them come and go with every message.
func (s *Source) Describe(d subscriber.Description) {
	state := *s.state.Load()
	if state.about.Connected != d.Connected {
		s.endpoint.Recheck()
	}
	state.about = d
	s.state.Store(&state)
}

// fail gives the endpoint's room in the index to others until the next reset.
func (s *Source) fail(err error) {
	problem := problemIndexError
	switch {
	case errors.Is(err, kvindex.ErrFull):
		problem = problemIndexFull
	case errors.Is(err, kvindex.ErrSlots):
		problem = problemIndexSlots
	}
	s.log.Warn("the endpoint is routed by load until its events start over", "problem", problem, "error", err)
	s.release()
	s.state.Store(&sourceState{about: s.state.Load().about, problem: problem})
}

func (s *Source) release() {
	if slot := s.state.Load().slot; slot != (kvindex.Slot{}) {
		s.index.Release(slot)
	}
}

func indexTier(t subscriber.Tier) kvindex.Tier {
	if t == subscriber.Device {
		return kvindex.Device
	}
	return kvindex.Any
}
