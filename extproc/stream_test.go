package extproc

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/router"
)

// proceed is the reply to headers whose body is to come.
func proceed() *response { return headersReply(&extprocv3.CommonResponse{}) }

func TestBuffered(t *testing.T) {
	const maxBody, maxTotal = 1 << 10, 1<<10 + slack
	type seen struct {
		Path, Body, Tenant string
		Unread             bool
	}
	none := router.Decision{ID: "r1-8", Pool: "chat", Reason: "no_endpoint"}
	bad := decided()
	bad.Endpoint = "localhost:8000"
	badOut := bad
	badOut.Endpoint, badOut.Second, badOut.Matched = "", "", 0

	tests := []struct {
		name  string
		d     router.Decision
		steps []step
		end   func(*fake)
		want  outcome
		kind  kind
		seen  *seen
	}{
		{
			name:  "no body",
			d:     decided(),
			steps: []step{says(headersIn(true), decisionReply(headersPhase, decided()))},
			want:  outcomeRouted, kind: kindNoBody, seen: &seen{Path: "/v1/completions"},
		},
		{
			name:  "body of declared length",
			d:     decided(),
			steps: []step{says(headersIn(false, "Content-Length", "4", "X-Tenant", "a"), proceed()), says(bodyIn(true, "abcd"), decisionReply(bodyPhase, decided()))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Path: "/v1/completions", Body: "abcd", Tenant: "a"},
		},
		{
			name:  "chunked body",
			d:     decided(),
			steps: []step{says(headersIn(false), proceed()), says(bodyIn(true, "abcd"), decisionReply(bodyPhase, decided()))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Path: "/v1/completions", Body: "abcd"},
		},
		{
			name:  "empty chunked body",
			d:     decided(),
			steps: []step{says(headersIn(false), proceed()), says(bodyIn(true, ""), decisionReply(bodyPhase, decided()))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Path: "/v1/completions"},
		},
		{
			name:  "trailers: body without end of stream is answered at once",
			d:     decided(),
			steps: []step{says(headersIn(false), proceed()), says(bodyIn(false, "abcd"), decisionReply(bodyPhase, decided()))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Path: "/v1/completions", Body: "abcd"},
		},
		{
			name:  "proxy that sends no protocol_config",
			d:     decided(),
			steps: []step{says(noConfig(headersIn(true)), decisionReply(headersPhase, decided()))},
			want:  outcomeRouted, kind: kindNoBody, seen: &seen{Path: "/v1/completions"},
		},
		{
			name:  "no decision",
			d:     none,
			steps: []step{says(headersIn(false), proceed()), says(bodyIn(true, "{"), decisionReply(bodyPhase, none))},
			want:  outcomeUnrouted, kind: kindBody, seen: &seen{Path: "/v1/completions", Body: "{"},
		},
		{
			name:  "address that Envoy could not use",
			d:     bad,
			steps: []step{says(headersIn(true), decisionReply(headersPhase, badOut))},
			want:  outcomeUnrouted, kind: kindNoBody, seen: &seen{Path: "/v1/completions"},
		},
		{
			name:  "declared length above the cap: the body is never asked for",
			d:     decided(),
			steps: []step{says(headersIn(false, "content-length", "1025"), decisionReply(headersPhase, decided()))},
			want:  outcomeRouted, kind: kindTooLarge, seen: &seen{Path: "/v1/completions", Unread: true},
		},
		{
			name:  "received length above the cap",
			d:     decided(),
			steps: []step{says(headersIn(false, "content-length", "1024"), proceed()), says(bodyIn(true, big(1025)), decisionReply(bodyPhase, decided()))},
			want:  outcomeRouted, kind: kindTooLarge, seen: &seen{Path: "/v1/completions", Unread: true},
		},
		{
			name:  "received length at the cap",
			d:     decided(),
			steps: []step{says(headersIn(false), proceed()), says(bodyIn(true, big(1024)), decisionReply(bodyPhase, decided()))},
			want:  outcomeRouted, kind: kindBody, seen: &seen{Path: "/v1/completions", Body: big(1024)},
		},
		{
			name:  "headers leave no room for a body",
			d:     decided(),
			steps: []step{says(headersIn(false, "x-big", big(slack), "content-length", "1024"), decisionReply(headersPhase, decided()))},
			want:  outcomeRouted, kind: kindNoRoom, seen: &seen{Path: "/v1/completions", Unread: true},
		},
		{
			name:  "trailers without a body",
			steps: []step{says(headersIn(false), proceed()), says(trailersIn(), emptyReply(trailersIn()))},
			want:  outcomeUnexpected,
		},
		{
			name:  "headers twice",
			steps: []step{says(headersIn(false), proceed()), says(headersIn(false), headersReply(nil))},
			want:  outcomeUnexpected,
		},
		{
			name:  "response headers instead of a body",
			steps: []step{says(headersIn(false), proceed()), says(responseHeadersIn(), emptyReply(responseHeadersIn()))},
			want:  outcomeUnexpected,
		},
		{
			name:  "message of no kind instead of a body",
			steps: []step{says(headersIn(false), proceed()), says(&request{})},
			want:  outcomeUnexpected,
		},
		{name: "closed before the headers", end: closeStream, want: outcomeAborted},
		{name: "cancelled before the headers", end: cancelStream, want: outcomeAborted},
		{
			name:  "closed before a body of undeclared length",
			steps: []step{says(headersIn(false), proceed())},
			end:   closeStream, want: outcomeAborted,
		},
		{
			name:  "cancelled before a body of undeclared length",
			steps: []step{says(headersIn(false), proceed())},
			end:   cancelStream, want: outcomeAborted,
		},
		{
			name:  "closed before the body",
			steps: []step{says(headersIn(false, "content-length", "100"), proceed())},
			end:   closeStream, want: outcomeAborted,
		},
		{
			name:  "cancelled before the body",
			steps: []step{says(headersIn(false, "content-length", "100"), proceed())},
			end:   cancelStream, want: outcomeAborted,
		},
		{
			name:  "cancelled while the headers reply is sent",
			steps: []step{says(headersIn(false))},
			end:   cancelStream, want: outcomeAborted,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got *seen
			s := newService(t, Options{MaxBody: maxBody, MaxTotal: maxTotal, Decider: deciderFunc(func(_ context.Context, r router.Request) router.Decision {
				got = &seen{Path: r.Meta.Path, Body: string(r.Body), Tenant: r.Header("x-tenant"), Unread: r.Unread}
				return tt.d
			})})
			if o := play(t, s, tt.steps, tt.end); o != tt.want {
				t.Errorf("outcome %q, want %q", o, tt.want)
			}
			if d := cmp.Diff(tt.seen, got); d != "" {
				t.Errorf("request seen by the decider (-want +got):\n%s", d)
			}
			if n := testutil.ToFloat64(s.metrics.invalid); (n == 1) != (tt.d.Endpoint == bad.Endpoint) {
				t.Errorf("%v invalid endpoints counted", n)
			}
			for _, k := range []kind{kindNoBody, kindBody, kindTooLarge, kindNoRoom, kindPassed} {
				want := 0.0
				if k == tt.kind {
					want = 1
				}
				if n := testutil.ToFloat64(s.metrics.decisions.WithLabelValues(string(k))); n != want {
					t.Errorf("decisions of kind %s: %v, want %v", k, n, want)
				}
			}
		})
	}
}

