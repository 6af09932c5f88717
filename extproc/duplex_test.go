package extproc

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/router"
)

func duplexIn(eos bool, kv ...string) *request { return inMode(fullDuplex, headersIn(eos, kv...)) }

func bothDuplexIn(eos bool, kv ...string) *request {
	m := duplexIn(eos, kv...)
	m.ProtocolConfig.ResponseBodyMode = fullDuplex
	return m
}

// passing decides nothing for any request.
type passing struct{ deciderFunc }

func (passing) Passes(router.Request) bool { return true }

func TestDuplex(t *testing.T) {
	const maxBody, maxTotal = 200 << 10, 200<<10 + slack
	type seen struct {
		Body   string
		Unread bool
	}
	none := router.Decision{ID: "r1-8", Pool: "chat", Reason: "no_endpoint"}
	told := decisionReply(headersPhase, decided())
	half := big(100 << 10)
	trailers := emptyReply(trailersIn())
	halfClose := bodyIn(true, "")
	halfClose.GetRequestBody().EndOfStreamWithoutMessage = true
	halfClosed := chunk(true, "ab")
	halfClosed.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().EndOfStreamWithoutMessage = true

	tests := []struct {
		name   string
		d      router.Decision
		passes bool
		panics bool
		steps  []step
		end    func(*fake)
		want   outcome
		kind   kind
		seen   *seen
	}{
		{
			name:  "no body",
			d:     decided(),
			steps: []step{says(duplexIn(true), told)},
			want:  outcomeRouted, kind: kindNoBody, seen: &seen{},
		},
		{
			name:  "nothing is said before the end of the body, which comes as an empty chunk",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(bodyIn(false, "ab")), says(bodyIn(true, ""), told, chunk(true, "ab"))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Body: "ab"},
		},
		{
			name:  "the last chunk ends the stream",
			d:     decided(),
			steps: []step{says(duplexIn(false, "content-length", "4")), says(bodyIn(false, "ab")), says(bodyIn(true, "cd"), told, chunk(true, "abcd"))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Body: "abcd"},
		},
		{
			name:  "empty chunked body",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(bodyIn(true, ""), told, chunk(true, ""))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{},
		},
		{
			name:  "empty chunks between",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(bodyIn(false, "")), says(bodyIn(false, "ab")), says(bodyIn(false, "")), says(bodyIn(true, "c"), told, chunk(true, "abc"))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Body: "abc"},
		},
		{
			name:  "end without a message",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(bodyIn(false, "ab")), says(halfClose, told, halfClosed)},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Body: "ab"},
		},
		{
			name: "a long body comes back in pieces of 64 KiB",
			d:    decided(),
			steps: []step{
				says(duplexIn(false)), says(bodyIn(false, half)),
				says(bodyIn(true, half), told, chunk(false, big(64<<10)), chunk(false, big(64<<10)), chunk(false, big(64<<10)), chunk(true, big(8<<10))),
			},
			want: outcomeRouted, kind: kindBody, seen: &seen{Body: half + half},
		},
		{
			name:  "a piece of 64 KiB",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(bodyIn(true, big(64<<10)), told, chunk(true, big(64<<10)))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Body: big(64 << 10)},
		},
		{
			name:  "trailers end the body",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(bodyIn(false, "ab")), says(trailersIn(), told, chunk(false, "ab"), trailers)},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Body: "ab"},
		},
		{
			name:  "trailers without a body",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(trailersIn(), told, trailers)},
			want:  outcomeRouted, kind: kindBody, seen: &seen{},
		},
		{
			name:  "trailers after a body of length 0",
			d:     decided(),
			steps: []step{says(duplexIn(false, "content-length", "0"), told), says(trailersIn(), trailers)},
			want:  outcomeRouted, kind: kindNoBody, seen: &seen{},
		},
		{
			name:  "window updates between",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(&request{}), says(bodyIn(false, "ab")), says(&request{}), says(bodyIn(true, ""), told, chunk(true, "ab"))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Body: "ab"},
		},
		{
			name:  "no decision",
			d:     none,
			steps: []step{says(duplexIn(false)), says(bodyIn(true, "{"), decisionReply(headersPhase, none), chunk(true, "{"))},
			want:  outcomeUnrouted, kind: kindBody, seen: &seen{Body: "{"},
		},
		{
			name:   "the decision panics",
			panics: true,
			steps: []step{
				says(duplexIn(false)), says(bodyIn(false, "ab")),
				says(trailersIn(), decisionReply(headersPhase, router.Decision{Rung: router.RungNone}), chunk(false, "ab"), trailers),
			},
			want: outcomePanic, kind: kindBody, seen: &seen{Body: "ab"},
		},

		// Decided by the headers: chunks are sent back as they come.
		{
			name:   "pool that decides nothing",
			d:      none,
			passes: true,
			steps: []step{
				says(duplexIn(false), decisionReply(headersPhase, none)), says(bodyIn(false, "ab"), chunk(false, "ab")), says(bodyIn(true, ""), chunk(true, "")),
			},
			want: outcomeUnrouted, kind: kindPassed, seen: &seen{Unread: true},
		},
		{
			name:  "a form",
			d:     decided(),
			steps: []step{says(duplexIn(false, "content-type", "multipart/form-data; boundary=x"), told), says(bodyIn(true, "--x"), chunk(true, "--x"))},
			want:  outcomeRouted, kind: kindUnreadable, seen: &seen{Unread: true},
		},
		{
			name:  "compressed",
			d:     decided(),
			steps: []step{says(duplexIn(false, "content-encoding", "zstd"), told), says(bodyIn(false, "ab"), chunk(false, "ab")), says(trailersIn(), trailers)},
			want:  outcomeRouted, kind: kindUnreadable, seen: &seen{Unread: true},
		},
		{
			name: "declared length above the cap",
			d:    decided(),
			steps: []step{
				says(duplexIn(false, "content-length", "204801"), told), says(bodyIn(false, half), chunk(false, big(64<<10)), chunk(false, big(36<<10))),
				says(bodyIn(true, half+"y"), chunk(false, big(64<<10)), chunk(true, big(36<<10)+"y")),
			},
			want: outcomeRouted, kind: kindTooLarge, seen: &seen{Unread: true},
		},
		{
			name:  "headers leave no room for a body",
			d:     decided(),
			steps: []step{says(duplexIn(false, "x-big", big(slack), "content-length", "204800"), told), says(bodyIn(true, "ab"), chunk(true, "ab"))},
			want:  outcomeRouted, kind: kindNoRoom, seen: &seen{Unread: true},
		},

		// Decided midway.
		{
			name: "received length above the cap",
			d:    decided(),
			steps: []step{
				says(duplexIn(false)), says(bodyIn(false, half)), says(bodyIn(false, half)),
				says(bodyIn(false, "y"), told, chunk(false, big(64<<10)), chunk(false, big(64<<10)), chunk(false, big(64<<10)), chunk(false, big(8<<10)), chunk(false, "y")),
				says(bodyIn(true, "z"), chunk(true, "z")),
			},
			want: outcomeRouted, kind: kindTooLarge, seen: &seen{Unread: true},
		},
		{
			name: "received length beyond the room",
			d:    decided(),
			steps: []step{
				says(duplexIn(false, "x-big", big(slack+90<<10), "content-length", "60000")), says(bodyIn(false, big(60000))), says(bodyIn(false, big(60000)), told, chunk(false, big(60000)), chunk(false, big(60000))),
				says(bodyIn(true, ""), chunk(true, "")),
			},
			want: outcomeRouted, kind: kindNoRoom, seen: &seen{Unread: true},
		},
		{
			name: "the request is answered before it is complete",
			steps: []step{
				says(duplexIn(false)), says(bodyIn(false, "ab")), says(responseHeadersIn(), headersReply(decisionMutation("", "")), chunk(false, "ab"), emptyReply(responseHeadersIn())),
				says(bodyIn(true, "c"), chunk(true, "c")),
			},
			want: outcomeUnexpected,
		},
		{
			name:  "headers twice",
			steps: []step{says(duplexIn(false)), says(headersIn(true), headersReply(decisionMutation("", "")), headersReply(decisionMutation("", "")))},
			want:  outcomeUnexpected,
		},

		// The response.
		{
			name: "early answer of the engine",
			d:    decided(),
			steps: []step{
				says(duplexIn(false, "content-encoding", "gzip"), told), says(responseHeadersIn(), emptyReply(responseHeadersIn())),
				says(responseBodyIn(true, "no"), emptyReply(responseBodyIn(true, "no"))), says(bodyIn(true, "ab"), chunk(true, "ab")),
			},
			want: outcomeRouted, kind: kindUnreadable, seen: &seen{Unread: true},
		},
		{
			name: "both ways",
			d:    decided(),
			steps: []step{
				says(bothDuplexIn(false)), says(bodyIn(true, "ab"), told, chunk(true, "ab")),
				says(responseHeadersIn(), emptyReply(responseHeadersIn())), says(responseBodyIn(false, "12"), responseChunk(false, "12")),
				says(responseBodyIn(true, ""), responseChunk(true, "")),
			},
			want: outcomeRouted, kind: kindBody, seen: &seen{Body: "ab"},
		},
		{
			name: "both ways, trailers of the response",
			d:    decided(),
			steps: []step{
				says(bothDuplexIn(true), told), says(responseHeadersIn(), emptyReply(responseHeadersIn())),
				says(responseBodyIn(false, half), responseChunk(false, big(64<<10)), responseChunk(false, big(36<<10))), says(responseTrailersIn(), emptyReply(responseTrailersIn())),
			},
			want: outcomeRouted, kind: kindNoBody, seen: &seen{},
		},
		{
			name:  "both ways, a drain ends the wait for the response",
			d:     decided(),
			steps: []step{says(bothDuplexIn(true), told), says(responseHeadersIn(), emptyReply(responseHeadersIn()))},
			end:   func(f *fake) { close(f.closing) },
			want:  outcomeRouted, kind: kindNoBody, seen: &seen{},
		},

		// Ends.
		{name: "closed before the body", steps: []step{says(duplexIn(false, "content-length", "10"))}, end: closeStream, want: outcomeAborted},
		{name: "cancelled before the body", steps: []step{says(duplexIn(false))}, end: cancelStream, want: outcomeAborted},
		{name: "closed within the body", steps: []step{says(duplexIn(false)), says(bodyIn(false, "ab"))}, end: closeStream, want: outcomeAborted},
		{
			name:  "cancelled while the headers reply is sent",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(bodyIn(true, "ab"))},
			end:   cancelStream, want: outcomeAborted, kind: kindBody, seen: &seen{Body: "ab"},
		},
		{
			name:  "cancelled while the body is sent back",
			d:     decided(),
			steps: []step{says(duplexIn(false)), says(bodyIn(true, "ab"), told)},
			end:   cancelStream, want: outcomeRouted, kind: kindBody, seen: &seen{Body: "ab"},
		},
		{
			name:  "closed while chunks are sent back",
			d:     decided(),
			steps: []step{says(duplexIn(false, "content-encoding", "br"), told), says(bodyIn(false, "ab"), chunk(false, "ab"))},
			end:   closeStream, want: outcomeRouted, kind: kindUnreadable, seen: &seen{Unread: true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got *seen
			var decider Decider = deciderFunc(func(_ context.Context, r router.Request) router.Decision {
				got = &seen{Body: string(r.Body), Unread: r.Unread}
				if tt.panics {
					panic("decider")
				}
				return tt.d
			})
			if tt.passes {
				decider = passing{decider.(deciderFunc)}
			}
			s := newService(t, Options{MaxBody: maxBody, MaxTotal: maxTotal, Decider: decider})
			if o := play(t, s, tt.steps, tt.end); o != tt.want {
				t.Errorf("outcome %q, want %q", o, tt.want)
			}
			if d := cmp.Diff(tt.seen, got); d != "" {
				t.Errorf("request seen by the decider (-want +got):\n%s", d)
			}
			for _, k := range kinds() {
				want := 0.0
				if k == tt.kind {
					want = 1
				}
				if n := testutil.ToFloat64(s.metrics.decisions.WithLabelValues(string(k))); n != want {
					t.Errorf("decisions of kind %s: %v, want %v", k, n, want)
				}
			}
			if n := testutil.ToFloat64(s.metrics.modes.WithLabelValues("full_duplex_streamed")); n != 1 {
				t.Errorf("%v streams of the mode counted", n)
			}
			if n := testutil.CollectAndCount(s.metrics.passthrough); n != 0 {
				t.Errorf("%d modes counted as passed through", n)
			}
		})
	}
}

