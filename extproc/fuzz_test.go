package extproc

import (
	"context"
	"fmt"
	"io"
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
}

func (s *script) Context() context.Context { return context.Background() }

func (s *script) Recv() (*request, error) {
	if s.next == len(s.messages) {
		return nil, io.EOF
	}
	s.next++
	s.replies = append(s.replies, nil)
	return s.messages[s.next-1], nil
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

// Whatever sequence of messages comes: no panic, at most one reply per message and of its kind, echoes intact, at most one decision,
// and nothing held at the end.
func FuzzConversation(f *testing.F) {
	for _, seed := range []string{"\x02\x00\x00\x28", "\x02\x00\x08", "\x04\x00\x00\x22\x22\x0a", "\x04\x04\x00\x0a\x05\x26\x0e", "\x01\x00\x00\x22\x04", "\x06\x00\x11\x1a", "\x12\x00\x00", "\x02\x00\xf1\xfa"} {
		f.Add([]byte(seed))
	}
	decisions := 0
	s, err := New(Options{MaxBody: 1000, BodyWait: time.Hour, Decider: deciderFunc(func(_ context.Context, r router.Request) router.Decision {
		decisions++
		if r.Unread && r.Body != nil {
			panic("unread request with a body")
		}
		return decided()
	})})
	if err != nil {
		f.Fatal(err)
	}
	svc := &service{Server: s, closing: make(chan struct{})}
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
		mode := bodyMode(data[0] & 7)
		if mode != 7 {
			c.messages[0].ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode, ResponseBodyMode: bodyMode(data[1] & 7)}
		}
		c.messages[0].ObservabilityMode = data[0]&16 != 0

		decisions = 0
		o := svc.converse(c)
		if o == outcomePanic {
			t.Fatal("panic")
		}
		if routed := o == outcomeRouted; decisions > 1 || routed != (decisions == 1) {
			t.Errorf("outcome %q after %d decisions", o, decisions)
		}
		if held := testutil.ToFloat64(s.metrics.held); held != 0 {
			t.Errorf("%v bytes held", held)
		}
		for i, replies := range c.replies {
			if len(replies) > 1 {
				t.Fatalf("message %d: %d replies", i, len(replies))
			}
			if len(replies) == 1 {
				checkReply(t, c.messages[i], replies[0], mode)
			}
		}
	})
}

func checkReply(t *testing.T, m *request, r *response, mode bodyMode) {
	t.Helper()
	want := emptyReply(m)
	if want == nil {
		t.Fatalf("reply %v to a message of no kind", r)
	}
	if got, want := fmt.Sprintf("%T", r.GetResponse()), fmt.Sprintf("%T", want.GetResponse()); got != want {
		t.Fatalf("reply %s, want %s", got, want)
	}
	if b := m.GetRequestBody(); b != nil && duplex(mode) {
		e := r.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if e == nil || string(e.GetBody()) != string(b.GetBody()) || e.GetEndOfStream() != b.GetEndOfStream() {
			t.Fatalf("echo %v of %v", e, b)
		}
	}
}