func noConfig(m *request) *request {
	m.ProtocolConfig = nil
	return m
}

// A body is entered before it is received, so that what has no room is refused while it is still Envoy's.
func TestBodyEnteredBeforeReceipt(t *testing.T) {
	const maxBody = 8 << 20
	tests := []struct {
		name       string
		waiting    []string // declared lengths of streams that wait for their bodies, "" = undeclared
		then       string
		wantUnread bool
	}{
		{name: "room for one large body more", waiting: []string{"8388608"}, then: "4194304"},
		{name: "ordinary body beside large ones", waiting: []string{"8388608", "7340032"}, then: "60000"},
		{name: "undeclared beside ordinary ones", waiting: []string{"60000", "60000"}, then: ""},
		{name: "large body beside large ones", waiting: []string{"8388608", "7340032"}, then: "8388608", wantUnread: true},
		{name: "undeclared beside large ones", waiting: []string{"8388608", "7340032"}, then: "", wantUnread: true},
		{name: "large beside undeclared ones", waiting: make([]string, 15), then: "8388608", wantUnread: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t, Options{MaxBody: maxBody, MaxTotal: 4 * maxBody, Decider: always(decided())})
			open := func(declared string) (*fake, <-chan outcome, *response) {
				f := newFake()
				done := f.serve(s)
				m := headersIn(false)
				if declared != "" {
					m = headersIn(false, "content-length", declared)
				}
				f.in <- m
				return f, done, <-f.out
			}
			for _, declared := range tt.waiting {
				f, done, r := open(declared)
				defer f.cancel()
				if r.GetDynamicMetadata() != nil {
					t.Fatalf("body of %q bytes not asked for", declared)
				}
				defer func() { <-done }()
				defer f.cancel()
			}
			f, done, r := open(tt.then)
			if unread := r.GetDynamicMetadata() != nil; unread != tt.wantUnread {
				t.Errorf("decided without the body: %v, want %v", unread, tt.wantUnread)
			}
			f.cancel()
			<-done
		})
	}
}

// Clients that declare bodies and never send them keep no small body from being read.
func TestIdleUploadsLeaveRoom(t *testing.T) {
	const maxBody = 8 << 20
	for _, declared := range []string{"60000", "200000", "8000000"} {
		t.Run(declared, func(t *testing.T) {
			var body string
			s := newService(t, Options{MaxBody: maxBody, MaxTotal: 2 * maxBody, Decider: deciderFunc(func(_ context.Context, r router.Request) router.Decision {
				body = string(r.Body)
				return decided()
			})})
			for range 400 {
				f := newFake()
				done := f.serve(s)
				defer func() {
					f.cancel()
					<-done
				}()
				f.in <- headersIn(false, "content-length", declared)
				<-f.out
			}
			o := play(t, s, []step{says(headersIn(false, "content-length", "4"), proceed()), says(bodyIn(true, "abcd"), decisionReply(bodyPhase, decided()))}, nil)
			if o != outcomeRouted || body != "abcd" {
				t.Errorf("outcome %q, body %q", o, body)
			}
		})
	}
}

