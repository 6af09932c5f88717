package feed

import (
	"sync"
	"sync/atomic"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Source takes the net changes of one rank of one engine and keeps what it holds for routers. It is a [subscriber.Sink]: its methods return without
// waiting for any router.
type Source struct {
	node   *Node
	number uint32
	state  atomic.Pointer[[]byte] // as it is sent
	blocks atomic.Int64           // in the ledger

	mu     sync.Mutex
	ledger *ledger
	window *window
	due    bool // the window is on the list of those that will be closed
	closed bool

	ear sourceEar // its mutex may be taken with this one
}

var _ subscriber.Sink = (*Source)(nil)

func newSource(n *Node, number uint32) *Source {
	s := &Source{node: n, number: number, ledger: newLedger(), window: newWindow()}
	s.setState(subscriber.Description{})
	return s
}

// Number is what replicas name the source by.
func (s *Source) Number() uint32 { return s.number }

// Blocks is how many blocks are announced.
func (s *Source) Blocks() int { return int(s.blocks.Load()) }

// Store takes blocks in.
func (s *Source) Store(tier subscriber.Tier, keys []uint64) { s.change(tier, keys, true) }

// Remove withdraws blocks.
func (s *Source) Remove(tier subscriber.Tier, keys []uint64) { s.change(tier, keys, false) }

func (s *Source) change(tier subscriber.Tier, keys []uint64, on bool) {
	bit := tierAny
	if tier == subscriber.Device {
		bit = tierDevice
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	most := s.node.o.WindowKeys
	for _, key := range keys {
		number, ok := s.window.find(key)
		if !ok && len(s.window.touched) >= most || len(s.window.calls) >= 8*most {
			s.flush()
			ok = false
		}
		if !ok {
			number = s.window.touch(s.ledger, key)
		}
		s.window.change(number, bit, on)
	}
	if !s.due && !s.window.empty() {
		s.due = true
		s.node.windows.add(s)
	}
}

// close closes the window when its time has come.
func (s *Source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = false
	s.flush()
}

// flush closes the window and has every router told of its net changes.
func (s *Source) flush() {
	if s.window.empty() {
		return
	}
	m := s.node.o.Metrics
	m.windows.Inc()
	m.cancelled.Add(float64(s.window.cancelled()))
	var c changes
	s.window.close(s.ledger, &c)
	s.blocks.Store(int64(s.ledger.blocks))
	if c.keys() == 0 {
		return
	}
	streams := s.node.streams()
	if len(streams) == 0 {
		return
	}
	deltas := encodeDeltas(s.number, &c)
	for _, st := range streams {
		st.change(s, deltas)
	}
}

// Reset says that all blocks are gone. Routers are told at once.
func (s *Source) Reset(cause subscriber.Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.window.clear()
	s.ledger.clear()
	s.blocks.Store(0)
	s.tell(message{data: encodeReset(s.number, valid(string(cause), maxName)), kind: kindReset, source: s.number})
}

// Describe takes over what is known of the engine. Routers hear of it after the changes that came before it.
func (s *Source) Describe(d subscriber.Description) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.flush()
	s.setState(d)
	s.tell(message{data: *s.state.Load()})
}

func (s *Source) setState(d subscriber.Description) {
	d.Problem = subscriber.Problem(valid(string(d.Problem), maxName))
	data := encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_State{State: stateOf(s.number, d)}})
	s.state.Store(&data)
}

func (s *Source) tell(m message) {
	for _, st := range s.node.streams() {
		st.tell(s, m)
	}
}

// chunk is the next part of a copy, and whether it is the last. The caller holds the source's mutex.
func (s *Source) chunk(c *cursor) (m message, done bool) {
	n := min(s.node.part, s.ledger.blocks)
	keys, tiers, done := s.ledger.read(c, s.node.part, make([]byte, 0, n*keySize), make([]byte, 0, n))
	if len(tiers) == 0 {
		return m, done
	}
	return message{data: encodeBlocks(s.number, keys, tiers), copied: len(tiers)}, done
}

// Close ends the source: its number is not used again. Replicas that are announced later must not name it. It may be called more than once.
func (s *Source) Close() {
	s.node.remove(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.window, s.ledger = newWindow(), newLedger()
	s.blocks.Store(0)
	for _, st := range s.node.streams() {
		st.forget(s)
	}
}

// memory is what the ledger takes.
func (s *Source) memory() (blocks, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.blocks, s.ledger.bytes()
}
