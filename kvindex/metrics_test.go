package kvindex

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	x := newIndex(t, Options{CheckEvery: 1})
	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg, x)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}

	slots := acquire(t, x, 2)
	store(t, x, slots[0], []uint64{1, 2, 3})
	store(t, x, slots[1], []uint64{1, 2})
	x.Match([]uint64{1, 2, 3}, slots, make([]Held, 2))
	want := fmt.Sprintf(`
# HELP kvsteer_index_blocks Different blocks in the index.
# TYPE kvsteer_index_blocks gauge
kvsteer_index_blocks 3
# HELP kvsteer_index_bytes Memory of the index.
# TYPE kvsteer_index_bytes gauge
kvsteer_index_bytes %d
# HELP kvsteer_index_checks_total Matches that were checked by a walk over every block.
# TYPE kvsteer_index_checks_total counter
kvsteer_index_checks_total 1
# HELP kvsteer_index_differences_total Checked matches that the walk found to be wrong, with no source's blocks to explain it.
# TYPE kvsteer_index_differences_total counter
kvsteer_index_differences_total 0
# HELP kvsteer_index_full_slots Sources that are not matched because the index was full when they stored.
# TYPE kvsteer_index_full_slots gauge
kvsteer_index_full_slots 0
# HELP kvsteer_index_open_slots_total Sources that checks found to hold a block without one before it; they are not matched until their blocks come anew.
# TYPE kvsteer_index_open_slots_total counter
kvsteer_index_open_slots_total 0
# HELP kvsteer_index_sets Different sets of holders in the index.
# TYPE kvsteer_index_sets gauge
kvsteer_index_sets 2
# HELP kvsteer_index_slots Sources of blocks in the index.
# TYPE kvsteer_index_slots gauge
kvsteer_index_slots 2
# HELP kvsteer_index_walking 1 when a difference was found and every match walks since.
# TYPE kvsteer_index_walking gauge
kvsteer_index_walking 0
`, x.Stats().Bytes)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
