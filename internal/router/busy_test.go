package router

import (
	"testing"
	"time"
)

// TestBusy asks twice: at once, and 10 s later.
func TestBusy(t *testing.T) {
	one, other := address(0), address(1)
	tests := []struct {
		name        string
		do          func(w *world)
		busy, later bool
	}{
		{"nothing was sent", func(*world) {}, false, false},
		{"a decision is open", func(w *world) { w.decide(100) }, true, true},
		{"it has ended", func(w *world) { d := w.decide(100); w.r.Complete(answered(d, one)) }, false, false},
		{"another router's charge", func(w *world) { w.r.Charge("a", charged(0, 1, 100)) }, true, true},
		{"it is released", func(w *world) { w.r.Charge("a", charged(0, 1, 100)); w.r.Release("a", "chat", 1) }, false, false},
		{"its endpoint is another one", func(w *world) { w.r.Charge("a", charged(1, 1, 100)) }, false, false},
		{"its router is gone, its prompt fades", func(w *world) { w.r.Charge("a", charged(0, 1, 100)); w.r.Gone("a") }, true, true},
		{"its router is gone, its prompt has faded", func(w *world) { w.r.Charge("a", charged(0, 1, 2)); w.r.Gone("a") }, true, false},
		{"its router is gone, and it waits to be computed", func(w *world) {
			w.r.Charge("a", Charge{Pool: "chat", Endpoint: one, Number: 1, Rank: -1, Prompt: 2, Uncached: 2})
			w.r.Charge("a", Charge{Pool: "chat", Endpoint: one, Number: 2, Rank: -1, Prompt: 2_000, Uncached: 2_000})
			w.r.Gone("a")
			w.r.all()[0].at(one)[0].account.fading = 0
		}, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{PrefillRate: 100}, chat(2))
			w.r.random = func(int) int { return 1 } // the first of equals
			tt.do(w)
			if got := w.r.Busy("chat", one); got != tt.busy {
				t.Errorf("busy %v, want %v", got, tt.busy)
			}
			w.pass(10 * time.Second)
			if got := w.r.Busy("chat", one); got != tt.later {
				t.Errorf("10 s later busy %v, want %v", got, tt.later)
			}
			w.pass(2 * openLifetime)
			for _, e := range []string{one, other, "192.0.2.1:80"} {
				if w.r.Busy("chat", e) {
					t.Errorf("%s is busy at rest", e)
				}
			}
			if w.r.Busy("none", one) {
				t.Error("an endpoint of no pool is busy")
			}
		})
	}
}
