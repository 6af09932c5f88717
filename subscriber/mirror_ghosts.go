package subscriber

import "time"

// Bounds of ghosts: at most 48 bytes for each and 32 for its place in a table
// of the worst fill, so 5 MB for an engine with an offload tier, and nothing
// for another.
const (
	maxGhosts = 1 << 16
	ghostLife = 30 * time.Minute
	maxProofs = 1 << 14 // blocks looked at in one batch
)

// ghostSet keeps the content of removed blocks for a while. Engines store into
// their offload tiers by hash alone and in the background, so that such a
// store can come when the device's copy is gone already; a ghost then says
// what the hash means. It is used for hashes that the engine names only, so it
// says nothing of what the engine holds.
//
// Ghosts stand in a ring: when it is full, the oldest makes room.
type ghostSet struct {
	max    int
	ring   []ghost
	next   int   // of ring, when it is full
	byHash table // hash to index in ring + 1
	origin time.Time
}

type ghost struct {
	block storeBlock
	until time.Duration // since origin
}

func newGhosts(maxBlocks int) ghostSet {
	return ghostSet{max: min(maxGhosts, max(maxBlocks/8, 16)), byHash: newTable()}
}

// add keeps a block that is gone.
func (s *ghostSet) add(b storeBlock, now time.Time) {
	if s.origin.IsZero() {
		s.origin = now
	}
	g := ghost{b, now.Sub(s.origin) + ghostLife}
	if at := s.byHash.get(b.hash); at != 0 {
		s.ring[at-1] = g
		return
	}
	if len(s.ring) < s.max {
		s.ring = append(s.ring, g)
		s.byHash.put(b.hash, uint32(len(s.ring)))
		return
	}
	s.byHash.del(s.ring[s.next].block.hash)
	s.ring[s.next] = g
	s.byHash.put(b.hash, uint32(s.next+1))
	s.next = (s.next + 1) % s.max
}

// find returns the block of a hash that was removed not long ago.
func (s *ghostSet) find(hash uint64, now time.Time) (storeBlock, bool) {
	at := s.byHash.get(hash)
	if at == 0 || s.ring[at-1].until < now.Sub(s.origin) {
		return storeBlock{}, false
	}
	return s.ring[at-1].block, true
}

// prove enters what a store after a parent proves: the request that it came
// from holds a copy of the parent and of all its ancestors, which therefore
// cannot have been taken. Those that the mirror lacks, because it counted one copy
// of several, are entered as far as their content is known.
func (m *mirror) prove(hash uint64, c copyClass, now time.Time) {
	for ; m.proofs < maxProofs; m.proofs++ {
		id := m.byHash.get(hash)
		if id == 0 {
			g, ok := m.ghosts.find(hash, now)
			if !ok || m.add(g, c) != dropNone {
				return
			}
			id = m.byHash.get(hash)
		}
		b := &m.blocks[id]
		if b.rootedDev || b.ambiguous {
			return
		}
		if !m.copies.has(&b.copies, c) && !m.addCopy(id, c) {
			return
		}
		if b.first {
			return
		}
		hash = b.above
	}
}
