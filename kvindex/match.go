package kvindex

import (
	"math/bits"
	"math/rand/v2"
)

// Held is how many leading blocks of a match a slot holds on each tier; Device ≤ Any.
type Held struct {
	Device, Any int32
}

// Match finds how many leading keys each of the slots holds: held[i] is for slots[i], zero for a slot that is released or
// full. keys is one chain, first block first. held must not be shorter than slots. It does not allocate.
func (x *Index) Match(keys []uint64, slots []Slot, held []Held) {
	held = held[:len(slots)]
	m := x.matchers.take(x)
	m.begin(keys, slots)
	for m.more() {
		m.read()
		m.use()
	}
	m.end(held)
	x.matchers.put(m)
}

// matcher is one match, taken apart into steps: begin, then read and use as long as there is more, then end. read looks
// one key up; use draws the conclusions and decides on the next key. Writers go on between any two steps.
//
// A slot that holds key lo but not key hi ends in between. A frame is such a range of keys with the slots that end in it,
// per tier. The key in the middle splits it; what a probe says of all slots is used for all of them at once, so equal ends
// cost nothing more, and a range in which no slot ends is never entered. A slot's result d thus rests on two reads: key
// d−1 was held at one moment, and key d was not at another.
type matcher struct {
	x      *Index
	stripe *stripe
	epoch  uint64
	every  int // matches left until a check

	keys  []uint64
	slots []Slot
	words int // of bitmaps that are looked at: up to the highest slot asked for

	phase phase
	at    int    // index of the key to read
	word  uint64 // what read found

	top    int
	lo, hi [maxFrames]int32
	masks  []uint64 // asked slots; then a mask per frame and tier
	depth  []int32  // results by slot, device and any side by side

	writes []uint64 // of the asked slots, when this match is checked
	walked []Held
}

type phase uint8

const (
	ended phase = iota
	last        // reads the last key: whoever holds it holds all
	first       // reads the first key: whoever does not hold it holds none
	split       // reads the middle of the top frame
	walk        // reads key after key
)

// maxFrames is enough for 2^31 keys: of the frames in use, each is at most half of the one below it.
const maxFrames = 34

func newMatcher(x *Index) *matcher {
	slots := x.options.MaxSlots
	return &matcher{
		x:      x,
		stripe: &x.epochs.stripes[rand.IntN(len(x.epochs.stripes))],
		every:  1 + rand.IntN(x.options.CheckEvery),
		masks:  make([]uint64, (1+2*maxFrames)*x.sets.width),
		depth:  make([]int32, 2*slots),
	}
}

func (m *matcher) asked() []uint64 { return m.masks[:m.words] }

// pending returns the slots that end in frame f on a tier.
func (m *matcher) pending(f int, t Tier) []uint64 {
	i := (1 + 2*f + int(t)) * m.words
	return m.masks[i : i+m.words]
}

func (m *matcher) begin(keys []uint64, slots []Slot) {
	m.epoch = m.x.epochs.enter(m.stripe)
	m.keys, m.slots = keys, slots
	m.ask()
	m.writes = m.writes[:0]
	if m.x.walking.Load() {
		m.start(walk)
		return
	}
	if m.every--; m.every <= 0 {
		m.every = m.x.options.CheckEvery
		m.noteWrites()
	}
	m.start(last)
}

// ask makes the mask of the asked slots that are valid.
func (m *matcher) ask() {
	highest := uint32(0)
	for _, s := range m.slots {
		if s.index > highest && int(s.index) < len(m.x.slots.states) {
			highest = s.index
		}
	}
	m.words = int(highest/64) + 1
	asked := m.asked()
	clear(asked)
	for _, s := range m.slots {
		if st := m.x.slots.state(s); st != nil && st.valid(s) {
			asked[s.index/64] |= 1 << (s.index % 64)
			m.depth[2*s.index], m.depth[2*s.index+1] = 0, 0
		}
	}
}

// start begins a search or a walk.
func (m *matcher) start(p phase) {
	m.phase, m.at = p, 0
	if len(m.keys) == 0 {
		m.phase = ended
		return
	}
	if p == last {
		m.at = len(m.keys) - 1
	}
	copy(m.pending(0, Device), m.asked())
	copy(m.pending(0, Any), m.asked())
}

