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
