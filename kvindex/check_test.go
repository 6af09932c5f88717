package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Holdings that are not closed under prefix are what a check is there to find.
func TestCheckFindsHoles(t *testing.T) {
	keys := chain(rand.New(rand.NewPCG(1, 2)), 200)
	x := newIndex(t, Options{CheckEvery: 3})
	s := acquire(t, x, 3)
	store(t, x, s[0], keys)
	store(t, x, s[1], keys[:50])
	store(t, x, s[2], keys[:50])
	for range 10 {
		match(x, keys, s...)
	}
	if st := x.Stats(); st.Checks < 3 || st.Differences != 0 || st.Walking {
		t.Fatalf("before: %+v", st)
	}

	store(t, x, s[1], keys[60:]) // blocks 50 to 59 are missing
	before := x.Stats().Checks
	want := []Held{{200, 200}, {50, 50}, {50, 50}}
	for range 3 {
		match(x, keys, s...)
	}
	st := x.Stats()
	if st.Checks != before+1 || st.Differences != 1 || !st.Walking {
		t.Errorf("after: %+v, want one more check than %d and a difference", st, before)
	}
	for range 5 {
		if diff := cmp.Diff(want, match(x, keys, s...)); diff != "" {
			t.Errorf("held by walking (-want +got):\n%s", diff)
		}
	}
	if st := x.Stats(); st.Checks != before+1 || st.Differences != 1 {
		t.Errorf("walks are checked: %+v", st)
	}
}

// The match that finds a difference already gives the walk's result.
func TestCheckedMatchGivesResultOfWalk(t *testing.T) {
	x := newIndex(t, Options{CheckEvery: 1})
	s := acquire(t, x, 1)[0]
	store(t, x, s, []uint64{1, 2})
	store(t, x, s, []uint64{4, 5})
	if got := match(x, []uint64{1, 2, 3, 4, 5}, s)[0]; got != (Held{2, 2}) {
		t.Errorf("holds %+v, want 2, 2", got)
	}
}

// A slot that is written to between a match and its walk is left out, even where the results differ.
func TestCheckLeavesOutSlotsThatMove(t *testing.T) {
	keys := chain(rand.New(rand.NewPCG(1, 2)), 100)
	tests := []struct {
		name   string
		write  func(x *Index, s Slot) error
		checks uint64
	}{
		{"nothing", func(*Index, Slot) error { return nil }, 1},
		{"stored", func(x *Index, s Slot) error { return x.Store(s, Any, keys[50:60]) }, 0},
		{"removed", func(x *Index, s Slot) error { return x.Remove(s, Device, reversed(keys[40:50])) }, 0},
		{"released", func(x *Index, s Slot) error { x.Release(s); return nil }, 0},
		{"being written to", func(x *Index, s Slot) error { x.slots.places[s.index].writes.Add(1); return nil }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := newIndex(t, Options{CheckEvery: 1})
			s := acquire(t, x, 1)
			store(t, x, s[0], keys[:50])
			m := newMatcher(x)
			m.begin(keys, s)
			m.run()
			if err := tt.write(x, s[0]); err != nil {
				t.Fatal(err)
			}
			m.end(make([]Held, 1))
			if st := x.Stats(); st.Checks != tt.checks || st.Differences != 0 {
				t.Errorf("%d checks, %d differences, want %d, 0", st.Checks, st.Differences, tt.checks)
			}
		})
	}
}
