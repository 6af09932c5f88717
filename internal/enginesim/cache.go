package enginesim

import "github.com/kvsteer/kvsteer/internal/blockhash"

// none ends the linked lists of a cache.
const none = int32(-1)

// block is one physical block of the simulated KV cache. At any moment it is either referenced by sequences or on the free
// list; a free block keeps its content, and can be hit, until it is handed out again.
type block struct {
	refs   int32
	cached bool // digest is valid: the block is full and can be hit
	digest blockhash.Digest
	link   *link // what the digest is of; nil in tests of the cache alone

	prevFree, nextFree int32 // free list; meaningful while refs is 0
	prevCopy, nextCopy int32 // ring of the blocks with the same digest, oldest first from the map; meaningful while cached
}

// cache is the block pool of vLLM's V1 engine. Its rules, each visible in the recorded event streams:
//
//   - A hit takes a block off the free list; a sequence that ends puts its blocks back, last block first, so that the tail
//     of a prompt is evicted before its head.
//   - Blocks are handed out from the front of the free list (least recently freed), and lose their old content only then:
//     that is when BlockRemoved is published, one event for each block. A block that did not fill up has no content to
//     lose; since some release between 0.23 and 0.32 such blocks are handed out first.
//   - Only full blocks have a digest. Two blocks may hold the same content (copies); the oldest one is hit, and each is
//     stored and removed by an event of its own.
type cache struct {
	blocks []block
	// reusePartial puts freed blocks that did not fill up at the front of the free list, as vLLM 0.32 does and 0.23 does not.
	reusePartial bool

	byDigest map[blockhash.Digest]int32 // oldest copy
	head     int32                      // free list, least recently freed first
	tail     int32
	free     int
	events   []event // since the last takeEvents, in order
}

// newCache returns a cache of n blocks. Block 0 is reserved and holds no content, as vLLM's null block, so that n−1 can be
// used.
func newCache(n int, f Format) *cache {
	c := &cache{blocks: make([]block, n), reusePartial: f == Map, byDigest: make(map[blockhash.Digest]int32), head: none, tail: none}
	for i := int32(1); i < int32(n); i++ {
		c.pushFree(i)
	}
	return c
}

// usable is the number of blocks that sequences and cached content share.
func (c *cache) usable() int { return len(c.blocks) - 1 }

// lookup appends the blocks that hold the leading digests, up to the first that is not cached.
func (c *cache) lookup(dst []int32, digests []blockhash.Digest) []int32 {
	for _, d := range digests {
		b, ok := c.byDigest[d]
		if !ok {
			break
		}
		dst = append(dst, b)
	}
	return dst
}

// room reports whether n more blocks can be handed out after the blocks in hits have been taken.
func (c *cache) room(hits []int32, n int) bool {
	for _, b := range hits {
		if c.blocks[b].refs == 0 {
			n++
		}
	}
	return n <= c.free
}

// take references blocks that were found by lookup.
func (c *cache) take(hits []int32) {
	for _, b := range hits {
		if c.blocks[b].refs == 0 {
			c.popFree(b)
		}
		c.blocks[b].refs++
	}
}

// alloc hands out one block and forgets its old content. The caller has asked for room.
func (c *cache) alloc() int32 {
	b := c.head
	c.popFree(b)
	c.blocks[b].refs = 1
	if c.blocks[b].cached {
		c.events = append(c.events, event{kind: blockRemoved, hashes: []blockhash.Digest{c.blocks[b].digest}})
		c.forget(b)
	}
	return b
}

// store gives a block its digest, from when on it can be hit.
func (c *cache) store(b int32, d blockhash.Digest) {
	blk := &c.blocks[b]
	blk.cached, blk.digest = true, d
	first, ok := c.byDigest[d]
	if !ok {
		c.byDigest[d] = b
		blk.prevCopy, blk.nextCopy = b, b
		return
	}
	last := c.blocks[first].prevCopy
	blk.prevCopy, blk.nextCopy = last, first
	c.blocks[last].nextCopy, c.blocks[first].prevCopy = b, b
}

// release drops one reference of each block, last block first.
func (c *cache) release(blocks []int32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		if c.blocks[b].refs--; c.blocks[b].refs > 0 {
			continue
		}
		if c.reusePartial && !c.blocks[b].cached {
			c.unshiftFree(b)
		} else {
			c.pushFree(b)
		}
	}
}

// clear forgets all content, and reports false and does nothing while a block is referenced. The order of the free list
// stays. Several clears before the next step are announced once, so that an idle engine collects no events.
func (c *cache) clear() bool {
	if c.free != c.usable() {
		return false
	}
	for i := range c.blocks {
		c.blocks[i].cached = false
	}
	clear(c.byDigest)
	if n := len(c.events); n == 0 || c.events[n-1].kind != allBlocksCleared {
		c.events = append(c.events, event{kind: allBlocksCleared})
	}
	return true
}

// takeEvents returns the events since the last call.
func (c *cache) takeEvents() []event {
	e := c.events
	c.events = nil
	return e
}

// forget takes b out of the copies of its digest.
func (c *cache) forget(b int32) {
	blk := &c.blocks[b]
	blk.cached = false
	if blk.nextCopy == b {
		delete(c.byDigest, blk.digest)
		return
	}
	c.blocks[blk.prevCopy].nextCopy, c.blocks[blk.nextCopy].prevCopy = blk.nextCopy, blk.prevCopy
	if c.byDigest[blk.digest] == b {
		c.byDigest[blk.digest] = blk.nextCopy
	}
}

func (c *cache) pushFree(b int32) {
	c.blocks[b].prevFree, c.blocks[b].nextFree = c.tail, none
	if c.tail == none {
		c.head = b
	} else {
		c.blocks[c.tail].nextFree = b
	}
	c.tail = b
	c.free++
}

func (c *cache) unshiftFree(b int32) {
	c.blocks[b].prevFree, c.blocks[b].nextFree = none, c.head
	if c.head == none {
		c.tail = b
	} else {
		c.blocks[c.head].prevFree = b
	}
	c.head = b
	c.free++
}

func (c *cache) popFree(b int32) {
	prev, next := c.blocks[b].prevFree, c.blocks[b].nextFree
	if prev == none {
		c.head = next
	} else {
		c.blocks[prev].nextFree = next
	}
	if next == none {
		c.tail = prev
	} else {
		c.blocks[next].prevFree = prev
	}
	c.free--
}
