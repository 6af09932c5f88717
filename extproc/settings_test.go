package extproc

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvsteer/kvsteer/internal/router"
)

func TestReady(t *testing.T) {
	ready := make(chan struct{})
	r := run(t, listenTCP(t), Options{Decider: always(decided()), Ready: ready})
	checks := healthpb.NewHealthClient(r.conn)
	is := func(service string, want healthpb.HealthCheckResponse_ServingStatus) bool {
		resp, err := checks.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		return err == nil && resp.GetStatus() == want
	}
	services := []string{"", "envoy.service.ext_proc.v3.ExternalProcessor"}
	for _, s := range services {
		if !is(s, healthpb.HealthCheckResponse_NOT_SERVING) {
			t.Errorf("%q: not NOT_SERVING before it is ready", s)
		}
	}
	if got := target(exchangeOne(t, r.open(t.Context(), t), headersIn(true))); got == "" {
		t.Error("not routed before it is ready")
	}
	close(ready)
	for _, s := range services {
		eventually(t, "SERVING", func() bool { return is(s, healthpb.HealthCheckResponse_SERVING) })
	}

	// Whoever watches is told before the connection ends.
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	watch, err := checks.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := watch.Recv(); err != nil || resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("watched: %v, error %v", resp, err)
	}
	r.stop()
	if resp, err := watch.Recv(); err != nil || resp.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("watched at the end: %v, error %v", resp, err)
	}
}

// A stop before it is ready ends as any other.
func TestNeverReady(t *testing.T) {
	r := run(t, listenTCP(t), Options{Decider: always(decided()), Ready: make(chan struct{})})
	r.stop()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

func TestApply(t *testing.T) {
	var left time.Duration
	decide := deciderFunc(func(ctx context.Context, req router.Request) router.Decision {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		d := decided()
		if req.Unread {
			d.Reason = "unread"
		}
		return d
	})
	s := newService(t, Options{Decider: decide, MaxBody: 1000, Budget: time.Hour})
	reason := func(body string) string {
		t.Helper()
		var got string
		f := newFake()
		done := f.serve(s)
		f.in <- headersIn(false)
		<-f.out
		f.in <- bodyIn(true, body)
		r := <-f.out
		got = r.GetDynamicMetadata().GetFields()["kvsteer"].GetStructValue().GetFields()["reason"].GetStringValue()
		closeStream(f)
		<-done
		return got
	}
	if got := reason(big(900)); got == "unread" || left < time.Minute {
		t.Fatalf("reason %q, %v left", got, left)
	}
	if err := s.Apply(Options{MaxBody: 500, Budget: time.Second}); err != nil {
		t.Fatal(err)
	}
	if got := reason(big(900)); got != "unread" || left > time.Second {
		t.Errorf("reason %q, %v left under lower limits", got, left)
	}
	err := s.Apply(Options{MaxBody: 1001, Drain: -1})
	for _, part := range []string{"max body: 1001 is above the 1000", "drain"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v lacks %q", err, part)
		}
	}
	if got := reason(big(900)); got != "unread" {
		t.Errorf("reason %q after options that were refused", got)
	}
	if err := s.Apply(Options{MaxBody: 1000, MaxTotal: 1000 + slack}); err != nil {
		t.Fatal(err)
	}
	if got := reason(big(900)); got == "unread" {
		t.Errorf("reason %q under the limits of the beginning", got)
	}
}

// passer decides nothing for one path.
type passer struct{ deciderFunc }

func (passer) Passes(req router.Request) bool { return req.Meta.Path == "/v1/completions" }

// A body that nobody would read is not asked for.
func TestPasser(t *testing.T) {
	none := router.Decision{ID: "a", Mode: router.ModeOff, Rung: router.RungNone, Reason: "off"}
	s := newService(t, Options{Decider: passer{always(none)}})
	o := play(t, s, []step{says(headersIn(false, "content-length", "1024"), decisionReply(headersPhase, none))}, nil)
	if o != outcomeUnrouted {
		t.Errorf("outcome %s", o)
	}
	if got := testutil.ToFloat64(s.metrics.decisions.WithLabelValues(string(kindPassed))); got != 1 {
		t.Errorf("%v decisions of this kind", got)
	}
}

func TestAccountBound(t *testing.T) {
	a := newAccount(100, 1000, newGauge())
	h := holding{account: a}
	if !h.resize(900) {
		t.Fatal("no room")
	}
	a.bound(100, 500)
	if h.resize(901) {
		t.Error("room above a bound that was lowered")
	}
	if !h.resize(400) {
		t.Error("no room for less")
	}
	a.bound(100, 2000)
	if !h.resize(901) {
		t.Error("no room below a bound that was raised")
	}
}
