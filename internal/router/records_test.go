package router

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// queueModel serves charges one after the other and keeps each by itself.
type queueModel struct {
	rate float64
	left []queued
}

type queued struct {
	number uint64
	key    uint64
	tokens float64
}

func (m *queueModel) pass(d time.Duration) {
	for work := m.rate * d.Seconds(); work > 0 && len(m.left) > 0; {
		done := min(work, m.left[0].tokens)
		work -= done
		if m.left[0].tokens -= done; m.left[0].tokens < 1e-6 {
			m.left = m.left[1:]
		}
	}
}

func (m *queueModel) release(number uint64) {
	m.left = slices.DeleteFunc(m.left, func(q queued) bool { return q.number == number })
}

func (m *queueModel) confirm(key uint64) {
	for i := len(m.left) - 1; i >= 0; i-- {
		if key != 0 && m.left[i].key == key {
			m.left = m.left[i+1:]
			return
		}
	}
}

func (m *queueModel) backlog() (sum float64) {
	for _, q := range m.left {
		sum += q.tokens
	}
	return sum
}

// TestAccountReleasesAgainstModel charges, releases, confirms and serves at random.
func TestAccountReleasesAgainstModel(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		rate := &pace{rate: 2000}
		model := queueModel{rate: rate.rate}
		var a account
		type request struct {
			number   uint64
			uncached float64
			prompt   int
			since    time.Time
		}
		var open []request
		now := epoch
		a.advance(now, rate)
		for step := range 3000 {
			switch op := rnd.IntN(8); {
			case op < 3 && a.queued.len() < maxCharges: // joined charges cannot be told apart; they have a test of their own
				prompt := rnd.IntN(4000)
				uncached, key := float64(rnd.IntN(prompt+1)), uint64(rnd.IntN(10))
				number := a.charge(uncached, prompt, key)
				if (number == 0) != (uncached == 0) {
					t.Fatalf("seed %d step %d: number %d of a charge of %v", seed, step, number, uncached)
				}
				if number != 0 {
					model.left = append(model.left, queued{number, key, uncached})
				}
				open = append(open, request{number, uncached, prompt, now})
			case op < 6 && len(open) > 0:
				i := rnd.IntN(len(open))
				a.release(open[i].number, open[i].uncached, open[i].prompt, now.Sub(open[i].since))
				model.release(open[i].number)
				open = slices.Delete(open, i, i+1)
			case op == 6:
				key := uint64(rnd.IntN(12))
				a.confirm([]uint64{key})
				model.confirm(key)
			default:
				d := time.Duration(rnd.Int64N(int64(2 * time.Second)))
				now = now.Add(d)
				a.advance(now, rate)
				model.pass(d)
			}
			held, guess := 0, 0.0
			for _, r := range open {
				held += r.prompt
				guess += left(float64(r.prompt), now.Sub(r.since), inFlightHalf)
			}
			exact, guessed := a.load(true), a.load(false)
			if !near(exact.backlog, model.backlog(), 1e-3) || a.queued.len() != len(model.left) {
				t.Fatalf("seed %d step %d: backlog %v of %d charges, model %v of %d", seed, step, exact.backlog, a.queued.len(), model.backlog(), len(model.left))
			}
			if exact.running != float64(held) {
				t.Fatalf("seed %d step %d: %v tokens run, model %d", seed, step, exact.running, held)
			}
			// What has faded below a token is dropped at once, for each step and each release.
			if guessed.running < 0 || guessed.running > guess+1e-6 || guessed.running < guess-3 {
				t.Fatalf("seed %d step %d: %v tokens run by guess, model %v", seed, step, guessed.running, guess)
			}
			if exact.backlog < 0 || exact.queue < 0 || a.recent < 0 || len(a.awaited) > a.queued.len() {
				t.Fatalf("seed %d step %d: %+v, %d keys awaited", seed, step, exact, len(a.awaited))
			}
		}
		for _, r := range open {
			a.release(r.number, r.uncached, r.prompt, now.Sub(r.since))
		}
		for _, exact := range []bool{true, false} {
			if l := a.load(exact); l.backlog != 0 || l.running != 0 {
				t.Errorf("seed %d: %+v with nothing open", seed, l)
			}
		}
		a.advance(now.Add(20*time.Minute), rate)
		if l := a.load(true); l != (load{}) {
			t.Errorf("seed %d: %+v 20 minutes later", seed, l)
		}
	}
}

