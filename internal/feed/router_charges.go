package feed

import (
	"context"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

const (
	maxOutgoing = 8192                 // charges that wait for one node; beyond, the oldest is dropped
	maxReleases = 2 * maxOpen          // releases that wait for one node; beyond, the oldest is dropped
	maxBatch    = 256                  // charges and releases in one message
	batchDelay  = 5 * time.Millisecond // that the first of a batch waits for others
	maxEnded    = 4096                 // releases that can be said again; beyond, the oldest are forgotten
	maxOpen     = 1 << 16              // open charges of this router whose node is known for sure
)

// decisionName names a charge of this router.
type decisionName struct {
	pool   string
	number uint64
}

// Charged tells the other routers what this one has sent to an endpoint. It goes to the node that speaks for the endpoint, and nowhere if none does or
// if that node has no other router. It may be called from any goroutine, also before Run, and waits for nothing.
func (r *Router) Charged(c Charge) {
	n, announced := r.owners.of(c.Endpoint)
	if n == nil || n.alone.Load() {
		return
	}
	c.Endpoint = announced // the other routers may reach the node at another address
	name := decisionName{c.Pool, c.Number}
	r.open.enter(name, n)
	n.out.charge(name, c.proto())
}

// Released tells them that the charge of a decision has ended. It may be called from any goroutine, and waits for nothing.
func (r *Router) Released(pool string, number uint64) {
	name := decisionName{pool, number}
	if n := r.open.take(name); n != nil {
		n.out.release(name)
	}
}

// openCharges say which node was told of a charge that is not released yet, so that its release goes there. The releases of the oldest get lost when there
// are too many: the other routers let their charges go when they have been worked off by estimate.
type openCharges struct {
	mu         sync.Mutex
	young, old map[decisionName]*watched
}

func (o *openCharges) enter(name decisionName, n *watched) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.young) >= maxOpen {
		o.young, o.old = nil, o.young
	}
	if o.young == nil {
		o.young = map[decisionName]*watched{}
	}
	o.young[name] = n
}

func (o *openCharges) take(name decisionName) *watched {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := o.young[name]; n != nil {
		delete(o.young, name)
		return n
	}
	n := o.old[name]
	delete(o.old, name)
	return n
}

// forget drops what was told to a node that this router leaves.
func (o *openCharges) forget(n *watched) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range []map[decisionName]*watched{o.young, o.old} {
		for name, by := range m {
			if by == n {
				delete(m, name)
			}
		}
	}
}

// outbox holds what is to be sent to one node, also while it is not connected: a charge that has ended meanwhile is then not heard of at all, and one
// that the node knows is released late rather than never. So many releases fit as charges can be open; of charges, the oldest gives way.
type outbox struct {
	metrics *routerSeries
	lost    func(decisionName) // is told of charges that are dropped: they need no release
	mail    *mail
	letters []*letter // records; guarded by mail.mu

	mu       sync.Mutex
	charges  []waitingCharge         // oldest first
	passed   uint64                  // charges that stood before charges[0], since the start
	made     map[decisionName]uint64 // where a charge stands, counted from the start
	released []decisionName          // oldest first
	ended    []endedCharge           // whose releases were sent, the oldest first, at most twice maxEnded
	wake     chan struct{}           // holds one when something was put in
}

type waitingCharge struct {
	name   decisionName
	charge *feedpb.Charge // nil: it ended before it was sent
}

// endedCharge is a charge whose release was sent.
type endedCharge struct {
	name decisionName
	at   time.Time
}

func newOutbox(m *routerSeries, records *mail, lost func(decisionName)) *outbox {
	return &outbox{metrics: m, mail: records, lost: lost, made: map[decisionName]uint64{}, wake: make(chan struct{}, 1)}
}

func (o *outbox) charge(name decisionName, c *feedpb.Charge) {
	o.mu.Lock()
	if len(o.charges) >= maxOutgoing {
		if oldest := o.popLocked(); oldest.charge != nil {
			o.metrics.charge(chargeDropped, 1)
			o.lost(oldest.name)
		}
	}
	o.made[name] = o.passed + uint64(len(o.charges))
	o.charges = append(o.charges, waitingCharge{name, c})
	o.mu.Unlock()
	o.poke()
}

