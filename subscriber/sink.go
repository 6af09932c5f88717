package subscriber

// Tier says how near a block is to the engine's compute. Each tier is a set
// of blocks, and Device is always a subset of Any.
type Tier uint8

const (
	Device Tier = iota // in the engine's own KV cache, usable at once
	Any                // in the device cache or in another medium of the same engine
)

// Sink receives the net changes of one engine, in order and from one
// goroutine. After every call, in both tiers, the blocks stored and not
// removed form a prefix-closed set: a block is there only together with all
// its ancestors.
type Sink interface {
	// Store announces blocks, parents before children. A key is announced
	// once per tier, and in Any before Device. The slice is valid during the
	// call only.
	Store(tier Tier, keys []uint64)
	// Remove withdraws blocks, children before parents, from Device before
	// Any. The slice is valid during the call only.
	Remove(tier Tier, keys []uint64)
	// Reset says that everything announced so far is gone.
	Reset(cause Cause)
	// Describe is called whenever the description differs from the last one.
	Describe(d Description)
}

// Description is what is known of an engine beside its blocks.
type Description struct {
	// Connected says that the engine is heard and that nothing is known to be missing since it was. While it is false, blocks
	// announced before must not be matched.
	Connected bool
	// Complete says that the mirror has followed the engine's batches from the first one: a block of the engine that is not announced is one
	// that cannot be, or that was withdrawn for want of room.
	Complete bool
	// BlockSize is the number of tokens per block of the full-attention
	// groups, 0 while no event has shown it.
	BlockSize int
	// ExtraKeys says that events carry what else went into a block's hash
	// (vLLM from 0.17.1, SGLang's cache_salt from 0.5.18). Without it salted
	// and multimodal blocks look like plain ones, and such prompts must not be
	// matched.
	ExtraKeys bool
	// Coldest is the slowest medium that events have named since the last
	// reset, MediumNone while they have named none. What is in Any and not in
	// Device may be there.
	Coldest Medium
	// Problem is the gravest of the engine's problems.
	Problem Problem
}

// Problem names why an engine's blocks are known in part only. Plain text
// prompts can be matched under every one of them: what cannot be keyed is
// never announced. Under ProblemNoExtraKeys a salted block passes for a plain
// one of the same tokens, so that a match can be too long where both occur.
type Problem string

const (
	ProblemNone Problem = ""
	// ProblemNoTokens: device blocks are announced without token ids.
	ProblemNoTokens Problem = "no_token_ids"
	// ProblemBigram: token ids come as pairs (speculative decoding in SGLang).
	ProblemBigram Problem = "bigram"
	// ProblemLookahead: the engine's hashes cover tokens after their blocks
	// (draft-model speculation in vLLM from 0.33).
	ProblemLookahead Problem = "lookahead"
	// ProblemMirrorFull: the mirror's bound is reached. Leaves that were used
	// longest ago are withdrawn for newer blocks, though the engine may hold
	// them. The problem ends 10 minutes after that last happened.
	ProblemMirrorFull Problem = "mirror_full"
	// ProblemBlockSize: full-attention groups differ in block size, only those
	// with the largest are mirrored.
	ProblemBlockSize Problem = "block_size_varies"
	// ProblemPageSize: the blocks are of one token, as SGLang's are unless
	// --page-size says otherwise. They are mirrored, at 16 times the cost.
	ProblemPageSize Problem = "page_size"
	// ProblemHybrid: the model has groups that are not full attention (sliding
	// window, mamba), which can miss where full attention hits. Matches are an
	// upper bound.
	ProblemHybrid Problem = "hybrid"
	// ProblemNoExtraKeys: the engine is too old to send extra keys.
	ProblemNoExtraKeys Problem = "no_extra_keys"
)

// advice says what to do about a problem, "" where there is nothing to say.
func (p Problem) advice() string {
	switch p {
	case ProblemMirrorFull:
		return "the engine holds more blocks than are kept of it; a node's max_blocks can be raised"
	case ProblemPageSize:
		return "start the engine with --page-size 16 or 64"
	case ProblemBigram, ProblemLookahead:
		return "its blocks cannot be matched while it speculates with a draft model"
	case ProblemNoExtraKeys:
		return "upgrade the engine to have salted and multimodal prompts matched"
	}
	return ""
}

// Cause names why everything announced of an engine was forgotten.
type Cause string

const (
	CauseDisconnect Cause = "disconnect" // the connection was lost
	CauseGap        Cause = "gap"        // sequence numbers are missing and cannot be replayed
	CauseLost       Cause = "lost"       // a replay lacks what was missed
	CauseBackwards  Cause = "backwards"  // the engine was restarted: its sequence went back, or a replay has another batch under a number
	CauseCleared    Cause = "cleared"    // the engine emptied its cache
	CauseUnreadable Cause = "unreadable" // a batch could not be read, or not be applied within bounds
	CauseBlockSize  Cause = "block_size" // a larger block size of the same engine turned up
)
