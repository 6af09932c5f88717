package kvindex

const (
	aheadStep = 16  // keys whose entries a write brings into the processor's caches at a time
	quotaStep = 64  // blocks that a Store takes from Options.MaxBlocks at a time
	sweepStep = 256 // references that a sweep takes at a time
)

// Store adds s to the holders of keys on one tier, one key after the other: a key's parent stands before it or is held
// already. A key that s holds already stays as it is. The error is ErrStale, ErrFull or ErrOpen; with ErrFull, s holds nothing
// when Store returns, and is not matched until it is reset.
func (x *Index) Store(s Slot, t Tier, keys []uint64) error { return x.write(s, t, keys, true) }

// Remove takes s from the holders of keys on one tier, one key after the other: a key stands before its parent. A key that
// s does not hold is passed over. The error is ErrStale, ErrFull or ErrOpen, as with Store: a block that loses one of its holders
// may need a set of holders that no other block has.
func (x *Index) Remove(s Slot, t Tier, keys []uint64) error { return x.write(s, t, keys, false) }

func (x *Index) write(s Slot, t Tier, keys []uint64, add bool) error {
	p, err := x.beginWrite(s)
	if err != nil {
		return err
	}
	defer p.mu.Unlock()
	w := writer{x: x, slot: s.index, tier: t}
	done, changed := 0, int64(0)
	for done < len(keys) {
		if done%aheadStep == 0 {
			x.ahead(keys[done:])
		}
		var change, ok bool
		if add {
			change, ok = w.store(keys[done], len(keys)-done)
		} else {
			change, ok = w.remove(keys[done], len(keys)-done)
		}
		if !ok {
			break
		}
		if change {
			changed++
		}
		done++
	}
	w.flush()
	if !add {
		changed = -changed
	}
	p.blocks[t].Add(changed)
	if done < len(keys) {
		x.drop(s)
		err = ErrFull
	}
	p.writes.Add(1)
	return err
}

// ahead touches the next keys of a write: an index bigger than the caches then waits for their entries together, not for one
// after the other.
func (x *Index) ahead(keys []uint64) {
	for _, key := range keys[:min(len(keys), aheadStep)] {
		x.touch(key)
	}
}

// beginWrite locks a slot's place for writing and makes its writes odd.
func (x *Index) beginWrite(s Slot) (*place, error) {
	if !x.slots.isKnown(s) {
		return nil, ErrStale
	}
	p := &x.slots.places[s.index]
	p.mu.Lock()
	switch x.slots.states[s.index].Load() {
	case s.state():
		p.writes.Add(1)
		return p, nil
	case s.state() | fullFlag:
		p.mu.Unlock()
		return nil, ErrFull
	case s.state() | openFlag:
		p.mu.Unlock()
		return nil, ErrOpen
	}
	p.mu.Unlock()
	return nil, ErrStale
}

// drop makes a slot full and gives back what it holds. The caller holds the lock of its place.
func (x *Index) drop(s Slot) {
	x.slots.states[s.index].Store(s.state() | fullFlag) // open or not
	x.sweep(s.index)
}

// writer changes one slot's membership on one tier. Consecutive keys mostly have the same holders, so it remembers the
// last change of set and deals with the sets' lock once per run of equal changes: at the start of a run it takes as many
// references to the new set as there are keys left, at its end it gives back what is too much of both sets. Meanwhile
// both counts are too high, never too low, so neither id can be reused under it.
type writer struct {
	x     *Index
	slot  uint32
	tier  Tier
	force bool  // beyond Options.MaxSets
	quota int64 // blocks taken from Options.MaxBlocks and not yet used

	run      bool
	from, to uint32
	spare    int32 // references to to that are not used yet
	freed    int32 // references to from that are not given back yet
}

// id returns the tier's set in a word.
func (w *writer) id(word uint64) uint32 { return uint32(word >> (32 * w.tier)) }

// with returns word with another set for the tier.
func (w *writer) with(word uint64, id uint32) uint64 {
	return word&^(0xffffffff<<(32*w.tier)) | uint64(id)<<(32*w.tier)
}

// store adds the slot to a key's holders. It reports whether the slot is new there, and false for ok when a bound is met.
// left is how many keys there are from this one on.
func (w *writer) store(key uint64, left int) (added, ok bool) {
	h := hash(w.x.seed, key)
	s := w.x.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.table.Load()
	i := t.seek(h, key)
	word := t.entries[i].word.Load()
	if word == 0 && w.quota == 0 {
		if w.quota = w.x.takeBlocks(min(int64(left), quotaStep)); w.quota == 0 {
			return false, false
		}
	}
	to, changed, ok := w.toggle(w.id(word), true, left)
	if !changed {
		return false, ok
	}
	if word == 0 {
		w.quota--
		s.insert(i, h, key, w.with(0, to))
	} else {
		t.entries[i].word.Store(w.with(word, to))
	}
	return true, true
}

// remove takes the slot from a key's holders. It reports whether the slot was there, and false for ok when a bound is met.
func (w *writer) remove(key uint64, left int) (gone, ok bool) {
	h := hash(w.x.seed, key)
	s := w.x.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.table.Load()
	i := t.seek(h, key)
	old := t.entries[i].word.Load()
	word, ok := w.without(old, left)
	if word == old {
		return false, ok
	}
	if word != 0 {
		t.entries[i].word.Store(word)
		return true, true
	}
	s.remove(i)
	s.shrink()
	w.quota++
	return true, true
}

// without returns word without the slot among the tier's holders. The caller stores it before the writer's next call.
func (w *writer) without(word uint64, left int) (uint64, bool) {
	to, changed, ok := w.toggle(w.id(word), false, left)
	if !changed {
		return word, ok
	}
	return w.with(word, to), true
}

// toggle returns the set that from becomes when the slot joins or leaves, and whether that is a change.
func (w *writer) toggle(from uint32, join bool, left int) (to uint32, changed, ok bool) {
	switch {
	case w.run && from == w.from && w.spare > 0:
	case w.run && from == w.to && w.spare > 0, w.x.sets.contains(from, w.slot) == join:
		return from, false, true
	default:
		to, ok := w.x.sets.change(w.back(), from, w.slot, int32(left), w.force)
		w.run, w.from, w.to, w.spare, w.freed = ok, from, to, int32(left), 0
		if !ok {
			w.spare = 0
			return from, false, false
		}
	}
	w.spare--
	w.freed++
	return w.to, true, true
}

// back returns what the run has taken too much.
func (w *writer) back() [2]given {
	return [2]given{{w.from, w.freed}, {w.to, w.spare}}
}

// flush ends the run.
func (w *writer) flush() {
	if w.run {
		w.x.sets.giveBack(w.back())
		w.run = false
	}
	if w.quota != 0 {
		w.x.blocks.Add(-w.quota)
		w.quota = 0
	}
}

// takeBlocks takes up to n blocks from Options.MaxBlocks.
func (x *Index) takeBlocks(n int64) int64 {
	over := x.blocks.Add(n) - int64(x.options.MaxBlocks)
	if over <= 0 {
		return n
	}
	over = min(over, n)
	x.blocks.Add(-over)
	return n - over
}
