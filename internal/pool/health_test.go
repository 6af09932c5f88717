package pool

import (
	"testing"
	"time"
)

func TestHealth(t *testing.T) {
	const (
		ok      = 'o' // good probe
		fail    = 'f' // failed probe
		refused = 'r' // refused probe
		suspect = 's' // reported connect error
	)
	tests := []struct {
		name, steps string
		down        bool
	}{
		{"at start", "", false},
		{"one failure", "f", false},
		{"two failures", "ff", true},
		{"failures with a success between", "fof", false},
		{"one refusal", "r", true},
		{"reported error alone", "s", false},
		{"many reported errors", "ssssss", false},
		{"reported error and a failed probe", "sf", true},
		{"reported error and a good probe", "so", false},
		{"reported error while down", "rs", true},
		{"one good probe brings back", "fffo", false},
		{"back and fails once", "ffof", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h health
			for _, step := range tt.steps {
				switch step {
				case ok:
					h = h.ok(time.Time{})
				case fail:
					h = h.failed(false)
				case refused:
					h = h.failed(true)
				case suspect:
					h = h.unconnected()
				}
			}
			if h.down != tt.down {
				t.Errorf("after %q: down = %v, want %v", tt.steps, h.down, tt.down)
			}
		})
	}
}

func TestScheduleDelay(t *testing.T) {
	s := schedule{interval: 2 * time.Second, first: 500 * time.Millisecond, cap: 10 * time.Second}
	tests := []struct {
		name   string
		health health
		jitter float64
		want   time.Duration
	}{
		{"healthy", health{}, 0.5, 2 * time.Second},
		{"healthy, shortest", health{}, 0, 1800 * time.Millisecond},
		{"first failure", health{failures: 1}, 0.5, 500 * time.Millisecond},
		{"second", health{failures: 2}, 0.5, time.Second},
		{"fifth", health{failures: 5}, 0.5, 8 * time.Second},
		{"capped", health{failures: 6}, 0.5, 10 * time.Second},
		{"capped for ever", health{failures: 1 << 40}, 0.5, 10 * time.Second},
		{"failing, shortest", health{failures: 1}, 0, 375 * time.Millisecond},
		{"suspect", health{elsewhere: true}, 0.5, time.Second},
		{"suspect and failing", health{elsewhere: true, failures: 1}, 0.5, 500 * time.Millisecond},
		{"suspect and down", health{elsewhere: true, down: true, failures: 6}, 0.5, time.Second},
	}
	for _, tt := range tests {
		if got := s.delay(tt.health, tt.jitter); got != tt.want {
			t.Errorf("%s: delay = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestHealthSuspect(t *testing.T) {
	const (
		good   = 'o' // good probe
		fail   = 'f' // failed probe
		missed = 'm' // a request that ran elsewhere
		erred  = 'e' // an answer with a server error
		answer = 'a' // a good answer
		wait   = 'w' // 1 s
	)
	tests := []struct {
		name, steps   string
		suspect, down bool
	}{
		{"at start", "", false, false},
		{"missed", "m", true, false},
		{"missed and a good probe", "mo", false, false},
		{"missed and a failed probe", "mf", true, false},
		{"missed and down", "mff", true, true},
		{"missed and back", "mffo", false, false},
		{"missed and a good answer, of a request that may be old", "ma", true, false},
		{"one server error", "e", false, false},
		{"four server errors", "eeee", false, false},
		{"five server errors", "eeeee", true, false},
		{"five with good probes between", "eoeoeoeoe", true, false},
		{"five with a good answer between", "eeeaee", false, false},
		{"a good probe within the hold", "eeeeewwwwo", true, false},
		{"a good probe after the hold", "eeeeewwwwwo", false, false},
		{"the hold is from the last server error on", "eeeeewwwewwo", true, false},
		{"no probe after the hold", "eeeeewwwwww", true, false},
		{"a failed probe after the hold", "eeeeewwwwwwf", true, false},
		{"a good answer within the hold", "eeeeeoa", false, false},
		{"one more after the hold", "eeeeewwwwwoe", true, false},
		{"one more after a good answer", "eeeeewwwwwoae", false, false},
		{"missed and server errors: both must end", "meeeeeo", true, false},
		{"server errors while down", "ffeeeee", true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h health
			now := time.Unix(1_800_000_000, 0)
			for _, step := range tt.steps {
				switch step {
				case good:
					h = h.ok(now)
				case fail:
					h = h.failed(false)
				case missed:
					h = h.missed()
				case erred:
					h = h.erred(now)
				case answer:
					h = h.answered()
				case wait:
					now = now.Add(time.Second)
				}
			}
			if h.suspect() != tt.suspect || h.down != tt.down {
				t.Errorf("after %q: suspect %v, down %v, want %v and %v", tt.steps, h.suspect(), h.down, tt.suspect, tt.down)
			}
		})
	}
}
