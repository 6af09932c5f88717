package feed

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// hashRate bounds the hashes that are computed and sent for one node, in a second: what a busy router spends on a node that heals is less than a tenth of a
// core, and 1 MiB on the wire.
const hashRate = 128 << 10

// Hearer learns from prompts what an engine of a node holds. Its methods may be called from any goroutine, and wait for nothing.
type Hearer interface {
	// Wants says whether a prompt helps. It costs nothing.
	Wants() bool
	// Witness tells of a prompt that may run there.
	Witness(p subscriber.Prompt)
}

// ear hears prompts for one source, which are hashed and sent to its node.
type ear struct {
	*subscriber.Proxy
	number atomic.Uint32 // of the source
	listed bool          // in ears.ready
}

// ears are those of one node.
type ears struct {
	metrics *routerSeries
	wake    chan struct{} // holds one when ready is not empty

	mu    sync.Mutex
	ready []*ear // that may have a prompt, the first one first
}

func newEars(m *routerSeries) *ears { return &ears{metrics: m, wake: make(chan struct{}, 1)} }

// open returns an ear that wants nothing.
func (e *ears) open(pool string, number uint32) *ear {
	one := &ear{}
	one.number.Store(number)
	one.Proxy = subscriber.NewProxy(pool, func() { e.add(one) })
	return one
}

func (e *ears) add(one *ear) {
	e.mu.Lock()
	if !one.listed {
		one.listed = true
		e.ready = append(e.ready, one)
	}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// take returns the ear whose turn it is, nil for none.
func (e *ears) take() *ear {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ready) == 0 {
		e.ready = nil
		return nil
	}
	one := e.ready[0]
	e.ready[0] = nil
	e.ready = e.ready[1:]
	one.listed = false
	return one
}

// run hashes prompts, at the pace of hashRate and of whoever takes from to, until ctx ends. Prompts that come faster are dropped where they wait.
func (e *ears) run(ctx context.Context, to chan<- *feedpb.Witness) {
	for ctx.Err() == nil {
		one := e.take()
		if one == nil {
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
			continue
		}
		h, ok, dropped := one.Next()
		e.metrics.witness(witnessDropped, dropped)
		if !ok {
			continue
		}
		e.add(one)
		select {
		case to <- witnessProto(one.number.Load(), &h):
		case <-ctx.Done():
			e.metrics.witness(witnessDropped, 1)
			return
		}
		pause(ctx, time.Duration(h.Numbers())*time.Second/hashRate)
	}
}

// witness sends one, and is false when the stream has ended.
func (o *outbox) witness(s conversation, w *feedpb.Witness) bool {
	if err := s.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Witness{Witness: w}}); err != nil {
		o.metrics.witness(witnessDropped, 1)
		return false
	}
	o.metrics.witness(witnessSent, 1)
	return true
}

// wanted takes over which prompts a source wants.
func (r *inbox) wanted(m *feedpb.Wanted) error {
	s, err := r.source(m.GetSource())
	if err != nil {
		return err
	}
	want, err := wantOf(m)
	if err != nil {
		return malformed("%v", err)
	}
	if s != nil {
		s.ear.Set(want)
	}
	return nil
}
