package router

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestOpeningsAgainstSlice compares with a model that keeps all open decisions in a slice, the oldest first.
func TestOpeningsAgainstSlice(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var s openings[uint64]
	var model []uint64
	for i := range 20_000 {
		switch n := uint64(i + 1); rnd.IntN(5) {
		case 0, 1:
			s.add(n, opening{number: n, prompt: i})
			model = append(model, n)
		case 2:
			if len(model) > 0 {
				n = model[rnd.IntN(len(model))]
			}
			o, ok := s.take(n)
			at := slices.Index(model, n)
			if ok != (at >= 0) || ok && (o.number != n || o.prompt != int(n-1)) {
				t.Fatalf("step %d: took %+v, %v; the model has it at %d", i, o, ok, at)
			}
			if ok {
				model = slices.Delete(model, at, at+1)
			}
		case 3:
			if _, ok := s.take(uint64(1_000_000 + i)); ok {
				t.Fatalf("step %d: took a decision that was never opened", i)
			}
		case 4:
			for len(model) > 50 {
				if o := s.oldest(); o.number != model[0] {
					t.Fatalf("step %d: the oldest is %d, in the model %d", i, o.number, model[0])
				}
				s.take(model[0])
				model = model[1:]
			}
		}
		if s.len() != len(model) || len(s.places) > 200 {
			t.Fatalf("step %d: %d open in %d places, the model has %d", i, s.len(), len(s.places), len(model))
		}
		if o := s.oldest(); (o == nil) != (len(model) == 0) || o != nil && o.number != model[0] {
			t.Fatalf("step %d: the oldest is %+v, the model has %v", i, o, model)
		}
	}
}

func TestTally(t *testing.T) {
	const (
		record  = 'r'
		stray   = 's' // another router's record, or an expired decision
		seconds = 30
		wait    = 'w' // 30 s
	)
	repeat := func(s string, n int) string {
		return string(slices.Repeat([]byte(s), n))
	}
	tests := []struct {
		name, steps string
		exact       bool
	}{
		{"at start", "", false},
		{"only strays", "sss", false},
		{"one record", "r", true},
		{"within a minute of a record", "rww", true},
		{"more than a minute after the last record", "rwww", false},
		{"records again", "rwwwr", true},
		{"one stray among records", "rrsr", true},
		{"a few strays among many records", repeat("rrrrrrrrrrrrrrrrrrrs", 100), true},
		{"every other one strays", repeat("rs", 100), false},
		{"one in five strays", repeat("rrrrs", 100), false},
		{"a burst of strays", "rssssssss", false},
		{"records after a burst of strays", "rssssssss" + repeat("r", 40), true},
		{"records after none had come for long", repeat("s", 1000) + repeat("r", 100), false},
		{"many records after none had come for long", repeat("s", 1000) + repeat("r", 200), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var tally tally
			now := epoch
			for _, step := range tt.steps {
				switch step {
				case record:
					tally.record(now)
				case stray:
					tally.stray()
				case wait:
					now = now.Add(seconds * time.Second)
				}
			}
			if tally.exact(now) != tt.exact {
				t.Errorf("exact = %v with %.3f strays, want %v", !tt.exact, tally.strays, tt.exact)
			}
		})
	}
}

func TestOpenDecisionsAreBounded(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	f := w.r.all()[0]
	var sc scratch
	sc.gather(f, -1, 0)
	last := uint64(0)
	decide := func() {
		last++
		f.place(&sc, 100, booking{number: last, charge: true}, w.r.weights, w.clock(), w.r.random)
	}
	for range maxOpen + 100 {
		decide()
	}
	open, _, expired := f.openDecisions()
	if open != maxOpen || expired != 100 {
		t.Errorf("%d open, %d expired, want %d and 100", open, expired, maxOpen)
	}
	// Each decision makes room for the next, though more are beyond their lifetime than expire in one go.
	w.pass(openLifetime)
	for range maxOpen / expireStep {
		decide()
	}
	if open, _, expired = f.openDecisions(); open != maxOpen/expireStep {
		t.Errorf("%d open, %d expired after the lifetime of all but the last %d", open, expired, maxOpen/expireStep)
	}
	w.pass(openLifetime)
	for i, l := range w.loads(w.clock()) {
		if l.running != 0 || l.backlog != 0 {
			t.Errorf("endpoint %d after the lifetime of all: %+v", i, l)
		}
	}
	if open, _, _ = f.openDecisions(); open != 0 {
		t.Errorf("%d open after the lifetime of all", open)
	}
}