// What an undeclared body turns out to hold beyond its estimate is refused after receipt when there is no room.
func TestUndeclaredBodySettledOnReceipt(t *testing.T) {
	const maxBody = 8 << 20
	var unread bool
	s := newService(t, Options{MaxBody: maxBody, MaxTotal: 2 * maxBody, Decider: deciderFunc(func(_ context.Context, r router.Request) router.Decision {
		unread = r.Unread
		if r.Unread && r.Body != nil {
			t.Error("unread request with a body")
		}
		return decided()
	})})
	other := newFake()
	otherDone := other.serve(s)
	other.in <- headersIn(false, "content-length", "6291456")
	<-other.out

	o := play(t, s, []step{says(headersIn(false), proceed()), says(bodyIn(true, big(4<<20)), decisionReply(bodyPhase, decided()))}, nil)
	if o != outcomeRouted || !unread {
		t.Errorf("outcome %q, unread %v", o, unread)
	}
	other.cancel()
	<-otherDone
}

// A request whose decision panics goes on without one.
func TestPanicEndsTheStream(t *testing.T) {
	var log bytes.Buffer
	s := newService(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Decider: deciderFunc(func(_ context.Context, r router.Request) router.Decision {
		panic(string(r.Body))
	})})
	at := func(p phase) *response { return decisionReply(p, router.Decision{Rung: router.RungNone}) }
	tests := []struct {
		name  string
		steps []step
	}{
		{"on headers", []step{says(headersIn(true), at(headersPhase))}},
		{"on a body", []step{says(headersIn(false, "content-length", "6"), proceed()), says(bodyIn(true, "secret"), at(bodyPhase))}},
		{"on a body of undeclared length", []step{says(headersIn(false), proceed()), says(bodyIn(true, "secret"), at(bodyPhase))}},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if o := play(t, s, tt.steps, nil); o != outcomePanic {
				t.Errorf("outcome %q", o)
			}
			if n := testutil.ToFloat64(s.metrics.panics); n != float64(i+1) {
				t.Errorf("%v panics counted, want %d", n, i+1)
			}
		})
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || strings.Contains(log.String(), "secret") || !strings.Contains(log.String(), "value of type string") {
		t.Errorf("log of %d lines: %s", n, log.String())
	}
}

// panicking is a stream whose n-th receive panics, as a decoder might.
type panicking struct {
	*fake
	left int
}

func (p *panicking) Recv() (*request, error) {
	if p.left--; p.left < 0 {
		panic("decoder")
	}
	return p.fake.Recv()
}

func TestPanicWhileReceiving(t *testing.T) {
	for _, after := range []int{0, 1} {
		s := newService(t, Options{Decider: always(decided())})
		f := &panicking{fake: newFake(), left: after}
		done := make(chan outcome, 1)
		go func() { done <- s.converse(f) }()
		if after > 0 { // of undeclared length: received in another goroutine
			f.in <- headersIn(false)
			<-f.out
		}
		if o := <-done; o != outcomePanic {
			t.Errorf("after %d messages: outcome %q", after, o)
		}
	}
}

func TestBodyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, Options{Decider: always(decided()), BodyWait: 30 * time.Second})
		f := newFake()
		start, done := time.Now(), f.serve(s)
		f.in <- headersIn(false, "content-length", "100000")
		<-f.out
		if o := <-done; o != outcomeExpired {
			t.Errorf("outcome %q", o)
		}
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("ended after %v", d)
		}
	})
}

func TestClosingEndsWaits(t *testing.T) {
	s := newService(t, Options{Decider: always(decided())})
	o := play(t, s, []step{says(headersIn(false), proceed())}, func(*fake) { close(s.closing) })
	if o != outcomeDrained {
		t.Errorf("outcome %q", o)
	}
}

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, Options{Budget: 400 * time.Millisecond, Decider: deciderFunc(func(ctx context.Context, _ router.Request) router.Decision {
			start := time.Now()
			<-ctx.Done()
			if d := time.Since(start); d != 400*time.Millisecond || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("ended after %v: %v", d, ctx.Err())
			}
			return router.Decision{Reason: "budget"}
		})})
		want := decisionReply(headersPhase, router.Decision{Reason: "budget"})
		if o := play(t, s, []step{says(headersIn(true), want)}, nil); o != outcomeUnrouted {
			t.Errorf("outcome %q", o)
		}
	})
}

func TestAbortEndsTheDecision(t *testing.T) {
	deciding := make(chan struct{})
	s := newService(t, Options{Decider: deciderFunc(func(ctx context.Context, _ router.Request) router.Decision {
		close(deciding)
		<-ctx.Done()
		return decided()
	}), Budget: time.Hour})
	o := play(t, s, []step{says(headersIn(true))}, func(f *fake) {
		<-deciding
		f.cancel()
	})
	if o != outcomeAborted {
		t.Errorf("outcome %q", o)
	}
}
