package router

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/openai"
)

// listener is Peers that write down what they are told.
type listener struct {
	told   []string
	routes string // the one instance to which there is a way
	keeps  string // the one instance whose records are kept
}

func (l *listener) Charged(c Charge) {
	l.told = append(l.told, fmt.Sprintf("charged %d at %s rank %d: %d of %d", c.Number, c.Endpoint, c.Rank, c.Uncached, c.Prompt))
}

func (l *listener) Released(pool string, number uint64) {
	l.told = append(l.told, fmt.Sprintf("released %d in %s", number, pool))
}

func (l *listener) Pass(instance string, c Completion) Passing {
	l.told = append(l.told, "pass "+c.ID)
	switch instance {
	case l.routes:
		return Passed
	case l.keeps:
		return Kept
	}
	return NoWay
}

func TestPeersAreTold(t *testing.T) {
	prompt := given("llama", run(1, 100))
	one, other := address(0), address(1)
	tests := []struct {
		name string
		do   func(w *world)
		want []string
	}{
		{"a decision", func(w *world) { w.r.Decide(w.t.Context(), prompt) }, []string{"charged 1 at " + one + " rank -1: 100 of 100"}},
		{"its record", func(w *world) {
			d := w.r.Decide(w.t.Context(), prompt)
			w.r.Complete(answered(d, one))
			w.r.Complete(answered(d, one))
		}, []string{"charged 1 at " + one + " rank -1: 100 of 100", "released 1 in chat"}},
		{"not delivered", func(w *world) {
			d := w.r.Decide(w.t.Context(), prompt)
			w.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Undelivered: true})
			w.r.Complete(answered(d, one))
		}, []string{"charged 1 at " + one + " rank -1: 100 of 100", "released 1 in chat"}},
		{"served elsewhere", func(w *world) {
			d := w.r.Decide(w.t.Context(), prompt)
			w.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Serving: true, Upstream: other})
			w.r.Complete(answered(d, other))
		}, []string{"charged 1 at " + one + " rank -1: 100 of 100", "released 1 in chat", "charged 1 at " + other + " rank -1: 100 of 100", "released 1 in chat"}},
		{"served by the choice", func(w *world) {
			d := w.r.Decide(w.t.Context(), prompt)
			w.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Serving: true, Upstream: one})
		}, []string{"charged 1 at " + one + " rank -1: 100 of 100"}},
		{"served by nobody known", func(w *world) {
			d := w.r.Decide(w.t.Context(), prompt)
			w.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Serving: true, Upstream: "192.0.2.1:80"})
			w.r.Complete(answered(d, one))
		}, []string{"charged 1 at " + one + " rank -1: 100 of 100", "released 1 in chat"}},
		{"expired by another decision", func(w *world) {
			w.r.Decide(w.t.Context(), prompt)
			w.pass(openLifetime)
			w.r.Decide(w.t.Context(), prompt)
		}, []string{"charged 1 at " + one + " rank -1: 100 of 100", "released 1 in chat", "charged 2 at " + one + " rank -1: 100 of 100"}},
		{"expired when it is looked at", func(w *world) {
			w.r.Decide(w.t.Context(), prompt)
			w.pass(openLifetime)
			w.r.State()
			w.r.State()
		}, []string{"charged 1 at " + one + " rank -1: 100 of 100", "released 1 in chat"}},
		{"observed", func(w *world) { w.mode("chat", ModeObserve, 100); w.r.Decide(w.t.Context(), prompt) }, []string{"charged 1 at " + one + " rank -1: 100 of 100"}},
		{"left to Envoy", func(w *world) {
			w.mode("chat", ModeOn, 0)
			d := w.r.Decide(w.t.Context(), prompt)
			w.r.Complete(answered(d, one))
		}, nil},
		{"off", func(w *world) { w.mode("chat", ModeOff, 100); w.r.Decide(w.t.Context(), prompt) }, nil},
		{"too long for the model", func(w *world) {
			c := chat(2)
			c.MaxModelLen = 50
			w.apply(c)
			d := w.r.Decide(w.t.Context(), prompt)
			w.r.Complete(answered(d, one))
		}, nil},
		{"no prompt", func(w *world) {
			d := w.r.Decide(w.t.Context(), Request{Meta: openai.Meta{Method: "GET", Path: "/v1/models"}, Host: "chat.test"})
			w.r.Complete(answered(d, one))
		}, nil},
		{"another router's record", func(w *world) { w.r.Complete(Completion{ID: "aaaaaaaa-1", Pool: "chat", Upstream: one}) }, []string{"pass aaaaaaaa-1"}},
		{"another router's partial record", func(w *world) { w.r.Complete(Completion{ID: "aaaaaaaa-1", Pool: "chat", Partial: true}) }, nil},
		{"another router's record, passed here", func(w *world) { w.r.CompletePassed(Completion{ID: "aaaaaaaa-1", Pool: "chat", Upstream: one}) }, nil},
		{"a record of an endless instance", func(w *world) {
			w.r.Complete(Completion{ID: strings.Repeat("a", 65) + "-1", Pool: "chat", Upstream: one})
		}, nil},
		{"of other routers nothing is told", func(w *world) {
			w.r.Charge("a", charged(0, 1, 100))
			w.r.Charge("a", charged(0, 2, 100))
			w.r.Release("a", "chat", 1)
			w.pass(openLifetime)
			w.r.State()
			w.r.Gone("a")
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &listener{}
			c := chat(2)
			c.Match.Host = "chat.test"
			w := newWorld(t, Options{Peers: l}, c)
			w.r.random = func(int) int { return 1 } // the first of equals
			tt.do(w)
			if diff := cmp.Diff(tt.want, l.told); diff != "" {
				t.Errorf("-want +told:\n%s", diff)
			}
		})
	}
}

