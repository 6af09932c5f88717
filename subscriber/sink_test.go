package subscriber

import (
	"fmt"
	"testing"
)

// checkedSink keeps what was announced and fails the test when a single call
// breaks a promise of Sink.
type checkedSink struct {
	t     testing.TB
	tiers [2]map[uint64]bool
	// parentOf returns a key's parent; root when it has none. When nil, the
	// order within a chain is not checked.
	parentOf func(key uint64) (parent uint64, root bool)
	children [2]map[uint64]int // announced children by parent

	touched     [2]map[uint64]bool // in this batch
	removedDone bool               // a store was seen in this batch
	resets      []Cause
	described   []Description
	calls       int
}

func newCheckedSink(t testing.TB) *checkedSink {
	s := &checkedSink{t: t}
	s.empty()
	s.begin()
	return s
}

func (s *checkedSink) empty() {
	for i := range s.tiers {
		s.tiers[i] = make(map[uint64]bool)
		s.children[i] = make(map[uint64]int)
	}
}

// begin starts a batch.
func (s *checkedSink) begin() {
	s.touched = [2]map[uint64]bool{{}, {}}
	s.removedDone = false
}

func (s *checkedSink) touch(tier Tier, key uint64) {
	if s.touched[tier][key] {
		s.t.Fatalf("tier %d: key %x sent twice in one batch", tier, key)
	}
	s.touched[tier][key] = true
}

func (s *checkedSink) Store(tier Tier, keys []uint64) {
	s.calls++
	s.removedDone = true
	for _, k := range keys {
		s.touch(tier, k)
		if s.tiers[tier][k] {
			s.t.Fatalf("tier %d: store of %x, which is there", tier, k)
		}
		if tier == Device && !s.tiers[Any][k] {
			s.t.Fatalf("store of %x in Device before Any", k)
		}
		s.tiers[tier][k] = true
		if s.parentOf == nil {
			continue
		}
		if parent, root := s.parentOf(k); !root {
			if !s.tiers[tier][parent] {
				s.t.Fatalf("tier %d: store of %x before its parent %x", tier, k, parent)
			}
			s.children[tier][parent]++
		}
	}
}

func (s *checkedSink) Remove(tier Tier, keys []uint64) {
	s.calls++
	if s.removedDone {
		s.t.Fatal("remove after store in one batch")
	}
	for _, k := range keys {
		s.touch(tier, k)
		if !s.tiers[tier][k] {
			s.t.Fatalf("tier %d: remove of %x, which is not there", tier, k)
		}
		if tier == Any && s.tiers[Device][k] {
			s.t.Fatalf("remove of %x from Any before Device", k)
		}
		delete(s.tiers[tier], k)
		if s.parentOf == nil {
			continue
		}
		if n := s.children[tier][k]; n > 0 {
			s.t.Fatalf("tier %d: remove of %x before its %d children", tier, k, n)
		}
		if parent, root := s.parentOf(k); !root {
			s.children[tier][parent]--
		}
	}
}

func (s *checkedSink) Reset(cause Cause) {
	s.resets = append(s.resets, cause)
	s.empty()
	s.begin()
}

func (s *checkedSink) Describe(d Description) {
	if n := len(s.described); n > 0 && s.described[n-1] == d {
		s.t.Fatalf("described twice as %+v", d)
	}
	s.described = append(s.described, d)
}

func (s *checkedSink) last() Description {
	if len(s.described) == 0 {
		return Description{}
	}
	return s.described[len(s.described)-1]
}

