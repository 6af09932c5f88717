package router

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/pool"
)

// charged makes a charge at endpoint i of the pool chat, of which half is to be computed.
func charged(i int, number uint64, prompt int) Charge {
	return Charge{Pool: "chat", Endpoint: address(i), Rank: -1, Number: number, Uncached: prompt / 2, Prompt: prompt}
}

// foreignCharges counts the charges of others in the first pool.
func (w *world) foreignCharges() int {
	_, n, _ := w.r.all()[0].openDecisions()
	return n
}

func TestForeignCharges(t *testing.T) {
	other := func(c Charge, change func(c *Charge)) Charge { change(&c); return c }
	tests := []struct {
		name     string
		do       func(r *Router)
		backlog  float64 // at endpoint 0
		guessed  float64
		charges  int
		outcomes map[ChargeOutcome]float64
	}{
		{"one", func(r *Router) { r.Charge("a", charged(0, 1, 100)) }, 50, 100, 1, map[ChargeOutcome]float64{ChargeEntered: 1}},
		{"the same again", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Charge("a", charged(0, 1, 100)) }, 50, 100, 1, map[ChargeOutcome]float64{ChargeEntered: 1, ChargeAgain: 1}},
		{"of two routers with one number", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Charge("b", charged(0, 1, 60)) }, 80, 160, 2, map[ChargeOutcome]float64{ChargeEntered: 2}},
		{"released", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Release("a", "chat", 1) }, 0, 0, 0, nil},
		{"released twice", func(r *Router) {
			r.Charge("a", charged(0, 1, 100))
			r.Charge("a", charged(0, 2, 60))
			r.Release("a", "chat", 1)
			r.Release("a", "chat", 1)
		}, 30, 60, 1, nil},
		{"another router's released", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Release("b", "chat", 1) }, 50, 100, 1, nil},
		{"another number released", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Release("a", "chat", 2) }, 50, 100, 1, nil},
		{"released in another pool", func(r *Router) {
			r.Charge("a", charged(0, 1, 100))
			r.Release("a", "code", 1)
			r.Release("a", "none", 1)
		}, 50, 100, 1, nil},
		{"moved away", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Charge("a", charged(1, 1, 100)) }, 0, 0, 1, map[ChargeOutcome]float64{ChargeEntered: 1, ChargeMoved: 1}},
		{"moved here", func(r *Router) { r.Charge("a", charged(1, 1, 100)); r.Charge("a", charged(0, 1, 60)) }, 30, 60, 1, map[ChargeOutcome]float64{ChargeEntered: 1, ChargeMoved: 1}},
		{"moved and released", func(r *Router) {
			r.Charge("a", charged(1, 1, 100))
			r.Charge("a", charged(0, 1, 60))
			r.Release("a", "chat", 1)
		}, 0, 0, 0, nil},
		{"unknown endpoint", func(r *Router) { r.Charge("a", charged(9, 1, 100)) }, 0, 0, 0, map[ChargeOutcome]float64{ChargeUnknown: 1}},
		{"unknown pool", func(r *Router) { r.Charge("a", other(charged(0, 1, 100), func(c *Charge) { c.Pool = "none" })) }, 0, 0, 0, map[ChargeOutcome]float64{ChargeUnknown: 1}},
		{"without a number", func(r *Router) { r.Charge("a", charged(0, 0, 100)) }, 0, 0, 0, map[ChargeOutcome]float64{ChargeUnknown: 1}},
		{"without an origin", func(r *Router) { r.Charge("", charged(0, 1, 100)) }, 0, 0, 0, map[ChargeOutcome]float64{ChargeUnknown: 1}},
		{"one's own", func(r *Router) { r.Charge(r.Instance(), charged(0, 1, 100)) }, 0, 0, 0, map[ChargeOutcome]float64{ChargeUnknown: 1}},
		{"an origin of 1 MB", func(r *Router) { r.Charge(string(make([]byte, 1<<20)), charged(0, 1, 100)) }, 0, 0, 0, map[ChargeOutcome]float64{ChargeUnknown: 1}},
		{"negative tokens", func(r *Router) {
			r.Charge("a", other(charged(0, 1, 100), func(c *Charge) { c.Prompt, c.Uncached = -5, -7 }))
		}, 0, 0, 1, nil},
		{"more to compute than the prompt", func(r *Router) { r.Charge("a", other(charged(0, 1, 100), func(c *Charge) { c.Uncached = 1 << 40 })) }, 100, 100, 1, nil},
		{"a prompt that no engine takes", func(r *Router) { r.Charge("a", charged(0, 1, 1<<40)) }, 262_144, 262_144, 1, nil},
		{"gone", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Charge("b", charged(0, 1, 60)); r.Gone("a") }, 80, 160, 1, nil},
		{"gone and released", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Gone("a"); r.Release("a", "chat", 1) }, 50, 100, 0, nil},
		{"gone twice", func(r *Router) { r.Charge("a", charged(0, 1, 100)); r.Gone("a"); r.Gone("a"); r.Gone("b") }, 50, 100, 0, nil},
		{"gone and back", func(r *Router) {
			r.Charge("a", charged(0, 1, 100))
			r.Gone("a")
			r.Charge("a", charged(0, 2, 60))
			r.Release("a", "chat", 2)
		}, 50, 100, 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{Metrics: NewMetrics(prometheus.NewRegistry())}, chat(2), coder())
			tt.do(w.r)
			if got := w.loads(w.clock())[0]; got.backlog != tt.backlog || got.running != tt.guessed {
				t.Errorf("%+v, want backlog %v and %v running", got, tt.backlog, tt.guessed)
			}
			if got := w.foreignCharges(); got != tt.charges {
				t.Errorf("%d charges of others, want %d", got, tt.charges)
			}
			for o, want := range tt.outcomes {
				if got := testutil.ToFloat64(w.r.m.charges[o]); got != want {
					t.Errorf("%v charges %s, want %v", got, o, want)
				}
			}
			w.pass(openLifetime)
			for i, l := range w.loads(w.clock()) {
				if l != (load{}) || w.foreignCharges() != 0 {
					t.Errorf("endpoint %d after the lifetime of a decision: %+v, %d charges of others", i, l, w.foreignCharges())
				}
			}
		})
	}
}