// popLocked takes the oldest charge.
func (o *outbox) popLocked() waitingCharge {
	c := o.charges[0]
	o.charges[0] = waitingCharge{}
	o.charges = o.charges[1:]
	o.passed++
	if c.charge != nil {
		delete(o.made, c.name)
	}
	return c
}

func (o *outbox) release(name decisionName) {
	o.mu.Lock()
	if at, ok := o.made[name]; ok {
		o.charges[at-o.passed].charge = nil
		delete(o.made, name)
		o.mu.Unlock()
		return
	}
	if len(o.released) >= maxReleases {
		o.released = o.released[1:]
		o.metrics.charge(chargeDropped, 1)
	}
	o.released = append(o.released, name)
	o.mu.Unlock()
	o.poke()
}

func (o *outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// waiting says how many charges and releases are to be sent, and whether any record is.
func (o *outbox) waiting() (charges int, records bool) {
	o.mu.Lock()
	charges = len(o.made) + len(o.released)
	o.mu.Unlock()
	return charges, o.mail.waits(o)
}

// batch takes up to maxBatch charges and releases, nil when there are none.
func (o *outbox) batch() *feedpb.Charges {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := &feedpb.Charges{}
	for len(o.charges) > 0 && len(c.Made) < maxBatch {
		if w := o.popLocked(); w.charge != nil {
			c.Made = append(c.Made, w.charge)
		}
	}
	n := min(maxBatch-len(c.Made), len(o.released))
	for _, name := range o.released[:n] {
		c.Released = append(c.Released, &feedpb.Release{Pool: name.pool, Number: name.number})
		o.endedLocked(name)
	}
	if o.released = o.released[n:]; len(o.released) == 0 {
		o.released = nil
	}
	if len(c.Made)+len(c.Released) == 0 {
		return nil
	}
	return c
}

func (o *outbox) endedLocked(name decisionName) {
	if len(o.ended) == 2*maxEnded {
		o.ended = append(o.ended[:0], o.ended[maxEnded:]...)
	}
	o.ended = append(o.ended, endedCharge{name, time.Now()})
}

// again has the releases sent once more that were sent since a time, the last maxEnded of them. It is for a router that the node had lost: what a node
// is told for one that is not connected is not kept, and a charge that is never released lives until it expires.
func (o *outbox) again(since time.Time) {
	o.mu.Lock()
	from := max(0, len(o.ended)-maxEnded)
	for from < len(o.ended) && o.ended[from].at.Before(since) {
		from++
	}
	for _, e := range o.ended[from:] {
		if len(o.released) < maxReleases {
			o.released = append(o.released, e.name)
		}
	}
	o.ended = o.ended[:from]
	o.mu.Unlock()
	o.poke()
}

// send writes to a stream what is put in, and the witnesses that come, until ctx or the stream ends, of which receiving tells, or, once leaving says so, there is nothing
// more. Charges and witnesses that were taken and could not be sent are lost.
func (o *outbox) send(ctx context.Context, s conversation, witnesses <-chan *feedpb.Witness, leaving func() bool) {
	delay := time.NewTimer(0)
	defer delay.Stop()
	for {
		charges, records := o.waiting()
		switch {
		case charges == 0 && !records && leaving():
			_ = s.CloseSend() // Recv says how the stream ends
			return
		case charges == 0 && !records:
			select {
			case <-o.wake:
				continue
			case w := <-witnesses:
				if !o.witness(s, w) {
					return
				}
				continue
			case <-ctx.Done():
				return
			}
		case charges < maxBatch:
			delay.Reset(batchDelay)
			select {
			case <-delay.C:
			case <-ctx.Done():
				return
			}
		}
		if c := o.batch(); c != nil {
			if err := s.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Charges{Charges: c}}); err != nil {
				o.metrics.charge(chargeDropped, len(c.Made)+len(c.Released))
				return
			}
			o.metrics.charge(chargeSent, len(c.Made)+len(c.Released))
		}
		for range maxBatch {
			r := o.mail.take(o, time.Now())
			if r == nil {
				break
			}
			if err := s.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Record{Record: r}}); err != nil {
				o.metrics.record(recordDropped)
				return
			}
			o.metrics.record(recordPassed)
		}
		select {
		case w := <-witnesses: // one at most before what has come meanwhile
			if !o.witness(s, w) {
				return
			}
		default:
		}
	}
}
