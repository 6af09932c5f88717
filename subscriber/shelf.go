package subscriber

import "github.com/kvsteer/kvsteer/internal/blockhash"

// shelf keeps the chains of prompts: a tree of blocks by fingerprint, so that a prefix that many prompts share stands there once.
// Node 0 is none. A shelf never forgets a single node: it is left as a whole.
type shelf struct {
	nodes     []shelfNode
	byKey     table
	byContent table // some node of that content; the others by shelfNode.twin
	byHash    table // under any variant
	// hashes holds, by variant and node, the block's hash as the engine's events have it; 0 where it is not known. A node that has one has
	// ancestors that have one.
	hashes [variants][]uint64
	// digests holds what hashes are cut from, for blocks that were hashed here; the zero Digest elsewhere.
	digests [variants][]blockhash.Digest
}

type shelfNode struct {
	key     uint64 // fingerprint
	content uint64
	root    uint64 // of the chain
	parent  uint32 // 0 for a first block
	twin    uint32 // another node of the same content
	depth   uint32 // blocks in its chain, itself included
	last    bool   // of some prompt
	keyed   bool   // of a prompt with adapter or salt
	loose   bool   // of a prompt whose hashes cannot be computed for want of the adapter's path
}

func newShelf() *shelf {
	return &shelf{nodes: make([]shelfNode, 1, 64), byKey: newTable(), byContent: newTable(), byHash: newTable()}
}

func (s *shelf) len() int { return len(s.nodes) - 1 }

// add enters a block, whose parent stands there already, and returns its node.
func (s *shelf) add(n shelfNode) uint32 {
	if id := s.byKey.get(n.key); id != 0 {
		return id
	}
	id := uint32(len(s.nodes))
	n.depth = s.nodes[n.parent].depth + 1
	if twin := s.byContent.get(n.content); twin != 0 {
		n.twin, s.nodes[twin].twin = s.nodes[twin].twin, id
	} else {
		s.byContent.put(n.content, id)
	}
	s.nodes = append(s.nodes, n)
	s.byKey.put(n.key, id)
	return id
}

// hash returns a node's hash under a variant, 0 when it is not known.
func (s *shelf) hash(v variant, id uint32) uint64 {
	if int(id) >= len(s.hashes[v]) {
		return 0
	}
	return s.hashes[v][id]
}

// setHash enters the hash that a node is published by.
func (s *shelf) setHash(v variant, id uint32, hash uint64) {
	s.hashes[v] = grown(s.hashes[v], len(s.nodes))
	s.hashes[v][id] = hash
	if s.byHash.get(hash) == 0 {
		s.byHash.put(hash, id)
	}
}

// digest returns a node's digest under a variant, nil when it was not computed here.
func (s *shelf) digest(v variant, id uint32) *blockhash.Digest {
	if int(id) >= len(s.digests[v]) || s.digests[v][id] == (blockhash.Digest{}) {
		return nil
	}
	return &s.digests[v][id]
}

// setDigest enters a node's digest and the hash it is published by.
func (s *shelf) setDigest(v variant, id uint32, d blockhash.Digest, hash uint64) {
	s.digests[v] = grown(s.digests[v], len(s.nodes))
	s.digests[v][id] = d
	s.setHash(v, id, hash)
}

// grown is a list with at least so many elements.
func grown[T any](list []T, n int) []T {
	if n > len(list) {
		list = append(list, make([]T, n-len(list))...)
	}
	return list
}

// forget lets go of a variant's hashes.
func (s *shelf) forget(v variant) { s.hashes[v], s.digests[v] = nil, nil }