// A charge comes to the rank that was chosen, and to the endpoint where engines choose.
func TestForeignChargesOfRanks(t *testing.T) {
	tests := []struct {
		name    string
		pin     bool
		rank    int
		target  int // −1: none
		number  uint64
		targets int
	}{
		{"engine chooses", false, -1, 0, 7, 1},
		{"chosen where engines choose here", false, 2, 0, 7, 1},
		{"chosen", true, 2, 2, 7, 3},
		{"no such rank", true, 3, -1, 7, 3},
		{"engine chooses where decisions do here", true, -1, 1, 7, 3},
		{"the next number", true, -1, 2, 8, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, ranked(1, 3, tt.pin))
			c := charged(0, tt.number, 100)
			c.Rank = tt.rank
			w.r.Charge("a", c)
			loads := w.loads(w.clock())
			if len(loads) != tt.targets {
				t.Fatalf("%d targets", len(loads))
			}
			for i, l := range loads {
				if want := map[bool]float64{true: 50}[i == tt.target]; l.backlog != want {
					t.Errorf("target %d: backlog %v, want %v", i, l.backlog, want)
				}
			}
		})
	}
}

// What a router that is gone has charged is worked off, and fades from the memory beginning with what it counted so far.
func TestGoneCharges(t *testing.T) {
	for _, exact := range []bool{false, true} {
		t.Run(fmt.Sprintf("exact=%v", exact), func(t *testing.T) {
			w := newWorld(t, Options{PrefillRate: 100}, chat(1))
			w.r.Charge("a", charged(0, 1, 4000))
			record := func() {
				if exact {
					d := w.decide(1)
					w.r.Complete(answered(d, d.Endpoint))
				}
			}
			at := func(after time.Duration, backlog, running float64) {
				t.Helper()
				record()
				if got := w.loads(w.clock())[0]; !near(got.backlog, backlog, 1.5) || !near(got.running, running, 2) {
					t.Errorf("%v after the router has gone: %+v, want backlog %v and %v running", after, got, backlog, running)
				}
			}
			w.pass(inFlightHalf)
			before := map[bool]float64{true: 4000, false: 2000}[exact]
			at(0, 1500, before)
			w.r.Gone("a")
			at(0, 1500, before)
			w.pass(inFlightHalf)
			at(inFlightHalf, 1000, before/2)
			w.pass(2 * inFlightHalf)
			at(3*inFlightHalf, 0, before/8)
			w.pass(openLifetime - 3*inFlightHalf)
			if got := w.loads(w.clock())[0]; got != (load{}) {
				t.Errorf("%+v after the lifetime of a decision", got)
			}
		})
	}
}

