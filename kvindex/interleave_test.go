package kvindex

import (
	"testing"
)

// openMatch is a match that has begun, and the range of counts that were true since.
type openMatch struct {
	m        *matcher
	path     []int
	holders  []*holder
	slots    []Slot
	gone     map[*holder]bool
	low, top []Held
	loaded   int // reads of this round that are done
}

// begin starts a match of a random path, with some unknown keys behind it, for some of the slots in any order, released
// ones and repeated ones too.
func (w *world) begin() *openMatch {
	o := &openMatch{m: newMatcher(w.x), gone: map[*holder]bool{}}
	o.path = w.forest.path(w.r.IntN(len(w.forest.keys)))
	keys := w.keysOf(o.path)
	for w.r.IntN(3) == 0 {
		keys = append(keys, w.r.Uint64())
	}
	for range 1 + w.r.IntN(2*len(w.holders)) {
		h := w.holders[w.r.IntN(len(w.holders))]
		o.holders = append(o.holders, h)
		o.slots = append(o.slots, h.slot)
	}
	if len(w.stale) > 0 {
		h := newHolder(w.stale[w.r.IntN(len(w.stale))])
		o.gone[h] = true
		o.holders = append(o.holders, h)
		o.slots = append(o.slots, h.slot)
	}
	for _, h := range o.holders {
		o.low = append(o.low, h.held(o.path))
		o.top = append(o.top, h.held(o.path))
	}
	o.m.begin(keys, o.slots)
	return o
}

// changed widens the range of a holder's true counts. A call stores or removes key by key, and each key moves the count
// by one at most, so every count between two of them was true for a moment.
func (o *openMatch) changed(h *holder, valid bool) {
	for i, other := range o.holders {
		if other != h {
			continue
		}
		now := h.held(o.path)
		o.low[i] = Held{min(o.low[i].Device, now.Device), min(o.low[i].Any, now.Any)}
		o.top[i] = Held{max(o.top[i].Device, now.Device), max(o.top[i].Any, now.Any)}
		if !valid {
			o.gone[h] = true
		}
	}
}

// step does one read, or uses a round of them, and reports whether the match can go on.
func (o *openMatch) step() bool {
	switch {
	case !o.m.more():
	case o.loaded < len(o.m.at):
		o.m.read(o.loaded)
		o.loaded++
	default:
		o.m.use()
		o.loaded = 0
	}
	return o.m.more()
}

func (o *openMatch) end(tb testing.TB) {
	held := make([]Held, len(o.slots))
	o.m.end(held)
	for i, h := range o.holders {
		got, low, top := held[i], o.low[i], o.top[i]
		if o.gone[h] {
			low, top = Held{}, Held{}
		}
		if got.Device < low.Device || got.Device > top.Device || got.Any < low.Any || got.Any > top.Any || got.Device > got.Any {
			tb.Errorf("path of %d: slot %d: got %+v, true counts were %+v to %+v", len(o.path), i, got, low, top)
		}
	}
}

// interleave runs matches one step at a time, up to three at once, with operations between the steps, also between the
// read of a key's word and the look at its sets.
func interleave(tb testing.TB, seed uint64, nodes, holders, rounds int, o Options, walking bool) {
	w := newWorld(tb, seed, nodes, holders, o)
	w.x.walking.Store(walking)
	var open []*openMatch
	w.changed = func(h *holder) {
		for _, o := range open {
			o.changed(h, w.x.slots.isValid(h.slot))
		}
	}
	for range rounds {
		switch n := w.r.IntN(8); {
		case len(open) < 3 && n == 0:
			open = append(open, w.begin())
		case len(open) > 0 && n < 5:
			i := w.r.IntN(len(open))
			if !open[i].step() {
				if w.r.IntN(2) == 0 {
					w.write()
				}
				open[i].end(tb)
				open = append(open[:i], open[i+1:]...)
			}
		default:
			w.write()
		}
		if tb.Failed() {
			tb.Fatalf("seed %d", seed)
		}
	}
	for _, o := range open {
		for o.step() {
		}
		o.end(tb)
	}
	open = nil
	w.compare()
	if tb.Failed() {
		tb.Fatalf("seed %d", seed)
	}
	if st := w.x.Stats(); st.Differences != 0 {
		tb.Fatalf("seed %d: %d checks differ", seed, st.Differences)
	}
}

func TestInterleavedMatches(t *testing.T) {
	for _, tt := range []struct {
		name           string
		nodes, holders int
		options        Options
		walking        bool
	}{
		{"few slots", 40, 3, Options{MaxSlots: 8}, false},
		{"many sets", 100, 10, Options{MaxSlots: 16}, false},
		{"two words", 60, 70, Options{MaxSlots: 100}, false},
		{"every match checked", 60, 6, Options{MaxSlots: 10, CheckEvery: 1}, false},
		{"walking", 40, 4, Options{MaxSlots: 8}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(12) {
				interleave(t, seed, tt.nodes, tt.holders, 1500, tt.options, tt.walking)
			}
		})
	}
}

func FuzzInterleavedMatch(f *testing.F) {
	f.Add(uint64(1), uint16(50), uint8(4), false)
	f.Add(uint64(2), uint16(300), uint8(80), true)
	f.Fuzz(func(t *testing.T, seed uint64, nodes uint16, holders uint8, walking bool) {
		n := 1 + int(holders)%100
		interleave(t, seed, 1+int(nodes)%400, n, 1000, Options{MaxSlots: n + 4, CheckEvery: 2}, walking)
	})
}
