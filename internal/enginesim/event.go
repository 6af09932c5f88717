package enginesim

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

type kind uint8

const (
	blockStored kind = iota
	blockRemoved
	allBlocksCleared
)

// event is one KV cache event of vLLM. Only what a single-group full-attention model publishes about its GPU is here.
type event struct {
	kind   kind
	hashes []blockhash.Digest // in prefix order

	// Of blockStored:
	root      bool             // the first block starts a sequence; else parent is its parent
	parent    blockhash.Digest //
	tokens    []uint32         // of all the blocks, len(hashes) × blockSize; not changed once published
	blockSize int
	adapter   *adapter // nil for the base model
	salt      string   // cache salt; enters block 0 only
}

// encoder writes batches in the msgpack form of one generation of engines, byte for byte as vLLM's publisher does.
type encoder struct {
	format Format
	hashes HashForm
	rank   int // data-parallel rank
}

// batch returns the payload of one message: [time, events, data parallel rank].
func (e encoder) batch(at time.Time, events []event) []byte {
	size := 32
	for i := range events {
		size += 256 + 34*len(events[i].hashes) + 5*len(events[i].tokens)
	}
	b := make([]byte, 0, size)
	b = appendArray(b, 3)
	b = appendFloat(b, float64(at.UnixMicro())/1e6)
	b = appendArray(b, len(events))
	for i := range events {
		b = e.event(b, &events[i])
	}
	return appendUint(b, uint64(e.rank))
}

func (e encoder) event(b []byte, v *event) []byte {
	switch v.kind {
	case blockStored:
		return e.stored(b, v)
	case blockRemoved:
		return e.removed(b, v)
	default:
		return e.cleared(b)
	}
}

// stored writes a BlockStored. As a map it leaves out what equals its default (kv_cache_spec_sliding_window); as an array it
// writes every field of the release, nil or not.
func (e encoder) stored(b []byte, v *event) []byte {
	switch e.format {
	case Map:
		b = appendString(appendString(appendMap(b, 11), "type"), "BlockStored")
	case Array:
		b = appendString(appendArray(b, 12), "BlockStored")
	case OldArray:
		b = appendString(appendArray(b, 8), "BlockStored")
	}
	b = e.list(e.key(b, "block_hashes"), v.hashes)
	b = e.key(b, "parent_block_hash")
	if v.root {
		b = appendNil(b)
	} else {
		b = e.hash(b, v.parent)
	}
	b = appendArray(e.key(b, "token_ids"), len(v.tokens))
	for _, t := range v.tokens {
		b = appendUint(b, uint64(t))
	}
	b = appendUint(e.key(b, "block_size"), uint64(v.blockSize))
	b = e.key(b, "lora_id")
	if v.adapter == nil {
		b = appendNil(b)
	} else {
		b = appendUint(b, uint64(v.adapter.id))
	}
	b = appendString(e.key(b, "medium"), "GPU")
	b = e.key(b, "lora_name")
	if v.adapter == nil {
		b = appendNil(b)
	} else {
		b = appendString(b, v.adapter.name)
	}
	if e.format == OldArray {
		return b
	}
	b = e.extraKeys(e.key(b, "extra_keys"), v)
	b = appendUint(e.key(b, "group_idx"), 0)
	b = appendString(e.key(b, "kv_cache_spec_kind"), "full_attention")
	if e.format == Array {
		b = appendNil(b) // kv_cache_spec_sliding_window
	}
	return b
}

// extraKeys writes one entry for each block: nil, or the adapter's name and, in block 0, the cache salt. They stand
// untagged on the wire, also where the hash is made of tagged ones.
func (e encoder) extraKeys(b []byte, v *event) []byte {
	b = appendArray(b, len(v.hashes))
	for i := range v.hashes {
		salted := v.salt != "" && v.root && i == 0
		n := 0
		if v.adapter != nil {
			n++
		}
		if salted {
			n++
		}
		if n == 0 {
			b = appendNil(b)
			continue
		}
		b = appendArray(b, n)
		if v.adapter != nil {
			b = appendString(b, v.adapter.name)
		}
		if salted {
			b = appendString(b, v.salt)
		}
	}
	return b
}

func (e encoder) removed(b []byte, v *event) []byte {
	switch e.format {
	case Map:
		b = appendString(appendString(appendMap(b, 4), "type"), "BlockRemoved")
	case Array:
		b = appendString(appendArray(b, 4), "BlockRemoved")
	case OldArray:
		b = appendString(appendArray(b, 3), "BlockRemoved")
	}
	b = e.list(e.key(b, "block_hashes"), v.hashes)
	b = appendString(e.key(b, "medium"), "GPU")
	if e.format == OldArray {
		return b
	}
	return appendUint(e.key(b, "group_idx"), 0)
}

func (e encoder) cleared(b []byte) []byte {
	if e.format == Map {
		b = appendString(appendMap(b, 1), "type")
	} else {
		b = appendArray(b, 1)
	}
	return appendString(b, "AllBlocksCleared")
}

// key writes the name of a field, which the array forms do not have.
func (e encoder) key(b []byte, name string) []byte {
	if e.format != Map {
		return b
	}
	return appendString(b, name)
}

func (e encoder) list(b []byte, hashes []blockhash.Digest) []byte {
	b = appendArray(b, len(hashes))
	for _, d := range hashes {
		b = e.hash(b, d)
	}
	return b
}

func (e encoder) hash(b []byte, d blockhash.Digest) []byte {
	if e.hashes == HashBytes {
		return append(append(b, 0xc4, byte(len(d))), d[:]...)
	}
	return appendUint(b, d.Uint64())
}

// The msgpack forms that events need, each in its shortest encoding.

func appendNil(b []byte) []byte { return append(b, 0xc0) }

func appendFloat(b []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(f))
}

func appendUint(b []byte, n uint64) []byte {
	switch {
	case n < 1<<7:
		return append(b, byte(n))
	case n < 1<<8:
		return append(b, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
	}
}

// appendMap begins a map of n < 16 pairs.
func appendMap(b []byte, n int) []byte { return append(b, 0x80|byte(n)) }

func appendArray(b []byte, n int) []byte {
	switch {
	case n < 1<<4:
		return append(b, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
	}
}

func appendString(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 1<<5:
		b = append(b, 0xa0|byte(n))
	case n < 1<<8:
		b = append(b, 0xd9, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}
