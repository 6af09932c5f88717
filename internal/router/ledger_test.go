package router

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var epoch = time.Unix(1_800_000_000, 0)

func near(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance }

func TestAccountServesInOrder(t *testing.T) {
	rate := &pace{rate: 1000}
	type charge struct {
		at     float64 // seconds
		tokens float64
	}
	tests := []struct {
		name    string
		charges []charge
		at      float64
		backlog float64
		waiting int
	}{
		{"nothing", nil, 5, 0, 0},
		{"just charged", []charge{{0, 500}}, 0, 500, 1},
		{"half done", []charge{{0, 500}}, 0.25, 250, 1},
		{"done", []charge{{0, 500}}, 0.5, 0, 0},
		{"long done", []charge{{0, 500}}, 1e6, 0, 0},
		{"two queued", []charge{{0, 500}, {0, 500}}, 0.25, 750, 2},
		{"first of two done", []charge{{0, 500}, {0, 500}}, 0.75, 250, 1},
		{"second after a pause", []charge{{0, 500}, {10, 500}}, 10.25, 250, 1},
		{"nothing to compute", []charge{{0, 0}}, 0, 0, 0},
		{"clock goes back", []charge{{10, 500}}, 5, 500, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			at := func(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }
			var a account
			for _, c := range tt.charges {
				a.advance(at(c.at), rate)
				a.charge(c.tokens, 0, 0)
			}
			a.advance(at(tt.at), rate)
			if got := a.load(false).backlog; !near(got, tt.backlog, 1e-6) || a.queued.len() != tt.waiting {
				t.Errorf("backlog %v with %d charges, want %v with %d", got, a.queued.len(), tt.backlog, tt.waiting)
			}
		})
	}
}

// TestAccountAgainstSteps compares with a model that serves one millisecond at a time and keeps every charge.
func TestAccountAgainstSteps(t *testing.T) {
	const step = time.Millisecond
	rate := &pace{rate: 2000}
	rnd := rand.New(rand.NewPCG(1, 2))
	var a account
	var left []float64
	queue := 0.0
	now := epoch
	a.advance(now, rate)
	for round := range 400 {
		for range rnd.IntN(4) {
			tokens := float64(rnd.IntN(3000))
			a.charge(tokens, int(tokens), 0)
			if tokens > 0 {
				left = append(left, tokens)
			}
		}
		for range rnd.IntN(3000) {
			work := rate.rate * step.Seconds()
			n := float64(len(left))
			queue = n + (queue-n)*math.Exp(-step.Seconds()/queueWindow.Seconds())
			for work > 0 && len(left) > 0 {
				done := min(work, left[0])
				work -= done
				if left[0] -= done; left[0] < 1e-9 {
					left = left[1:]
				}
			}
			now = now.Add(step)
		}
		a.advance(now, rate)
		sum := 0.0
		for _, l := range left {
			sum += l
		}
		got := a.load(false)
		if !near(got.backlog, sum, 1e-3) || a.queued.len() != len(left) {
			t.Fatalf("round %d: backlog %v of %d charges, model %v of %d", round, got.backlog, a.queued.len(), sum, len(left))
		}
		if !near(got.queue, queue, 0.01) {
			t.Fatalf("round %d: queue %v, model %v", round, got.queue, queue)
		}
	}
}

func TestAccountInvariants(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	rate := &pace{rate: 8000}
	var a account
	now := epoch
	total := 0.0
	for i := range 20_000 {
		switch rnd.IntN(4) {
		case 0:
			uncached := float64(rnd.IntN(50_000))
			a.charge(uncached, int(uncached)+rnd.IntN(1000), uint64(rnd.IntN(20)))
			total += uncached
		case 1:
			before := a.load(false).backlog
			a.confirm([]uint64{uint64(rnd.IntN(40)), uint64(rnd.IntN(40))})
			if after := a.load(false).backlog; after > before {
				t.Fatalf("step %d: backlog %v after a confirmation, %v before", i, after, before)
			}
		default:
			now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Second))))
			a.advance(now, rate)
		}
		l := a.load(false)
		if l.backlog < 0 || l.backlog > total || l.queue < 0 || l.memory < 0 || a.queued.len() > maxCharges || len(a.awaited) > a.queued.len() {
			t.Fatalf("step %d: %+v with %d charges, %v charged", i, l, a.queued.len(), total)
		}
	}
}

func TestAccountBoundsCharges(t *testing.T) {
	rate := &pace{rate: 1000}
	var a account
	a.advance(epoch, rate)
	for range 10 * maxCharges {
		a.charge(10, 10, 7)
	}
	if got := a.load(false).backlog; got != 100*maxCharges {
		t.Errorf("backlog %v, want %v: no charge may be lost", got, 100*maxCharges)
	}
	if len(a.queued.buf) > maxCharges {
		t.Errorf("%d charges kept", len(a.queued.buf))
	}
}

func TestAccountIsZeroAtRest(t *testing.T) {
	rate := &pace{rate: 8000}
	var a account
	a.advance(epoch, rate)
	for i := range 1000 {
		a.charge(float64(1+i), 1e5, uint64(i))
		a.advance(epoch.Add(time.Duration(i)*time.Millisecond), rate)
	}
	a.advance(epoch.Add(20*time.Minute), rate)
	if got := a.load(false); got != (load{}) {
		t.Errorf("20 minutes later: %+v, want all zero", got)
	}
}

func TestAccountConfirm(t *testing.T) {
	tests := []struct {
		name    string
		charges []uint64 // keys of charges of 100 tokens each
		store   []uint64
		backlog float64
	}{
		{"nothing charged", nil, []uint64{1}, 0},
		{"another prompt", []uint64{1, 2}, []uint64{3, 4, 5}, 200},
		{"the only one", []uint64{1}, []uint64{8, 9, 1}, 0},
		{"first of three", []uint64{1, 2, 3}, []uint64{1}, 200},
		{"last of three: served in order", []uint64{1, 2, 3}, []uint64{3}, 0},
		{"two of three in one event", []uint64{1, 2, 3}, []uint64{2, 1}, 100},
		{"equal prompts are held once computed", []uint64{1, 1, 2}, []uint64{1}, 100},
		{"key not known", []uint64{0, 0}, []uint64{0}, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var a account
			a.advance(epoch, &pace{rate: 1})
			for _, key := range tt.charges {
				a.charge(100, 100, key)
			}
			a.confirm(tt.store)
			if got := a.load(false).backlog; got != tt.backlog {
				t.Errorf("backlog %v, want %v", got, tt.backlog)
			}
			a.confirm(tt.store)
			if got := a.load(false).backlog; got != tt.backlog {
				t.Errorf("backlog %v after the same blocks again, want %v", got, tt.backlog)
			}
		})
	}
}

func TestQueueAverage(t *testing.T) {
	rate := &pace{rate: 1000}
	var a account
	a.advance(epoch, rate)
	for range 6 {
		a.charge(1e6, 1e6, 0) // hours of work each
	}
	for _, tt := range []struct {
		after time.Duration
		want  float64
	}{{10 * time.Millisecond, 0.006}, {10 * time.Second, 6 * (1 - 1/math.E)}, {time.Minute, 5.985}} {
		a.advance(epoch.Add(tt.after), rate)
		if got := a.load(false).queue; !near(got, tt.want, 0.01) {
			t.Errorf("after %v: queue %.3f, want %.3f", tt.after, got, tt.want)
		}
	}
}
