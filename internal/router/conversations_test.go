package router

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/subscriber"
)

// fleetSim is a pool of engines with one prefill queue each, which announce a prompt's blocks when its prefill ends and keep them for
// ever. Conversations of several tenants arrive; a turn's prompt is all that was said before and something more.
type fleetSim struct {
	w       *world
	rnd     *rand.Rand
	speed   float64 // prefill tokens per second
	engines []simEngine
	agenda  []simEvent // ordered by time

	turns, stuck int   // follow-up turns, and those sent to an engine that holds the turn before
	started      []int // conversations by engine
	cached, sent int   // prompt tokens
	wait         time.Duration
}

type simEngine struct {
	free time.Time // when the queue is empty
	held map[uint64]bool
}

type simEvent struct {
	at time.Time
	do func()
}

func (s *fleetSim) at(t time.Time, do func()) {
	e := simEvent{t, do}
	i, _ := slices.BinarySearchFunc(s.agenda, e, func(a, b simEvent) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	s.agenda = slices.Insert(s.agenda, i, e)
}

func (s *fleetSim) run() {
	for len(s.agenda) > 0 {
		e := s.agenda[0]
		s.agenda = s.agenda[1:]
		s.w.pass(e.at.Sub(s.w.clock()))
		e.do()
	}
}

func (s *fleetSim) between(low, high int) int { return low + s.rnd.IntN(high-low) }

func (s *fleetSim) say(dst []uint32, n int) []uint32 {
	for range n {
		dst = append(dst, s.rnd.Uint32()>>8)
	}
	return dst
}

// turn sends one turn of a conversation and plans the next.
func (s *fleetSim) turn(said []uint32, before int, left int) {
	prompt := s.say(said, s.between(40, 200))
	d := s.w.r.Decide(s.w.t.Context(), given("llama", prompt))
	i := slices.IndexFunc(s.w.pools.Pools()[0].Endpoints(), func(e *pool.Endpoint) bool { return e.Addr() == d.Endpoint })
	ns := blockhash.Namespace{Pool: "chat", BlockSize: block}
	keys := blockhash.AppendKeys(nil, ns.Root(), prompt, block)
	e := &s.engines[i]
	held := 0
	for held < len(keys) && e.held[keys[held]] {
		held++
	}
	s.sent += len(prompt)
	s.cached += held * block
	if before > 0 {
		s.turns++
		if held*block >= before/block*block {
			s.stuck++
		}
	} else {
		s.started[i]++
	}
	now := s.w.clock()
	if e.free.Before(now) {
		e.free = now
	}
	e.free = e.free.Add(time.Duration(float64(len(prompt)-held*block) / s.speed * float64(time.Second)))
	s.wait += e.free.Sub(now)
	s.at(e.free, func() {
		var fresh []uint64
		for _, k := range keys {
			if !e.held[k] {
				e.held[k] = true
				fresh = append(fresh, k)
			}
		}
		source := s.w.sources[d.Endpoint]
		source.Store(subscriber.Any, fresh)
		source.Store(subscriber.Device, fresh)
	})
	if left > 0 {
		answer := s.say(prompt, s.between(50, 300))
		s.at(e.free.Add(time.Duration(s.between(3_000, 20_000))*time.Millisecond), func() { s.turn(answer, len(prompt), left-1) })
	}
}

func simulate(t testing.TB, o Options, conversations, tenants, system int, perSecond float64) *fleetSim {
	s := &fleetSim{
		w: newWorld(t, o, chat(4)), rnd: rand.New(rand.NewPCG(7, 8)), speed: 8000,
		engines: make([]simEngine, 4), started: make([]int, 4),
	}
	s.w.r.random = s.rnd.IntN
	for i := range s.engines {
		s.engines[i].held = map[uint64]bool{}
		s.w.connect(address(i), block)
	}
	var prompts [][]uint32
	for range tenants {
		prompts = append(prompts, s.say(nil, system))
	}
	at := epoch
	for range conversations {
		at = at.Add(time.Duration(s.rnd.ExpFloat64() / perSecond * float64(time.Second)))
		s.at(at, func() { s.turn(slices.Clone(prompts[s.rnd.IntN(tenants)]), 0, s.between(2, 8)) })
	}
	s.run()
	return s
}

func TestConversationsStickAndSpread(t *testing.T) {
	tests := []struct {
		tenants, system int
		perSecond       float64
		stuck           float64 // least share
	}{
		{8, 800, 0.5, 0.98},
		{8, 800, 4, 0.97},
		{1, 800, 20, 0.9}, // a conversation's own part is short, so that little is lost by moving it off a queue
		{8, 2000, 8, 0.95},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("tenants=%d/system=%d/rate=%v", tt.tenants, tt.system, tt.perSecond), func(t *testing.T) {
			const conversations = 60
			s := simulate(t, Options{}, conversations, tt.tenants, tt.system, tt.perSecond)
			requests := s.turns + conversations
			t.Logf("%d of %d follow-ups stuck, conversations %v, %d %% cached, mean prefill with its queue %v",
				s.stuck, s.turns, s.started, 100*s.cached/s.sent, s.wait/time.Duration(requests))
			if float64(s.stuck) < tt.stuck*float64(s.turns) {
				t.Errorf("%d of %d follow-ups went to a holder, want %v", s.stuck, s.turns, tt.stuck)
			}
			for i, n := range s.started {
				if n < conversations/20 || n > conversations/2 {
					t.Errorf("engine %d was given %d of %d conversations", i, n, conversations)
				}
			}
			for _, l := range s.w.loads(s.w.clock().Add(time.Hour)) {
				if l != (load{}) {
					t.Errorf("at rest: %+v", l)
				}
			}
		})
	}
}
