package subscriber

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
	dropMedium          // a copy in a medium that is ignored
	dropLookahead       // the hash covers tokens after the block
	dropLoop            // the block is its own ancestor, or twice in one event
	dropConflict        // the hash is known with another parent or content
	dropFull            // the mirror is full, and the block's parent is all that could go
	dropOrphanFull      // too many orphans
	dropCopies          // too many media, groups, owners or copies, or a name too long
	drops
)

func (d drop) String() string {
	return [drops]string{
		dropNone: "none", dropGroup: "group", dropRemote: "remote", dropNoTokens: "no_token_ids",
		dropSlice: "slice", dropBigram: "bigram", dropTokens: "token_ids", dropAdapter: "adapter",
		dropExtraKeys: "extra_keys", dropBlockSize: "block_size", dropOffDevice: "off_device",
		dropMedium: "medium", dropLookahead: "lookahead",
		dropLoop: "loop", dropConflict: "conflict", dropFull: "full", dropOrphanFull: "orphans_full",
		dropCopies: "copies",
	}[d]
}
