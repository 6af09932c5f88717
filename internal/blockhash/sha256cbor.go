package blockhash

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// DefaultSeed is the text vLLM ≥ 0.29 hashes for NONE_HASH when PYTHONHASHSEED is not set.
const DefaultSeed = "vllm-none-hash"

// Digest is a whole sha256_cbor block hash.
type Digest [32]byte

// Uint64 returns the fold that vLLM publishes as a block's integer hash: the last 8 bytes, big-endian.
func (d Digest) Uint64() uint64 { return binary.BigEndian.Uint64(d[24:]) }

// NoneHash returns the parent of every first block, vLLM's NONE_HASH: SHA-256 of the CBOR text seed. The seed is
// PYTHONHASHSEED verbatim when the engine has it set, even to "" or "random", else [DefaultSeed]. Releases up to 0.28
// without PYTHONHASHSEED draw it at random, so their chains cannot be recomputed.
func NoneHash(seed string) Digest {
	return sha256.Sum256(seedCBOR(seed))
}

func seedCBOR(seed string) []byte {
	text, err := cbor.Marshal(seed)
	if err != nil {
		panic(fmt.Sprintf("blockhash: encode a string: %v", err)) // the library knows no string that it refuses
	}
	return text
}

// Item is one multimodal item that overlaps a block.
type Item struct {
	Identifier string
	Offset     int64 // start of the item − start of the block, in tokens; may be negative
}

// ExtraKeys is what enters a block's hash besides its tokens. vLLM hashes the keys in the order of the fields here; zero
// fields are left out, and the zero ExtraKeys hashes as none.
type ExtraKeys struct {
	// Tagged selects the form of vLLM ≥ 0.31, which puts a kind before each key. The untagged form of ≤ 0.30 lets
	// different keys collide: an adapter and a salt of the same name hash alike.
	Tagged bool

	LoRA     string // adapter name; in every block
	LoRAPath string // path exactly as the engine was given it; hashed in the tagged form only
	LoRAID   int64  // the adapter's integer id, hashed instead of its name by vLLM ≤ 0.11.0; read when LoRA is empty
	Items    []Item // multimodal items, in the order of their start; in each block they overlap
	Salt     string // cache salt; in the first block only
	Embeds   []byte // digest of the prompt embeddings; in each block
}

// keys returns how many keys e has.
func (e *ExtraKeys) keys() int {
	if e == nil {
		return 0
	}
	n := len(e.Items)
	if e.LoRA != "" || e.LoRAID != 0 {
		n++
	}
	if e.Salt != "" {
		n++
	}
	if e.Embeds != nil {
		n++
	}
	return n
}

// SHA256CBOR recomputes vLLM's sha256_cbor chain. The zero value is ready for use; it keeps a buffer from block to block,
// so that no block allocates, and is not safe for concurrent use.
type SHA256CBOR struct {
	buf []byte
}

// Block returns the digest of one block from its parent's digest ([NoneHash] for a first block), its tokens and its extra
// keys (nil for none).
func (h *SHA256CBOR) Block(parent Digest, tokens []uint32, extra *ExtraKeys) Digest {
	h.buf = appendBlock(h.buf[:0], parent[:], tokens, extra)
	return sha256.Sum256(h.buf)
}

// appendBlock appends what is hashed for one block.
func appendBlock(b, parent []byte, tokens []uint32, extra *ExtraKeys) []byte {
	b = appendHead(b, majorArray, 3)
	b = appendHead(b, majorBytes, uint64(len(parent)))
	b = append(b, parent...)
	b = appendHead(b, majorArray, uint64(len(tokens)))
	for _, t := range tokens {
		b = appendHead(b, majorUnsigned, uint64(t))
	}
	return appendExtra(b, extra)
}

// appendExtra appends the third element of the hashed array: null without keys, never an empty array.
func appendExtra(b []byte, e *ExtraKeys) []byte {
	n := e.keys()
	if n == 0 {
		return append(b, null)
	}
	b = appendHead(b, majorArray, uint64(n))
	switch {
	case e.LoRA != "" && e.Tagged:
		b = appendText(appendText(appendTag(b, 3, "lora"), e.LoRA), e.LoRAPath)
	case e.LoRA != "":
		b = appendText(b, e.LoRA)
	case e.LoRAID != 0:
		b = appendInt(b, e.LoRAID)
	}
	for _, item := range e.Items {
		if e.Tagged {
			b = appendTag(b, 3, "mm")
		} else {
			b = appendHead(b, majorArray, 2)
		}
		b = appendInt(appendText(b, item.Identifier), item.Offset)
	}
	if e.Salt != "" {
		if e.Tagged {
			b = appendTag(b, 2, "cache_salt")
		}
		b = appendText(b, e.Salt)
	}
	if e.Embeds != nil {
		if e.Tagged {
			b = appendTag(b, 2, "prompt_embeds")
		}
		b = append(appendHead(b, majorBytes, uint64(len(e.Embeds))), e.Embeds...)
	}
	return b
}

// appendTag begins the array of a tagged key: n elements, the first of them its kind.
func appendTag(b []byte, n uint64, kind string) []byte {
	return appendText(appendHead(b, majorArray, n), kind)
}
