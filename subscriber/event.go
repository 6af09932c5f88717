package subscriber

// eventKind classifies an event by its tag.
type eventKind uint8

const (
	eventStored eventKind = iota
	eventRemoved
	eventCleared
	eventUnknown   // a tag this package does not know; skipped
	eventMalformed // a known tag whose fields cannot be read, or no event at all; skipped
	eventKinds
)

func (k eventKind) String() string {
	switch k {
	case eventStored:
		return "stored"
	case eventRemoved:
		return "removed"
	case eventCleared:
		return "cleared"
	case eventUnknown:
		return "unknown"
	}
	return "malformed"
}

// event is one decoded event. All its slices are valid until the next event
// is decoded: hashes and tokens stand in buffers of the decoder, byte strings
// and extra in the payload itself.
type event struct {
	kind eventKind

	hashes    []uint64 // engine hashes, in prefix order
	parent    uint64   // engine hash of the block before the first one
	hasParent bool     // false: the first block starts a sequence

	tokens    []uint32 // token ids of all blocks; empty in hash-only stores
	tokenForm tokenForm
	blockSize uint64 // tokens per hash as the event says; 0 in hash-only stores
	lookahead bool   // the hashes also cover tokens after their blocks

	hasLoraID bool   // lora_id is set
	loraID    int64  // 0 when it is no number
	loraName  []byte // nil = absent
	salt      []byte // cache_salt as a field of its own (SGLang); nil = absent

	hasExtra bool   // extra_keys is present and not nil
	extra    []byte // the msgpack array of extra_keys

	medium    []byte // nil = the GPU
	group     int64  // KV-cache group, when hasGroup
	hasGroup  bool
	spec      []byte // kv_cache_spec_kind; nil = absent
	locality  []byte
	ownership []byte
}

// tokenForm says what the elements of token_ids are.
type tokenForm uint8

const (
	tokenIDs     tokenForm = iota
	tokenBigrams           // pairs [t, t+1]: SGLang with EAGLE
	tokenOther             // something that is no uint32
)

// reset empties e for the next event and keeps its buffers.
func (e *event) reset(kind eventKind) {
	*e = event{kind: kind, hashes: e.hashes[:0], tokens: e.tokens[:0]}
}

// fullAttention tells whether the event's blocks can be matched by prefix.
// Releases that do not send the kind are taken to have full attention only.
func (e *event) fullAttention() bool {
	switch string(e.spec) {
	case "", "full_attention", "mla_attention":
		return true
	}
	return false
}
