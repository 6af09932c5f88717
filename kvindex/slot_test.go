package kvindex

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func match(x *Index, keys []uint64, slots ...Slot) []Held {
	held := make([]Held, len(slots))
	x.Match(keys, slots, held)
	return held
}

func TestNewNamesEveryBadOption(t *testing.T) {
	tests := []struct {
		name    string
		options Options
		want    string
	}{
		{"defaults", Options{}, ""},
		{"smallest", Options{MaxSlots: 1, MaxBlocks: 1, MaxSets: 1, CheckEvery: 1}, ""},
		{"checks off", Options{CheckEvery: -1}, ""},
		{"slots", Options{MaxSlots: 1<<16 + 1}, "index options: MaxSlots 65537: want 1 to 65536"},
		{"two", Options{MaxBlocks: -1, MaxSets: -2}, "index options: MaxBlocks -1: want 1 to 1073741824\nMaxSets -2: want 1 to 1073741824"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if _, err := New(tt.options); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("error %q, want %q", got, tt.want)
			}
		})
	}
}

func TestInvalidSlots(t *testing.T) {
	x := newIndex(t, Options{MaxSlots: 4})
	keys := []uint64{1, 2, 3}
	released := acquire(t, x, 1)[0]
	store(t, x, released, keys)
	x.Release(released)
	elsewhere := Slot{index: 4, generation: 1}
	for name, s := range map[string]Slot{"zero": {}, "released": released, "of another index": elsewhere} {
		t.Run(name, func(t *testing.T) {
			if err := x.Store(s, Any, keys); !errors.Is(err, ErrStale) {
				t.Errorf("Store: %v, want %v", err, ErrStale)
			}
			if err := x.Remove(s, Any, keys); !errors.Is(err, ErrStale) {
				t.Errorf("Remove: %v, want %v", err, ErrStale)
			}
			if fresh, err := x.Reset(s); !errors.Is(err, ErrStale) || fresh != (Slot{}) {
				t.Errorf("Reset: %v, %v, want %v", fresh, err, ErrStale)
			}
			x.Release(s)
			if device, any := x.Blocks(s); device != 0 || any != 0 {
				t.Errorf("Blocks: %d, %d", device, any)
			}
			if x.Full(s) {
				t.Error("full")
			}
			if got := match(x, keys, s); got[0] != (Held{}) {
				t.Errorf("holds %+v", got[0])
			}
		})
	}
	checkInvariants(t, x)
}

