package router

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// within restricts a request to endpoints.
func within(r Request, addrs ...string) Request {
	r.Subset = func(addr string) bool { return slices.Contains(addrs, addr) }
	return r
}

// A request goes to the endpoint of its subset that holds most of it, whoever else holds more.
func TestSubset(t *testing.T) {
	w := newWorld(t, Options{}, chat(4))
	tokens := run(1, 10*block)
	w.hold(address(0), block, plain, tokens)
	w.hold(address(2), block, plain, tokens[:4*block])
	w.connect(address(1), block)
	for range 20 {
		d := w.r.Decide(t.Context(), within(given("llama", tokens), address(1), address(2), "10.9.9.9:1"))
		if d.Endpoint != address(2) || d.Second != address(1) || d.Matched != 4*block || d.Reason != ReasonPrefix {
			t.Fatalf("decision %+v", d)
		}
		w.pass(time.Minute)
	}
	if d := w.r.Decide(t.Context(), given("llama", tokens)); d.Endpoint != address(0) {
		t.Errorf("without a subset %+v", d)
	}
}

func TestRanked(t *testing.T) {
	tests := []struct {
		name    string
		most    int
		suspect int // endpoint, −1 for none
		want    []string
	}{
		{"not asked for", 0, -1, nil},
		{"one", 1, -1, []string{address(3)}},
		{"two", 2, -1, []string{address(3), address(1)}},
		{"all by cost", 8, -1, []string{address(3), address(1), address(0), address(2)}},
		{"suspect last", 8, 1, []string{address(3), address(0), address(2), address(1)}},
		{"suspect holder", 8, 3, []string{address(1), address(0), address(2), address(3)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(4))
			tokens := run(1, 100*block)
			w.hold(address(3), block, plain, tokens)
			w.hold(address(1), block, plain, tokens[:50*block])
			w.hold(address(0), block, plain, tokens[:20*block])
			w.connect(address(2), block)
			if tt.suspect >= 0 {
				w.r.all()[0].all()[tt.suspect].endpoint.ReportMissed()
			}
			r := given("llama", tokens)
			r.Ranked = tt.most
			d := w.r.Decide(t.Context(), r)
			if diff := cmp.Diff(tt.want, d.Ranked); diff != "" {
				t.Errorf("ranked (-want +got):\n%s", diff)
			}
			if tt.most > 1 && (d.Ranked[0] != d.Endpoint || d.Ranked[1] != d.Second) {
				t.Errorf("decision %+v", d)
			}
		})
	}
}

// Random ties: the list begins with the choices and has each endpoint once.
func TestRankedAgreesWithTheChoices(t *testing.T) {
	w := newWorld(t, Options{}, chat(12))
	for range 200 {
		d := w.r.Decide(t.Context(), Request{Unread: true, Ranked: 8})
		if len(d.Ranked) != 8 || d.Ranked[0] != d.Endpoint || d.Ranked[1] != d.Second {
			t.Fatalf("decision %+v", d)
		}
		seen := map[string]bool{}
		for _, addr := range d.Ranked {
			if seen[addr] {
				t.Fatalf("%s twice in %v", addr, d.Ranked)
			}
			seen[addr] = true
		}
	}
}

func TestShed(t *testing.T) {
	tests := []struct {
		name     string
		mode     Mode
		backlogs []float64
		shed     int
		subset   []string
		want     bool
	}{
		{"not asked for", ModeOn, []float64{5000, 5000}, 0, nil, false},
		{"all above", ModeOn, []float64{1001, 5000}, 1000, nil, true},
		{"at the bound", ModeOn, []float64{1000, 5000}, 1000, nil, false},
		{"one idle", ModeOn, []float64{0, 5000}, 1000, nil, false},
		{"the idle one is not of the subset", ModeOn, []float64{0, 5000}, 1000, []string{address(1)}, true},
		{"observed only", ModeObserve, []float64{5000, 5000}, 1000, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2))
			w.mode("chat", tt.mode, 100)
			f := w.r.all()[0]
			for i, b := range tt.backlogs {
				f.all()[i].account.charge(b, 0, 0)
			}
			r := Request{Unread: true, Shed: tt.shed}
			if tt.subset != nil {
				r = within(r, tt.subset...)
			}
			d := w.r.Decide(t.Context(), r)
			if d.Overloaded != tt.want || (d.Endpoint == "") != tt.want || (d.Reason == ReasonOverloaded) != tt.want {
				t.Errorf("decision %+v", d)
			}
			if n := f.open.len(); (n == 0) != tt.want {
				t.Errorf("%d decisions open", n)
			}
		})
	}
}

