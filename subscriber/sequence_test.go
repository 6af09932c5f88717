package subscriber

import "testing"

func TestSequence(t *testing.T) {
	tests := []struct {
		name string
		seqs []uint64
		want []order
	}{
		{"from the start", []uint64{0, 1, 2}, []order{first, next, next}},
		{"joined late", []uint64{84, 85}, []order{first, next}},
		{"one lost", []uint64{0, 2, 3}, []order{first, gap, next}},
		{"many lost", []uint64{0, 1 << 50, 1<<50 + 1}, []order{first, gap, next}},
		{"restart", []uint64{84, 0, 1}, []order{first, backwards, next}},
		{"restart, first batch missed", []uint64{84, 1, 2}, []order{first, backwards, next}},
		{"twice the same", []uint64{5, 5, 6}, []order{first, backwards, next}},
		{"swapped", []uint64{0, 2, 1, 3}, []order{first, gap, backwards, gap}},
		{"the largest", []uint64{endOfReplay - 2, endOfReplay - 1, 0}, []order{first, next, backwards}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s sequence
			var got []order
			for _, n := range tt.seqs {
				got = append(got, s.observe(n))
			}
			diff(t, "order", tt.want, got)
		})
	}
}
