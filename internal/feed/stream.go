package feed

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// stream is what one router is told. Whoever has something for it puts that into its queue and never waits; its sender takes from there. Lock order: the
// node's mutex, a source's, a stream's, that of an earlier stream of the same router or of a source's ear.
type stream struct {
	instance string // of the router
	release  string
	address  string
	since    time.Time
	turns    *turns
	metrics  *NodeMetrics
	now      func() time.Time
	wake     chan struct{} // there is something to do for the sender
	sending  atomic.Int64  // Unix nanoseconds at which the message began that is being sent; 0 for none
	stalled  chan struct{} // closed when that has taken too long

	mu       sync.Mutex
	queue    queue
	replicas message              // as last queued
	known    map[uint32]*follower // the sources in them
	todo     []uint32             // those that wait for their copy, in this order
	copying  *Source              // whose ledger has the cursor; nil for none
	cursor   cursor               // moved under the lock of copying
	loads    []byte               // to be sent beside the queue; nil for nothing
	peers    bool                 // they are to be sent beside the queue
	passed   int                  // messages since what is beside the queue was looked at
	ended    bool                 // nothing is queued any more
	left     []message            // when it ended: what other routers had sent to this one
}

// follower is how far a stream is with a source.
type follower struct {
	source *Source
	place  place
	phase  phase
}

// place is what a source is of.
type place struct {
	pool, endpoint string
	rank           int
}

type phase uint8

const (
	phaseWaiting phase = iota // for its copy; changes do not go out
	phaseCopying
	phaseLive
)

const (
	lowWater    = 160 << 10 // bytes in the queue up to which a copy goes on: two chunks
	besideEvery = 16        // messages that may go before what is beside the queue
)

// stall ends the stream.
func (st *stream) stall() {
	st.mu.Lock()
	defer st.mu.Unlock()
	select {
	case <-st.stalled:
	default:
		close(st.stalled)
	}
}

func (st *stream) signal() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// announce queues the node's replicas and forgets sources that are not among them. What is there for the first time, or in another place, is to be
// copied. The caller holds the node's mutex.
func (st *stream) announce(a *announcement) {
	st.mu.Lock()
	if st.ended {
		st.mu.Unlock()
		return
	}
	for number, f := range st.known {
		if at, ok := a.sources[number]; !ok || at.source != f.source || at.place != f.place {
			delete(st.known, number)
		}
	}
	st.todo = slices.DeleteFunc(st.todo, func(n uint32) bool { return st.known[n] == nil })
	var fresh []uint32
	for number := range a.sources {
		if st.known[number] == nil {
			fresh = append(fresh, number)
		}
	}
	st.replicas = message{data: a.data}
	st.put(st.replicas) // an overflow tells of what is known, which must be among these
	st.mu.Unlock()
	slices.Sort(fresh)
	for _, number := range fresh {
		at := a.sources[number]
		// With the source's mutex, so that a state that changes at this time comes after this one.
		at.source.mu.Lock()
		st.mu.Lock()
		if !st.ended {
			st.known[number] = &follower{source: at.source, place: at.place}
			st.todo = append(st.todo, number)
			st.begin(at.source)
		}
		st.mu.Unlock()
		at.source.mu.Unlock()
	}
}

// begin tells the state of a source, and that a copy of it follows.
func (st *stream) begin(s *Source) {
	st.put(message{data: *s.state.Load()})
	if data := s.ear.message(); data != nil {
		st.put(message{data: data})
	}
	st.put(message{data: encodeBegin(s.number, s.Blocks())})
}

// put queues a message that must not be missed. If it does not fit, everything is dropped and begins anew.
func (st *stream) put(m message) {
	if st.ended {
		return
	}
	if !st.queue.room(m, 1, 1) {
		st.overflow(m)
		return
	}
	st.add(m)
}

func (st *stream) add(m message) {
	st.queue.add(m)
	st.metrics.queued.Add(float64(m.size()))
	st.signal()
}

