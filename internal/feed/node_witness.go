package feed

import (
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Hashes of witnesses that one source takes: so many in a second, and no more at once than can come of two long prompts.
const (
	witnessRate  = 256 << 10
	witnessBurst = 2 * maxNumbers
)

// HashHearer is what a source tells of the prompts that routers have hashed for it; a [subscriber.Subscriber].
type HashHearer interface {
	// WitnessHashes never blocks.
	WitnessHashes(h subscriber.Hashes)
}

// sourceEar is the part of a source that has to do with prompts.
type sourceEar struct {
	mu     sync.Mutex
	hearer HashHearer
	want   subscriber.Want
	told   []byte    // want as it is sent; nil: nobody has wanted anything yet
	free   time.Time // when the whole burst may be taken at once
}

// take counts hashes in, and is false when that is too many.
func (e *sourceEar) take(numbers int, now time.Time) bool {
	if e.free.Before(now) {
		e.free = now
	}
	const span = witnessBurst * time.Second / witnessRate
	until := e.free.Add(time.Duration(numbers) * time.Second / witnessRate)
	if until.Sub(now) > span {
		return false
	}
	e.free = until
	return true
}

func (e *sourceEar) message() (data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.told
}

// TellHashes has a subscriber hear of prompts that routers have hashed.
func (s *Source) TellHashes(h HashHearer) {
	s.ear.mu.Lock()
	defer s.ear.mu.Unlock()
	s.ear.hearer = h
}

// Wanted takes over which prompts help: it is for [subscriber.Options].
func (s *Source) Wanted(w subscriber.Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	data := encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Wanted{Wanted: wantedProto(s.number, w)}})
	s.ear.mu.Lock()
	s.ear.want, s.ear.told = w, data
	s.ear.mu.Unlock()
	s.tell(message{data: data})
}

// witness takes what a router's prompt hashes to.
func (s *Source) witness(h subscriber.Hashes, now time.Time) outcome {
	s.ear.mu.Lock()
	hearer, wanted := s.ear.hearer, s.ear.want.Yes && s.ear.want.BlockSize == h.BlockSize
	fits := wanted && s.ear.take(h.Numbers(), now)
	s.ear.mu.Unlock()
	switch {
	case !wanted || hearer == nil:
		return unwanted
	case !fits:
		return dropped
	}
	hearer.WitnessHashes(h)
	return taken
}

// takeWitness takes one for a source that the stream has been told of. What a router sends for one that has gone meanwhile is not wanted.
func (n *Node) takeWitness(st *stream, p *feedpb.Witness) error {
	h, err := witnessOf(p)
	if err != nil {
		return &invalid{err}
	}
	what := unwanted
	if s := st.source(p.GetSource()); s != nil {
		what = s.witness(h, n.now())
	}
	n.o.Metrics.witnesses[what].Inc()
	return nil
}

// source is the one of a number that the router has been told of, nil for none.
func (st *stream) source(number uint32) *Source {
	st.mu.Lock()
	defer st.mu.Unlock()
	if f := st.known[number]; f != nil {
		return f.source
	}
	return nil
}
