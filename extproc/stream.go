package extproc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/router"
)

// phase is the message that a decision answers.
type phase uint8

const (
	headersPhase phase = iota
	bodyPhase
)

// conversation is what a stream needs of gRPC.
type conversation interface {
	Context() context.Context
	Send(*response) error
	Recv() (*request, error)
}

// service answers the streams of one Run.
type service struct {
	extprocv3.UnimplementedExternalProcessorServer
	*Server

	ending     chan struct{}  // closed when the drain begins: access log streams must end
	closing    chan struct{}  // closed when streams that wait for a body must end
	waits      sync.WaitGroup // goroutines that receive a body or records
	logStreams atomic.Int64
}

// Process implements the gRPC service. It never returns an error: Envoy then goes on with the request whatever happened.
func (s *service) Process(conv extprocv3.ExternalProcessor_ProcessServer) error {
	s.metrics.open.Inc()
	defer s.metrics.open.Dec()
	s.metrics.streams.WithLabelValues(string(s.converse(conv))).Inc()
	return nil
}

// converse holds one conversation to its end.
func (s *service) converse(conv conversation) (o outcome) {
	x := &exchange{service: s, settings: s.settings.Load(), conv: conv, hold: holding{account: s.account}}
	defer x.hold.force(0)
	defer func() {
		if v := recover(); v != nil {
			s.panicked(v)
			o = outcomePanic
		}
	}()
	return x.run()
}

// exchange is the state of one stream.
type exchange struct {
	*service
	*settings

	conv conversation
	hold holding

	decision router.Decision // that Envoy was told
	late     <-chan receipt  // of a receive under way that nobody waits for any more; nil for none
}

func (x *exchange) run() outcome {
	m, err := x.conv.Recv()
	if err != nil {
		return ended(err)
	}
	if m.GetObservabilityMode() {
		x.note("observability", "the filter observes only and reads no replies")
		return outcomeObserved
	}
	t := modes(m)
	x.metrics.modes.WithLabelValues(modeLabel(t.req.mode)).Inc()
	h := m.GetRequestHeaders()
	switch {
	case h == nil:
	case t.req.mode == buffered:
		o := x.route(m, h)
		t.req.started, t.req.done = true, true
		x.attend(t)
		return o
	case t.req.mode == fullDuplex:
		return x.routeDuplex(m, h, t)
	}
	return x.pass(m, t)
}

// read gives what the first message tells of a request, the declared length of its body and the bytes that are held of the message.
func (x *exchange) read(m *request, h *extprocv3.HttpHeaders) (req router.Request, declared, held int64) {
	req, declared, held = readHeaders(h.GetHeaders())
	if x.ranked {
		req.Ranked = maxRanked
	}
	if g := x.gateway; g != nil {
		var n int64
		req.Subset, n = subset(m.GetMetadataContext())
		req.Shed = g.Shed
		held += n
		if g.List {
			req.Ranked = maxRanked
		}
	}
	return req, declared, held
}

// route routes a request whose body, if any, comes in one message.
func (x *exchange) route(m *request, h *extprocv3.HttpHeaders) outcome {
	start := time.Now()
	req, declared, held := x.read(m, h)
	x.hold.force(held)
	if h.GetEndOfStream() {
		return x.decide(headersPhase, req, kindNoBody, start)
	}
	if x.passer != nil && x.passer.Passes(req) {
		req.Unread = true
		return x.decide(headersPhase, req, kindPassed, start)
	}
	if k := x.admit(held, declared); k != kindBody {
		req.Unread = true
		return x.decide(headersPhase, req, k, start)
	}
	if err := x.conv.Send(headersReply(&extprocv3.CommonResponse{})); err != nil {
		return ended(err)
	}

	if x.account.awaited(declared) {
		return x.await(func(m *request) outcome { return x.routeBody(m, req, held) })
	}
	m, err := x.conv.Recv()
	if err != nil {
		return ended(err)
	}
	return x.routeBody(m, req, held)
}

// routeBody routes a request by the message that holds its body.
func (x *exchange) routeBody(m *request, req router.Request, held int64) outcome {
	start := time.Now()
	b := m.GetRequestBody()
	if b == nil {
		return x.unexpected(m)
	}
	k := x.settle(held, int64(len(b.GetBody())))
	if k == kindBody {
		req.Body = b.GetBody()
	} else {
		req.Unread = true
		b.Body = nil
		x.hold.force(held)
	}
	return x.decide(bodyPhase, req, k, start)
}

// admit enters a body in the account before it is received, unless it is so short that gRPC lets it in unasked: a client that declares
// such a body and does not send it takes nothing. Any kind but kindBody means that the body must not be received.
func (x *exchange) admit(held, declared int64) kind {
	if declared > x.maxBody {
		return kindTooLarge
	}
	if !x.account.awaited(declared) {
		return kindBody
	}
	if declared == undeclared {
		declared = x.maxBody / undeclaredShare
	}
	if !x.hold.resize(held + declared) {
		return kindNoRoom
	}
	return kindBody
}