// Nobody but us ends the wait of Envoy: when we do not want to wait any more, the request goes on by what is known, and its body after it.
func TestDuplexLate(t *testing.T) {
	ends := map[string]func(*service){
		"after BodyWait": func(*service) {},
		"in a drain":     func(s *service) { close(s.closing) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var unread bool
				s := newService(t, Options{BodyWait: 30 * time.Second, Decider: deciderFunc(func(_ context.Context, r router.Request) router.Decision {
					unread = r.Unread
					return decided()
				})})
				f := newFake()
				start, done := time.Now(), f.serve(s)
				f.in <- duplexIn(false)
				f.in <- bodyIn(false, "ab")
				synctest.Wait()
				end(s)
				for i, want := range []*response{decisionReply(headersPhase, decided()), chunk(false, "ab")} {
					if d := cmp.Diff(want, <-f.out, protocmpTransform()); d != "" {
						t.Fatalf("reply %d (-want +got):\n%s", i, d)
					}
				}
				if d := time.Since(start); !unread || d != 0 && d != 30*time.Second {
					t.Errorf("decided after %v, unread %v", d, unread)
				}
				f.in <- bodyIn(false, "cd")
				if d := cmp.Diff(chunk(false, "cd"), <-f.out, protocmpTransform()); d != "" {
					t.Error(d)
				}
				f.in <- bodyIn(true, "")
				if d := cmp.Diff(chunk(true, ""), <-f.out, protocmpTransform()); d != "" {
					t.Error(d)
				}
				if o := <-done; o != outcomeRouted {
					t.Errorf("outcome %q", o)
				}
				if n := testutil.ToFloat64(s.metrics.decisions.WithLabelValues(string(kindLate))); n != 1 {
					t.Errorf("%v late decisions", n)
				}
			})
		})
	}
}

