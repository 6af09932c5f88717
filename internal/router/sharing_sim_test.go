package router

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/subscriber"
)

// hotSim is a closed loop of clients that all send one long prefix and a short part of their own, one request after the other, to engines with one
// prefill queue each. Each request is decided by a router at random, and its record comes to one at random.
type hotSim struct {
	*mesh
	rnd     *rand.Rand
	engines []hotEngine
	agenda  []simEvent // ordered by time
	end     time.Time

	last   time.Time
	spread float64 // sum over time of the variance of the engines' requests
}

type hotEngine struct {
	free    time.Time
	held    map[uint64]bool
	running int
}

const (
	hotPrefix, hotOwn = 2000, 200
	hotSpeed          = 8000                 // tokens per second
	hotDelay          = 2 * time.Millisecond // until the other router hears of something
)

func (s *hotSim) at(t time.Time, do func()) {
	e := simEvent{t, do}
	i, _ := slices.BinarySearchFunc(s.agenda, e, func(a, b simEvent) int { return cmp.Or(cmp.Compare(a.at.UnixNano(), b.at.UnixNano()), -1) })
	s.agenda = slices.Insert(s.agenda, i, e)
}

// note takes the time since the last event into the averages.
func (s *hotSim) note() {
	seconds := s.now.Sub(s.last).Seconds()
	s.last = s.now
	sum, squares := 0.0, 0.0
	for _, e := range s.engines {
		sum += float64(e.running)
		squares += float64(e.running * e.running)
	}
	n := float64(len(s.engines))
	s.spread += seconds * (squares/n - sum/n*sum/n)
}

func (s *hotSim) request(prefix []uint32) {
	if s.now.After(s.end) {
		return
	}
	prompt := slices.Clone(prefix)
	for range hotOwn {
		prompt = append(prompt, s.rnd.Uint32()>>8)
	}
	d := s.worlds[s.rnd.IntN(len(s.worlds))].r.Decide(s.t.Context(), given("llama", prompt))
	s.at(s.now.Add(hotDelay), s.settle)
	i := slices.IndexFunc(s.worlds[0].pools.Pools()[0].Endpoints(), func(e *pool.Endpoint) bool { return e.Addr() == d.Endpoint })
	e := &s.engines[i]
	keys := chain(prompt)
	held := 0
	for held < len(keys) && e.held[keys[held]] {
		held++
	}
	if e.free.Before(s.now) {
		e.free = s.now
	}
	e.free = e.free.Add(time.Duration(float64(len(prompt)-held*block) / hotSpeed * float64(time.Second)))
	e.running++
	s.at(e.free, func() {
		var fresh []uint64
		for _, k := range keys {
			if !e.held[k] {
				e.held[k] = true
				fresh = append(fresh, k)
			}
		}
		for _, w := range s.worlds {
			w.sources[d.Endpoint].Store(subscriber.Any, fresh)
			w.sources[d.Endpoint].Store(subscriber.Device, fresh)
		}
	})
	answer := e.free.Add(time.Second + time.Duration(s.rnd.ExpFloat64()*float64(time.Second)))
	s.at(answer, func() {
		e.running--
		s.worlds[s.rnd.IntN(len(s.worlds))].r.Complete(answered(d, d.Endpoint))
		s.at(s.now.Add(hotDelay), s.settle)
		s.at(s.now.Add(time.Duration(s.rnd.ExpFloat64()*float64(100*time.Millisecond))), func() { s.request(prefix) })
	})
}

// hot runs so many routers for a while, and returns the mean variance of how many requests are at each engine.
func hot(t *testing.T, routers int, silent bool, seed uint64) (spread float64) {
	const clients, engines, length = 16, 6, time.Minute
	s := &hotSim{mesh: newMesh(t, routers, hotSpeed, chat(engines)), rnd: rand.New(rand.NewPCG(seed, 3)), engines: make([]hotEngine, engines)}
	s.silent, s.last, s.end = silent, s.now, s.now.Add(length)
	for _, w := range s.worlds {
		w.r.random = s.rnd.IntN
	}
	for i := range s.engines {
		s.engines[i].held = map[uint64]bool{}
	}
	prefix := run(1, hotPrefix)
	for i := range clients {
		s.at(s.now.Add(time.Duration(i)*50*time.Millisecond), func() { s.request(prefix) })
	}
	for len(s.agenda) > 0 {
		e := s.agenda[0]
		s.agenda = s.agenda[1:]
		s.now = e.at
		s.note()
		e.do()
	}
	for i := range s.worlds {
		for k, l := range s.loads(i) {
			if !silent && (l.backlog != 0 || l.running != 0) {
				t.Errorf("router %d engine %d at the end: %+v", i, k, l)
			}
		}
	}
	return s.spread / s.now.Sub(epoch).Seconds()
}

// Two routers that share charges spread the requests of a hot prefix over the engines as one router does. Two that do not pile them up.
func TestSharedChargesSpread(t *testing.T) {
	var one, shared, alone float64
	for seed := range uint64(3) {
		one += hot(t, 1, false, seed) / 3
		shared += hot(t, 2, false, seed) / 3
		alone += hot(t, 2, true, seed) / 3
	}
	t.Logf("variance of the requests per engine: one router %.3f, two that share charges %.3f, two that do not %.3f", one, shared, alone)
	if shared > 1.1*one || shared < 0.9*one {
		t.Errorf("two routers spread with a variance of %.3f, one with %.3f", shared, one)
	}
	if alone < 2*one {
		t.Errorf("without shared charges two routers spread with a variance of %.3f, one with %.3f: the test shows nothing", alone, one)
	}
}
