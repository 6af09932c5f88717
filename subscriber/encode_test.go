package subscriber

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"
)

// kv is one field of an event in a test, in its order on the wire.
type kv struct {
	key   string
	value any
}

// fields builds a map event.
type fields []kv

// with returns a copy of f with one field replaced or added.
func (f fields) with(key string, value any) fields {
	out := append(fields(nil), f...)
	for i := range out {
		if out[i].key == key {
			out[i].value = value
			return out
		}
	}
	return append(out, kv{key, value})
}

func (f fields) without(key string) fields {
	var out fields
	for _, x := range f {
		if x.key != key {
			out = append(out, x)
		}
	}
	return out
}

// pack encodes a value made of fields, []any, []uint64, []uint32 and scalars.
func pack(v any) []byte {
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	packInto(enc, v)
	return buf.Bytes()
}

func packInto(enc *msgpack.Encoder, v any) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	switch v := v.(type) {
	case fields:
		must(enc.EncodeMapLen(len(v)))
		for _, x := range v {
			must(enc.EncodeString(x.key))
			packInto(enc, x.value)
		}
	case []any:
		must(enc.EncodeArrayLen(len(v)))
		for _, x := range v {
			packInto(enc, x)
		}
	case []uint64:
		must(enc.EncodeArrayLen(len(v)))
		for _, x := range v {
			must(enc.EncodeUint64(x))
		}
	case []uint32:
		must(enc.EncodeArrayLen(len(v)))
		for _, x := range v {
			must(enc.EncodeUint(uint64(x)))
		}
	case msgpack.RawMessage:
		must(v.EncodeMsgpack(enc))
	default:
		must(enc.Encode(v))
	}
}

// packBatch encodes [1234.5, events, 0].
func packBatch(events ...any) []byte { return pack([]any{1234.5, events, 0}) }

// storedEvent is a plain map event of vLLM.
func storedEvent(parent any, size int, tokens []uint32, hashes ...uint64) fields {
	extra := make([]any, len(hashes))
	return fields{
		{"type", "BlockStored"},
		{"block_hashes", hashes},
		{"parent_block_hash", parent},
		{"token_ids", tokens},
		{"block_size", size},
		{"lora_id", nil},
		{"medium", "GPU"},
		{"lora_name", nil},
		{"extra_keys", extra},
		{"group_idx", 0},
		{"kv_cache_spec_kind", "full_attention"},
	}
}

func removedEvent(hashes ...uint64) fields {
	return fields{{"type", "BlockRemoved"}, {"block_hashes", hashes}, {"medium", "GPU"}, {"group_idx", 0}}
}

func clearedEvent() fields { return fields{{"type", "AllBlocksCleared"}} }