// However many chunks a body comes in, what the account has for it is about what it takes.
func TestCollectedIsAccounted(t *testing.T) {
	s := newService(t, Options{MaxBody: 1 << 20, MaxTotal: 4 << 20, Decider: always(decided())})
	for _, declared := range []int64{undeclared, 1 << 20, 300_000} {
		x := &exchange{service: s, settings: s.settings.Load(), hold: holding{account: s.account}}
		c := &collected{declared: declared, held: 100}
		x.hold.force(100)
		n := 0
		for k := kindBody; k == kindBody; k = x.extend(c, []byte(big(1+n%3000))) {
			n = len(c.body)
			if have := x.hold.n; have < int64(cap(c.body)+100) || have > int64(2*len(c.body)+200) && have > declared+100 {
				t.Fatalf("declared %d: %d bytes in the account for a body of %d in a place of %d", declared, have, len(c.body), cap(c.body))
			}
		}
		if n < 1<<20-3000 || strings.Trim(string(c.body), "x") != "" {
			t.Errorf("declared %d: %d bytes collected", declared, n)
		}
		x.hold.force(0)
	}
}

// Streams of which nothing is read back are left alone, whatever their first message.
func TestObservability(t *testing.T) {
	for name, m := range map[string]*request{
		"headers": headersIn(false), "duplex headers": duplexIn(true), "body": bodyIn(true, "ab"), "trailers": trailersIn(),
		"response headers": responseHeadersIn(), "response body": responseBodyIn(true, "ab"), "response trailers": responseTrailersIn(), "none": {},
		"streamed": inMode(modev3.ProcessingMode_STREAMED, headersIn(false)),
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, Options{Decider: always(decided())})
			m.ObservabilityMode = true
			if o := play(t, s, []step{says(m)}, nil); o != outcomeObserved {
				t.Errorf("outcome %q", o)
			}
		})
	}
}