// A decision that is shared names the rank it chose, and what of the prompt is held is not charged.
func TestPeersAreToldOfRanks(t *testing.T) {
	l := &listener{}
	w := newWorld(t, Options{Peers: l}, ranked(2, 2, true))
	w.holdAt(address(0), 1, block, run(1, 8*block))
	d := w.r.Decide(t.Context(), given("llama", run(1, 10*block)))
	if want := []string{"charged 1 at " + address(0) + " rank 1: 32 of 160"}; d.Rank != 1 || !cmp.Equal(l.told, want) {
		t.Errorf("%+v, told %q, want %q", d, l.told, want)
	}
}

func TestRecordsArePassed(t *testing.T) {
	tests := []struct {
		name    string
		record  func(w *world, c Completion)
		want    RecordOutcome
		strayed bool
	}{
		{"to its router", func(w *world, c Completion) { w.r.Complete(c) }, RecordPassed, false},
		{"to its router, of a pool unknown here", func(w *world, c Completion) { c.Pool = "none"; w.r.Complete(c) }, RecordPassed, false},
		{"to a router to which there is no way", func(w *world, c Completion) { c.ID = "bbbbbbbb-1"; w.r.Complete(c) }, RecordForeign, true},
		{"to a router to which there may soon be a way", func(w *world, c Completion) { c.ID = "cccccccc-1"; w.r.Complete(c) }, RecordKept, true},
		{"passed by another one, and not for this one", func(w *world, c Completion) { w.r.CompletePassed(c) }, RecordForeign, false},
		{"passed by another one, and partial", func(w *world, c Completion) { c.Partial = true; w.r.CompletePassed(c) }, RecordPartial, false},
		{"passed by another one, and of a reply", func(w *world, _ Completion) {
			d := w.decide(10)
			w.r.CompletePassed(Completion{ID: d.ID, Pool: d.Pool, Undelivered: true})
		}, RecordPartial, false},
		{"passed by another one, and of an answer's begin", func(w *world, _ Completion) {
			d := w.decide(10)
			w.r.CompletePassed(Completion{ID: d.ID, Pool: d.Pool, Serving: true, Upstream: address(1)})
		}, RecordPartial, false},
		{"passed by another one, and late", func(w *world, _ Completion) {
			d := w.decide(10)
			w.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Undelivered: true})
			w.r.CompletePassed(answered(d, d.Endpoint))
		}, RecordLate, false},
		{"passed by another one", func(w *world, _ Completion) { d := w.decide(10); w.r.CompletePassed(answered(d, d.Endpoint)) }, RecordReleased, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{Peers: &listener{routes: "aaaaaaaa", keeps: "cccccccc"}}, chat(2))
			tt.record(w, Completion{ID: "aaaaaaaa-1", Pool: "chat", Upstream: address(0), Code: 200, Answered: true})
			for _, o := range RecordOutcomes() {
				if got := testutil.ToFloat64(w.r.m.records.WithLabelValues(string(o.Outcome))); (got == 1) != (o.Outcome == tt.want) {
					t.Errorf("%v records %s, want one %s", got, o.Outcome, tt.want)
				}
			}
			if strays := w.r.all()[0].tally.strays; (strays > 0) != tt.strayed {
				t.Errorf("share of strays %v", strays)
			}
		})
	}
}

// Records that come to any of the routers keep the books of all of them exact; without a way between them they do not.
func TestShuffledRecordsStayExact(t *testing.T) {
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(5, 6))
			m := newMesh(t, 2, 1000, chat(4))
			m.silent = silent
			var open []Decision
			prompts := 0
			for range 500 {
				w := m.worlds[rnd.IntN(2)]
				open = append(open, w.decide(10))
				if len(open) > 20 {
					i := rnd.IntN(len(open))
					m.worlds[rnd.IntN(2)].r.Complete(answered(open[i], open[i].Endpoint))
					open = append(open[:i], open[i+1:]...)
				}
				m.settle()
				m.now = m.now.Add(10 * time.Millisecond)
			}
			prompts = 10 * len(open)
			for i := range m.worlds {
				sum := 0.0
				for _, l := range m.loads(i) {
					sum += l.running
				}
				if exact := m.fleet(i).tally.exact(m.now); exact == silent || !silent && sum != float64(prompts) {
					t.Errorf("router %d: exact %v, %v tokens running of %d", i, exact, sum, prompts)
				}
			}
		})
	}
}
