package scrape

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/kvsteer/kvsteer/internal/enginesim"
	"github.com/kvsteer/kvsteer/internal/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine answers scrapes in process.
type fakeEngine struct {
	page atomic.Pointer[string]
	err  atomic.Pointer[error]
	asks atomic.Int64
}

func (e *fakeEngine) serve(page string) { e.page.Store(&page); e.err.Store(nil) }
func (e *fakeEngine) fail(err error)    { e.err.Store(&err) }

func (e *fakeEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	e.asks.Add(1)
	if err := e.err.Load(); err != nil {
		if errors.Is(*err, context.DeadlineExceeded) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		return nil, *err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(*e.page.Load())), Request: r}, nil
}

// TestRun follows an engine through good, bad and better times.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &fakeEngine{}
		engine.fail(errors.New("connection refused"))
		var log logtest.Buffer
		var told []Load
		reg := prometheus.NewRegistry()
		s, err := New(Options{
			Pool: "chat", Address: "10.0.0.1:8000", HTTP: &http.Client{Transport: engine}, Told: func(l Load) { told = append(told, l) },
			Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: NewMetrics(reg),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		rest := func(seconds int) {
			time.Sleep(time.Duration(seconds) * time.Second) // of the bubble's clock
			synctest.Wait()
		}
		lines := func(what string, want int) {
			t.Helper()
			if n := strings.Count(log.String(), what); n != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", what, n, want, log.String())
			}
		}
		shown := func(want string) {
			t.Helper()
			if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_scrape_running_requests", "kvsteer_scrape_prefix_hit_tokens_total", "kvsteer_scrape_stale"); err != nil {
				t.Error(err)
			}
		}

		rest(10) // nobody there: nothing is known, which is said once
		if l, ok := s.Load(); ok || len(told) > 0 {
			t.Errorf("load %+v, told %v", l, told)
		}
		lines("cannot be read", 1)
		lines("outcome=unreachable", 1)

		engine.serve(page2)
		rest(1)
		want := Load{Running: 4, Waiting: 20, KVUsage: .3, PrefixHits: 9, PrefixQueries: 90}
		got, ok := s.Load()
		if diff := cmp.Diff(want, got, cmp.Comparer(near), cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "At" }, cmp.Ignore())); !ok || diff != "" {
			t.Errorf("ok %v (-want +got):\n%s", ok, diff)
		}
		if since := time.Since(got.At); since < 0 || since > time.Second {
			t.Errorf("read %v ago", since)
		}
		lines("are read again", 1)
		shown(`# HELP kvsteer_scrape_prefix_hit_tokens_total Prompt tokens that the engine found in its prefix cache, over its restarts.
# TYPE kvsteer_scrape_prefix_hit_tokens_total counter
kvsteer_scrape_prefix_hit_tokens_total{endpoint="10.0.0.1:8000",pool="chat"} 9
# HELP kvsteer_scrape_running_requests Requests that the engine is running.
# TYPE kvsteer_scrape_running_requests gauge
kvsteer_scrape_running_requests{endpoint="10.0.0.1:8000",pool="chat"} 4
# HELP kvsteer_scrape_stale 1 while the engine's metrics cannot be read, after three failures in a row, else 0.
# TYPE kvsteer_scrape_stale gauge
kvsteer_scrape_stale{endpoint="10.0.0.1:8000",pool="chat"} 0
`)

		engine.fail(context.DeadlineExceeded) // hangs: two failures do not matter
		rest(2)
		if l, _ := s.Load(); l.Stale {
			t.Errorf("stale after %d asks", engine.asks.Load())
		}
		engine.serve(page2)
		rest(2)
		lines("cannot be read", 1)

		engine.serve(gauges) // a family is missing: stale, with the figures of before
		rest(30)
		want.Stale = true
		got, _ = s.Load()
		if diff := cmp.Diff(want, got, cmp.Comparer(near), cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "At" }, cmp.Ignore())); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if since := time.Since(got.At); since < 29*time.Second {
			t.Errorf("the figures are %v old", since)
		}
		if last := told[len(told)-1]; last != got {
			t.Errorf("told %+v, want %+v", last, got)
		}
		lines("cannot be read", 2)
		lines("vllm:prefix_cache_queries_total", 1)
		shown(`# HELP kvsteer_scrape_prefix_hit_tokens_total Prompt tokens that the engine found in its prefix cache, over its restarts.
# TYPE kvsteer_scrape_prefix_hit_tokens_total counter
kvsteer_scrape_prefix_hit_tokens_total{endpoint="10.0.0.1:8000",pool="chat"} 9
# HELP kvsteer_scrape_stale 1 while the engine's metrics cannot be read, after three failures in a row, else 0.
# TYPE kvsteer_scrape_stale gauge
kvsteer_scrape_stale{endpoint="10.0.0.1:8000",pool="chat"} 1
`)

		engine.serve(strings.ReplaceAll(page2, " 4\n", " 1\n")) // the engine was restarted
		rest(1)
		if got, _ = s.Load(); got.Stale || got.PrefixHits != 10 || got.PrefixQueries != 130 {
			t.Errorf("%+v", got)
		}
		lines("are read again", 2)
		lines("restarted", 1)
		if n := testutil.ToFloat64(s.o.Metrics.restarts); n != 1 {
			t.Errorf("%v restarts counted", n)
		}
		for _, o := range Outcomes() {
			n := testutil.ToFloat64(s.o.Metrics.scrapes.WithLabelValues("chat", "10.0.0.1:8000", string(o)))
			if used := o == OutcomeOK || o == OutcomeUnreachable || o == OutcomeTimeout || o == OutcomeMissing; (n > 0) != used {
				t.Errorf("%v scrapes ended as %s", n, o)
			}
		}

		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n, err := testutil.GatherAndCount(reg); n != 0 || err != nil {
			t.Errorf("%d series after Run, error %v", n, err)
		}
		asks := engine.asks.Load()
		time.Sleep(time.Minute)
		if engine.asks.Load() != asks {
			t.Error("asked after Run")
		}
	})
}