func TestForeignChargesAreBounded(t *testing.T) {
	w := newWorld(t, Options{PrefillRate: 1e9}, chat(2))
	for i := range uint64(maxForeignOrigin + 10) {
		w.r.Charge("a", charged(int(i%2), 1+i, 10))
	}
	if got := w.foreignCharges(); got != maxForeignOrigin {
		t.Fatalf("%d charges of one router, want %d", got, maxForeignOrigin)
	}
	for o := range 7 {
		for i := range uint64(maxForeignOrigin / 2) {
			w.r.Charge(fmt.Sprint("b", o), charged(0, 1+i, 10))
		}
	}
	if got := w.foreignCharges(); got != maxForeign {
		t.Fatalf("%d charges, want %d", got, maxForeign)
	}
	if n := len(w.r.all()[0].foreign.origins); n > 7 {
		t.Errorf("%d routers with charges", n)
	}
	w.r.Release("a", "chat", 1)
	w.r.Charge("c", charged(0, 1, 10))
	w.r.Charge("c", charged(0, 2, 10))
	if got := w.foreignCharges(); got != maxForeign {
		t.Errorf("%d charges after one was released, want %d", got, maxForeign)
	}
	w.r.Gone("a")
	if got := w.foreignCharges(); got != maxForeign-maxForeignOrigin+1 {
		t.Errorf("%d charges after one router has gone", got)
	}
	w.pass(2 * openLifetime)
	for i, l := range w.loads(w.clock()) {
		if l != (load{}) || w.foreignCharges() != 0 {
			t.Errorf("endpoint %d at rest: %+v, %d charges", i, l, w.foreignCharges())
		}
	}
	if n := len(w.r.all()[0].foreign.origins); n != 0 {
		t.Errorf("%d routers without charges are remembered", n)
	}
}

// Endpoints that a configuration takes away take the charges with them; one that comes back has none.
func TestForeignChargesOfAnotherConfiguration(t *testing.T) {
	w := newWorld(t, Options{}, chat(3))
	for i := range 3000 {
		w.r.Charge("a", charged(i%3, uint64(1+i), 10))
	}
	w.apply(chat(2))
	if got := w.foreignCharges(); got != 2000 {
		t.Errorf("%d charges at two of three endpoints", got)
	}
	w.apply(chat(3))
	loads := w.loads(w.clock())
	if loads[0].backlog != 5000 || loads[1].backlog != 5000 || loads[2] != (load{}) {
		t.Errorf("%+v after an endpoint has gone and come back", loads)
	}
	pinned := ranked(3, 2, true)
	w.apply(pinned)
	if got := w.foreignCharges(); got != 0 {
		t.Errorf("%d charges at targets that are gone", got)
	}
}

