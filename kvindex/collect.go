package kvindex

import (
	"math/bits"
	"slices"
)

// A set to which no block refers stays interned for a while, since the next block of a chain often wants it again. From
// there it goes its way in small steps, each a part of a writer's call: idle → retired (out of the lookup, in limbo while a
// match may still read it) → free → its chunk given back, if all of the chunk is free.
const (
	idleSlack    = 128 // idle sets that are kept at least
	spareChunks  = 2   // empty chunks that are kept at least
	collectSteps = 4   // more than the two sets that a call can make idle, so that collecting keeps up
)

// collect does one call's share of the work.
func (s *sets) collect() {
	if s.idle.len() > s.slack {
		s.retireIdle(collectSteps)
	}
	if s.limbo.len() > 0 {
		s.reclaim()
	}
}

// collectAll does all of the work that running matches do not stand in the way of.
func (s *sets) collectAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retireIdle(s.idle.len())
	for range 2 { // an id is out of reach two epochs later
		if s.limbo.len() > 0 {
			s.reclaim()
		}
	}
}

// retireIdle takes up to n idle sets out of the lookup.
func (s *sets) retireIdle(n int) {
	epoch := s.epochs.current.Load()
	for range min(n, s.idle.len()) {
		id := s.idle.pop()
		m := s.meta(id)
		m.idle = false
		if m.refs == 0 { // nobody came back for it
			s.leave(id)
			s.limbo.push(retired{id, epoch})
		}
	}
}

// reclaim frees the ids in limbo that are out of every match's reach.
func (s *sets) reclaim() {
	now := s.epochs.current.Load()
	if !passed(s.limbo.first().epoch, now) {
		now = s.epochs.advance()
	}
	for s.limbo.len() > 0 && passed(s.limbo.first().epoch, now) {
		s.freeID(s.limbo.pop().id)
	}
	if s.empty > spareChunks+s.live/(8*chunkSets) {
		s.trim()
	}
}

// newID returns the lowest free id, whose bitmap may be written. Lowest first, the sets that are made later crowd into few
// chunks and leave others to become empty.
func (s *sets) newID() uint32 {
	i := s.spareChunk()
	c := (*s.chunks.Load())[i]
	if c.free == everySet {
		s.empty--
	}
	bit := bits.TrailingZeros64(c.free)
	c.free &^= 1 << bit
	if c.free == 0 {
		s.spare[i/64] &^= 1 << (i % 64)
	}
	return uint32(i*chunkSets + bit)
}

const everySet = 1<<chunkSets - 1

func (s *sets) freeID(id uint32) {
	i := int(id >> chunkShift)
	c := (*s.chunks.Load())[i]
	c.free |= 1 << (id % chunkSets)
	s.spare[i/64] |= 1 << (i % 64)
	if c.free == everySet {
		s.empty++
	}
}

// spareChunk returns the lowest chunk with a free id, and makes one if there is none.
func (s *sets) spareChunk() int {
	for i, w := range s.spare {
		if w != 0 {
			return i*64 + bits.TrailingZeros64(w)
		}
	}
	chunks := *s.chunks.Load()
	i := slices.Index(chunks, nil)
	if i >= 0 {
		chunks = slices.Clone(chunks)
	} else {
		i = len(chunks)
		chunks = append(chunks, nil) // beyond the length that readers know
	}
	chunks[i] = &chunk{bits: make([]uint64, chunkSets*s.width), free: everySet}
	s.chunks.Store(&chunks)
	s.bytes += s.chunkBytes()
	s.empty++
	if i/64 == len(s.spare) {
		s.spare = append(s.spare, 0)
	}
	s.spare[i/64] |= 1 << (i % 64)
	return i
}

// trim gives back the empty chunks. It runs when they are more than an eighth of those in use, so its cost is spread over
// the sets that became free.
func (s *sets) trim() {
	chunks := slices.Clone(*s.chunks.Load())
	for i, c := range chunks {
		if c != nil && c.free == everySet {
			chunks[i] = nil
			s.spare[i/64] &^= 1 << (i % 64)
			s.bytes -= s.chunkBytes()
		}
	}
	s.empty = 0
	s.chunks.Store(&chunks)
	if size := len(s.lookup); size > 64 && s.live*8 < size {
		s.rehash(size / 4)
	}
}
