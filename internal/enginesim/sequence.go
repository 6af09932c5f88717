package enginesim

import (
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// finish is why a sequence ended; the texts are vLLM's finish_reason.
type finish string

const (
	finishLength finish = "length"
	finishStop   finish = "stop"
	finishAbort  finish = "abort"
)

// sequence is one prompt on its way through the engine. After it was added it belongs to the scheduler; what is for the
// HTTP handler goes through out.
type sequence struct {
	hasher  *hasher
	adapter *adapter // nil for the base model
	salt    string
	limit   int                // generated tokens at which it ends with "length"
	stop    int                // generated tokens, the last of them the end-of-sequence token, at which it ends with "stop"; 0 = never
	next    func(i int) uint32 // i-th generated token
	arrived time.Time
	out     *stream

	tokens  []uint32 // prompt, then generated; only appended to
	prompt  int      // tokens in the prompt
	digests []blockhash.Digest
	links   []*link // one for each digest

	blocks   []int32 // holding the first computed tokens, and room for those of the step in progress
	stored   int     // leading blocks that have their digest
	computed int     // tokens whose KV values are in blocks, those of the step in progress included
	cached   int     // prompt tokens found in the cache when first scheduled; -1 before
	ended    bool
}

// newSequence returns a sequence of at most limit generated tokens, with the digests of the prompt's full blocks.
func newSequence(h *hasher, a *adapter, salt string, prompt []uint32, limit int) *sequence {
	tokens := append(make([]uint32, 0, len(prompt)+min(limit, 1024)), prompt...)
	s := &sequence{
		hasher: h, adapter: a, salt: salt, limit: limit, tokens: tokens, prompt: len(prompt), cached: -1,
		out: &stream{wake: make(chan struct{}, 1)},
	}
	h.extend(s)
	return s
}

func (s *sequence) generated() int { return len(s.tokens) - s.prompt }

// event returns the BlockStored of blocks from to before to.
func (s *sequence) event(from, to, blockSize int) event {
	e := event{
		kind: blockStored, hashes: s.digests[from:to:to], root: from == 0, tokens: s.tokens[from*blockSize : to*blockSize : to*blockSize],
		blockSize: blockSize, adapter: s.adapter, salt: s.salt,
	}
	if from > 0 {
		e.parent = s.digests[from-1]
	}
	return e
}

// hasher computes the digests of full blocks. It may be shared: each call owns its scratch space.
type hasher struct {
	blockSize int
	seed      blockhash.Digest
	tagged    bool
	pickle    bool // SHA256, else SHA256CBOR
}

func newHasher(o *Options) *hasher {
	h := &hasher{blockSize: o.BlockSize, seed: blockhash.NoneHash(o.Seed), tagged: o.Events.Format == Map}
	if o.HashAlgo == SHA256 {
		h.seed, h.pickle = blockhash.NoneHashPickle(o.Seed), true
	}
	return h
}

// extend brings s.digests and s.links up to the full blocks of s.tokens.
func (h *hasher) extend(s *sequence) {
	defer h.extendLinks(s)
	full := len(s.tokens) / h.blockSize
	if len(s.digests) >= full {
		return
	}
	var cbor blockhash.SHA256CBOR
	var pickle blockhash.SHA256Pickle
	chain := cbor.Block
	if h.pickle {
		chain = pickle.Block
	}
	for i := len(s.digests); i < full; i++ {
		parent := h.seed
		if i > 0 {
			parent = s.digests[i-1]
		}
		extra := blockhash.ExtraKeys{Tagged: h.tagged}
		if s.adapter != nil {
			extra.LoRA, extra.LoRAPath = s.adapter.name, s.adapter.path
		}
		if i == 0 {
			extra.Salt = s.salt
		}
		s.digests = append(s.digests, chain(parent, s.tokens[i*h.blockSize:(i+1)*h.blockSize], &extra))
	}
}

// stream hands the tokens of a sequence to its HTTP handler.
type stream struct {
	wake chan struct{} // holds a value after there was news; shared by the sequences of one request

	mu     sync.Mutex
	tokens []uint32 // generated and not yet taken
	cached int
	finish finish
}

// put is called by the engine, at most once with a finish.
func (s *stream) put(cached int, f finish, tokens ...uint32) {
	s.mu.Lock()
	s.tokens, s.cached, s.finish = append(s.tokens, tokens...), cached, f
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take appends what came since the last call to dst. After finish is set there comes no more.
func (s *stream) take(dst []uint32) (tokens []uint32, cached int, f finish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, s.tokens...)
	s.tokens = s.tokens[:0]
	return dst, s.cached, s.finish
}
