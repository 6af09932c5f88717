package kvindex

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Slot stands for one source of blocks: an endpoint, or one data-parallel rank of it. It names a place and the generation
// of its use: once a slot is released, what is stored under it is dropped and matches find nothing for it, also after
// the place has been given to another. The zero Slot is never valid.
type Slot struct {
	index      uint32
	generation uint32
}

// Flags in a slot's state. A slot with one is not matched.
const (
	fullFlag = 1 << iota // a bound was met
	openFlag             // a check found that what it holds is not closed under prefix

	stateShift = iota
)

// state is the state of a slot that is in use and has no flag.
func (s Slot) state() uint64 { return uint64(s.generation) << stateShift }

// place is one place for slots, without its state.
type place struct {
	// writes is odd while blocks of the slot are being stored or removed. A check compares results only of slots whose
	// writes stood still meanwhile.
	writes atomic.Uint64

	blocks [2]atomic.Int64 // by tier

	mu sync.Mutex // held while blocks of the slot are stored, removed or swept
}

// slots hands out places.
type slots struct {
	// states has, by place, the generation that the place has reached, shifted left, and flags. Odd generations are in
	// use, even ones are not. States lie close together because a match looks at those of all slots.
	states []atomic.Uint64
	places []place

	mu    sync.Mutex
	free  []uint64       // bitmap of places
	limbo queue[retired] // places that a match which began before their release may still ask for, oldest first
}

func (s *slots) init(n int) {
	s.states = make([]atomic.Uint64, n)
	s.places = make([]place, n)
	s.free = make([]uint64, (n+63)/64)
	for i := range n {
		s.free[i/64] |= 1 << (i % 64)
	}
}

func (s *slots) bytes() int64 { return int64(len(s.states)) * int64(8+unsafe.Sizeof(place{})) }

// isKnown reports whether a slot can be one of this index: the zero Slot is none.
func (s *slots) isKnown(slot Slot) bool {
	return slot.generation&1 != 0 && int(slot.index) < len(s.states)
}

// isValid reports whether a slot is in use and has no flag.
func (s *slots) isValid(slot Slot) bool {
	return s.isKnown(slot) && s.states[slot.index].Load() == slot.state()
}

// isUsed reports whether a slot is in use, with flags or without.
func (s *slots) isUsed(slot Slot) bool {
	return s.isKnown(slot) && s.states[slot.index].Load()>>stateShift == uint64(slot.generation)
}

// has reports whether a slot is in use and has a flag.
func (s *slots) has(slot Slot, flag uint64) bool {
	return s.isUsed(slot) && s.states[slot.index].Load() == slot.state()|flag
}

// count returns how many slots are in use and how many of them are full.
func (s *slots) count() (used, full int) {
	for i := range s.states {
		if state := s.states[i].Load(); state>>stateShift&1 != 0 {
			used++
			full += int(state & fullFlag)
		}
	}
	return used, full
}

// take removes the lowest free place from the bitmap: matches handle bitmaps up to the highest slot asked for.
func (s *slots) take() (uint32, bool) {
	for i, w := range s.free {
		if w != 0 {
			s.free[i] &= w - 1
			return uint32(i*64 + bits.TrailingZeros64(w)), true
		}
	}
	return 0, false
}

// reclaim frees the places in limbo that are out of every match's reach.
func (s *slots) reclaim(now uint64) {
	for s.limbo.len() > 0 && passed(s.limbo.first().epoch, now) {
		id := s.limbo.pop().id
		s.free[id/64] |= 1 << (id % 64)
	}
}

// acquireTries is how often Acquire makes way for running matches when only they stand between it and a free place.
const acquireTries = 1000

// Acquire returns a slot that holds nothing, or ErrSlots.
func (x *Index) Acquire() (Slot, error) {
	s := &x.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	for try := 0; ; try++ {
		if s.limbo.len() > 0 {
			s.reclaim(x.epochs.advance())
		}
		if i, ok := s.take(); ok {
			slot := Slot{i, uint32(s.states[i].Load()>>stateShift) + 1}
			s.states[i].Store(slot.state())
			return slot, nil
		}
		if s.limbo.len() == 0 || try == acquireTries {
			return Slot{}, ErrSlots
		}
		runtime.Gosched()
	}
}

// Release forgets everything that s holds. Matches find nothing for s from the start of the call on; when it returns, the
// memory has been given back. Releasing a slot again does nothing.
func (x *Index) Release(s Slot) {
	if !x.slots.isKnown(s) {
		return
	}
	p := &x.slots.places[s.index]
	p.mu.Lock()
	defer p.mu.Unlock()
	if !x.slots.isUsed(s) {
		return
	}
	x.slots.states[s.index].Store(uint64(s.generation+1) << stateShift)
	x.sweep(s.index)
	x.slots.mu.Lock()
	defer x.slots.mu.Unlock()
	x.slots.limbo.push(retired{s.index, x.epochs.current.Load()})
}

// Reset releases s and returns a fresh slot in its place, taken before the release if one is free. With
// ErrSlots, s is released all the same. To replace the holdings
// of an endpoint without a moment of none, call Acquire, fill the new slot, let matches ask for it, then Release the old.
func (x *Index) Reset(s Slot) (Slot, error) {
	if !x.slots.isUsed(s) {
		return Slot{}, ErrStale
	}
	fresh, err := x.Acquire()
	x.Release(s)
	if err != nil {
		return x.Acquire()
	}
	return fresh, nil
}

// sweep removes a slot from all sets of holders, shard by shard. No match reports the slot, so the order does not matter.
// The caller holds the lock of the slot's place and has made the slot invalid.
func (x *Index) sweep(slot uint32) {
	p := &x.slots.places[slot]
	if p.blocks[Device].Load() == 0 && p.blocks[Any].Load() == 0 {
		return
	}
	x.sweeping.Lock()
	defer x.sweeping.Unlock()
	device := writer{x: x, slot: slot, tier: Device, force: true}
	any := writer{x: x, slot: slot, tier: Any, force: true}
	for i := range x.shards {
		x.sweepShard(&x.shards[i], &device, &any)
	}
	device.flush()
	any.flush()
	p.blocks[Device].Store(0)
	p.blocks[Any].Store(0)
	x.sets.collectAll()
}

func (x *Index) sweepShard(s *shard, device, any *writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := s.table.Load().entries
	for i := 0; i < len(entries); {
		old := entries[i].word.Load()
		if old == 0 {
			i++
			continue
		}
		word, _ := device.without(old, sweepStep)
		word, _ = any.without(word, sweepStep)
		switch word {
		case old:
			i++
		case 0:
			s.remove(i) // moves the next entry here
			x.blocks.Add(-1)
		default:
			entries[i].word.Store(word)
			i++
		}
	}
	s.shrink()
}