// settle corrects the entry to the length that was received.
func (x *exchange) settle(held, length int64) kind {
	if length > x.maxBody {
		return kindTooLarge
	}
	if !x.hold.resize(held + length) {
		return kindNoRoom
	}
	return kindBody
}

// decide asks for a decision within the budget and sends it as the reply to the message of phase at.
func (x *exchange) decide(at phase, req router.Request, k kind, start time.Time) outcome {
	d, ok := x.ask(req, k)
	if x.conv.Context().Err() != nil {
		x.undelivered(d)
		return outcomeAborted
	}
	r, o := x.answer(at, d)
	if err := x.conv.Send(r); err != nil {
		x.undelivered(d)
		return ended(err)
	}
	x.metrics.seconds.Observe(time.Since(start).Seconds())
	x.decision = d
	if !ok && o == outcomeUnrouted {
		return outcomePanic
	}
	return o
}

// ask asks for a decision within the budget. A Decider that panics has decided nothing, and ok is false.
func (x *exchange) ask(req router.Request, k kind) (d router.Decision, ok bool) {
	x.metrics.decisions.WithLabelValues(string(k)).Inc()
	ctx, cancel := context.WithTimeout(x.conv.Context(), x.budget)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			x.panicked(v)
			d, ok = router.Decision{Rung: router.RungNone}, false
		}
	}()
	d, dropped := validate(x.decider.Decide(ctx, req))
	if dropped {
		x.metrics.invalid.Inc()
	}
	return d, true
}

// undelivered takes a decision back that Envoy has not been told: no record will come for it.
func (x *exchange) undelivered(d router.Decision) {
	if x.completer != nil {
		x.completer.Complete(router.Completion{ID: d.ID, Pool: d.Pool, Undelivered: true})
	}
}

// unexpected answers a message that does not belong to the conversation so that Envoy can go on, and gives the stream up.
func (x *exchange) unexpected(m *request) outcome {
	if r := emptyReply(m); r != nil {
		if err := x.conv.Send(r); err != nil {
			return ended(err)
		}
	}
	return outcomeUnexpected
}

// await receives the next message and gives it to then, both in a goroutine of their own, so that it can give up while nothing was
// received: after BodyWait and in a drain. The goroutine then touches nothing of x any more, and its receive ends with the stream. That
// it also goes on with the message, rather than hand it back, saves a switch of goroutines before the reply. Ordinary bodies do without
// await: the goroutine costs each of them as much as all the rest of the conversation (see BenchmarkConversation).
func (x *exchange) await(then func(*request) outcome) outcome {
	var taken atomic.Bool // by the one of both that goes on
	done := make(chan outcome, 1)
	x.waits.Go(func() {
		o := outcomePanic
		defer func() {
			if v := recover(); v != nil {
				x.panicked(v)
			}
			done <- o
		}()
		m, err := x.conv.Recv()
		switch {
		case !taken.CompareAndSwap(false, true):
			o = outcomeAborted // nobody listens
		case err != nil:
			o = ended(err)
		default:
			o = then(m)
		}
	})

	timer := time.NewTimer(x.bodyWait)
	defer timer.Stop()
	var gaveUp outcome
	select {
	case o := <-done:
		return o
	case <-timer.C:
		gaveUp = outcomeExpired
	case <-x.closing:
		gaveUp = outcomeDrained
	}
	if taken.CompareAndSwap(false, true) {
		return gaveUp
	}
	return <-done
}

// receipt is what a receive gave.
type receipt struct {
	m   *request
	err error
}

// errPanic is what a receive that panics gives.
var errPanic = errors.New("panic while receiving")

// receive receives the next message.
func (x *exchange) receive() (*request, error) {
	if late := x.late; late != nil {
		x.late = nil
		r := <-late
		return r.m, r.err
	}
	return x.conv.Recv()
}

// receiveUntil is receive, but that it gives up when the time has come or a drain is over. The message that it was waiting for is then that of the
// next receive. It costs a goroutine.
func (x *exchange) receiveUntil(expired <-chan time.Time) (m *request, gaveUp bool, err error) {
	late := x.late
	if late == nil {
		got := make(chan receipt, 1)
		late = got
		x.waits.Go(func() {
			r := receipt{err: errPanic}
			defer func() {
				if v := recover(); v != nil {
					x.panicked(v)
				}
				got <- r
			}()
			m, err := x.conv.Recv()
			r = receipt{m, err}
		})
	}
	select {
	case r := <-late:
		x.late = nil
		return r.m, false, r.err
	case <-expired:
	case <-x.closing:
	}
	x.late = late
	return nil, true, nil
}

// ended names the end of a stream by the error of its last receive or send.
func ended(err error) outcome {
	switch {
	case errors.Is(err, errPanic):
		return outcomePanic
	case status.Code(err) == codes.ResourceExhausted:
		return outcomeTooLarge
	}
	return outcomeAborted
}