func TestMatchShapes(t *testing.T) {
	x := newIndex(t, Options{})
	s := acquire(t, x, 3)
	store(t, x, s[0], []uint64{1, 2, 3})
	if err := x.Store(s[1], Any, []uint64{1, 2}); err != nil {
		t.Fatal(err)
	}
	if err := x.Store(s[2], Device, []uint64{1, 2}); err != nil { // against the rule: not on Any
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		keys  []uint64
		slots []Slot
		want  []Held
	}{
		{"all of it", []uint64{1, 2, 3}, s[:2], []Held{{3, 3}, {0, 2}}},
		{"one key", []uint64{1}, s[:2], []Held{{1, 1}, {0, 1}}},
		{"two keys, one unknown", []uint64{1, 9}, s[:2], []Held{{1, 1}, {0, 1}}},
		{"unknown tail", []uint64{1, 2, 3, 9, 8, 7}, s[:2], []Held{{3, 3}, {0, 2}}},
		{"unknown", []uint64{9, 8}, s[:2], []Held{{}, {}}},
		{"no keys", nil, s[:2], []Held{{}, {}}},
		{"no slots", []uint64{1, 2}, nil, []Held{}},
		{"subset in another order, repeated", []uint64{1, 2, 3}, []Slot{s[1], {}, s[1]}, []Held{{0, 2}, {}, {0, 2}}},
		{"device without any counts as none", []uint64{1, 2, 3}, s[2:], []Held{{}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, match(x, tt.keys, tt.slots...)); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMatchPanicsWithoutRoomForResults(t *testing.T) {
	x := newIndex(t, Options{})
	s := acquire(t, x, 2)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		x.Match([]uint64{1}, s, make([]Held, 1))
	}()
	for range 2 { // no match counts as under way
		before := x.epochs.current.Load()
		if after := x.epochs.advance(); after != before+1 {
			t.Errorf("epoch %d does not advance", before)
		}
	}
}

func TestAcquire(t *testing.T) {
	x := newIndex(t, Options{MaxSlots: 3})
	s := acquire(t, x, 3)
	if _, err := x.Acquire(); !errors.Is(err, ErrSlots) {
		t.Errorf("fourth of three: %v, want %v", err, ErrSlots)
	}
	store(t, x, s[1], []uint64{1, 2})

	m := newMatcher(x)
	m.begin([]uint64{1, 2}, s)
	x.Release(s[1])
	if got, err := x.Acquire(); !errors.Is(err, ErrSlots) {
		t.Errorf("a place was reused under a match: %v, %v", got, err)
	}
	m.run()
	held := make([]Held, 3)
	m.end(held)
	if held[1] != (Held{}) {
		t.Errorf("released slot holds %+v", held[1])
	}

	fresh := acquire(t, x, 1)[0]
	if fresh.index != s[1].index || fresh == s[1] {
		t.Errorf("got %+v for released %+v", fresh, s[1])
	}
	if got := match(x, []uint64{1, 2}, fresh, s[1]); got[0] != (Held{}) || got[1] != (Held{}) {
		t.Errorf("fresh and released slots hold %+v", got)
	}
	if st := x.Stats(); st.Slots != 3 || st.Blocks != 0 {
		t.Errorf("%+v", st)
	}
}

func TestReset(t *testing.T) {
	for name, places := range map[string]int{"spare place": 3, "no spare place": 2} {
		t.Run(name, func(t *testing.T) {
			x := newIndex(t, Options{MaxSlots: places})
			s := acquire(t, x, 2)
			store(t, x, s[0], []uint64{1, 2, 3})
			store(t, x, s[1], []uint64{1, 2})
			fresh, err := x.Reset(s[0])
			if err != nil {
				t.Fatal(err)
			}
			want := []Held{{}, {2, 2}, {}}
			if diff := cmp.Diff(want, match(x, []uint64{1, 2, 3}, s[0], s[1], fresh)); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
			checkInvariants(t, x)
		})
	}
}

// A slot that meets a bound is dropped as a whole, and the others are not touched.
func TestBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	keys := chain(r, 300)
	tests := []struct {
		name    string
		options Options
		write   func(x *Index, s Slot) error
		want    error
	}{
		{"as many blocks as allowed", Options{MaxBlocks: 400}, func(x *Index, s Slot) error {
			return x.Store(s, Any, chain(r, 100))
		}, nil},
		{"shared blocks count once", Options{MaxBlocks: 300}, func(x *Index, s Slot) error {
			return x.Store(s, Any, keys)
		}, nil},
		{"one block too many", Options{MaxBlocks: 400}, func(x *Index, s Slot) error {
			return x.Store(s, Any, chain(r, 101))
		}, ErrFull},
		{"blocks too many in small calls", Options{MaxBlocks: 400}, func(x *Index, s Slot) error {
			for range 100 {
				if err := x.Store(s, Any, chain(r, 1)); err != nil {
					return err
				}
			}
			return x.Store(s, Any, chain(r, 1))
		}, ErrFull},
		{"as many sets as allowed", Options{MaxSets: 2}, func(x *Index, s Slot) error {
			return x.Store(s, Any, keys[:10])
		}, nil},
		{"one set too many to store", Options{MaxSets: 2}, func(x *Index, s Slot) error {
			if err := x.Store(s, Any, keys[:10]); err != nil {
				return err
			}
			return x.Store(s, Any, chain(r, 1)) // a set of s alone
		}, ErrFull},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := newIndex(t, tt.options)
			s := acquire(t, x, 2)
			if err := x.Store(s[0], Any, keys); err != nil {
				t.Fatal(err)
			}
			if err := tt.write(x, s[1]); !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if got, want := x.Full(s[1]), tt.want != nil; got != want {
				t.Errorf("full = %v, want %v", got, want)
			}
			if got := match(x, keys, s[0])[0]; got != (Held{0, 300}) {
				t.Errorf("the other slot holds %+v", got)
			}
			checkInvariants(t, x)
			if tt.want == nil {
				return
			}

			if st := x.Stats(); st.FullSlots != 1 || st.Blocks != 300 {
				t.Errorf("stats %+v, want one full slot and the 300 blocks of the other", st)
			}
			if got := match(x, keys, s[1])[0]; got != (Held{}) {
				t.Errorf("full slot holds %+v", got)
			}
			for name, write := range map[string]func(Slot, Tier, []uint64) error{"Store": x.Store, "Remove": x.Remove} {
				if err := write(s[1], Any, keys[:1]); !errors.Is(err, ErrFull) {
					t.Errorf("%s to a full slot: %v, want %v", name, err, ErrFull)
				}
			}
			fresh, err := x.Reset(s[1])
			if err != nil {
				t.Fatal(err)
			}
			if err := x.Store(fresh, Any, keys[:10]); err != nil {
				t.Errorf("Store after Reset: %v", err)
			}
			if got := match(x, keys, fresh)[0]; got != (Held{0, 10}) {
				t.Errorf("after Reset it holds %+v", got)
			}
			checkInvariants(t, x)
		})
	}
}

// Remove can need a set that Options.MaxSets has no room for.
func TestRemoveMeetsMaxSets(t *testing.T) {
	x := newIndex(t, Options{MaxSets: 3})
	s := acquire(t, x, 3)
	keys := chain(rand.New(rand.NewPCG(1, 2)), 10)
	for _, slot := range s {
		if err := x.Store(slot, Any, keys); err != nil {
			t.Fatal(err)
		}
	}
	other := chain(rand.New(rand.NewPCG(3, 4)), 2)
	for i := range other {
		if err := x.Store(s[i], Any, other[:2-i]); err != nil {
			t.Fatal(err)
		}
	}
	// The sets are {0 1 2}, {0 1} and {0}. Slot 2 can leave the tail, but slot 1 would leave {0 2}.
	if err := x.Remove(s[2], Any, reversed(keys[8:])); err != nil {
		t.Fatal(err)
	}
	if err := x.Remove(s[1], Any, reversed(keys[5:])); !errors.Is(err, ErrFull) {
		t.Fatalf("error %v, want %v", err, ErrFull)
	}
	want := []Held{{0, 10}, {}, {0, 8}}
	if diff := cmp.Diff(want, match(x, keys, s...)); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	checkInvariants(t, x)
}
