package kvindex

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// forest is a set of chains that share prefixes: node i has a key and, unless it is the first of a chain, a parent.
type forest struct {
	keys   []uint64
	parent []int // −1 for the first block of a chain
	kids   [][]int
}

func newForest(r *rand.Rand, nodes int) *forest {
	f := &forest{}
	for i := range nodes {
		parent := -1
		switch {
		case i > 0 && r.IntN(8) > 0:
			parent = i - 1 // long chains
		case i > 0 && r.IntN(6) > 0:
			parent = r.IntN(i) // that branch
		}
		f.keys = append(f.keys, r.Uint64())
		f.parent = append(f.parent, parent)
		f.kids = append(f.kids, nil)
		if parent >= 0 {
			f.kids[parent] = append(f.kids[parent], i)
		}
	}
	return f
}

// path returns the nodes from the first block of a chain to a node.
func (f *forest) path(node int) []int {
	var p []int
	for ; node >= 0; node = f.parent[node] {
		p = append(p, node)
	}
	slices.Reverse(p)
	return p
}

// holder is what one slot holds, by the slow and obvious model: a set of nodes per tier.
type holder struct {
	slot  Slot
	nodes [2]map[int]bool
}

func newHolder(s Slot) *holder {
	return &holder{slot: s, nodes: [2]map[int]bool{{}, {}}}
}

// depth counts the leading nodes of a path that the holder has.
func (h *holder) depth(t Tier, path []int) int32 {
	n := int32(0)
	for _, node := range path {
		if !h.nodes[t][node] {
			break
		}
		n++
	}
	return n
}

func (h *holder) held(path []int) Held {
	return Held{h.depth(Device, path), h.depth(Any, path)}
}

// world is an index beside its model.
type world struct {
	tb      testing.TB
	r       *rand.Rand
	x       *Index
	forest  *forest
	holders []*holder
	stale   []Slot
	changed func(*holder) // called after every call that changed a holder's nodes or took its slot away
}

func newWorld(tb testing.TB, seed uint64, nodes, holders int, o Options) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &world{tb: tb, r: r, x: newIndex(tb, o), forest: newForest(r, nodes), changed: func(*holder) {}}
	w.x.sets.slack = 0 // sets go through idle, limbo and free as fast as they can
	for _, s := range acquire(tb, w.x, holders) {
		w.holders = append(w.holders, newHolder(s))
	}
	return w
}

func (w *world) keysOf(nodes []int) []uint64 {
	keys := make([]uint64, len(nodes))
	for i, n := range nodes {
		keys[i] = w.forest.keys[n]
	}
	return keys
}

func (w *world) pick(nodes map[int]bool) (int, bool) {
	if len(nodes) == 0 {
		return 0, false
	}
	all := slices.Sorted(maps.Keys(nodes))
	return all[w.r.IntN(len(all))], true
}

func (w *world) store(h *holder, t Tier, path []int) {
	if err := w.x.Store(h.slot, t, w.keysOf(path)); err != nil {
		w.tb.Fatal(err)
	}
	for _, n := range path {
		h.nodes[t][n] = true
	}
	w.changed(h)
}

// remove removes a node and what the holder has below it, children first.
func (w *world) remove(h *holder, t Tier, node int) {
	var gone []int
	for todo := []int{node}; len(todo) > 0; {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if h.nodes[t][n] {
			gone = append(gone, n)
			todo = append(todo, w.forest.kids[n]...)
		}
	}
	slices.Reverse(gone)
	if err := w.x.Remove(h.slot, t, w.keysOf(gone)); err != nil {
		w.tb.Fatal(err)
	}
	for _, n := range gone {
		delete(h.nodes[t], n)
	}
	w.changed(h)
}

