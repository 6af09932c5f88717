package kvindex

// A set to which no block refers stays interned for a while, since the next block of a chain often wants it again. From
// there it goes its way in small steps, each a part of a writer's call: idle → retired (out of the lookup, in limbo while a
// match may still read it) → free → its chunk given back, if all of the chunk is free.
const (
	idleSlack    = 64 // idle sets that are kept at least
	collectSteps = 4  // more than the two sets that a call can make idle, so that collecting keeps up
)

// collect does one call's share of the work.
func (s *sets) collect() {
	if s.idle.len() > s.slack+s.live/8 {
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
		s.free = append(s.free, s.limbo.pop().id)
	}
	if len(s.free) > s.live+2*chunkSets {
		s.trim()
	}
}

// newID returns an id whose bitmap may be written.
func (s *sets) newID() uint32 {
	if len(s.free) == 0 {
		s.extend()
	}
	id := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return id
}

// extend adds a chunk and frees its ids, the lowest last.
func (s *sets) extend() {
	c := &chunk{bits: make([]uint64, chunkSets*s.width)}
	chunks := *s.chunks.Load()
	place := len(chunks)
	if n := len(s.holes); n > 0 {
		place = s.holes[n-1]
		s.holes = s.holes[:n-1]
		chunks = append([]*chunk(nil), chunks...)
		chunks[place] = c
	} else {
		chunks = append(chunks, c) // beyond the length that readers know
	}
	s.chunks.Store(&chunks)
	s.bytes += s.chunkBytes()
	for i := chunkSets - 1; i >= 0; i-- {
		s.free = append(s.free, uint32(place*chunkSets+i))
	}
}

// trim gives back the chunks whose ids are all free. It runs when there are more free sets than used ones, so its cost is
// spread over the sets that became free.
func (s *sets) trim() {
	chunks := append([]*chunk(nil), *s.chunks.Load()...)
	frees := make([]int, len(chunks))
	for _, id := range s.free {
		frees[id>>chunkShift]++
	}
	for i, n := range frees {
		if n == chunkSets {
			chunks[i] = nil
			s.holes = append(s.holes, i)
			s.bytes -= s.chunkBytes()
		}
	}
	kept := make([]uint32, 0, len(s.free))
	for _, id := range s.free {
		if chunks[id>>chunkShift] != nil {
			kept = append(kept, id)
		}
	}
	s.free = kept
	s.chunks.Store(&chunks)
	if size := len(s.lookup); size > 64 && s.live*8 < size {
		s.rehash(size / 4)
	}
}
