package blockhash

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// Algorithm is a way in which engines chain their block hashes. vLLM's are named as its --prefix-caching-hash-algo does.
type Algorithm uint8

const (
	AlgorithmSHA256     Algorithm = iota // vLLM sha256, its default: a pickle
	AlgorithmSHA256CBOR                  // vLLM sha256_cbor
	AlgorithmXXHash                      // vLLM xxhash: the pickle under XXH3-128
	AlgorithmXXHashCBOR                  // vLLM xxhash_cbor
	AlgorithmSGLang                      // SGLang's pages; no seed, no adapters
	algorithms
)

// String returns the algorithm's name.
func (a Algorithm) String() string {
	if a >= algorithms {
		return fmt.Sprintf("Algorithm(%d)", uint8(a))
	}
	return [algorithms]string{"sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "sglang"}[a]
}

// ParseAlgorithm is the reverse of String.
func ParseAlgorithm(name string) (a Algorithm, ok bool) {
	for a := range algorithms {
		if a.String() == name {
			return a, true
		}
	}
	return 0, false
}

// NeedsSeed says whether engines without PYTHONHASHSEED each draw a start of their own. For SHA-256 vLLM ≥ 0.29 has one for all
// ([DefaultSeed]); SGLang has none at all.
func (a Algorithm) NeedsSeed() bool { return a == AlgorithmXXHash || a == AlgorithmXXHashCBOR }

// EngineChain recomputes an engine's block hashes by one algorithm and seed. It keeps a buffer from block to block, so that no block
// allocates, and belongs to one goroutine.
type EngineChain struct {
	algorithm Algorithm
	none      Digest // parent of first blocks, vLLM's NONE_HASH
	p         pickler
	buf       []byte
}

// NewEngineChain returns the chain of an algorithm; the seed is that of [NoneHash]. SGLang ignores it.
func NewEngineChain(a Algorithm, seed string) *EngineChain {
	c := &EngineChain{algorithm: a}
	switch a {
	case AlgorithmSHA256:
		c.none = NoneHashPickle(seed)
	case AlgorithmSHA256CBOR:
		c.none = NoneHash(seed)
	case AlgorithmXXHash:
		c.p.begin()
		c.p.text(seed)
		c.none = sum128(c.p.end())
	case AlgorithmXXHashCBOR:
		c.none = sum128(seedCBOR(seed))
	}
	return c
}

// EngineChainFrom returns the chain of an algorithm whose first blocks have the parent none, as None gives it.
func EngineChainFrom(a Algorithm, none Digest) *EngineChain {
	return &EngineChain{algorithm: a, none: none}
}

// None is the parent of first blocks: a digest of the seed, which tells the seed to whoever guesses it. SGLang has none: it is zero.
func (c *EngineChain) None() Digest { return c.none }

// Algorithm returns what the chain was made for.
func (c *EngineChain) Algorithm() Algorithm { return c.algorithm }

// Block returns the digest of one block from its parent's (nil for a first block), its tokens and its extra keys (nil for
// none). The salt counts in first blocks only, so one ExtraKeys serves a whole chain. Of SGLang's keys only the salt is known.
// A digest of XXH3-128 fills the first 16 bytes.
func (c *EngineChain) Block(parent *Digest, tokens []uint32, keys *ExtraKeys) Digest {
	if c.algorithm == AlgorithmSGLang {
		return c.page(parent, tokens, keys)
	}
	if parent == nil {
		parent = &c.none
	} else if keys != nil && keys.Salt != "" {
		later := *keys
		later.Salt = ""
		keys = &later
	}
	switch c.algorithm {
	case AlgorithmSHA256:
		c.p.block(parent[:], tokens, keys)
		return c.p.sum()
	case AlgorithmXXHash:
		c.p.block(parent[:16], tokens, keys)
		return sum128(c.p.end())
	case AlgorithmXXHashCBOR:
		c.buf = appendBlock(c.buf[:0], parent[:16], tokens, keys)
		return sum128(c.buf)
	}
	c.buf = appendBlock(c.buf[:0], parent[:], tokens, keys)
	return sha256.Sum256(c.buf)
}

// sglangSalt stands before a salt in the parent that SGLang ≥ 0.5.18 gives a first page.
const sglangSalt = "sglang-cache-salt-v1\x00"

// page is Block for SGLang: SHA-256 of the parent's digest, if any, and each token as uint32 little-endian.
func (c *EngineChain) page(parent *Digest, tokens []uint32, keys *ExtraKeys) Digest {
	b := c.buf[:0]
	switch {
	case parent != nil:
		b = append(b, parent[:]...)
	case keys != nil && keys.Salt != "":
		b = append(append(b, sglangSalt...), keys.Salt...)
		prior := sha256.Sum256(b)
		b = append(b[:0], prior[:]...)
	}
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	c.buf = b
	return sha256.Sum256(b)
}

// Uint64 returns what an event has for a digest: vLLM's fold, the last 8 bytes of the digest, big-endian, which is also how
// a hash published as bytes is known; of SGLang the first 8.
func (c *EngineChain) Uint64(d *Digest) uint64 {
	switch c.algorithm {
	case AlgorithmSGLang:
		return binary.BigEndian.Uint64(d[:8])
	case AlgorithmXXHash, AlgorithmXXHashCBOR:
		return binary.BigEndian.Uint64(d[8:16])
	}
	return d.Uint64()
}

func sum128(b []byte) (d Digest) {
	sum := xxh3.Hash128(b).Bytes() // big-endian, as vLLM writes it
	copy(d[:], sum[:])
	return d
}