// A request that belongs to no pool is left alone while no pool is to be obeyed: nobody has asked that requests be refused.
func TestNoPoolIsNotObeyed(t *testing.T) {
	tests := []struct {
		name       string
		chat, code Mode
		want       Mode
	}{
		{"both on", ModeOn, ModeOn, ModeOn},
		{"one on", ModeObserve, ModeOn, ModeOn},
		{"observed", ModeObserve, ModeObserve, ModeObserve},
		{"observed and off", ModeOff, ModeObserve, ModeObserve},
		{"off", ModeOff, ModeOff, ModeOff},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2), code())
			w.mode("chat", tt.chat, 100)
			w.mode("code", tt.code, 100)
			d := w.r.Decide(t.Context(), given("gpt", run(1, block)))
			if d.Reason != ReasonNoPool || d.Mode != tt.want || d.Endpoint != "" {
				t.Errorf("decision %+v, want mode %s", d, tt.want)
			}
		})
	}
}

// What a request is charged with goes where it is served, and its record ends it there.
func TestServing(t *testing.T) {
	tests := []struct {
		name   string
		served string // "choice", "other", "foreign"
		mode   Mode
		moved  bool
		open   int
	}{
		{"by the choice", "choice", ModeOn, false, 1},
		{"by another one", "other", ModeOn, true, 1},
		{"by none of the pool's", "foreign", ModeOn, true, 0},
		{"not steered", "other", ModeObserve, false, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2))
			w.mode("chat", tt.mode, 100)
			d := w.r.Decide(t.Context(), Request{Unread: true})
			f := w.r.all()[0]
			choice, other := f.target(d.Endpoint), f.target(d.Second)
			served := map[string]string{"choice": d.Endpoint, "other": d.Second, "foreign": "10.9.9.9:1"}[tt.served]
			note := Completion{ID: d.ID, Pool: d.Pool, Serving: true, Upstream: served}
			w.r.Complete(note)
			w.r.Complete(note) // twice is once
			if got := choice.account.held == 0; got != tt.moved {
				t.Errorf("the choice holds %d", choice.account.held)
			}
			if got := other.account.held > 0; got != (tt.moved && tt.open == 1) {
				t.Errorf("the other one holds %d", other.account.held)
			}
			if choice.endpoint.Suspect() != tt.moved || other.endpoint.Suspect() {
				t.Errorf("suspect: choice %v, other %v", choice.endpoint.Suspect(), other.endpoint.Suspect())
			}
			if n := f.open.len(); n != tt.open {
				t.Errorf("%d decisions open", n)
			}
			w.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Upstream: served, Code: 200, Answered: true})
			w.pass(time.Hour)
			for i, l := range f.loads(f.all(), w.clock()) {
				if l != (load{}) {
					t.Errorf("endpoint %d at rest: %+v", i, l)
				}
			}
		})
	}
	w := newWorld(t, Options{}, chat(2))
	for i, c := range []Completion{{}, {ID: "x"}, {ID: "other-1", Pool: "chat"}, {ID: w.r.ids.instance + "-9", Pool: "chat"}, {ID: w.r.ids.instance + "-1", Pool: "none"}} {
		c.Serving, c.Upstream = true, address(0)
		w.r.Complete(c) // changes nothing
		if n := w.r.all()[0].open.len(); n != 0 {
			t.Error(fmt.Sprint(i), n)
		}
	}
}
