package pool

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine answers probes without a network.
type engine struct {
	probes atomic.Int64
	answer atomic.Pointer[func(*http.Request) (int, error)]
}

func (e *engine) set(f func(*http.Request) (int, error)) { e.answer.Store(&f) }

func (e *engine) RoundTrip(r *http.Request) (*http.Response, error) {
	e.probes.Add(1)
	status, err := (*e.answer.Load())(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

func alive(*http.Request) (int, error)  { return 200, nil }
func broken(*http.Request) (int, error) { return 503, nil }
func refused(*http.Request) (int, error) {
	return 0, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
}
func hung(r *http.Request) (int, error) { <-r.Context().Done(); return 0, r.Context().Err() }

// run starts probing one endpoint inside a synctest bubble; stop waits for its end.
func run(t *testing.T, e *engine) (s *Set, ep *Endpoint, stop func()) {
	t.Helper()
	s, err := New(Options{Pools: []Config{chat()}, HTTP: &http.Client{Transport: e}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	return s, s.Pools()[0].Endpoints()[0], func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func TestProbesFollowTheEndpoint(t *testing.T) {
	tests := []struct {
		name     string
		answer   func(*http.Request) (int, error)
		downTime time.Duration // by when the endpoint is down; 0: never within a minute
	}{
		{"alive", alive, 0},
		{"no such path", func(*http.Request) (int, error) { return 404, nil }, 0},
		{"503", broken, time.Second},
		{"reset", func(*http.Request) (int, error) { return 0, syscall.ECONNRESET }, time.Second},
		{"refused", refused, 10 * time.Millisecond},
		{"hung", hung, 3 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var e engine
				e.set(tt.answer)
				_, ep, stop := run(t, &e)
				defer stop()
				if !ep.Healthy() {
					t.Error("down before the first probe")
				}
				wait := tt.downTime
				if wait == 0 {
					wait = time.Minute
				}
				<-time.After(wait)
				synctest.Wait()
				if ep.Healthy() != (tt.downTime == 0) {
					t.Errorf("healthy = %v after %v", ep.Healthy(), wait)
				}
				e.set(alive)
				<-time.After(13 * time.Second) // longest backoff with its jitter
				synctest.Wait()
				if !ep.Healthy() {
					t.Error("not back after good probes")
				}
			})
		})
	}
}

func TestBackoffWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e engine
		e.set(refused)
		_, _, stop := run(t, &e)
		defer stop()
		<-time.After(2 * time.Minute)
		if n := e.probes.Load(); n < 10 || n > 25 {
			t.Errorf("%d probes in two minutes, want one per about 10 s", n)
		}
	})
}

func TestReportedErrorProbesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e engine
		e.set(alive)
		_, ep, stop := run(t, &e)
		defer stop()
		<-time.After(time.Second)
		e.set(hung)
		before := e.probes.Load()
		for range 1000 {
			ep.ReportConnectError()
		}
		synctest.Wait()
		if !ep.Healthy() {
			t.Fatal("down by a report alone")
		}
		if n := e.probes.Load() - before; n != 1 {
			t.Fatalf("%d probes after 1000 reports, want 1", n)
		}
		<-time.After(1100 * time.Millisecond)
		synctest.Wait()
		if ep.Healthy() {
			t.Fatal("healthy after a report and a failed probe")
		}
	})
}

// An engine whose web server lives and whose answers fail is suspect for the hold, and again with the next failure after it.
func TestServerErrorsMakeSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e engine
		e.set(alive)
		_, ep, stop := run(t, &e)
		defer stop()
		<-time.After(time.Second)
		before := e.probes.Load()
		ep.ReportServerError()
		synctest.Wait()
		if n := e.probes.Load() - before; n != 1 || ep.Suspect() || !ep.Healthy() {
			t.Fatalf("%d probes, suspect %v, healthy %v after one server error", n, ep.Suspect(), ep.Healthy())
		}
		for range suspectErrors - 1 {
			ep.ReportServerError()
		}
		<-time.After(suspectHold - time.Millisecond)
		synctest.Wait()
		if !ep.Suspect() || !ep.Healthy() {
			t.Errorf("suspect %v, healthy %v before the hold is over", ep.Suspect(), ep.Healthy())
		}
		<-time.After(suspectInterval + suspectInterval/5)
		synctest.Wait()
		if ep.Suspect() {
			t.Error("suspect after the hold")
		}
		ep.ReportServerError()
		if !ep.Suspect() {
			t.Error("not suspect after one more server error")
		}
		ep.ReportAnswer()
		if ep.Suspect() {
			t.Error("suspect after a good answer")
		}
		ep.ReportServerError()
		if ep.Suspect() {
			t.Error("suspect after one server error")
		}
	})
}

func TestRecheckWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e engine
		e.set(refused)
		_, ep, stop := run(t, &e)
		defer stop()
		<-time.After(time.Minute)
		e.set(alive)
		ep.Recheck()
		<-time.After(probeGap)
		synctest.Wait()
		if !ep.Healthy() {
			t.Error("the probe was not hastened")
		}
	})
}

func TestReportsWithoutRun(t *testing.T) {
	s, err := New(Options{Pools: []Config{chat()}})
	if err != nil {
		t.Fatal(err)
	}
	ep := s.Pools()[0].Endpoints()[0]
	for range 10 {
		ep.ReportConnectError()
		ep.Recheck()
	}
	if !ep.Healthy() {
		t.Error("down without any probe")
	}
}

func TestSeriesEndWithRun(t *testing.T) {
	reg := prometheus.NewRegistry()
	var e engine
	e.set(refused)
	s, err := New(Options{Pools: []Config{chat()}, HTTP: &http.Client{Transport: &e}, Metrics: NewMetrics(reg)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	want := `
# HELP kvsteer_pool_endpoint_up 1 while requests may be routed to the endpoint, 0 while it is down.
# TYPE kvsteer_pool_endpoint_up gauge
kvsteer_pool_endpoint_up{endpoint="10.0.0.1:8000",pool="chat"} 0
`
	eventually(t, func() bool {
		return testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_pool_endpoint_up") == nil
	})
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	cancel()
	<-done
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
		t.Errorf("%d series left after Run, error %v", n, err)
	}
}

// A real listener that closes: the refusal is recognised through the HTTP client's wrapping.
func TestProbeOverTCP(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/health" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	addr := srv.Listener.Addr().String()
	p := prober{scheme: "http", client: probeClient(Options{}), timeout: 5 * time.Second}
	if err := p.check(t.Context(), addr); err != nil {
		t.Errorf("check of a live server: %v", err)
	}
	srv.Close()
	if err := p.check(t.Context(), addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("check of a closed port: %v, want a refusal", err)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("condition not met in 5 s")
		}
		<-tick.C
	}
}
