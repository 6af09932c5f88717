package subscriber

import "slices"

// fingerprint is one key and how many blocks of it are rooted in each tier.
type fingerprint struct {
	key    uint64
	depth  uint32 // blocks in its chain, itself included
	any    uint32
	device uint32

	sentAny, sentDevice bool // as of the last flush
	dirty               bool // listed in printSet.dirty
}

// printSet holds the fingerprints that are announced or about to be. A block
// refers to its own by id.
type printSet struct {
	prints []fingerprint // 0 is none
	byKey  table
	free   uint32 // first free id, chained by fingerprint.depth
	dirty  []uint32
	sent   int // announced in Any
	shedAt int // length of dirty at which shed does its work

	stored, removed [2][]uint64 // of flush, by tier: depth << 32 | id
	keys            []uint64    // of flush
}

// sinkChunk bounds the keys of one call to the sink.
const sinkChunk = 4096

// clear forgets everything, what was announced too.
func (s *printSet) clear() {
	*s = printSet{prints: make([]fingerprint, 1, 64), byKey: newTable(), shedAt: keepBuffer}
}

// at returns what children need of a fingerprint.
func (s *printSet) at(id uint32) (key uint64, depth uint32) {
	return s.prints[id].key, s.prints[id].depth
}

// hold counts one block more, in Any, of a key at that depth.
func (s *printSet) hold(key uint64, depth uint32) uint32 {
	id := s.byKey.get(key)
	if id == 0 {
		if id = s.free; id != 0 {
			s.free = s.prints[id].depth
		} else {
			s.prints = append(s.prints, fingerprint{})
			id = uint32(len(s.prints) - 1)
		}
		s.prints[id] = fingerprint{key: key, depth: depth}
		s.byKey.put(key, id)
	}
	s.prints[id].any++
	s.touch(id)
	return id
}

// release takes one block off in Any. The fingerprint lives until the flush.
func (s *printSet) release(id uint32) {
	s.prints[id].any--
	s.touch(id)
}

// device counts one block more or less in Device.
func (s *printSet) device(id uint32, on bool) {
	if on {
		s.prints[id].device++
	} else {
		s.prints[id].device--
	}
	s.touch(id)
}

func (s *printSet) touch(id uint32) {
	if !s.prints[id].dirty {
		s.prints[id].dirty = true
		s.dirty = append(s.dirty, id)
	}
}

// flush tells the sink what changed since the last flush: first the removals,
// children before parents and from Device before Any, then the stores, parents
// before children and in Any before Device. A fingerprint stands for its whole
// chain, so that depth is a valid order for both.
func (s *printSet) flush(sink Sink) {
	if len(s.dirty) == 0 {
		return
	}
	for _, id := range s.dirty {
		p := &s.prints[id]
		p.dirty = false
		s.note(Device, &p.sentDevice, p.device > 0, p.depth, id)
		if s.note(Any, &p.sentAny, p.any > 0, p.depth, id) {
			if p.sentAny {
				s.sent++
			} else {
				s.sent--
			}
		}
	}
	for _, t := range []Tier{Device, Any} {
		slices.Sort(s.removed[t])
		slices.Reverse(s.removed[t])
		s.emit(s.removed[t], func(keys []uint64) { sink.Remove(t, keys) })
	}
	for _, t := range []Tier{Any, Device} {
		slices.Sort(s.stored[t])
		s.emit(s.stored[t], func(keys []uint64) { sink.Store(t, keys) })
	}
	for _, id := range s.dirty {
		if s.prints[id].any == 0 {
			s.drop(id)
		}
	}
	s.trim()
}

// shed lets go of fingerprints that came and went since the last flush, from time to time, so that a quiet time of any length takes no more
// than the mirror.
func (s *printSet) shed() {
	if len(s.dirty) < s.shedAt {
		return
	}
	kept := s.dirty[:0]
	for _, id := range s.dirty {
		if p := &s.prints[id]; p.any > 0 || p.sentAny {
			kept = append(kept, id)
			continue
		}
		s.drop(id)
	}
	s.dirty = kept
	s.shedAt = max(keepBuffer, 2*len(kept))
}

// drop forgets a fingerprint that no block has.
func (s *printSet) drop(id uint32) {
	p := &s.prints[id]
	s.byKey.del(p.key)
	*p = fingerprint{depth: s.free}
	s.free = id
}

// note notes whether a fingerprint is announced in a tier, lists it if that is
// a change, and returns whether it is.
func (s *printSet) note(t Tier, sent *bool, want bool, depth, id uint32) bool {
	if *sent == want {
		return false
	}
	*sent = want
	entry := uint64(depth)<<32 | uint64(id)
	if want {
		s.stored[t] = append(s.stored[t], entry)
	} else {
		s.removed[t] = append(s.removed[t], entry)
	}
	return true
}

// trim empties the lists of a flush and lets go of large ones.
func (s *printSet) trim() {
	s.dirty = s.dirty[:0]
	if cap(s.dirty) > keepBuffer {
		s.dirty = nil
	}
	for _, lists := range []*[2][]uint64{&s.stored, &s.removed} {
		for t := range lists {
			lists[t] = lists[t][:0]
			if cap(lists[t]) > keepBuffer {
				lists[t] = nil
			}
		}
	}
}

func (s *printSet) emit(order []uint64, call func(keys []uint64)) {
	for len(order) > 0 {
		n := min(len(order), sinkChunk)
		s.keys = s.keys[:0]
		for _, entry := range order[:n] {
			s.keys = append(s.keys, s.prints[uint32(entry)].key)
		}
		call(s.keys)
		order = order[n:]
	}
}
