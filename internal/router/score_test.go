package router

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var testWeights = weights{memory: 0.05, near: 16}

func TestCosts(t *testing.T) {
	tests := []struct {
		name   string
		prompt int
		all    []standing
		want   []float64
	}{
		{"nobody", 100, nil, nil},
		{"one that holds nothing", 100, []standing{{}}, []float64{100}},
		{"idle: a copy costs its prefill only", 1000, []standing{{device: 800, any: 800}, {}}, []float64{200, 1000}},
		{"other tier", 1000, []standing{{device: 0, any: 500, colder: 0.8}, {device: 500, any: 500}}, []float64{600, 500}},
		{
			"loaded: a copy costs its queue too", 1000,
			[]standing{{device: 800, any: 800, load: load{queue: 4}}, {load: load{queue: 2}}},
			[]float64{200, 1000 + 3*800},
		},
		{
			"kappa is clamped", 1000,
			[]standing{{device: 100, any: 100, load: load{queue: 900}}, {}},
			[]float64{900, 1000 + 6*100},
		},
		{
			"kappa counts endpoints that hold nothing", 1000,
			[]standing{{device: 800, any: 800, load: load{queue: 4}}, {}, {}, {}},
			[]float64{200, 1000 + 800, 1000 + 800, 1000 + 800},
		},
		{"lost is measured from the best holder", 1000, []standing{{device: 900, any: 900, load: load{queue: 2}}, {device: 400, any: 400}}, []float64{100, 600 + 500}},
		{"backlog", 100, []standing{{load: load{backlog: 5000}}, {}}, []float64{5100, 100}},
		{"memory", 100, []standing{{load: load{memory: 2000}}, {}}, []float64{200, 100}},
		{"no prompt", 0, []standing{{load: load{backlog: 1}}, {}}, []float64{1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := appendCosts(nil, tt.prompt, tt.all, testWeights)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("costs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPick(t *testing.T) {
	tests := []struct {
		name          string
		costs         []float64
		first, second int
	}{
		{"nobody", nil, -1, -1},
		{"one", []float64{5}, 0, -1},
		{"two", []float64{500, 100}, 1, 0},
		{"next best, not next in line", []float64{900, 100, 300}, 1, 2},
		{"equal", []float64{7, 7}, 0, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			first := pick(tt.costs, -1, 16, lowestOf)
			second := -1
			if first >= 0 {
				second = pick(tt.costs, first, 16, lowestOf)
			}
			if first != tt.first || second != tt.second {
				t.Errorf("picked %d, then %d; want %d, %d", first, second, tt.first, tt.second)
			}
		})
	}
}

// lowestOf keeps the first of equals: 0 for the first that is seen, and something else for all further ones.
func lowestOf(n int) int { return n - 1 }

func TestPickSpreadsNearTies(t *testing.T) {
	costs := []float64{116, 100, 117, 108, 5000}
	rnd := rand.New(rand.NewPCG(5, 6))
	var firsts, seconds [5]int
	for range 30_000 {
		first := pick(costs, -1, 16, rnd.IntN)
		second := pick(costs, first, 16, rnd.IntN)
		if first == second {
			t.Fatalf("endpoint %d picked twice", first)
		}
		firsts[first]++
		seconds[second]++
	}
	for i, n := range firsts {
		tied := i == 0 || i == 1 || i == 3
		if tied && (n < 9_500 || n > 10_500) || !tied && n > 0 {
			t.Errorf("endpoint %d was first %d times of 30000", i, n)
		}
	}
	if seconds[4] > 0 {
		t.Errorf("the costly endpoint was second %d times", seconds[4])
	}
}
