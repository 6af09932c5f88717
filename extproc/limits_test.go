package extproc

import (
	"math/rand/v2"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func newGauge() prometheus.Gauge { return prometheus.NewGauge(prometheus.GaugeOpts{Name: "held"}) }

func TestAccount(t *testing.T) {
	// 32 MiB bodies: above 64 KiB is large, large ones take half of 128 MiB.
	const kib, mib = 1 << 10, 1 << 20
	tests := []struct {
		name         string
		total, large int64
		from, to     int64
		want         bool
	}{
		{"first", 0, 0, 0, mib, true},
		{"up to the total", 127 * mib, 0, 0, mib, true},
		{"beyond the total", 127 * mib, 0, 0, mib + 1, false},
		{"large up to the half", 60 * mib, 60 * mib, 0, 4 * mib, true},
		{"large beyond the half", 63 * mib, 63 * mib, 0, 2 * mib, false},
		{"ordinary beside large ones", 64 * mib, 64 * mib, 0, 64 * kib, true},
		{"ordinary becomes large beyond the half", 64 * mib, 63 * mib, 64 * kib, 2 * mib, false},
		{"large becomes ordinary when all is taken", 128 * mib, 64 * mib, 2 * mib, 64 * kib, true},
		{"shrink beyond the total", 200 * mib, 0, mib, mib - 1, true},
		{"shrink of a large one beyond the half", 70 * mib, 70 * mib, 4 * mib, 3 * mib, true},
		{"same size when all is taken", 128 * mib, 64 * mib, mib, mib, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newAccount(32*mib, 128*mib, newGauge())
			a.total, a.large = tt.total, tt.large
			if got := a.move(tt.from, tt.to, false); got != tt.want {
				t.Fatalf("got %v", got)
			}
			want := tt.total
			if tt.want {
				want += tt.to - tt.from
			} else if a.large != tt.large {
				t.Errorf("refusal changed large to %d", a.large)
			}
			if a.total != want {
				t.Errorf("total %d, want %d", a.total, want)
			}
			if !a.move(tt.from, tt.to, true) {
				t.Error("forced move refused")
			}
		})
	}
}

// A body of MaxBody can always be read when nothing else is held, however small MaxTotal is.
func TestAccountLeavesRoomForOneBody(t *testing.T) {
	a := newAccount(32<<20, 32<<20+slack, newGauge())
	h := holding{account: a}
	if h.force(60 << 10); !h.resize(60<<10 + 32<<20) {
		t.Error("refused")
	}
}

func TestAccountFollowsHoldings(t *testing.T) {
	gauge := newGauge()
	a := newAccount(1000, 8000, gauge)
	holdings := make([]holding, 40)
	for i := range holdings {
		holdings[i].account = a
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		h := &holdings[rnd.IntN(len(holdings))]
		before, n := h.n, rnd.Int64N(1000)
		ok := true
		switch rnd.IntN(4) {
		case 0:
			h.force(0)
		case 1:
			ok = h.resize(n % 40)
		default:
			ok = h.resize(n)
		}
		if !ok && h.n != before {
			t.Fatalf("refusal changed a holding from %d to %d", before, h.n)
		}
		var total, large int64
		for _, h := range holdings {
			total += h.n
			if h.n > 1000/ordinaryShare {
				large += h.n
			}
		}
		if a.total != total || a.large != large || testutil.ToFloat64(gauge) != float64(total) {
			t.Fatalf("account %d, %d, gauge %v; holdings %d, %d", a.total, a.large, testutil.ToFloat64(gauge), total, large)
		}
		if total > a.max {
			t.Fatalf("%d bytes held", total)
		}
	}
}