// overflow drops what is queued, and a message that does not fit. The router is told of resets that were among it, of everything else as it is, and that all
// sources are copied again.
func (st *stream) overflow(last message) {
	st.metrics.overflows.Inc()
	resets := map[uint32]message{}
	st.metrics.queued.Sub(float64(st.queue.bytes))
	for _, m := range append(st.queue.take(), last) {
		st.metrics.dropped(m)
		if m.kind == kindReset && st.known[m.source] != nil {
			resets[m.source] = m
		}
	}
	st.peers = true
	st.todo = st.todo[:0]
	for number := range st.known {
		st.todo = append(st.todo, number)
	}
	slices.Sort(st.todo)
	// Beyond the bound, if need be: it is as long as the node has sources.
	st.add(st.replicas)
	for _, number := range st.todo {
		f := st.known[number]
		f.phase = phaseWaiting
		if m, ok := resets[number]; ok {
			st.add(m)
		}
		st.add(message{data: *f.source.state.Load()})
		if data := f.source.ear.message(); data != nil {
			st.add(message{data: data})
		}
		st.add(message{data: encodeBegin(number, f.source.Blocks())})
	}
}

// change queues the net changes of a window. The caller holds the source's mutex.
func (st *stream) change(s *Source, deltas []message) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f := st.known[s.number]
	if f == nil || f.source != s {
		return
	}
	for _, m := range deltas {
		if f.phase != phaseWaiting { // an overflow may come with any of them
			st.put(m)
		}
	}
}

// tell queues a state or a reset. The caller holds the source's mutex.
func (st *stream) tell(s *Source, m message) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if f := st.known[s.number]; f != nil && f.source == s {
		st.put(m)
	}
}

// say queues a message that must not be missed.
func (st *stream) say(m message) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.put(m)
}

// pass queues a message of another router, as long as the queue is filled to less than a number of quarters. It reports whether there was room.
func (st *stream) pass(m message, quarters int) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ended || !st.queue.room(m, quarters, 4) {
		return false
	}
	st.add(m)
	return true
}

// forget is told that a source is closed. The caller holds its mutex.
func (st *stream) forget(s *Source) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if f := st.known[s.number]; f != nil && f.source == s {
		delete(st.known, s.number)
		st.todo = slices.DeleteFunc(st.todo, func(n uint32) bool { return n == s.number })
	}
}

// setLoads has loads sent beside the queue; nil for none.
func (st *stream) setLoads(data []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.loads = data; data != nil {
		st.signal()
	}
}

// setPeers has the peers sent beside the queue.
func (st *stream) setPeers() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.peers = true
	st.signal()
}

// next takes what is to be sent: a message, or peers, which the node knows.
func (st *stream) next() (m message, peers, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.queue.empty() || st.passed >= besideEvery {
		st.passed = 0
		if st.peers {
			st.peers = false
			return m, true, true
		}
		if data := st.loads; data != nil {
			st.loads = nil
			return message{data: data}, false, true
		}
	}
	if st.queue.empty() {
		return m, false, false
	}
	st.passed++
	m = st.queue.pop()
	st.metrics.queued.Sub(float64(m.size()))
	return m, false, true
}

// inherit takes over what other routers have sent to this one and an earlier stream of it was not told. That one is told nothing more. With both
// mutexes held, a release cannot overtake its charge: it is among what is taken over, or comes after it.
func (st *stream) inherit(from *stream) (some bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	from.mu.Lock()
	defer from.mu.Unlock()
	from.endLocked()
	left := from.left
	from.left = nil
	for _, m := range left {
		if st.ended || !st.queue.room(m, quartersReleases, 4) {
			st.metrics.dropped(m)
			continue
		}
		st.add(m)
	}
	return len(left) > 0
}

func (st *stream) endLocked() {
	st.ended = true
	st.metrics.queued.Sub(float64(st.queue.bytes))
	for _, m := range st.queue.take() {
		if m.kind == kindCharges || m.kind == kindRecord {
			st.left = append(st.left, m)
		}
	}
}

// end drops everything.
func (st *stream) end() {
	st.mu.Lock()
	st.endLocked()
	st.known = nil
	st.todo = nil
	st.mu.Unlock()
	st.stopCopy()
	st.turns.give(st)
}