// TestRunPace wants one scrape for each interval, and none beside another.
func TestRunPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &fakeEngine{}
		engine.serve(page2)
		held := time.Duration(0)
		s, err := New(Options{Address: "10.0.0.1:8000", Interval: 100 * time.Millisecond, HTTP: &http.Client{Transport: engine}, Told: func(Load) { time.Sleep(held) }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if n := engine.asks.Load(); n < 99 || n > 100 {
			t.Errorf("asked %d times in 10 s, want 100", n)
		}
		held = time.Second
		engine.asks.Store(0)
		ctx, stop = context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if n := engine.asks.Load(); n < 9 || n > 11 {
			t.Errorf("asked %d times in 10 s while each Load holds up for one, want 10", n)
		}
	})
}

func TestNew(t *testing.T) {
	if _, err := New(Options{Address: "[::1]:8000"}); err != nil {
		t.Errorf("error %v", err)
	}
	for _, tt := range []struct {
		name string
		o    Options
		want string
	}{
		{"nothing", Options{}, `address: "" is not ip:port`},
		{"a name", Options{Address: "engine:8000"}, `address: "engine:8000" is not ip:port`},
		{"a profile", Options{Address: "1.2.3.4:5", Profile: "tgi"}, `profile: "tgi" is none of [auto vllm sglang]`},
		{"a timeout", Options{Address: "1.2.3.4:5", Timeout: 2 * time.Second}, "timeout: 2s is not between 0 and the interval of 1s"},
		{"all", Options{Interval: -1, Timeout: -1}, "address: \"\" is not ip:port\ninterval: -1ns is negative\ntimeout: -1ns is not between 0 and the interval of -1ns"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.o)
			if fmt.Sprint(err) != tt.want {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// ask scrapes once.
func ask(t *testing.T, o Options) (reading, error) {
	t.Helper()
	o.Interval = 10 * time.Second
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.o.HTTP.CloseIdleConnections()
	return s.scrape(t.Context())
}

func serve(t *testing.T, h http.HandlerFunc) (address string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestScrapeEngine reads a simulated engine of two ranks.
func TestScrapeEngine(t *testing.T) {
	e, err := enginesim.New(enginesim.Options{Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	<-e.Ready()
	r, err := ask(t, Options{Address: e.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	want := reading{profile: ProfileVLLM, counts: map[string]counts{"0": {}, "1": {}}}
	if diff := cmp.Diff(want, r, cmp.AllowUnexported(reading{}, counts{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestScrapeAsks(t *testing.T) {
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "Bearer key" || r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("asked %s %s with %v", r.Method, r.URL, r.Header)
		}
		io.WriteString(w, page2)
	})
	if _, err := ask(t, Options{Address: address, APIKey: "key"}); err != nil {
		t.Error(err)
	}
}

func TestScrapeTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, page2) }))
	defer s.Close()
	address := strings.TrimPrefix(s.URL, "https://")
	dial := (&tls.Dialer{Config: s.Client().Transport.(*http.Transport).TLSClientConfig}).DialContext
	if _, err := ask(t, Options{Address: address, DialTLS: dial}); err != nil {
		t.Error(err)
	}
	if _, err := ask(t, Options{Address: address}); outcomeOf(err) != OutcomeRefused {
		t.Errorf("in clear text: error %v", err)
	}
}

// TestScrapeHostile: whatever an engine answers, it costs bounded time and memory, and nobody else is asked.
func TestScrapeHostile(t *testing.T) {
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); io.WriteString(w, page2) }
	}
	tests := []struct {
		name   string
		answer http.HandlerFunc
		want   Outcome
	}{
		{"metrics not enabled", http.NotFound, OutcomeRefused},
		{"a key is wanted", status(http.StatusUnauthorized), OutcomeRefused},
		{"server error", status(http.StatusInternalServerError), OutcomeFailed},
		{"another status", status(http.StatusAccepted), OutcomeFailed},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+elsewhere, http.StatusFound)
		}, OutcomeFailed},
		{"not a page", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"detail": "x"}`) }, OutcomeMissing},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for chunk := []byte(strings.Repeat("x", 4096)); r.Context().Err() == nil; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, OutcomeTooLarge},
		{"breaks off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			io.WriteString(w, page2)
		}, OutcomeBroken},
		{"no end", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, page2)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, OutcomeTimeout},
		{"no answer", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, OutcomeTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{Address: serve(t, tt.answer)}
			if tt.want == OutcomeTimeout {
				o.Timeout = 100 * time.Millisecond
			}
			if r, err := ask(t, o); err == nil || outcomeOf(err) != tt.want {
				t.Errorf("%+v, error %v, outcome %s, want %s", r, err, outcomeOf(err), tt.want)
			}
		})
	}
	t.Run("nobody", func(t *testing.T) {
		s := httptest.NewServer(http.NotFoundHandler())
		address := strings.TrimPrefix(s.URL, "http://")
		s.Close()
		if _, err := ask(t, Options{Address: address}); outcomeOf(err) != OutcomeUnreachable {
			t.Errorf("error %v", err)
		}
	})
}
