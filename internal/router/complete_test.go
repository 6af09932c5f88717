package router

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/pool"
)

func TestJudge(t *testing.T) {
	const pick, other = "10.0.0.1:8000", "10.0.0.2:8000"
	tests := []struct {
		name      string
		c         Completion
		unsteered bool // the decision was not to be obeyed
		want      ending
	}{
		{"answered", Completion{Upstream: pick, Code: 200, Answered: true}, false, ending{computed: true, tried: pick, trial: trialGood}},
		{"refused by the engine", Completion{Upstream: pick, Code: 400, Answered: true}, false, ending{computed: true, tried: pick, trial: trialGood}},
		{"not implemented by the engine", Completion{Upstream: pick, Code: 501, Answered: true}, false, ending{computed: true, tried: pick, trial: trialGood}},
		{"engine broken", Completion{Upstream: pick, Code: 500, Answered: true}, false, ending{computed: true, tried: pick, trial: trialBad}},
		{"engine died while answering", Completion{Upstream: pick, Code: 200, Broken: true}, false, ending{computed: true, tried: pick, trial: trialBad}},
		{"Envoy's own 503 with an upstream", Completion{Upstream: pick, Code: 503}, false, ending{computed: true, tried: pick}},
		{"Envoy's own 504", Completion{Upstream: pick, Code: 504}, false, ending{computed: true, tried: pick}},
		{"the client left", Completion{Upstream: pick}, false, ending{computed: true, tried: pick}},
		{"the client left before there was an upstream", Completion{}, false, ending{tried: pick}},
		{"no upstream, Envoy's own 503", Completion{Code: 503}, false, ending{tried: pick}},
		{"no upstream and an answer, which cannot be", Completion{Code: 500, Answered: true, Broken: true}, false, ending{tried: pick}},
		{"no connection", Completion{Upstream: pick, Code: 503, ConnectFailed: true, Attempts: 1}, false, ending{tried: pick, trial: trialUnreached}},
		{"no connection and no upstream", Completion{Code: 503, ConnectFailed: true}, false, ending{tried: pick, trial: trialUnreached}},
		{
			"answered by another one at the second attempt",
			Completion{Upstream: other, Code: 200, Answered: true, Attempts: 2},
			false,
			ending{moved: true, tried: other, trial: trialGood, missed: trialUnreached},
		},
		{
			"answered by another one at once",
			Completion{Upstream: other, Code: 200, Answered: true, Attempts: 1},
			false,
			ending{moved: true, tried: other, trial: trialGood, missed: trialSkipped},
		},
		{
			"answered by another one, attempts not known",
			Completion{Upstream: other, Code: 200, Answered: true},
			false,
			ending{moved: true, tried: other, trial: trialGood, missed: trialSkipped},
		},
		{
			"failed at another one",
			Completion{Upstream: other, Code: 500, Answered: true, Attempts: 2},
			false,
			ending{moved: true, tried: other, trial: trialBad, missed: trialUnreached},
		},
		{
			"no connection to another one",
			Completion{Upstream: other, Code: 503, ConnectFailed: true, Attempts: 3},
			false,
			ending{moved: true, tried: other, trial: trialUnreached, missed: trialUnreached},
		},
		{"not steered, ran at the choice", Completion{Upstream: pick, Code: 200, Answered: true}, true, ending{computed: true, tried: pick, trial: trialGood}},
		{"not steered, ran elsewhere", Completion{Upstream: other, Code: 200, Answered: true, Attempts: 2}, true, ending{computed: true, tried: other, trial: trialGood}},
		{"not steered, no connection elsewhere", Completion{Upstream: other, ConnectFailed: true}, true, ending{computed: true, tried: other, trial: trialUnreached}},
		{"not steered, no upstream", Completion{Code: 503}, true, ending{computed: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := judge(tt.c, pick, !tt.unsteered); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// decide makes a decision for a prompt of so many tokens that no endpoint holds.
func (w *world) decide(tokens int) Decision {
	w.t.Helper()
	d := w.r.Decide(w.t.Context(), given("llama", run(1, tokens)))
	if d.Endpoint == "" {
		w.t.Fatalf("no endpoint: %+v", d)
	}
	return d
}

// answered is the record of a decision's request that was answered by an endpoint.
func answered(d Decision, upstream string) Completion {
	return Completion{ID: d.ID, Pool: d.Pool, Upstream: upstream, Attempts: 1, Code: 200, Answered: true}
}

func TestCompleteOutcomes(t *testing.T) {
	tests := []struct {
		name   string
		change func(c *Completion)
		want   RecordOutcome
		open   bool // the decision stays open
	}{
		{"answered by the choice", func(*Completion) {}, RecordReleased, false},
		{"client left", func(c *Completion) { c.Upstream, c.Code, c.Answered = "", 0, false }, RecordReleased, false},
		{"answered by another endpoint", func(c *Completion) { c.Upstream = address(7) }, RecordMoved, false},
		{"answered by somebody unknown", func(c *Completion) { c.Upstream = "192.0.2.1:80" }, RecordMoved, false},
		{"begin of a request", func(c *Completion) { c.Partial = true }, RecordPartial, true},
		{"no decision", func(c *Completion) { c.ID, c.Pool = "", "" }, RecordUndecided, true},
		{"another router's", func(c *Completion) { c.ID = "aaaaaaaa-1" }, RecordForeign, true},
		{"another router's, pool unknown", func(c *Completion) { c.ID, c.Pool = "aaaaaaaa-1", "none" }, RecordForeign, true},
		{"number not given yet", func(c *Completion) { c.ID += "0" }, RecordUnknown, true},
		{"no number", func(c *Completion) { c.ID = c.ID[:9] }, RecordUnknown, true},
		{"number zero", func(c *Completion) { c.ID = c.ID[:9] + "0" }, RecordUnknown, true},
		{"negative", func(c *Completion) { c.ID = c.ID[:9] + "-1" }, RecordUnknown, true},
		{"number of 65 bits", func(c *Completion) { c.ID = c.ID[:9] + "zzzzzzzzzzzzzzzz" }, RecordUnknown, true},
		{"not an id", func(c *Completion) { c.ID = "1" }, RecordUnknown, true},
		{"no instance", func(c *Completion) { c.ID = c.ID[8:] }, RecordUnknown, true},
		{"pool unknown", func(c *Completion) { c.Pool = "none" }, RecordLate, true},
		{"another pool's", func(c *Completion) { c.Pool = "code" }, RecordLate, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			w := newWorld(t, Options{Metrics: NewMetrics(reg)}, chat(8), coder())
			d := w.decide(100)
			for d.Endpoint == address(7) {
				d = w.decide(100)
			}
			before, _, _ := w.r.all()[0].openDecisions()
			c := answered(d, d.Endpoint)
			tt.change(&c)
			w.r.Complete(c)
			if n := testutil.ToFloat64(w.r.m.records.WithLabelValues(string(tt.want))); n != 1 {
				t.Errorf("%v records counted as %s", n, tt.want)
			}
			after, _, _ := w.r.all()[0].openDecisions()
			if open := after == before; open != tt.open {
				t.Errorf("open = %v, want %v", open, tt.open)
			}
			if tt.open {
				return
			}
			w.r.Complete(c)
			if n := testutil.ToFloat64(w.r.m.records.WithLabelValues(string(RecordLate))); n != 1 {
				t.Errorf("the same record again: %v records counted as late", n)
			}
		})
	}
}

// coder is a second pool.
func coder() (c pool.Config) {
	c.Name, c.Models, c.Match.Host = "code", []string{"coder"}, "code.test"
	c.Endpoints = []string{"10.9.0.1:8000"}
	return c
}

func TestCompleteReleases(t *testing.T) {
	w := newWorld(t, Options{PrefillRate: 1000}, chat(1))
	d := w.decide(5000)
	want := func(what string, backlog, running, recent float64) {
		t.Helper()
		l := w.loads(w.clock())[0]
		if !near(l.backlog, backlog, 1e-6) || !near(l.running, running, 1e-6) || !near(l.memory, running+recent, 1e-6) {
			t.Errorf("%s: %+v, want backlog %v, running %v, recent %v", what, l, backlog, running, recent)
		}
	}
	want("just charged", 5000, 5000, 5000)
	w.r.Complete(answered(d, d.Endpoint))
	want("ended", 0, 0, 5000)

	// From the first record on, what runs does not fade.
	d = w.decide(1000)
	w.pass(30 * time.Second)
	want("30 s later", 0, 1000, 3000)
	w.r.Complete(answered(d, d.Endpoint))
	want("ended", 0, 0, 3000)

	// Without records it does.
	w.pass(60 * time.Second)
	d = w.decide(1000)
	w.pass(5 * time.Second)
	want("a minute without records and 5 s", 0, 500, 3000*0.25*0.8908987181403393+1000*0.8908987181403393)
	w.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Undelivered: true})
	want("never sent", 0, 0, 3000*0.25*0.8908987181403393)
	if n := testutil.ToFloat64(w.r.m.records.WithLabelValues(string(RecordReleased))); n != 2 {
		t.Errorf("%v records released, want 2: what was not sent is none", n)
	}
}

func TestCompleteMoves(t *testing.T) {
	w := newWorld(t, Options{PrefillRate: 1000}, chat(3))
	d := w.decide(4000)
	from, to := -1, -1
	for i := range 3 {
		if address(i) == d.Endpoint {
			from = i
		} else {
			to = i
		}
	}
	w.pass(30 * time.Second) // half of what was computed is forgotten
	w.r.Complete(answered(d, address(to)))
	for i, l := range w.loads(w.clock()) {
		want := load{}
		if i == to {
			want.memory = 2000
		}
		l.queue = 0
		if !near(l.memory, want.memory, 1e-6) || l.backlog != 0 || l.running != 0 {
			t.Errorf("endpoint %d (from %d to %d): %+v, want %+v", i, from, to, l, want)
		}
	}
}

// What a record says of endpoints reaches their health.
func TestRecordsFeedHealth(t *testing.T) {
	tests := []struct {
		name  string
		c     Completion // Upstream "pick" and "other" stand for addresses
		times int
		pick  bool // is suspect then
		other bool
	}{
		{name: "answered", c: Completion{Upstream: "pick", Code: 200, Answered: true}, times: 1},
		{name: "no connection", c: Completion{Upstream: "pick", Code: 503, ConnectFailed: true}, times: 1, pick: true},
		{name: "moved", c: Completion{Upstream: "other", Code: 200, Answered: true, Attempts: 2}, times: 1, pick: true},
		{name: "moved and failed", c: Completion{Upstream: "other", Code: 503, ConnectFailed: true, Attempts: 2}, times: 1, pick: true, other: true},
		{name: "one server error", c: Completion{Upstream: "pick", Code: 500, Answered: true}, times: 1},
		{name: "many server errors", c: Completion{Upstream: "pick", Code: 500, Answered: true}, times: 5, pick: true},
		{name: "many answers of Envoy's own", c: Completion{Upstream: "pick", Code: 503}, times: 20},
		{name: "many broken answers", c: Completion{Upstream: "pick", Code: 200, Broken: true}, times: 5, pick: true},
		{name: "many bad requests", c: Completion{Upstream: "pick", Code: 400, Answered: true}, times: 20},
		{name: "many clients that left", c: Completion{}, times: 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2))
			f := w.r.all()[0]
			pick, other := f.all()[0].endpoint, f.all()[1].endpoint
			for n := 0; n < tt.times; {
				d := w.decide(100)
				c := tt.c
				c.ID, c.Pool = d.ID, d.Pool
				if d.Endpoint != pick.Addr() {
					w.r.Complete(answered(d, other.Addr()))
					continue
				}
				switch n++; c.Upstream {
				case "pick":
					c.Upstream = pick.Addr()
				case "other":
					c.Upstream = other.Addr()
				}
				w.r.Complete(c)
			}
			if pick.Suspect() != tt.pick || other.Suspect() != tt.other {
				t.Errorf("suspect: pick %v, other %v, want %v and %v", pick.Suspect(), other.Suspect(), tt.pick, tt.other)
			}
		})
	}
}

// No decision stays open that nobody can end.
func TestDecisionsWithoutRequestAreNotOpen(t *testing.T) {
	matched := chat(2)
	matched.Match.Host = "chat.test"
	w := newWorld(t, Options{}, matched, coder())
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w.r.Decide(gone, given("llama", run(1, 100)))
	w.r.Decide(t.Context(), given("nobody's", run(1, 100)))
	w.fail("10.9.0.1:8000")
	w.r.Decide(t.Context(), given("coder", run(1, 100)))
	for i, f := range w.r.all() {
		if open, _, _ := f.openDecisions(); open != 0 {
			t.Errorf("pool %d: %d decisions are open", i, open)
		}
	}
	d := w.r.Decide(t.Context(), Request{Meta: given("llama", nil).Meta, Host: "chat.test"})
	if open, _, _ := w.r.all()[0].openDecisions(); d.Endpoint == "" || open != 1 {
		t.Errorf("a request without a prompt: %d decisions are open, endpoint %q", open, d.Endpoint)
	}
}