// write does one random operation.
func (w *world) write() {
	i := w.r.IntN(len(w.holders))
	h := w.holders[i]
	switch w.r.IntN(16) {
	case 0, 1, 2, 3, 4: // a path on any tier, mostly on device too
		path := w.forest.path(w.r.IntN(len(w.forest.keys)))
		w.store(h, Any, path)
		if w.r.IntN(4) > 0 {
			w.store(h, Device, path[:1+w.r.IntN(len(path))])
		}
	case 5, 6: // a copy in slower memory is loaded
		if n, ok := w.pick(h.nodes[Any]); ok {
			w.store(h, Device, w.forest.path(n))
		}
	case 7, 8: // demotion
		if n, ok := w.pick(h.nodes[Device]); ok {
			w.remove(h, Device, n)
		}
	case 9, 10, 11, 12: // eviction
		if n, ok := w.pick(h.nodes[Any]); ok {
			if h.nodes[Device][n] {
				w.remove(h, Device, n)
			}
			w.remove(h, Any, n)
		}
	case 13: // the slot is used again
		w.reset(i)
	case 14: // late deltas of an earlier use
		if len(w.stale) > 0 {
			s := w.stale[w.r.IntN(len(w.stale))]
			if err := w.x.Store(s, Any, w.forest.keys); !errors.Is(err, ErrStale) {
				w.tb.Fatalf("store to a released slot: %v", err)
			}
			if err := w.x.Remove(s, Any, w.forest.keys); !errors.Is(err, ErrStale) {
				w.tb.Fatalf("remove from a released slot: %v", err)
			}
			w.x.Release(s)
		}
	case 15: // removal of what is not held
		if n := w.r.IntN(len(w.forest.keys)); !h.nodes[Any][n] {
			w.remove(h, Any, n)
			if err := w.x.Remove(h.slot, Any, []uint64{w.forest.keys[n], w.r.Uint64()}); err != nil {
				w.tb.Fatal(err)
			}
		}
	}
}

func (w *world) reset(i int) {
	old := w.holders[i]
	s, err := w.x.Acquire()
	if errors.Is(err, ErrSlots) { // a match in the middle of its steps keeps released places back
		return
	}
	if err != nil {
		w.tb.Fatal(err)
	}
	w.x.Release(old.slot)
	w.stale = append(w.stale, old.slot)
	w.holders[i] = newHolder(s)
	old.nodes = [2]map[int]bool{{}, {}}
	w.changed(old)
}

// compare holds the index against the model while nothing runs.
func (w *world) compare() {
	w.tb.Helper()
	distinct := map[int]bool{}
	var slots []Slot
	for _, h := range w.holders {
		maps.Copy(distinct, h.nodes[Any])
		slots = append(slots, h.slot)
		device, any := w.x.Blocks(h.slot)
		if device != int64(len(h.nodes[Device])) || any != int64(len(h.nodes[Any])) {
			w.tb.Errorf("blocks = %d, %d, want %d, %d", device, any, len(h.nodes[Device]), len(h.nodes[Any]))
		}
	}
	if got := w.x.Stats().Blocks; got != int64(len(distinct)) {
		w.tb.Errorf("index has %d blocks, want %d", got, len(distinct))
	}
	w.match(slots)
	checkInvariants(w.tb, w.x)
}

// match compares what each holder has of every chain, while nothing runs.
func (w *world) match(slots []Slot) {
	w.tb.Helper()
	held := make([]Held, len(slots))
	for node := range w.forest.keys {
		path := w.forest.path(node)
		w.x.Match(w.keysOf(path), slots, held)
		for i, h := range w.holders {
			if want := h.held(path); held[i] != want {
				w.tb.Errorf("path of %d: slot %d holds %+v, want %+v", len(path), i, held[i], want)
			}
		}
	}
}

