package enginesim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// slowCache does what cache does with plain lists.
type slowCache struct {
	reusePartial bool
	refs         []int
	digest       []blockhash.Digest // zero: none
	stored       []int32            // blocks with a digest, in the order they got it
	free         []int32
	events       []string
}

func newSlowCache(n int, f Format) *slowCache {
	c := &slowCache{reusePartial: f == Map, refs: make([]int, n), digest: make([]blockhash.Digest, n)}
	for i := 1; i < n; i++ {
		c.free = append(c.free, int32(i))
	}
	return c
}

func (c *slowCache) lookup(digests []blockhash.Digest) []int32 {
	var out []int32
	for _, d := range digests {
		i := slices.IndexFunc(c.stored, func(b int32) bool { return c.digest[b] == d })
		if i < 0 {
			break
		}
		out = append(out, c.stored[i])
	}
	return out
}

func (c *slowCache) room(hits []int32, n int) bool {
	free := len(c.free)
	for _, b := range hits {
		if c.refs[b] == 0 {
			free--
		}
	}
	return n <= free
}

func (c *slowCache) take(hits []int32) {
	for _, b := range hits {
		c.free = slices.DeleteFunc(c.free, func(f int32) bool { return f == b })
		c.refs[b]++
	}
}

func (c *slowCache) alloc() int32 {
	b := c.free[0]
	c.free = c.free[1:]
	c.refs[b] = 1
	if c.digest[b] != (blockhash.Digest{}) {
		c.events = append(c.events, fmt.Sprintf("removed %x", c.digest[b]))
		c.digest[b] = blockhash.Digest{}
		c.stored = slices.DeleteFunc(c.stored, func(s int32) bool { return s == b })
	}
	return b
}

func (c *slowCache) store(b int32, d blockhash.Digest) {
	c.digest[b] = d
	c.stored = append(c.stored, b)
}

func (c *slowCache) release(blocks []int32) {
	for _, b := range slices.Backward(blocks) {
		if c.refs[b]--; c.refs[b] > 0 {
			continue
		}
		if c.reusePartial && c.digest[b] == (blockhash.Digest{}) {
			c.free = slices.Insert(c.free, 0, b)
		} else {
			c.free = append(c.free, b)
		}
	}
}

func (c *slowCache) clear() bool {
	if len(c.free) != len(c.refs)-1 {
		return false
	}
	c.stored = nil
	clear(c.digest)
	if n := len(c.events); n == 0 || c.events[n-1] != "cleared" {
		c.events = append(c.events, "cleared")
	}
	return true
}

// TestCacheAgainstModel does random things to both caches, with few digests so that copies are common.
func TestCacheAgainstModel(t *testing.T) {
	for _, format := range []Format{Map, Array} {
		rng := rand.New(rand.NewPCG(1, 2))
		fast, slow := newCache(20, format), newSlowCache(20, format)
		var held [][]int32
		for i := range 20000 {
			switch op := rng.IntN(100); {
			case op < 50: // a sequence: hits, then new blocks, of which the full ones are stored
				digests := make([]blockhash.Digest, 1+rng.IntN(5))
				for j := range digests {
					digests[j][0] = 1
					binary.BigEndian.PutUint64(digests[j][24:], uint64(j*3+rng.IntN(2)))
				}
				hits := fast.lookup(nil, digests[:rng.IntN(len(digests)+1)])
				if want := slow.lookup(digests)[:len(hits)]; !slices.Equal(hits, want) {
					t.Fatalf("step %d: lookup %v, want %v", i, hits, want)
				}
				need := len(digests) - len(hits) + rng.IntN(2)
				if fast.room(hits, need) != slow.room(hits, need) {
					t.Fatalf("step %d: room for %d is %t", i, need, fast.room(hits, need))
				}
				if !fast.room(hits, need) {
					continue
				}
				fast.take(hits)
				slow.take(hits)
				blocks := slices.Clone(hits)
				for range need {
					b := fast.alloc()
					if want := slow.alloc(); b != want {
						t.Fatalf("step %d: allocated %d, want %d", i, b, want)
					}
					blocks = append(blocks, b)
				}
				for j := len(hits); j < len(digests); j++ {
					fast.store(blocks[j], digests[j])
					slow.store(blocks[j], digests[j])
				}
				held = append(held, blocks)
			case op < 99 && len(held) > 0:
				j := rng.IntN(len(held))
				fast.release(held[j])
				slow.release(held[j])
				held = slices.Delete(held, j, j+1)
			default:
				if a, b := fast.clear(), slow.clear(); a != b {
					t.Fatalf("step %d: clear %t, want %t", i, a, b)
				}
			}
			if fast.free != len(slow.free) {
				t.Fatalf("step %d: %d free, want %d", i, fast.free, len(slow.free))
			}
		}
		var events []string
		for _, e := range fast.takeEvents() {
			if e.kind == allBlocksCleared {
				events = append(events, "cleared")
			} else {
				events = append(events, fmt.Sprintf("removed %x", e.hashes[0]))
			}
		}
		if d := cmp.Diff(slow.events, events); d != "" {
			t.Errorf("%s: events differ:\n%s", format, d)
		}
		if len(slow.events) < 1000 {
			t.Errorf("%s: only %d events, the test is too tame", format, len(slow.events))
		}
	}
}
