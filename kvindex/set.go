package kvindex

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A set of holders is a bitmap over slots, stored once however many blocks have it, and named by a small id. Id 0 is the
// empty set. Sets never change: a block gets or loses a holder by getting the id of another set.
const (
	chunkSets  = 64
	chunkShift = 6
)

// chunk holds sets with consecutive ids. bits is written before an id is handed out and again only when no match can
// hold the id any more (see epochs), so readers need no lock.
type chunk struct {
	bits []uint64 // chunkSets bitmaps of sets.width words
	meta [chunkSets]meta
	free uint64 // ids that may be handed out, a bit each; guarded by sets.mu
}

// meta is what writers know of a set, guarded by sets.mu.
type meta struct {
	hash uint64 // exclusive or of its slots' numbers in sets.numbers; finds the set one slot away in one lookup
	refs int32  // blocks that have the set, counted per tier, and references that writers took in advance
	idle bool   // in sets.idle
}

// sets interns the sets of holders.
type sets struct {
	width   int      // words of a bitmap
	max     int      // most interned sets that Store and Remove may make
	slack   int      // idleSlack
	numbers []uint64 // one random number per slot
	epochs  *epochs

	// chunks is replaced when it grows or shrinks, never written in place below its length.
	chunks atomic.Pointer[[]*chunk]

	mu     sync.Mutex
	lookup []uint32       // ids by hash, linear probing; its length is a power of two
	live   int            // ids in lookup
	spare  []uint64       // chunks with free ids, a bit each
	empty  int            // chunks with nothing but free ids
	idle   queue[uint32]  // ids that had no reference when they were queued, oldest first
	limbo  queue[retired] // ids out of lookup that a match may still read, oldest first
	bytes  int64          // of chunks and of lookup
}

// retired is an id that may be reused once its epoch has passed.
type retired struct {
	id    uint32
	epoch uint64
}

func newSets(slots, limit int, e *epochs) *sets {
	s := &sets{
		width:   (slots + 63) / 64,
		max:     limit,
		slack:   idleSlack,
		numbers: make([]uint64, slots),
		epochs:  e,
		lookup:  make([]uint32, 64),
	}
	for i := range s.numbers {
		s.numbers[i] = rand.Uint64()
	}
	s.bytes = int64(len(s.lookup)) * 4
	s.chunks.Store(&[]*chunk{})
	s.newID() // 0 is the empty set
	return s
}

func (s *sets) chunkBytes() int64 { return int64(unsafe.Sizeof(chunk{})) + chunkSets*8*int64(s.width) }

// words returns the bitmap of a set. The caller is a match, or holds a reference.
func (s *sets) words(id uint32) []uint64 {
	c := (*s.chunks.Load())[id>>chunkShift]
	i := int(id%chunkSets) * s.width
	return c.bits[i : i+s.width]
}

// contains reports whether slot is in a set to which the caller holds a reference.
func (s *sets) contains(id, slot uint32) bool {
	return s.words(id)[slot/64]>>(slot%64)&1 != 0
}

func (s *sets) meta(id uint32) *meta {
	return &(*s.chunks.Load())[id>>chunkShift].meta[id%chunkSets]
}

// change gives back references of two sets, then returns the set that differs from the set from in slot, with refs
// references for the caller. It reports false when the set would be one too many; force makes it all the same.
//
// Given back and taken are one call because a writer does both when it comes to a block with other holders.
func (s *sets) change(back [2]given, from, slot uint32, refs int32, force bool) (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range back {
		s.unref(b)
	}
	s.collect()
	to, ok := s.neighbour(from, slot, force)
	if ok && to != 0 {
		s.meta(to).refs += refs
	}
	return to, ok
}

// given is a number of references to a set that are given back.
type given struct {
	id   uint32
	refs int32
}

// giveBack gives references back.
func (s *sets) giveBack(back [2]given) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range back {
		s.unref(b)
	}
	s.collect()
}

func (s *sets) unref(g given) {
	if g.id == 0 || g.refs == 0 {
		return
	}
	m := s.meta(g.id)
	m.refs -= g.refs
	if m.refs == 0 && !m.idle {
		m.idle = true
		s.idle.push(g.id)
	}
}

// neighbour returns the set that differs from the set from in slot, and interns it if need be.
func (s *sets) neighbour(from, slot uint32, force bool) (uint32, bool) {
	h := s.meta(from).hash ^ s.numbers[slot]
	words := s.words(from)
	if isOnly(words, slot) {
		return 0, true
	}
	for i := int(h) & (len(s.lookup) - 1); s.lookup[i] != 0; i = (i + 1) & (len(s.lookup) - 1) {
		if id := s.lookup[i]; s.meta(id).hash == h && differOnlyIn(s.words(id), words, slot) {
			return id, true
		}
	}
	if s.live >= s.max {
		s.retireIdle(s.idle.len())
		if s.live >= s.max && !force {
			return 0, false
		}
	}
	id := s.newID()
	to := s.words(id)
	copy(to, words)
	to[slot/64] ^= 1 << (slot % 64)
	*s.meta(id) = meta{hash: h}
	s.enter(id, h)
	return id, true
}

// isOnly reports whether slot is the only member of a bitmap.
func isOnly(words []uint64, slot uint32) bool {
	if words[slot/64] != 1<<(slot%64) {
		return false
	}
	for i, w := range words {
		if w != 0 && i != int(slot/64) {
			return false
		}
	}
	return true
}

func differOnlyIn(a, b []uint64, slot uint32) bool {
	for i, w := range a {
		if i == int(slot/64) {
			w ^= 1 << (slot % 64)
		}
		if w != b[i] {
			return false
		}
	}
	return true
}

// enter puts an id into lookup, which is kept at most three quarters full.
func (s *sets) enter(id uint32, h uint64) {
	s.live++
	if s.live*4 > len(s.lookup)*3 {
		s.rehash(len(s.lookup) * 2)
	}
	s.place(id, h)
}

func (s *sets) place(id uint32, h uint64) {
	i := int(h) & (len(s.lookup) - 1)
	for s.lookup[i] != 0 {
		i = (i + 1) & (len(s.lookup) - 1)
	}
	s.lookup[i] = id
}

// leave takes an id out of lookup and closes the gap, as shard.remove does.
func (s *sets) leave(id uint32) {
	mask := len(s.lookup) - 1
	i := int(s.meta(id).hash) & mask
	for s.lookup[i] != id {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; s.lookup[j] != 0; j = (j + 1) & mask {
		if home := int(s.meta(s.lookup[j]).hash) & mask; (j-home)&mask >= (j-i)&mask {
			s.lookup[i] = s.lookup[j]
			i = j
		}
	}
	s.lookup[i] = 0
	s.live--
}

func (s *sets) rehash(size int) {
	old := s.lookup
	s.lookup = make([]uint32, size)
	s.bytes += int64(size-len(old)) * 4
	for _, id := range old {
		if id != 0 {
			s.place(id, s.meta(id).hash)
		}
	}
}

// size returns the number of interned sets and the bytes that all sets take.
func (s *sets) size() (live int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := cap(s.idle.buf)*4 + cap(s.limbo.buf)*16 + (cap(*s.chunks.Load())+cap(s.spare)+len(s.numbers))*8
	return s.live, s.bytes + int64(rest)
}
