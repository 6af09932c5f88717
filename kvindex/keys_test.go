package kvindex

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAppendKeys(t *testing.T) {
	x := newIndex(t, Options{})
	s := acquire(t, x, 3)
	r := rand.New(rand.NewPCG(7, 7))
	shared, own := chain(r, 300), chain(r, 200)
	store(t, x, s[0], shared)
	store(t, x, s[1], shared[:100])
	store(t, x, s[1], own)
	if err := x.Remove(s[1], Device, reversed(own[50:])); err != nil {
		t.Fatal(err)
	}
	store(t, x, s[2], own)
	x.Release(s[2])
	tests := []struct {
		name  string
		slot  Slot
		tier  Tier
		limit int
		want  []uint64
		all   bool
	}{
		{"one chain", s[0], Device, 300, shared, true},
		{"any tier", s[1], Any, 1000, append(slices.Clone(shared[:100]), own...), true},
		{"device", s[1], Device, 1000, append(slices.Clone(shared[:100]), own[:50]...), true},
		{"released", s[2], Any, 1000, nil, true},
		{"zero slot", Slot{}, Any, 1000, nil, true},
		{"one too many", s[0], Any, 299, nil, false},
		{"no room", s[0], Any, 0, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := []uint64{1, 2}
			got, all := x.AppendKeys(slices.Clone(before), tt.slot, tt.tier, tt.limit)
			if all != tt.all || !slices.Equal(got[:2], before) {
				t.Fatalf("all = %v, begins with %d", all, got[:2])
			}
			got = got[2:]
			if !tt.all {
				if len(got) != tt.limit {
					t.Errorf("%d keys, want the limit %d", len(got), tt.limit)
				}
				return
			}
			slices.Sort(got)
			want := slices.Sorted(slices.Values(tt.want))
			if diff := cmp.Diff(want, slices.Clone(got), cmp.Transformer("nil", func(k []uint64) []uint64 { return append([]uint64{}, k...) })); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
}