// Requests that share the youngest charge leave it one by one, in any order, and nothing of it stays.
func TestJoinedChargesAreReleased(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 9))
	rate := &pace{rate: 100}
	var a account
	a.advance(epoch, rate)
	numbers := make([]uint64, 2*maxCharges)
	for i := range numbers {
		numbers[i] = a.charge(float64(1+i%7), 10, uint64(1+i%5))
	}
	if a.queued.len() != maxCharges {
		t.Fatalf("%d charges in the queue", a.queued.len())
	}
	last := a.load(true).backlog
	for n, i := range rnd.Perm(len(numbers)) {
		a.advance(epoch.Add(time.Duration(n)*10*time.Millisecond), rate)
		a.release(numbers[i], float64(1+i%7), 10, 0)
		l := a.load(true)
		if l.backlog < 0 || l.backlog > last || len(a.awaited) > a.queued.len() {
			t.Fatalf("backlog %v after %v, %d keys awaited for %d charges", l.backlog, last, len(a.awaited), a.queued.len())
		}
		last = l.backlog
	}
	if l := a.load(true); l.backlog != 0 || l.running != 0 || a.queued.len() != 0 || len(a.awaited) != 0 {
		t.Errorf("%+v, %d charges, %d keys awaited with nothing open", l, a.queued.len(), len(a.awaited))
	}
}

// history is a random life of a router: decisions, and records of them that are lost, come twice, late, or are not its own. Its model keeps
// every open decision in a slice.
type history struct {
	*world
	rnd   *rand.Rand
	open  []openModel
	ended []openModel // some of them, by record or by expiry
	want  map[RecordOutcome]float64
	lost  float64 // expired
}

type openModel struct {
	d      Decision
	prompt int
	since  time.Time
}

func (h *history) expire() {
	for len(h.open) > 0 && h.clock().Sub(h.open[0].since) >= openLifetime {
		h.ended = append(h.ended, h.open[0])
		h.open = h.open[1:]
		h.lost++
	}
}

func (h *history) complete(c Completion, want RecordOutcome) {
	h.r.Complete(c)
	h.want[want]++
}

func (h *history) step() {
	pickOpen := func() (openModel, bool) {
		if len(h.open) == 0 {
			return openModel{}, false
		}
		i := h.rnd.IntN(len(h.open))
		o := h.open[i]
		h.open = slices.Delete(h.open, i, i+1)
		h.ended = append(h.ended, o)
		return o, true
	}
	record := func(o openModel, upstream string) Completion {
		c := answered(o.d, upstream)
		switch h.rnd.IntN(6) {
		case 0:
			c.Answered, c.Code, c.ConnectFailed = false, 503, true
		case 1:
			c.Answered, c.Broken = false, true
		case 2:
			c.Code = 500
		}
		c.Attempts = h.rnd.IntN(4)
		return c
	}
	// Whether a decision beyond its lifetime has expired shows when the next one is made, or the loads are read.
	h.loads(h.clock())
	h.expire()
	switch h.rnd.IntN(12) {
	case 0, 1, 2, 3:
		tokens := 1 + h.rnd.IntN(60)
		d := h.decide(tokens)
		h.open = append(h.open, openModel{d, tokens, h.clock()})
	case 4, 5:
		if o, ok := pickOpen(); ok {
			h.complete(record(o, o.d.Endpoint), RecordReleased)
		}
	case 6:
		if o, ok := pickOpen(); ok {
			if upstream := []string{address(h.rnd.IntN(4)), "192.0.2.1:80"}[h.rnd.IntN(2)]; upstream != o.d.Endpoint {
				h.complete(record(o, upstream), RecordMoved)
			} else {
				h.complete(record(o, ""), RecordReleased)
			}
		}
	case 7:
		if n := len(h.ended); n > 0 { // twice, or after it has expired
			o := h.ended[h.rnd.IntN(n)]
			h.complete(record(o, address(h.rnd.IntN(4))), RecordLate)
		}
	case 8:
		id := fmt.Sprintf("aaaaaaaa-%d", 1+h.rnd.IntN(100))
		h.complete(Completion{ID: id, Pool: "chat", Upstream: address(0), Code: 200, Answered: true}, RecordForeign)
	case 9:
		if o, ok := pickOpen(); ok {
			h.r.Complete(Completion{ID: o.d.ID, Pool: o.d.Pool, Undelivered: true})
		}
	case 10:
		h.pass(time.Duration(h.rnd.Int64N(int64(3 * time.Second))))
	case 11:
		if h.rnd.IntN(8) == 0 {
			h.pass(time.Duration(h.rnd.Int64N(int64(20 * time.Minute))))
		}
	}
}

