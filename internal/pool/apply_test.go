package pool

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// with is the pool chat with these endpoints.
func with(endpoints ...string) Config {
	c := chat()
	c.Endpoints = endpoints
	return c
}

const (
	one   = "10.0.0.1:8000"
	two   = "10.0.0.2:8000"
	three = "10.0.0.3:8000"
)

func newSet(t *testing.T, o Options) *Set {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// find returns an endpoint of a set; nil when it has none.
func find(s *Set, pool, addr string) *Endpoint { return s.Endpoint(pool, addr) }

func TestApplyKeepsEndpoints(t *testing.T) {
	s := newSet(t, Options{Pools: []Config{with(one, two)}})
	first, second := find(s, "chat", one), find(s, "chat", two)
	first.change(func(h health) health { return h.failed(true) })
	if err := s.Apply([]Config{with(three, one)}); err != nil {
		t.Fatal(err)
	}
	if got := find(s, "chat", one); got != first || got.Healthy() {
		t.Errorf("the endpoint that stays is %p, healthy %v, want %p, down", got, got.Healthy(), first)
	}
	if find(s, "chat", two) != nil || find(s, "chat", three) == nil {
		t.Error("endpoints are not those of the new configuration")
	}
	if err := s.Apply([]Config{with(two)}); err != nil {
		t.Fatal(err)
	}
	if find(s, "chat", two) == second {
		t.Error("an endpoint that was gone is back with what was known of it")
	}
	moved := Config{Name: "code", Models: []string{"qwen"}, Endpoints: []string{two}}
	if err := s.Apply([]Config{with(one), moved}); err != nil {
		t.Fatal(err)
	}
	if find(s, "chat", two) != nil || find(s, "code", two) == nil {
		t.Error("the endpoint has not moved to the other pool")
	}
	if p, adapter, ok := s.ByModel("qwen"); !ok || p.Name() != "code" || adapter != "" {
		t.Error("the other pool is not found by its model")
	}
}

func TestApplyRefusesAll(t *testing.T) {
	s := newSet(t, Options{Pools: []Config{with(one)}})
	before := s.view.Load()
	bad := with("engine:8000", three)
	bad.Mode = "sometimes"
	err := s.Apply([]Config{bad})
	for _, part := range []string{`"engine:8000" is not ip:port`, `"sometimes"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v lacks %q", err, part)
		}
	}
	if s.view.Load() != before {
		t.Error("a refused configuration has changed the pools")
	}
}

func TestDrain(t *testing.T) {
	draining := func(c Config, addr ...string) []Config {
		c.Draining = addr
		return []Config{c}
	}
	s := newSet(t, Options{Pools: draining(with(one, two), one)})
	steps := []struct {
		name     string
		do       func() error
		one, two bool
	}{
		{"as configured", func() error { return nil }, true, false},
		{"ended by a call", func() error { find(s, "chat", one).Drain(false); return nil }, false, false},
		{"the same configuration leaves it", func() error { return s.Apply(draining(with(one, two, three), one)) }, false, false},
		{"another one of the other endpoint too", func() error { return s.Apply(draining(with(one, two), one, two)) }, false, true},
		{"configured no more", func() error { return s.Apply(draining(with(one, two), two)) }, false, true},
		{"configured again", func() error { return s.Apply(draining(with(one, two), one)) }, true, false},
		{"twice by a call", func() error { find(s, "chat", two).Drain(true); find(s, "chat", two).Drain(true); return nil }, true, true},
	}
	for _, st := range steps {
		if err := st.do(); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
		if a, b := find(s, "chat", one).Draining(), find(s, "chat", two).Draining(); a != st.one || b != st.two {
			t.Errorf("%s: draining %v and %v, want %v and %v", st.name, a, b, st.one, st.two)
		}
	}
}

// A leaving endpoint gets nothing, whatever a call says, and what a call said counts again when it is not leaving any more.
func TestLeaving(t *testing.T) {
	leaving := func(draining bool, addr ...string) []Config {
		c := with(one, two)
		c.Leaving = addr
		if draining {
			c.Draining = []string{one}
		}
		return []Config{c}
	}
	s := newSet(t, Options{Pools: leaving(false, one)})
	e := find(s, "chat", one)
	drain := func(on bool) func() error { return func() error { e.Drain(on); return nil } }
	apply := func(draining bool, addr ...string) func() error {
		return func() error { return s.Apply(leaving(draining, addr...)) }
	}
	steps := []struct {
		name              string
		do                func() error
		draining, leaving bool
		life              uint64
	}{
		{"leaving at first", func() error { return nil }, true, true, 1},
		{"a call does not end it", drain(false), true, true, 1},
		{"not leaving", apply(false), false, false, 1},
		{"leaving again", apply(false, one), true, true, 2},
		{"the same again", apply(false, one), true, true, 2},
		{"drained too", drain(true), true, true, 2},
		{"drained only", apply(false), true, false, 2},
		{"leaving too", apply(false, one), true, true, 2},
		{"not drained", drain(false), true, true, 2},
		{"neither", apply(false), false, false, 2},
		{"both by configuration", apply(true, one), true, true, 3},
		{"drained by configuration", apply(true), true, false, 3},
	}
	for _, st := range steps {
		if err := st.do(); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
		if e.Draining() != st.draining || e.Leaving() != st.leaving || e.Life() != st.life {
			t.Errorf("%s: draining %v, leaving %v, life %d; want %v, %v, %d", st.name, e.Draining(), e.Leaving(), e.Life(), st.draining, st.leaving, st.life)
		}
	}
}

func TestSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e engine
		e.set(alive)
		_, ep, stop := run(t, &e)
		defer stop()
		<-time.After(time.Minute)
		e.set(hung)
		before := e.probes.Load()
		for range 1000 {
			ep.ReportMissed()
		}
		synctest.Wait()
		if !ep.Suspect() || !ep.Healthy() {
			t.Fatalf("suspect %v, healthy %v after a missed request", ep.Suspect(), ep.Healthy())
		}
		<-time.After(30 * time.Second)
		// A probe that hangs takes a second itself.
		if n := e.probes.Load() - before; n < 12 || n > 40 {
			t.Errorf("%d probes in 30 s of a suspect endpoint, want one a second", n)
		}
		if !ep.Suspect() {
			t.Error("no longer suspect without a good probe")
		}
		e.set(alive)
		<-time.After(3 * time.Second)
		synctest.Wait()
		if ep.Suspect() || !ep.Healthy() {
			t.Errorf("suspect %v, healthy %v after a good probe", ep.Suspect(), ep.Healthy())
		}
	})
}

// hosts answers probes by the endpoint asked.
type hosts map[string]*engine

func (h hosts) RoundTrip(r *http.Request) (*http.Response, error) { return h[r.URL.Host].RoundTrip(r) }

func TestRunFollowsApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := hosts{one: {}, two: {}, three: {}}
		for _, e := range net {
			e.set(alive)
		}
		reg := prometheus.NewRegistry()
		s := newSet(t, Options{Pools: []Config{with(one, two)}, HTTP: &http.Client{Transport: net}, Metrics: NewMetrics(reg)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		<-time.After(time.Minute)

		if err := s.Apply([]Config{with(one, three)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		gone := net[two].probes.Load()
		<-time.After(time.Minute)
		synctest.Wait()
		if n := net[two].probes.Load(); n != gone || gone == 0 {
			t.Errorf("%d probes of an endpoint that is gone, after %d before", n-gone, gone)
		}
		if n := net[three].probes.Load(); n < 20 {
			t.Errorf("%d probes of the endpoint that came in a minute", n)
		}
		requireSeries(t, reg, one, three)

		// Gone and back before Run looks: the series are those of the one that is back.
		for _, c := range []Config{with(three), with(one, three)} {
			if err := s.Apply([]Config{c}); err != nil {
				t.Fatal(err)
			}
		}
		find(s, "chat", one).Drain(true)
		synctest.Wait()
		requireSeries(t, reg, one, three)

		s.SetProbeInterval(100 * time.Millisecond)
		before := net[one].probes.Load()
		<-time.After(10 * time.Second)
		if n := net[one].probes.Load() - before; n < 80 {
			t.Errorf("%d probes in 10 s at an interval of 100 ms", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		find(s, "chat", one).ReportMissed()
		requireSeries(t, reg)
	})
}

// requireSeries wants exactly these endpoints to have series.
func requireSeries(t *testing.T, reg *prometheus.Registry, endpoints ...string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ofEndpoints := 0
	for _, f := range families {
		if len(endpoints) > 0 && f.GetName() == "kvsteer_pool_adapters" {
			continue // a pool's
		}
		ofEndpoints++
		found := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "endpoint" {
					found[l.GetValue()] = true
				}
			}
		}
		if len(found) != len(endpoints) {
			t.Errorf("%s: series of %v, want %v", f.GetName(), found, endpoints)
		}
		for _, e := range endpoints {
			if !found[e] {
				t.Errorf("%s: no series of %s", f.GetName(), e)
			}
		}
	}
	if len(endpoints) > 0 && ofEndpoints != 5 {
		t.Errorf("%d families of endpoints, want 5", ofEndpoints)
	}
}

// Lookups beside Apply always find a whole configuration, and the endpoint that is in each.
func TestApplyBesideLookups(t *testing.T) {
	s := newSet(t, Options{Pools: []Config{with(one, two)}})
	kept := find(s, "chat", one)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 500 {
			if err := s.Apply([]Config{with(one, fmt.Sprintf("10.0.1.%d:8000", 1+i%250))}); err != nil {
				t.Error(err)
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		p, _, ok := s.ByModel("llama")
		if !ok || len(p.Endpoints()) != 2 || p.Endpoints()[0] != kept {
			t.Fatalf("found %v with %v", ok, p.Endpoints())
		}
	}
}

// An engine has another life after each time that it was down, and after each time that it was told to drain.
func TestLife(t *testing.T) {
	s := newSet(t, Options{Pools: []Config{with(one, two)}})
	e := find(s, "chat", one)
	down := func() { e.change(func(h health) health { return h.failed(true) }) }
	for _, st := range []struct {
		name string
		do   func()
		want uint64
	}{
		{"one failed probe", func() { e.change(func(h health) health { return h.failed(false) }) }, 0},
		{"down", down, 1},
		{"still down", down, 1},
		{"back", func() { e.change(func(h health) health { return h.ok(time.Now()) }) }, 1},
		{"not draining, and told not to", func() { e.Drain(false) }, 1},
		{"drained", func() { e.Drain(true) }, 2},
		{"drained twice", func() { e.Drain(true) }, 2},
		{"taken back", func() { e.Drain(false) }, 2},
		{"drained by the configuration", func() {
			c := with(one, two)
			c.Draining = []string{one}
			if err := s.Apply([]Config{c}); err != nil {
				t.Fatal(err)
			}
		}, 3},
	} {
		if st.do(); e.Life() != st.want {
			t.Errorf("%s: life %d, want %d", st.name, e.Life(), st.want)
		}
	}
}
