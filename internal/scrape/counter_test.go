package scrape

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestCounter(t *testing.T) {
	type page = map[string]counts
	tests := []struct {
		name      string
		pages     []page
		want      counts
		restarted int // pages at which a restart is seen
	}{
		{"none", nil, counts{}, 0},
		{"what was counted before", []page{{"0": {4, 10}}}, counts{4, 10}, 0},
		{"forward", []page{{"0": {4, 10}}, {"0": {4, 10}}, {"0": {6, 30}}}, counts{6, 30}, 0},
		{"a restart", []page{{"0": {4, 10}}, {"0": {1, 2}}, {"0": {2, 5}}}, counts{6, 15}, 1},
		{"a restart with more hits than before", []page{{"0": {1, 100}}, {"0": {5, 50}}}, counts{6, 150}, 1},
		{"a restart with more queries than before", []page{{"0": {90, 100}}, {"0": {5, 150}}}, counts{95, 250}, 1},
		{"a restart that is back above", []page{{"0": {1, 10}}, {"0": {2, 11}}}, counts{2, 11}, 0},
		{"one of two ranks", []page{{"0": {4, 10}, "1": {5, 20}}, {"0": {0, 1}, "1": {6, 21}}}, counts{10, 32}, 1},
		{"a rank more", []page{{"0": {4, 10}}, {"0": {4, 10}, "1": {1, 2}}}, counts{5, 12}, 0},
		{"a rank less", []page{{"0": {4, 10}, "1": {1, 2}}, {"0": {4, 10}}}, counts{5, 12}, 1},
		{"none for a while", []page{{"": {4, 10}}, {}, {"": {1, 2}}}, counts{5, 12}, 1},
		{"the largest numbers", []page{{"0": {math.MaxUint64, 1}}, {"0": {5, 2}}}, counts{math.MaxUint64, 3}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c counter
			restarted := 0
			for _, p := range tt.pages {
				if c.add(p) {
					restarted++
				}
			}
			if c.total != tt.want || restarted != tt.restarted {
				t.Errorf("%+v and %d restarts, want %+v and %d", c.total, restarted, tt.want, tt.restarted)
			}
		})
	}
}

// TestCounterLives plays engines that count and restart: the total never goes back, is never above what the engines counted in all, and is
// that where each life is seen to begin.
func TestCounterLives(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var c counter
		var truth, before counts
		ranks := []string{"0", "1", "2"}[:1+rnd.IntN(3)]
		now := map[string]counts{}
		seen := true
		for range 100 {
			if rnd.IntN(10) == 0 {
				now = map[string]counts{}
			}
			page := map[string]counts{}
			for _, r := range ranks {
				add := counts{queries: rnd.Uint64N(50)}
				add.hits = rnd.Uint64N(add.queries + 1)
				n := counts{now[r].hits + add.hits, now[r].queries + add.queries}
				if last, ok := c.last[r]; ok && now[r] == (counts{}) && n.hits >= last.hits && n.queries >= last.queries && last != (counts{}) {
					seen = false
				}
				now[r], page[r] = n, n
				truth = counts{truth.hits + add.hits, truth.queries + add.queries}
			}
			c.add(page)
			if c.total.hits < before.hits || c.total.queries < before.queries || c.total.hits > truth.hits || c.total.queries > truth.queries {
				t.Fatalf("seed %d: %+v after %+v, truth %+v", seed, c.total, before, truth)
			}
			before = c.total
		}
		if seen && c.total != truth {
			t.Fatalf("seed %d: %+v, truth %+v", seed, c.total, truth)
		}
	}
}