// checkInvariants recounts what the index keeps counted. Nothing may run meanwhile.
func checkInvariants(tb testing.TB, x *Index) {
	tb.Helper()
	refs := map[uint32]int32{}
	blocks, bytes := int64(0), int64(0)
	for i := range x.shards {
		s := &x.shards[i]
		t, live := s.table.Load(), 0
		for j := range t.entries {
			word := t.entries[j].word.Load()
			if word == 0 {
				continue
			}
			live++
			refs[uint32(word)]++
			refs[uint32(word>>32)]++
			key := t.entries[j].key.Load()
			if got := s.load(hash(t.seed, key), key); got != word {
				tb.Errorf("key in entry %d of shard %d is not found", j, i)
			}
		}
		if live != s.live || live > mayFill(len(t.entries)) || isSparse(live, len(t.entries)) {
			tb.Errorf("shard %d: %d live of %d, counted %d", i, live, len(t.entries), s.live)
		}
		blocks += int64(live)
		bytes += int64(len(t.entries)) * entryBytes
	}
	if got := x.blocks.Load(); got != blocks {
		tb.Errorf("%d blocks counted, %d in tables", got, blocks)
	}
	if got := x.tableBytes.Load(); got != bytes {
		tb.Errorf("%d bytes counted, %d in tables", got, bytes)
	}

	sets := x.sets
	delete(refs, 0)
	seen := map[uint32]string{0: "empty"}
	see := func(id uint32, where string) {
		if other, ok := seen[id]; ok {
			tb.Errorf("set %d is both %s and %s", id, other, where)
		}
		seen[id] = where
	}
	bitmaps := map[string]bool{}
	for _, id := range sets.lookup {
		if id == 0 {
			continue
		}
		see(id, "live")
		if got, want := sets.meta(id).refs, refs[id]; got != want {
			tb.Errorf("set %d: %d references counted, %d in tables", id, got, want)
		}
		delete(refs, id)
		if !slices.ContainsFunc(sets.words(id), func(w uint64) bool { return w != 0 }) {
			tb.Errorf("set %d is a second empty set", id)
		}
		raw := make([]byte, 0, 8*sets.width)
		for _, word := range sets.words(id) {
			for b := range 8 {
				raw = append(raw, byte(word>>(8*b)))
			}
		}
		if bitmaps[string(raw)] {
			tb.Errorf("set %d is interned twice", id)
		}
		bitmaps[string(raw)] = true
	}
	if len(refs) > 0 {
		tb.Errorf("tables refer to %d sets that are not interned", len(refs))
	}
	if got := len(seen) - 1; got != sets.live {
		tb.Errorf("%d sets counted, %d in lookup", sets.live, got)
	}
	for _, r := range sets.limbo.buf[sets.limbo.head:] {
		see(r.id, "in limbo")
	}
	chunks, empty := 0, 0
	for i, c := range *sets.chunks.Load() {
		spare := sets.spare[i/64]>>(i%64)&1 != 0
		if c == nil {
			if spare {
				tb.Errorf("chunk %d is said to have free sets and is not there", i)
			}
			continue
		}
		chunks++
		if c.free == everySet {
			empty++
		}
		if spare != (c.free != 0) {
			tb.Errorf("chunk %d has free sets %#x, said to have some: %v", i, c.free, spare)
		}
		for bit := range chunkSets {
			if c.free>>bit&1 != 0 {
				see(uint32(i*chunkSets+bit), "free")
			}
		}
	}
	if empty != sets.empty {
		tb.Errorf("%d chunks are empty, counted %d", empty, sets.empty)
	}
	if len(seen) != chunks*chunkSets {
		tb.Errorf("%d sets of %d are accounted for", len(seen), chunks*chunkSets)
	}
}

func TestIndexEqualsModel(t *testing.T) {
	for _, o := range []struct {
		name           string
		nodes, holders int
		options        Options
	}{
		{"one slot", 60, 1, Options{MaxSlots: 2}},
		{"few", 120, 5, Options{MaxSlots: 6}},
		{"two words", 200, 70, Options{MaxSlots: 80}},
		{"spare places", 200, 12, Options{MaxSlots: 1024}},
		{"checked", 150, 8, Options{CheckEvery: 1}},
		{"deep", 3000, 6, Options{}},
	} {
		t.Run(o.name, func(t *testing.T) {
			for seed := range uint64(3) {
				w := newWorld(t, seed, o.nodes, o.holders, o.options)
				for range 6 {
					for range 300 {
						w.write()
					}
					if o.nodes <= 200 || seed == 0 {
						w.compare()
					}
				}
				w.compare()
				st := w.x.Stats()
				if st.Differences != 0 || st.Walking || st.Opened != 0 {
					t.Errorf("%d checks differ, %d slots are not closed under prefix", st.Differences, st.Opened)
				}
				if o.options.CheckEvery == 1 && st.Checks == 0 {
					t.Error("no match was checked")
				}
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

func TestWalkEqualsModel(t *testing.T) {
	w := newWorld(t, 1, 150, 8, Options{})
	w.x.walking.Store(true)
	for range 5 {
		for range 200 {
			w.write()
		}
		w.compare()
	}
}