// Events confirm a charge whoever has made it.
func TestEventsConfirmForeignCharges(t *testing.T) {
	m := newMesh(t, 2, 100, chat(2))
	tokens := run(1, 4*block+1)
	d := m.worlds[0].r.Decide(t.Context(), given("llama", run(1, 4*block+1)))
	if d.Reason != ReasonNoIndex { // nobody holds anything: charged without a key
		t.Fatalf("%+v", d)
	}
	for _, w := range m.worlds {
		for _, s := range w.sources {
			store(s, chain(run(9000, block)))
		}
	}
	d = m.worlds[0].r.Decide(t.Context(), given("llama", tokens))
	m.settle()
	of := func(i int) float64 {
		sum := 0.0
		for _, l := range m.loads(i) {
			sum += l.backlog
		}
		return sum
	}
	if of(0) != of(1) || of(0) != 2*(4*block+1) {
		t.Fatalf("backlogs %v and %v", of(0), of(1))
	}
	for i, w := range m.worlds {
		store(w.sources[d.Endpoint], chain(tokens))
		if got := of(i); got != 4*block+1 {
			t.Errorf("router %d: backlog %v after the prompt was announced, want %d", i, got, 4*block+1)
		}
	}
}

// fleetLife is a random life of several routers: decisions, records at any of them, events, and routers that die and come.
type fleetLife struct {
	*mesh
	rnd    *rand.Rand
	config pool.Config
	deaths bool // routers die, messages are lost and configurations change
	open   []lifeDecision
	ended  []lifeDecision
}

type lifeDecision struct {
	router int
	d      Decision
}

func (h *fleetLife) router() int { all := h.alive(); return all[h.rnd.IntN(len(all))] }

func (h *fleetLife) step() {
	take := func() (o lifeDecision, ok bool) {
		if len(h.open) == 0 {
			return o, false
		}
		i := h.rnd.IntN(len(h.open))
		o = h.open[i]
		h.open = append(h.open[:i], h.open[i+1:]...)
		h.ended = append(h.ended, o)
		return o, true
	}
	switch op := h.rnd.IntN(16); op {
	case 0, 1, 2, 3, 4:
		i := h.router()
		h.open = append(h.open, lifeDecision{i, h.worlds[i].r.Decide(h.t.Context(), given("llama", run(1, 1+h.rnd.IntN(10*block))))})
	case 5, 6, 7:
		if o, ok := take(); ok {
			upstream := []string{o.d.Endpoint, o.d.Endpoint, o.d.Second, "192.0.2.1:80", ""}[h.rnd.IntN(5)]
			h.worlds[h.router()].r.Complete(answered(o.d, upstream))
		}
	case 8:
		if n := len(h.ended); n > 0 {
			h.worlds[h.router()].r.Complete(answered(h.ended[h.rnd.IntN(n)].d, address(0)))
		}
	case 9:
		if o, ok := take(); ok && !h.links[o.router].dead { // replies and answers are the router's own
			h.worlds[o.router].r.Complete(Completion{ID: o.d.ID, Pool: o.d.Pool, Undelivered: true})
		}
	case 10:
		if n := len(h.open); n > 0 {
			if o := h.open[h.rnd.IntN(n)]; !h.links[o.router].dead {
				h.worlds[o.router].r.Complete(Completion{ID: o.d.ID, Pool: o.d.Pool, Serving: true, Upstream: address(h.rnd.IntN(4))})
			}
		}
	case 11:
		keys := chain(run(1, 10*block))[:1+h.rnd.IntN(10)]
		for _, i := range h.alive() {
			store(h.worlds[i].sources[address(h.rnd.IntN(4))], keys)
		}
	case 12, 13:
		from, to := h.rnd.IntN(len(h.links)), h.rnd.IntN(len(h.links))
		h.deliver(from, to, 1+h.rnd.IntN(5))
	case 14:
		h.now = h.now.Add(time.Duration(h.rnd.Int64N(int64(2 * time.Second))))
	case 15:
		if h.deaths {
			h.disturb()
		}
	}
}

