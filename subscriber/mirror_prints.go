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

	order []uint64 // of flush: depth and id
	keys  []uint64 // of flush
}

const (
	// sinkChunk bounds the keys of one call to the sink.
	sinkChunk = 4096
	// keepOrder bounds the sort buffers kept between flushes.
	keepOrder = 1 << 16
)

// clear forgets everything, what was announced too.
func (s *printSet) clear() {
	*s = printSet{prints: make([]fingerprint, 1, 64), byKey: newTable(), order: s.order, keys: s.keys}
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
	s.remove(sink, Device)
	s.remove(sink, Any)
	s.store(sink, Any)
	s.store(sink, Device)
	for _, id := range s.dirty {
		p := &s.prints[id]
		p.dirty = false
		if p.any == 0 {
			s.byKey.del(p.key)
			*p = fingerprint{depth: s.free}
			s.free = id
		}
	}
	s.dirty = s.dirty[:0]
	if cap(s.dirty) > keepOrder {
		s.dirty = nil
	}
	if cap(s.order) > keepOrder {
		s.order = nil
	}
}

// state gives a fingerprint's count in a tier and whether it is announced.
func (p *fingerprint) state(t Tier) (count uint32, sent *bool) {
	if t == Device {
		return p.device, &p.sentDevice
	}
	return p.any, &p.sentAny
}

func (s *printSet) remove(sink Sink, t Tier) {
	s.collect(t, false)
	slices.Reverse(s.order)
	s.emit(func(keys []uint64) { sink.Remove(t, keys) })
}

func (s *printSet) store(sink Sink, t Tier) {
	s.collect(t, true)
	s.emit(func(keys []uint64) { sink.Store(t, keys) })
}

// collect puts the fingerprints that have to be stored, or else removed, into
// s.order by depth and notes them as sent.
func (s *printSet) collect(t Tier, store bool) {
	s.order = s.order[:0]
	for _, id := range s.dirty {
		count, sent := s.prints[id].state(t)
		if *sent == store || (count > 0) != store {
			continue
		}
		*sent = store
		s.order = append(s.order, uint64(s.prints[id].depth)<<32|uint64(id))
		if t == Any {
			if store {
				s.sent++
			} else {
				s.sent--
			}
		}
	}
	slices.Sort(s.order)
}

func (s *printSet) emit(call func(keys []uint64)) {
	for chunk := range slices.Chunk(s.order, sinkChunk) {
		s.keys = s.keys[:0]
		for _, o := range chunk {
			s.keys = append(s.keys, s.prints[uint32(o)].key)
		}
		call(s.keys)
	}
}
