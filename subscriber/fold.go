package subscriber

import (
	"log/slog"
	"time"
)

// foldOptions configure a fold.
type foldOptions struct {
	pool      string // namespace of the fingerprints
	endpoint  string // for the log only
	maxBlocks int    // bound of the mirror; 0 = defaultMaxBlocks
	sink      Sink
	log       *slog.Logger
}

// defaultMaxBlocks bounds a mirror at roughly 300 MB.
const defaultMaxBlocks = 2_000_000

// foldStats says what one batch held and what became of it.
type foldStats struct {
	events    [eventKinds]int // by eventKind; its String is a metric label
	dropped   [drops]int      // blocks that are not mirrored, by drop; its String is a metric label
	cleared   bool            // the batch held an AllBlocksCleared
	published time.Time       // the engine's wall clock when it made the batch; zero if absent
	rank      int             // data-parallel rank of the publisher, 0 if absent
	blocks    int             // blocks in the mirror after the batch
	orphans   int             // those of them that are held but not announced
}

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

// drop says why a block of a readable event is not mirrored.
type drop uint8

const (
	dropNone       drop = iota
	dropGroup           // not a full-attention group
	dropRemote          // a copy on another machine
	dropNoTokens        // no token ids, and the hash is not known
	dropSlice           // token ids do not divide into the hashes, and the hash is not known
	dropBigram          // token ids are pairs
	dropTokens          // a token id is not a uint32
	dropAdapter         // an adapter without a name
	dropExtraKeys       // extra keys of an unknown form
	dropBlockSize       // not the block size of the mirror
	dropOffDevice       // a copy in another medium of a block that is not known
	dropLoop            // the block is its own ancestor, or twice in one event
	dropConflict        // the hash is known with another parent or content
	dropFull            // the mirror is full
	dropOrphanFull      // too many orphans
	dropCopies          // too many media, groups or owners
	drops
)

func (d drop) String() string {
	return [drops]string{
		dropNone: "none", dropGroup: "group", dropRemote: "remote", dropNoTokens: "no_token_ids",
		dropSlice: "slice", dropBigram: "bigram", dropTokens: "token_ids", dropAdapter: "adapter",
		dropExtraKeys: "extra_keys", dropBlockSize: "block_size", dropOffDevice: "off_device",
		dropLoop: "loop", dropConflict: "conflict", dropFull: "full", dropOrphanFull: "orphans_full",
		dropCopies: "copies",
	}[d]
}

// fold turns the batches of one source into net changes on its Sink. It is
// not safe for concurrent use.
type fold struct {
	o foldOptions
}

func newFold(o foldOptions) *fold { return &fold{o: o} }