// TestDuplexServed is the conversation over gRPC, with bodies in all sizes of chunks.
func TestDuplexServed(t *testing.T) {
	var body string
	r := run(t, listenTCP(t), Options{Decider: deciderFunc(func(_ context.Context, q router.Request) router.Decision {
		body = string(q.Body)
		return decided()
	})})
	for _, size := range []int{1, 1000, 64 << 10, 5 << 20} {
		for _, piece := range []int{1 << 10, 64 << 10, 3 << 20} {
			st := r.open(t.Context(), t)
			sent := strings.Repeat("0123456789", size/10+1)[:size]
			send := func(m *request) {
				if err := st.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			send(duplexIn(false))
			for rest := sent; rest != ""; {
				n := min(piece, len(rest))
				send(bodyIn(false, rest[:n]))
				rest = rest[n:]
			}
			send(bodyIn(true, ""))
			m, err := st.Recv()
			if err != nil || target(m) != decided().Endpoint {
				t.Fatalf("reply %v, %v", m, err)
			}
			var echoed strings.Builder
			for eos := false; !eos; {
				m, err := st.Recv()
				if err != nil {
					t.Fatal(err)
				}
				b := streamedOf(m)
				if len(b.GetBody()) > maxChunk {
					t.Fatalf("piece of %d bytes", len(b.GetBody()))
				}
				echoed.Write(b.GetBody())
				eos = b.GetEndOfStream()
			}
			if echoed.String() != sent || body != sent {
				t.Errorf("%d bytes in pieces of %d: decided by %d, %d came back", size, piece, len(body), echoed.Len())
			}
			if _, err := st.Recv(); err == nil {
				t.Error("the stream goes on")
			}
		}
	}
}

func streamedOf(m *response) *extprocv3.StreamedBodyResponse {
	return m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
}