func (h *fleetLife) disturb() {
	switch h.rnd.IntN(12) {
	case 0:
		if all := h.alive(); len(all) > 1 {
			h.kill(all[h.rnd.IntN(len(all))], h.rnd)
		}
	case 1:
		if len(h.alive()) < 4 && len(h.links) < 20 {
			h.join(40, h.config)
		}
	case 2, 3, 4:
		from, to := h.rnd.IntN(len(h.links)), h.rnd.IntN(len(h.links))
		if w := h.links[from].waiting[to]; len(w) > 0 {
			h.links[from].waiting[to] = w[1:] // lost
		}
	case 5:
		w := h.worlds[h.router()]
		less := h.config
		less.Endpoints = less.Endpoints[:3]
		less.Ranks = maps.Clone(less.Ranks)
		delete(less.Ranks, address(3))
		w.apply(less)
		w.sources[address(3)].Close()
		w.apply(h.config)
		s, err := w.r.Source("chat", address(3), 0)
		if err != nil {
			h.t.Fatal(err)
		}
		w.sources[address(3)] = s
	case 6:
		h.now = h.now.Add(time.Duration(h.rnd.Int64N(int64(12 * time.Minute))))
	}
}

// check compares every account with the charges that stand in it.
func (h *fleetLife) check() {
	h.t.Helper()
	for _, i := range h.alive() {
		f, loads := h.fleet(i), h.loads(i)
		held := map[*target]int64{}
		counts := map[*origin]int{}
		for _, o := range f.open.places {
			if o.target != nil {
				held[o.target] += int64(o.prompt)
			}
		}
		for _, o := range f.foreign.charges.places {
			if o.target != nil {
				held[o.target] += int64(o.prompt)
				counts[o.origin]++
			}
		}
		for name, o := range f.foreign.origins {
			if o.charges != counts[o] || o.charges == 0 || name == h.worlds[i].r.Instance() {
				h.t.Fatalf("router %d: %d charges of %s, want %d", i, o.charges, name, counts[o])
			}
		}
		for k, target := range f.all() {
			l, a := loads[k], &target.account
			if a.held != held[target] || l.backlog < 0 || l.running < 0 || l.memory < 0 || l.queue < 0 || a.guessed < 0 || a.fading < 0 || a.recent < 0 {
				h.t.Fatalf("router %d target %d: %+v, %d held, want %d", i, k, l, a.held, held[target])
			}
		}
	}
}

// rest lets all records come, and looks that nothing is left.
func (h *fleetLife) rest() {
	h.t.Helper()
	for len(h.open) > 0 {
		o := h.open[0]
		h.open = h.open[1:]
		h.worlds[h.router()].r.Complete(answered(o.d, o.d.Endpoint))
	}
	h.settle()
	if h.deaths {
		h.now = h.now.Add(openLifetime)
	}
	for _, i := range h.alive() {
		for k, l := range h.loads(i) {
			if open, foreign, _ := h.fleet(i).openDecisions(); open != 0 || foreign != 0 || l.backlog != 0 || l.running != 0 {
				h.t.Errorf("router %d target %d: %+v, %d open and %d of others when all records have come", i, k, l, open, foreign)
			}
		}
	}
	h.now = h.now.Add(openLifetime)
	for _, i := range h.alive() {
		for k, l := range h.loads(i) {
			a := &h.fleet(i).all()[k].account
			if l != (load{}) || a.held != 0 || a.guessed != 0 || a.fading != 0 || a.recent != 0 || a.served != 0 || a.queued.len() != 0 || len(a.awaited) != 0 {
				h.t.Errorf("router %d target %d at rest: %+v, %d held", i, k, l, a.held)
			}
		}
		if n := len(h.fleet(i).foreign.origins); n != 0 {
			h.t.Errorf("router %d: %d others with charges at rest", i, n)
		}
	}
}

// TestRoutersTogether: whatever routers tell each other, every account is what is charged in it, and exactly zero at rest.
func TestRoutersTogether(t *testing.T) {
	for seed, config := range []pool.Config{chat(4), ranked(4, 2, false), ranked(4, 3, true), chat(4)} {
		for _, deaths := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed=%d/deaths=%v", seed, deaths), func(t *testing.T) {
				h := &fleetLife{mesh: newMesh(t, 2+seed%3, 40, config), rnd: rand.New(rand.NewPCG(uint64(seed), 17)), config: config, deaths: deaths}
				for range 1500 {
					h.step()
					h.check()
				}
				passed := 0
				for _, l := range h.links {
					passed += l.passed
				}
				if passed == 0 {
					t.Error("no record was passed on")
				}
				h.rest()
			})
		}
	}
}
