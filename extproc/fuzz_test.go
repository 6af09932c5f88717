package extproc

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/router"
)

// script is a conversation whose messages are known beforehand; it notes the replies to each.
type script struct {
	messages []*request
	next     int
	replies  [][]*response // by message

	// What was received, noted before the server has it, which lets go of bodies.
	sent, sentOfResponse strings.Builder
	ends                 int // of request bodies
}

func (s *script) Context() context.Context { return context.Background() }

func (s *script) Recv() (*request, error) {
	if s.next == len(s.messages) {
		return nil, io.EOF
	}
	s.next++
	s.replies = append(s.replies, nil)
	m := s.messages[s.next-1]
	s.sent.Write(m.GetRequestBody().GetBody())
	s.sentOfResponse.Write(m.GetResponseBody().GetBody())
	if m.GetRequestBody().GetEndOfStream() {
		s.ends++
	}
	return m, nil
}

func (s *script) Send(r *response) error {
	s.replies[s.next-1] = append(s.replies[s.next-1], r)
	return nil
}

// message makes one message of a byte: its kind, its end of stream and its length.
func message(b byte) *request {
	eos, body := b&8 != 0, big(int(b>>4)*100)
	switch b % 8 {
	case 0:
		return headersIn(eos)
	case 1:
		return headersIn(eos, "content-length", fmt.Sprint(len(body)))
	case 2, 3:
		return bodyIn(eos, body)
	case 4:
		return trailersIn()
	case 5:
		return responseHeadersIn()
	case 6:
		return responseBodyIn(eos, body)
	}
	return &request{}
}

// Whatever sequence of messages comes and whatever is decided: no panic of ours, replies of the right kinds, at most one decision, nothing held at
// the end, and every body that must come back does, unchanged and in order.
func FuzzConversation(f *testing.F) {
	for _, seed := range []string{
		"\x02\x00\x00\x28", "\x02\x00\x08", "\x04\x00\x00\x22\x22\x0a", "\x04\x04\x00\x0a\x05\x26\x0e", "\x01\x00\x00\x22\x04", "\x06\x00\x11\x1a",
		"\x12\x00\x00", "\x02\x00\xf1\xfa", "\x04\x00\x00\xf2\xf2\x22\x0a", "\x04\x00\x00\x22\x04\x05", "\x44\x04\x00\x22\x0a\x05\x26\x07\x0e", "\xc4\x00\x00\x22\x05\x2a",
		"\x24\x00\x00\x22\x0a", "\x04\x00\x00\x52\x5a", "\xe4\x00\x00\x22\x0a", "\x04\x00\x00\x22\x00\x22\x0a", "\x05\x05\x00\x22\x07\x0a\x26\x0e", "\xa2\x00\x00\x2a\x05",
	} {
		f.Add([]byte(seed))
	}
	decisions, panics := 0, false
	d := decided()
	o := Options{MaxBody: 1000, BodyWait: time.Hour, Decider: deciderFunc(func(_ context.Context, r router.Request) router.Decision {
		decisions++
		if r.Unread && r.Body != nil {
			panic("unread request with a body")
		}
		if panics {
			panic("decider")
		}
		return d
	})}
	own := newServiceOf(f, o)
	o.Gateway = Gateway{On: true}
	gateway := newServiceOf(f, o)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 100 {
			return
		}
		c := &script{}
		for _, b := range data[2:] {
			m := message(b)
			m.ProtocolConfig = nil
			c.messages = append(c.messages, m)
		}
		mode, responseMode := bodyMode(data[0]&7), bodyMode(data[1]&7)
		if mode == 7 {
			mode, responseMode = buffered, 0
		} else {
			c.messages[0].ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode, ResponseBodyMode: responseMode}
		}
		c.messages[0].ObservabilityMode = data[0]&16 != 0
		panics = data[0]&32 != 0
		svc := own
		if data[0]&64 != 0 {
			svc = gateway
		}
		if d = decided(); data[0]&128 != 0 {
			d = router.Decision{ID: "r1-8"}
		}

		decisions = 0
		before := testutil.ToFloat64(svc.metrics.panics)
		o := svc.converse(c)
		raised := testutil.ToFloat64(svc.metrics.panics) - before
		if want := float64(decisions); !panics && raised != 0 || panics && raised != want {
			t.Errorf("%v panics after %d decisions", raised, decisions)
		}
		if decisions > 1 || (o == outcomeRouted || o == outcomeRefused || o == outcomeUnrouted) && decisions == 0 {
			t.Errorf("outcome %q after %d decisions", o, decisions)
		}
		if o == outcomeObserved && c.count() > 0 {
			t.Errorf("%d replies to an observer", c.count())
		}
		svc.waits.Wait()
		if held := testutil.ToFloat64(svc.metrics.held); held != 0 {
			t.Errorf("%v bytes held", held)
		}
		checkReplies(t, c, o, mode, responseMode)
	})
}

func newServiceOf(f *testing.F, o Options) *service {
	s, err := New(o)
	if err != nil {
		f.Fatal(err)
	}
	return &service{Server: s, closing: make(chan struct{})}
}

// count is how many replies there were.
func (s *script) count() (n int) {
	for _, replies := range s.replies {
		n += len(replies)
	}
	return n
}

// checkReplies compares what was sent with what came back, up to the message at which the stream ended.
func checkReplies(t *testing.T, c *script, o outcome, mode, responseMode bodyMode) {
	t.Helper()
	var back, backOfResponse strings.Builder
	refused, headers, endsBack := false, 0, 0
	for i, m := range c.messages[:c.next] {
		if len(c.replies[i]) > 1 && mode != fullDuplex {
			t.Fatalf("message %d: %d replies", i, len(c.replies[i]))
		}
		for _, r := range c.replies[i] {
			switch v := r.GetResponse().(type) {
			case *extprocv3.ProcessingResponse_ImmediateResponse:
				refused = true
			case *extprocv3.ProcessingResponse_RequestHeaders:
				headers++
			case *extprocv3.ProcessingResponse_RequestBody:
				e := v.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
				if (e != nil) != duplex(mode) {
					t.Fatalf("message %d: body reply %v", i, r)
				}
				if mode == fullDuplex && headers == 0 && c.messages[0].GetRequestHeaders() != nil {
					t.Fatalf("message %d: body before the headers reply", i)
				}
				back.Write(e.GetBody())
				if e.GetEndOfStream() {
					endsBack++
				}
			case *extprocv3.ProcessingResponse_ResponseBody:
				e := v.ResponseBody.GetResponse().GetBodyMutation().GetStreamedResponse()
				backOfResponse.Write(e.GetBody())
			default:
				if want := emptyReply(m); want == nil || fmt.Sprintf("%T", v) != fmt.Sprintf("%T", want.GetResponse()) {
					t.Fatalf("message %d: reply %T to %T", i, v, m.GetRequest())
				}
			}
		}
	}
	// A stream that Envoy ended before its request was complete needs nothing back; nor does a request that we have answered.
	if refused || o == outcomeObserved || o == outcomeAborted || !duplex(mode) {
		return
	}
	if c.sent.String() != back.String() || c.ends != endsBack {
		t.Errorf("outcome %q: %d bytes of the request came back of %d, %d ends of %d", o, back.Len(), c.sent.Len(), endsBack, c.ends)
	}
	if duplex(responseMode) && c.sentOfResponse.String() != backOfResponse.String() {
		t.Errorf("outcome %q: %d bytes of the response came back of %d", o, backOfResponse.Len(), c.sentOfResponse.Len())
	}
}
