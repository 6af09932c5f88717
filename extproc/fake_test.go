package extproc

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvsteer/kvsteer/internal/router"
)

// deadline bounds what a test waits for; nothing waits that long when all is well.
const deadline = 5 * time.Second

type deciderFunc func(context.Context, router.Request) router.Decision

func (f deciderFunc) Decide(ctx context.Context, r router.Request) router.Decision { return f(ctx, r) }

// decided is a decision with two choices.
func decided() router.Decision {
	return router.Decision{
		ID: "r1-7", Pool: "chat", Endpoint: "10.0.0.11:8000", Second: "10.0.0.12:8000", Rung: router.RungExact, Reason: "matched", Matched: 4096, Prompt: 5000,
	}
}

func always(d router.Decision) deciderFunc {
	return func(context.Context, router.Request) router.Decision { return d }
}

// fake is a stream made of two channels.
type fake struct {
	ctx    context.Context
	cancel context.CancelFunc
	in     chan *request // closed: the client ended the stream
	out    chan *response

	closing chan struct{} // of the service
}

func newFake() *fake {
	ctx, cancel := context.WithCancel(context.Background())
	return &fake{ctx: ctx, cancel: cancel, in: make(chan *request), out: make(chan *response)}
}

func (f *fake) Context() context.Context { return f.ctx }

func (f *fake) Send(r *response) error {
	select {
	case f.out <- r:
		return nil
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
}

func (f *fake) Recv() (*request, error) {
	select {
	case m, ok := <-f.in:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-f.ctx.Done():
		return nil, f.ctx.Err()
	}
}

// serve holds the server's side of the conversation as Process does, and ends the stream afterwards as gRPC does.
func (f *fake) serve(s *service) <-chan outcome {
	done := make(chan outcome, 1)
	f.closing = s.closing
	go func() {
		defer f.cancel()
		done <- s.converse(f)
	}()
	return done
}

func newService(t testing.TB, o Options) *service {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	svc := &service{Server: s, closing: make(chan struct{})}
	t.Cleanup(func() {
		svc.waits.Wait()
		if n := testutil.ToFloat64(s.metrics.held); n != 0 {
			t.Errorf("%v bytes held at the end", n)
		}
		if s.account.total != 0 || s.account.large != 0 {
			t.Errorf("account at the end: total %d, large %d", s.account.total, s.account.large)
		}
	})
	return svc
}

// step is one message from Envoy and the replies it must get; nil means none.
type step struct {
	in   *request
	want *response
	more []*response
}

// says is a step with any number of replies.
func says(in *request, replies ...*response) step {
	if len(replies) == 0 {
		return step{in: in}
	}
	return step{in: in, want: replies[0], more: replies[1:]}
}

// play runs a conversation and gives its outcome. end is what Envoy does after the last step.
func play(t *testing.T, s *service, steps []step, end func(*fake)) outcome {
	t.Helper()
	f := newFake()
	t.Cleanup(f.cancel) // before the service's, which waits for all that receives
	done := f.serve(s)
	for i, st := range steps {
		select {
		case f.in <- st.in:
		case o := <-done:
			t.Fatalf("step %d: ended %q before the message", i, o)
		case <-time.After(deadline):
			t.Fatalf("step %d: message not received", i)
		}
		if st.want == nil {
			continue
		}
		for _, want := range append([]*response{st.want}, st.more...) {
			select {
			case got := <-f.out:
				if !proto.Equal(want, got) { // a diff of equal bodies takes seconds
					t.Fatalf("step %d: reply (-want +got):\n%s", i, cmp.Diff(want, got, protocmp.Transform()))
				}
			case o := <-done:
				t.Fatalf("step %d: ended %q without a reply", i, o)
			case <-time.After(deadline):
				t.Fatalf("step %d: no reply", i)
			}
		}
	}
	replies := f.out
	if end != nil { // a reply that is under way races with the end
		end(f)
		replies = nil
	}
	select {
	case o := <-done:
		return o
	case r := <-replies:
		t.Fatalf("reply too many: %v", r)
	case <-time.After(deadline):
		t.Fatal("stream goes on after the last step")
	}
	return ""
}

func closeStream(f *fake)  { close(f.in) }
func cancelStream(f *fake) { f.cancel() }

// Messages of Envoy.

func header(kv ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

func headersIn(eos bool, kv ...string) *request {
	kv = append([]string{":method", "POST", ":path", "/v1/completions", ":authority", "llm.example"}, kv...)
	return &request{
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: header(kv...), EndOfStream: eos}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: modev3.ProcessingMode_BUFFERED},
	}
}

func inMode(mode bodyMode, m *request) *request {
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode}
	return m
}

func bodyIn(eos bool, body string) *request {
	return &request{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: eos}}}
}

func trailersIn() *request {
	return &request{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: header("x", "y")}}}
}

func responseHeadersIn() *request {
	return &request{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: header(":status", "200")}}}
}

func responseBodyIn(eos bool, body string) *request {
	return &request{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: eos}}}
}

func responseTrailersIn() *request {
	return &request{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

func protocmpTransform() cmp.Option { return protocmp.Transform() }

// decisionReply is the reply that tells a decision by our own headers.
func decisionReply(at phase, d router.Decision) *response { return new(settings).reply(at, d) }

// big is a body of n bytes.
func big(n int) string { return strings.Repeat("x", n) }