func (h *history) check() {
	h.t.Helper()
	loads := h.loads(h.clock())
	h.expire()
	f := h.r.all()[0]
	open, _, expired := f.openDecisions()
	if open != len(h.open) || float64(expired) != h.lost {
		h.t.Fatalf("%d open and %d expired, model %d and %v", open, expired, len(h.open), h.lost)
	}
	for i, target := range f.all() {
		held, prompts := 0, 0.0
		for _, o := range h.open {
			if o.d.Endpoint == target.endpoint.Addr() && (!target.pinned || o.d.Rank == target.ranks[0].number) {
				held += o.prompt
				prompts += float64(o.prompt)
			}
		}
		l, a := loads[i], &target.account
		if a.held != int64(held) || l.running < 0 || l.running > prompts || l.backlog < 0 || l.backlog > prompts+1e-6 || l.memory < 0 || l.queue < 0 || a.recent < 0 {
			h.t.Fatalf("endpoint %d: %+v, %d held, model %d", i, l, a.held, held)
		}
		if held == 0 && (l.running != 0 || l.backlog != 0 || len(a.awaited) != 0) {
			h.t.Fatalf("endpoint %d: %+v with nothing open", i, l)
		}
	}
}

// TestRecordsAgainstModel: charges are never negative, always those of the open decisions, and zero at rest.
func TestRecordsAgainstModel(t *testing.T) {
	for seed, c := range []pool.Config{chat(4), chat(4), ranked(4, 2, false), ranked(4, 3, true)} {
		h := &history{world: newWorld(t, Options{PrefillRate: 40}, c), rnd: rand.New(rand.NewPCG(uint64(seed), 11)), want: map[RecordOutcome]float64{}}
		for range 2000 {
			h.step()
			h.check()
		}
		for _, outcome := range RecordOutcomes() {
			if got := testutil.ToFloat64(h.r.m.records.WithLabelValues(string(outcome.Outcome))); got != h.want[outcome.Outcome] {
				t.Errorf("seed %d: %v records %s, model %v", seed, got, outcome.Outcome, h.want[outcome.Outcome])
			}
		}
		for _, o := range h.open {
			h.r.Complete(answered(o.d, o.d.Endpoint))
		}
		for i, l := range h.loads(h.clock()) {
			if l.backlog != 0 || l.running != 0 {
				t.Errorf("seed %d endpoint %d: %+v with nothing open", seed, i, l)
			}
		}
		h.pass(20 * time.Minute)
		for i, l := range h.loads(h.clock()) {
			if l != (load{}) {
				t.Errorf("seed %d endpoint %d: %+v at rest", seed, i, l)
			}
		}
		if h.lost == 0 || h.want[RecordLate] == 0 || h.want[RecordMoved] == 0 || h.want[RecordForeign] == 0 {
			t.Errorf("seed %d: not every kind of record came: %v, %v expired", seed, h.want, h.lost)
		}
	}
}