func (m *matcher) more() bool { return m.phase != ended }

func (m *matcher) read() { m.word = m.x.word(m.keys[m.at]) }

func (m *matcher) use() {
	n := int32(len(m.keys))
	switch m.phase {
	case last:
		m.keep(n, true)
		m.phase, m.at = first, 0
		if n == 1 || m.isEmpty(0) {
			m.phase = ended
		}
	case first:
		m.keep(0, false)
		m.top, m.lo[0], m.hi[0] = 0, 0, n-1
		m.phase = split
		m.next()
	case split:
		m.split(int32(m.at))
		m.next()
	case walk:
		m.keep(int32(m.at), false)
		if m.at++; m.at == len(m.keys) {
			m.settle(0, n)
			m.phase = ended
		} else if m.isEmpty(0) {
			m.phase = ended
		}
	}
}

// holders returns the bitmap of a tier in the word that was read.
func (m *matcher) holders(t Tier) []uint64 {
	return m.x.sets.words(uint32(m.word >> (32 * t)))[:m.words]
}

// keep splits the slots of frame 0 into those that hold the key and those that do not, gives one half the result n and
// leaves the other in the frame.
func (m *matcher) keep(n int32, settleHolders bool) {
	for t := Device; t <= Any; t++ {
		holders := m.holders(t)
		pending := m.pending(0, t)
		for i, p := range pending {
			in, out := p&holders[i], p&^holders[i]
			if settleHolders {
				in, out = out, in
			}
			pending[i] = in
			m.result(t, i, out, n)
		}
	}
}

// result gives the slots of one word of a bitmap the result n.
func (m *matcher) result(t Tier, word int, slots uint64, n int32) {
	for ; slots != 0; slots &= slots - 1 {
		m.depth[2*(word*64+bits.TrailingZeros64(slots))+int(t)] = n
	}
}

// settle gives all slots of a frame the result n.
func (m *matcher) settle(f int, n int32) {
	for t := Device; t <= Any; t++ {
		for i, p := range m.pending(f, t) {
			m.result(t, i, p, n)
		}
	}
}

func (m *matcher) isEmpty(f int) bool {
	var or uint64
	for _, p := range m.pending(f, Device) {
		or |= p
	}
	for _, p := range m.pending(f, Any) {
		or |= p
	}
	return or == 0
}

// split divides the top frame at key mid: slots that hold it end above, the others below.
func (m *matcher) split(mid int32) {
	f := m.top
	for t := Device; t <= Any; t++ {
		holders := m.holders(t)
		below, above := m.pending(f, t), m.pending(f+1, t)
		for i, p := range below {
			above[i] = p & holders[i]
			below[i] = p &^ holders[i]
		}
	}
	m.lo[f+1], m.hi[f+1] = mid, m.hi[f]
	m.hi[f] = mid
	m.top = f + 1
}

// next settles the frames that cannot be split and drops empty ones; what is then on top is split next.
func (m *matcher) next() {
	for ; m.top >= 0; m.top-- {
		lo, hi := m.lo[m.top], m.hi[m.top]
		if m.isEmpty(m.top) {
			continue
		}
		if hi-lo > 1 {
			m.at = int(lo + (hi-lo)/2)
			return
		}
		m.settle(m.top, hi)
	}
	m.phase = ended
}

// end writes the results, checks them if it is time, and ends the match.
func (m *matcher) end(held []Held) {
	m.results(held)
	if len(m.writes) > 0 {
		m.check(held)
	}
	m.x.epochs.exit(m.stripe, m.epoch)
	m.keys, m.slots = nil, nil
}

// results turns depths into results. A slot that was released meanwhile holds nothing by now, whatever the reads said.
func (m *matcher) results(held []Held) {
	for i, s := range m.slots {
		held[i] = Held{}
		if st := m.x.slots.state(s); st != nil && m.asked()[s.index/64]>>(s.index%64)&1 != 0 && st.valid(s) {
			// The two tiers rest on different reads; min keeps the promise of Held and is a true count as well.
			any := m.depth[2*s.index+1]
			held[i] = Held{Device: min(m.depth[2*s.index], any), Any: any}
		}
	}
}