// check recounts everything that the mirror keeps up to date, from the blocks
// alone.
func (m *mirror) check() error {
	present, rooted := 0, 0
	anyCount, deviceCount := map[uint32]uint32{}, map[uint32]uint32{}
	ends, listed := 0, [roomKinds]int{}
	for hash, id := range m.byHash.all {
		b := &m.blocks[id]
		present++
		if b.hash != hash {
			return fmt.Errorf("block %d: hash %x is indexed as %x", id, b.hash, hash)
		}
		if b.copies.none() {
			return fmt.Errorf("block %d has no copies", id)
		}
		if parent := m.byHash.get(b.above); !b.first && parent != b.parent {
			return fmt.Errorf("block %d: parent %d, by hash %d", id, b.parent, parent)
		}
		found := b.first
		head := m.waiting[b.above]
		if b.parent != 0 {
			head = m.blocks[b.parent].child
		}
		for c, prev := head, uint32(0); c != 0 && !b.first; prev, c = c, m.blocks[c].next {
			if m.blocks[c].prev != prev {
				return fmt.Errorf("block %d: previous sibling %d, want %d", c, m.blocks[c].prev, prev)
			}
			found = found || c == id
		}
		if !found {
			return fmt.Errorf("block %d is not among its siblings", id)
		}
		anyTier, device := m.copies.resident(&b.copies, m.groups.need)
		if b.ambiguous {
			anyTier, device = false, false
		}
		if !b.first {
			p := &m.blocks[b.parent]
			anyTier, device = anyTier && b.parent != 0 && p.rooted, device && b.parent != 0 && p.rootedDev
		}
		if anyTier != b.rooted || device != b.rootedDev {
			return fmt.Errorf("block %d: rooted %v %v, want %v %v", id, b.rooted, b.rootedDev, anyTier, device)
		}
		if anyTier {
			rooted++
			anyCount[b.print]++
		}
		if device {
			deviceCount[b.print]++
		}
		want := roomNone
		switch {
		case !m.copies.onDevice(&b.copies):
			want = roomCold
		case b.child == 0:
			want = roomLeaf
		}
		if b.room.in != want {
			return fmt.Errorf("block %d: in list %d, want %d", id, b.room.in, want)
		}
		listed[want]++
		for c, k := range m.copies.classes {
			n := m.copies.count(&b.copies, copyClass(c))
			if k.lapses && (n > 1 || (n == 1) != m.lapses.has(id, copyClass(c))) {
				return fmt.Errorf("block %d: %d copies of class %d, with an end: %v", id, n, c, m.lapses.has(id, copyClass(c)))
			}
			if k.lapses {
				ends += int(n)
			}
		}
	}
	if present != m.present || rooted != m.rooted {
		return fmt.Errorf("%d present and %d rooted, want %d and %d", m.present, m.rooted, present, rooted)
	}
	if ends != len(m.lapses.heap) || ends != m.lapses.byCopy.n || ends > m.lapses.max {
		return fmt.Errorf("%d ends listed and %d indexed, want %d of at most %d", len(m.lapses.heap), m.lapses.byCopy.n, ends, m.lapses.max)
	}
	for _, kind := range []roomKind{roomCold, roomLeaf} {
		l, last := m.room[kind], uint32(0)
		for id := l.head; id != 0; last, id = id, m.blocks[id].room.next {
			if b := &m.blocks[id]; b.room.prev != last || b.room.in != kind {
				return fmt.Errorf("block %d of list %d: %+v after %d", id, kind, b.room, last)
			}
			listed[kind]--
		}
		if listed[kind] != 0 || l.tail != last {
			return fmt.Errorf("%d blocks of list %d are not listed, the last is %d, want %d", listed[kind], kind, l.tail, last)
		}
	}
	for hash, id := range m.waiting {
		if m.blocks[id].above != hash || m.byHash.get(hash) != 0 {
			return fmt.Errorf("block %d waits for %x", id, hash)
		}
	}
	for key, id := range m.prints.byKey.all {
		p := &m.prints.prints[id]
		if p.key != key || p.any != anyCount[id] || p.device != deviceCount[id] {
			return fmt.Errorf("fingerprint %d: %+v, want %d and %d", id, *p, anyCount[id], deviceCount[id])
		}
		if len(m.prints.dirty) == 0 && (p.any == 0 || p.sentAny != (p.any > 0) || p.sentDevice != (p.device > 0)) {
			return fmt.Errorf("fingerprint %d: %+v after a flush", id, *p)
		}
		delete(anyCount, id)
	}
	if len(anyCount) > 0 {
		return fmt.Errorf("%d fingerprints are not indexed", len(anyCount))
	}
	return nil
}
