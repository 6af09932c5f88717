package extproc

import (
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/router"
)

// routeDuplex routes a request whose body comes in chunks that must all be sent back. Envoy sends nothing to an engine before the headers reply,
// which is therefore held back until the decision is made. Envoy has no timer here: from the headers reply to the last chunk the stream must not
// end before the body does.
func (x *exchange) routeDuplex(m *request, h *extprocv3.HttpHeaders, t *traffic) outcome {
	start := time.Now()
	req, declared, held := x.read(m, h)
	x.hold.force(held)
	t.req.headers(h.GetEndOfStream())

	c := collected{declared: declared, held: held}
	k := x.foresee(h, req, declared, held)
	var next *request // comes after what was collected
	if k == kindBody {
		var err error
		if next, k, err = x.collect(&c, t); err != nil {
			return ended(err)
		}
		start = time.Now()
	}
	o := x.decideDuplex(req, &c, k, start)
	if o == outcomeAborted || o == outcomeTooLarge || o == outcomeRefused {
		return o
	}
	if len(c.body) > 0 || c.last != nil {
		if err := x.echo(c.body, c.last, fullDuplex, bodyReply); err != nil {
			return o
		}
	}
	c = collected{}
	x.hold.force(0)
	if end := x.relay(next, t); end == outcomeTooLarge || end == outcomePanic {
		return end
	}
	x.attend(t)
	return o
}

// decideDuplex sends the headers reply, with a decision if there is still a request to decide.
func (x *exchange) decideDuplex(req router.Request, c *collected, k kind, start time.Time) outcome {
	switch k {
	case kindNone:
		if err := x.conv.Send(headersReply(x.undecided())); err != nil {
			return ended(err)
		}
		return outcomeUnexpected
	case kindBody:
		req.Body = c.body
	case kindNoBody:
	default:
		req.Unread = true
	}
	return x.decide(headersPhase, req, k, start)
}

// foresee says by the headers what a decision can be made from; kindBody means that the body is worth waiting for.
func (x *exchange) foresee(h *extprocv3.HttpHeaders, req router.Request, declared, held int64) kind {
	switch {
	case h.GetEndOfStream(), declared == 0: // Envoy holds trailers without a body back until it has the headers reply
		return kindNoBody
	case x.passer != nil && x.passer.Passes(req):
		return kindPassed
	case openai.Unreadable(req.Meta) != "":
		return kindUnreadable
	}
	return x.admit(held, declared)
}

// collected is a body in the making. It is held in one piece, as it is read, whatever the pieces that it comes in: many short ones would take many
// times their length.
type collected struct {
	declared int64
	held     int64 // bytes beside the body

	body []byte
	last *extprocv3.HttpBody // flags of the last chunk, nil when it has not come
}

// collect takes the body until its end, which is its last chunk or trailers. Any kind but kindBody says why the rest is not collected. next is the
// message that was received and is not in c.
func (x *exchange) collect(c *collected, t *traffic) (next *request, k kind, err error) {
	var expired <-chan time.Time
	patient := !x.account.awaited(c.declared) // an ordinary body has the time that Envoy gives the client
	if !patient {
		timer := time.NewTimer(x.bodyWait)
		defer timer.Stop()
		expired = timer.C
	}
	for {
		var m *request
		gaveUp := false
		if patient {
			m, err = x.receive()
		} else if m, gaveUp, err = x.receiveUntil(expired); gaveUp {
			return nil, kindLate, nil
		}
		if err != nil {
			return nil, k, err
		}
		switch r := m.GetRequest().(type) {
		case nil: // a window update
			continue
		case *extprocv3.ProcessingRequest_RequestBody:
			b := r.RequestBody
			if k := x.extend(c, b.GetBody()); k != kindBody {
				return m, k, nil
			}
			t.req.body(b)
			if t.req.done {
				b.Body = nil
				c.last = b
				x.hold.force(c.held + int64(cap(c.body)))
				return nil, kindBody, nil
			}
		case *extprocv3.ProcessingRequest_RequestTrailers:
			x.hold.force(c.held + int64(cap(c.body)))
			return m, kindBody, nil
		default: // of the response, as a rule: somebody has answered the request before it was complete
			return m, kindNone, nil
		}
	}
}

// extend adds a chunk to what is collected. It refuses what is too long or finds no room, and changes nothing then.
func (x *exchange) extend(c *collected, b []byte) kind {
	size := int64(len(c.body) + len(b))
	if size > x.maxBody {
		return kindTooLarge
	}
	if size <= int64(cap(c.body)) {
		c.body = append(c.body, b...)
		return kindBody
	}
	if c.body == nil && (c.declared == undeclared || c.declared <= size) { // the whole body in one chunk, as short ones come
		if !x.reserve(c, int64(cap(b))) {
			return kindNoRoom
		}
		c.body = b
		return kindBody
	}
	room := min(max(size, c.declared, 2*int64(len(c.body))), x.maxBody)
	if !x.reserve(c, room) {
		return kindNoRoom
	}
	grown := make([]byte, len(c.body), room)
	copy(grown, c.body)
	c.body = append(grown, b...)
	return kindBody
}

// reserve enters so many bytes of body in the account, and never gives back what was entered for bytes that are still to come.
func (x *exchange) reserve(c *collected, n int64) bool {
	return x.hold.resize(max(x.hold.n, c.held+n))
}
