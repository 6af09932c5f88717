package kvindex

import (
	"math/rand/v2"
	"slices"
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
	m.run()
	m.end(held)
	x.matchers.put(m)
}

// matcher is one match, taken apart into steps: begin, then rounds of read and use while there is more, then end. read
// looks one key up, use draws the conclusions of a round and decides on the keys of the next. Writers go on between any
// two steps.
//
// A slot that holds key lo but not key hi ends in between, in a span. The key in the middle splits a span; what its word
// says of all slots is used for all of them at once, so equal ends cost nothing more, and a range in which no slot ends is
// never looked at. A slot's result d thus rests on two reads: key d−1 was held at one moment, key d was not at another.
//
// All spans of a round are split at once, and not one after the other to its end: their reads do not wait for each other,
// so that in an index bigger than the processor's caches they overlap.
//
// Mostly all blocks read have the same holders on both tiers. So a search begins with one item per slot that stands for
// both, and half the work; at the first word that tells them apart it begins again with an item for each.
//
// Its lists grow to what the matches of its index need, and stay.
type matcher struct {
	x      *Index
	stripe *stripe
	epoch  uint64
	every  int // matches left until a check

	keys  []uint64
	slots []Slot
	phase phase
	joint bool // an item on Device stands for Any too: no word read has different sets

	at    []int32  // indexes of the keys that this round reads
	words []uint64 // what they are

	items []item // what has no result yet, ordered by span
	spans []span
	next  []span  // spans of the next round, while this one is used
	depth []int32 // results by item

	writes []uint64 // of the asked slots, when this match is checked
	walked []Held
}

// item is a slot on a tier: twice the slot's place, plus one for Any. While a search is joint, there are items on Device only.
type item uint32

// span says that items[from:to] hold key lo but not key hi, at least two keys further.
type span struct {
	lo, hi   int32
	from, to int32
}

type phase uint8

const (
	ended phase = iota
	last        // reads the last key: what holds it holds all
	first       // reads the first key: what does not hold it holds none
	split       // reads the middle of each span
	walk        // reads key after key, walkStep in a round
)

const walkStep = 64

func newMatcher(x *Index) *matcher {
	return &matcher{
		x:      x,
		stripe: &x.epochs.stripes[rand.IntN(len(x.epochs.stripes))],
		every:  1 + rand.IntN(x.options.CheckEvery),
		depth:  make([]int32, 2*x.options.MaxSlots),
	}
}

func (m *matcher) begin(keys []uint64, slots []Slot) {
	m.epoch = m.x.epochs.enter(m.stripe)
	m.keys, m.slots = keys, slots
	m.writes = m.writes[:0]
	if m.x.walking.Load() {
		m.start(walk, false)
		return
	}
	if m.every--; m.every <= 0 {
		m.every = m.x.options.CheckEvery
		m.noteWrites()
	}
	m.start(last, true)
}

// start begins a search or a walk, joint or not.
func (m *matcher) start(p phase, joint bool) {
	m.phase, m.joint = p, joint
	m.at = m.at[:0]
	switch {
	case len(m.keys) == 0:
		m.ask(0, 0)
		m.phase = ended
	case p == last:
		m.at = append(m.at, int32(len(m.keys)-1))
	default:
		m.ask(0, 0)
		m.ahead(0)
	}
}

// ask makes items of all asked slots that are valid, except that the holders of word get the result n at once.
func (m *matcher) ask(word uint64, n int32) {
	m.items = m.items[:0]
	device, any := m.holders(word)
	for _, s := range m.slots {
		if !m.x.slots.isValid(s) {
			continue
		}
		depth := m.depth[2*s.index : 2*s.index+2]
		depth[Device], depth[Any] = n, n
		if device[s.index/64]>>(s.index%64)&1 == 0 {
			depth[Device] = 0
			m.items = append(m.items, item(2*s.index))
		}
		if any[s.index/64]>>(s.index%64)&1 == 0 {
			depth[Any] = 0
			if m.joint {
				continue
			}
			m.items = append(m.items, item(2*s.index+1))
		}
	}
}

// holders returns the bitmaps of a word.
func (m *matcher) holders(word uint64) (device, any []uint64) {
	device = m.x.sets.words(uint32(word))
	if !tiersDiffer(word) {
		return device, device
	}
	return device, m.x.sets.words(uint32(word >> 32))
}

func (m *matcher) more() bool { return m.phase != ended }

func (m *matcher) run() {
	for m.more() {
		if len(m.at) > 2 {
			for _, at := range m.at {
				m.x.touch(m.keys[at])
			}
		}
		for i := range m.at {
			m.read(i)
		}
		m.use()
	}
}

func (m *matcher) read(i int) { m.words = append(m.words[:i], m.x.word(m.keys[m.at[i]])) }

func (m *matcher) use() {
	n := int32(len(m.keys))
	if m.joint && slices.ContainsFunc(m.words[:len(m.at)], tiersDiffer) {
		m.start(last, false)
		return
	}
	switch m.phase {
	case last:
		m.ask(m.words[0], n)
		m.at[0] = 0
		m.phase = first
		if n == 1 || len(m.items) == 0 {
			m.phase = ended
		}
	case first:
		m.items = m.items[:m.part(m.items, m.words[0])]
		m.next = m.enter(m.next[:0], span{0, n - 1, 0, int32(len(m.items))})
		m.round()
	case split:
		next := m.next[:0]
		for i, s := range m.spans {
			mid := m.at[i]
			in := s.from + int32(m.part(m.items[s.from:s.to], m.words[i]))
			next = m.enter(next, span{mid, s.hi, s.from, in})
			next = m.enter(next, span{s.lo, mid, in, s.to})
		}
		m.next = next
		m.round()
	case walk:
		m.useWalk()
	}
}

func tiersDiffer(word uint64) bool { return uint32(word) != uint32(word>>32) }

// part moves the items that are among the holders of a word to the front, and returns how many they are. Which items
// those are is anybody's guess, so it moves them without a branch.
func (m *matcher) part(items []item, word uint64) int {
	if word == 0 {
		return 0
	}
	var holders [2][]uint64
	holders[Device], holders[Any] = m.holders(word)
	in := 0
	for i, it := range items {
		slot := it / 2
		items[i], items[in] = items[in], it
		in += int(holders[it&1][slot/64] >> (slot % 64) & 1)
	}
	return in
}

// result gives items the result n.
func (m *matcher) result(items []item, n int32) {
	for _, it := range items {
		m.depth[it] = n
		if m.joint {
			m.depth[it|1] = n
		}
	}
}

// enter adds a span to the next round, unless it is empty or its items have their result.
func (m *matcher) enter(next []span, s span) []span {
	if s.from == s.to {
		return next
	}
	if s.hi-s.lo > 1 {
		return append(next, s)
	}
	m.result(m.items[s.from:s.to], s.hi)
	return next
}

// round begins the next round of splitting.
func (m *matcher) round() {
	m.spans, m.next = m.next, m.spans
	at := m.at[:0]
	for _, s := range m.spans {
		at = append(at, s.lo+(s.hi-s.lo)/2)
	}
	m.at = at
	m.phase = split
	if len(m.spans) == 0 {
		m.phase = ended
	}
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
		if m.x.slots.isValid(s) {
			// No word has a slot on Device and not on Any, unless the caller stores so; then Any counts.
			any := m.depth[2*s.index+1]
			held[i] = Held{Device: min(m.depth[2*s.index], any), Any: any}
		}
	}
}
