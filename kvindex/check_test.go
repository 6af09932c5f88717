package kvindex

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Holdings that are not closed under prefix are what a check is there to find. They cost their own slot, and no other.
func TestCheckFindsHoles(t *testing.T) {
	keys := chain(rand.New(rand.NewPCG(1, 2)), 200)
	tests := []struct {
		name  string
		store func(x *Index, s Slot) error // to what holds keys[:50] on both tiers
	}{
		{"blocks are missing", func(x *Index, s Slot) error {
			return errors.Join(x.Store(s, Any, keys[60:]), x.Store(s, Device, keys[60:]))
		}},
		{"blocks are missing in any tier", func(x *Index, s Slot) error { return x.Store(s, Any, keys[60:]) }},
		{"blocks are missing on the device", func(x *Index, s Slot) error {
			return errors.Join(x.Store(s, Any, keys[50:]), x.Store(s, Device, keys[60:]))
		}},
		{"blocks are on the device alone", func(x *Index, s Slot) error {
			return errors.Join(x.Store(s, Device, keys[50:]), x.Store(s, Any, keys[60:]))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := newIndex(t, Options{CheckEvery: 3})
			s := acquire(t, x, 3)
			store(t, x, s[0], keys)
			store(t, x, s[1], keys[:50])
			store(t, x, s[2], keys[:50])
			for range 10 {
				match(x, keys, s...)
			}
			if st := x.Stats(); st.Checks < 3 || st.Differences != 0 || st.Walking || st.Opened != 0 {
				t.Fatalf("before: %+v", st)
			}
			if err := tt.store(x, s[1]); err != nil {
				t.Fatal(err)
			}
			before := x.Stats().Checks
			for range 3 {
				match(x, keys, s...)
			}
			st := x.Stats()
			if st.Checks != before+1 || st.Differences != 0 || st.Walking || st.Opened != 1 || st.FullSlots != 0 {
				t.Errorf("after: %+v, want one more check than %d and an open slot", st, before)
			}
			if !x.Open(s[1]) || x.Open(s[0]) || x.Full(s[1]) {
				t.Errorf("open: %v and %v, full: %v", x.Open(s[1]), x.Open(s[0]), x.Full(s[1]))
			}
			for range 5 {
				if diff := cmp.Diff([]Held{{200, 200}, {}, {50, 50}}, match(x, keys, s...)); diff != "" {
					t.Errorf("held (-want +got):\n%s", diff)
				}
			}
			if err := x.Store(s[1], Any, keys[:1]); !errors.Is(err, ErrOpen) {
				t.Errorf("stored: %v", err)
			}
			fresh, err := x.Reset(s[1])
			if err != nil {
				t.Fatal(err)
			}
			store(t, x, fresh, keys[:50])
			for range 3 {
				if diff := cmp.Diff([]Held{{200, 200}, {50, 50}}, match(x, keys, s[0], fresh)); diff != "" {
					t.Errorf("held after a reset (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// The match that finds blocks that are not closed under prefix already gives none of them.
func TestCheckedMatchLeavesOutOpenSlots(t *testing.T) {
	x := newIndex(t, Options{CheckEvery: 1})
	s := acquire(t, x, 2)
	store(t, x, s[0], []uint64{1, 2})
	store(t, x, s[0], []uint64{4, 5})
	store(t, x, s[1], []uint64{1})
	if diff := cmp.Diff([]Held{{}, {1, 1}}, match(x, []uint64{1, 2, 3, 4, 5}, s...)); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// A wrong match that no slot's blocks explain is the index's own fault: it is replaced, and every match walks from then on.
func TestCheckFindsWrongMatches(t *testing.T) {
	keys := chain(rand.New(rand.NewPCG(1, 2)), 100)
	x := newIndex(t, Options{CheckEvery: 1})
	s := acquire(t, x, 2)
	store(t, x, s[0], keys)
	store(t, x, s[1], keys[:50])
	m := newMatcher(x)
	m.begin(keys, s)
	m.run()
	m.depth[2*s[1].index], m.depth[2*s[1].index+1] = 70, 70
	held := make([]Held, 2)
	m.end(held)
	want := []Held{{100, 100}, {50, 50}}
	if st := x.Stats(); st.Differences != 1 || !st.Walking || st.Opened != 0 || !cmp.Equal(held, want) {
		t.Errorf("%+v, held %v", st, held)
	}
	for range 3 {
		if diff := cmp.Diff(want, match(x, keys, s...)); diff != "" {
			t.Errorf("held by walking (-want +got):\n%s", diff)
		}
	}
	if st := x.Stats(); st.Checks != 1 || st.Differences != 1 {
		t.Errorf("walks are checked: %+v", st)
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
