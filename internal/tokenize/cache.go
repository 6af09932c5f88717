package tokenize

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/maypok86/otter/v2"
)

// key names a prompt: SHA-256 over the pool and the body of /tokenize. Whoever could make two prompts share a key could give
// another client's requests a wrong match, so a fast hash is not enough.
type key [32]byte

// entry is what the cache holds for a key.
type entry struct {
	tokens      []uint32
	maxModelLen int
	stored      time.Time
}

// entryCost is about what one entry takes besides its token ids: key, entry and the cache's own node.
const entryCost = 256

// cache is a bounded set of entries. A nil cache holds nothing.
type cache struct {
	age  time.Duration
	held *otter.Cache[key, *entry]
}

func newCache(bytes int64, age time.Duration) (*cache, error) {
	c, err := otter.New(&otter.Options[key, *entry]{
		MaximumWeight: uint64(bytes),
		Weigher:       func(_ key, e *entry) uint32 { return uint32(entryCost + 4*len(e.tokens)) },
		// Upkeep runs on the goroutine that writes: nothing is left behind when the Tokenizer is dropped.
		Executor: func(fn func()) { fn() },
	})
	if err != nil {
		return nil, fmt.Errorf("make cache of %d bytes: %w", bytes, err)
	}
	return &cache{age: age, held: c}, nil
}

func (c *cache) get(k key, now time.Time) (*entry, bool) {
	if c == nil {
		return nil, false
	}
	e, ok := c.held.GetIfPresent(k)
	if !ok || now.Sub(e.stored) >= c.age {
		return nil, false
	}
	return e, true
}

func (c *cache) put(k key, e *entry) {
	if c != nil {
		c.held.Set(k, e)
	}
}

func (c *cache) entries() int {
	if c == nil {
		return 0
	}
	return c.held.EstimatedSize()
}

func (c *cache) bytes() uint64 {
	if c == nil {
		return 0
	}
	return c.held.WeightedSize()
}

func sum(text []byte) key { return sha256.Sum256(text) }
