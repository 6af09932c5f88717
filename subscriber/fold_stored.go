package subscriber

import (
	"bytes"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

func (f *fold) drop(reason drop, blocks int) { f.stats.dropped[reason] += blocks }

// stored sorts out what an event's blocks are before they enter the mirror.
func (f *fold) stored(e *event) {
	n := len(e.hashes)
	if n == 0 {
		return // hybrid groups publish empty runs
	}
	if !e.fullAttention() {
		f.learned.hybrid = true
		f.drop(dropGroup, n)
		return
	}
	if bytes.EqualFold(e.locality, []byte("remote")) {
		f.drop(dropRemote, n)
		return
	}
	if f.repeats(e) {
		f.drop(dropLoop, n)
		return
	}
	rule := f.media.of(e.medium)
	if rule.Medium == MediumNone {
		f.drop(dropMedium, n)
		return
	}
	device := rule.Medium == MediumDevice
	if e.hasLoraID && len(e.loraName) == 0 {
		e.loraName = f.adapters[e.loraID]
	}
	switch {
	case device && e.lookahead:
		f.learned.lookahead = true
		f.drop(dropLookahead, n)
	case !device, e.tokenForm == tokenIDs && !sliceable(e):
		f.storedKnown(e, rule)
	case e.tokenForm == tokenBigrams:
		f.learned.bigrams = true
		f.drop(dropBigram, n)
	case e.tokenForm == tokenOther:
		f.drop(dropTokens, n)
	case e.hasLoraID && len(e.loraName) == 0:
		f.nameNeeded(e.loraID)
		f.drop(dropAdapter, n)
	case !f.fitsBlockSize(e):
		f.drop(dropBlockSize, n)
	default:
		f.storedBlocks(e, rule)
	}
}

// maxNameless bounds the adapter ids that the log names.
const maxNameless = 64

// nameNeeded says once of an adapter's id that its name is not known.
func (f *fold) nameNeeded(id int64) {
	if f.nameless[id] || len(f.nameless) == maxNameless {
		return
	}
	f.nameless[id] = true
	f.o.log.Warn("blocks of an adapter without a name are not matched",
		"pool", f.o.pool, "endpoint", f.o.endpoint, "lora_id", id, "advice", "name it in adapter_ids of the pool")
}

// repeats tells whether a hash occurs twice in the event, parent included.
// Such a chain cannot be told apart, and taking part of it would match falsely.
func (f *fold) repeats(e *event) bool {
	f.seen.begin(len(e.hashes) + 1)
	if e.hasParent {
		f.seen.add(e.parent)
	}
	for _, h := range e.hashes {
		if f.seen.add(h) {
			return true
		}
	}
	return false
}

// sliceable tells whether the token ids divide into the blocks. Releases
// publish runs in which they do not (mamba and sliding-window skips, partial
// blocks), and offload stores without any.
func sliceable(e *event) bool {
	return len(e.tokens) > 0 && e.blockSize <= uint64(len(e.tokens)) &&
		uint64(len(e.hashes))*e.blockSize == uint64(len(e.tokens))
}

// storedKnown enters copies of blocks by their hashes alone. It serves
// hash-only stores, and all stores in other media: those never make a block
// known, because connectors hash and cut blocks in their own ways. A hash is
// known by its block, or by the ghost of one that was removed before.
func (f *fold) storedKnown(e *event, rule MediumRule) {
	m := f.mirror
	class, ok := m.copies.intern(e, rule, &m.groups)
	if !ok {
		f.drop(dropCopies, len(e.hashes))
		return
	}
	unknown := dropSlice
	switch {
	case rule.Medium != MediumDevice:
		unknown = dropOffDevice
		m.keepGhosts = true
	case len(e.tokens) == 0:
		unknown = dropNoTokens
	}
	for _, h := range e.hashes {
		reason := unknown
		if s, ok := m.known(h, f.now); ok {
			reason = f.enterKnown(s, class, rule, !e.hasParent)
		}
		if reason != dropNone {
			f.drop(reason, 1)
		}
		if reason == dropNoTokens {
			f.learned.noTokens = true
		}
	}
}

func (f *fold) enterKnown(s storeBlock, c copyClass, rule MediumRule, first bool) drop {
	switch {
	case rule.Lifetime > 0:
		return f.mirror.addUntil(s, c, f.made.Add(rule.Lifetime))
	case first && rule.Medium == MediumDevice:
		return f.mirror.addFirst(s, c)
	}
	return f.mirror.add(s, c)
}

// fitsBlockSize learns the block size and tells whether the event's blocks
// have it. All fingerprints of a mirror are of one size, the largest seen:
// engines also publish partial blocks as blocks of a smaller size. When a
// larger one turns up, what was mirrored until then is forgotten.
func (f *fold) fitsBlockSize(e *event) bool {
	size := int(e.blockSize)
	switch {
	case size > f.learned.blockSize:
		if f.learned.blockSize != 0 {
			f.forget(CauseBlockSize)
			f.heal.restart()
			f.mirror.forgetGhosts()
		}
		f.learned.blockSize = size
		f.learned.pages = false
	case size < f.learned.blockSize:
		if e.hasGroup && !f.mirror.groups.has(e.group) {
			f.learned.sizes = true
		}
		return false
	}
	// One hash alone with one token may be a partial block.
	f.learned.pages = f.learned.pages || size == 1 && len(e.hashes) > 1
	return true
}

// storedBlocks enters the blocks of a device store with their fingerprints'
// content.
//
// Engines announce copies, one event for each. But vLLM's
// kv_cache_report_mode "full", which any request can ask for, announces again
// what it reuses, as a run from the start of the sequence, and there is one
// removal less than there are stores then. Nothing in the event tells the two
// apart. So a run that starts a sequence gives a block its first copy and never
// another: too few copies are counted at worst. Runs after a parent are counted
// in full; they are what real duplicates come in, as the engine computes the
// last block of a prompt anew that it holds completely. What is lost is the
// second copy of a first block: prompts of exactly one block that come twice,
// and equal prompts that are computed at the same time.
func (f *fold) storedBlocks(e *event, rule MediumRule) {
	m := f.mirror
	n := len(e.hashes)
	switch {
	case e.hasExtra:
		f.learned.extraKeys = true
		if !f.extra.begin(e.extra, n) {
			f.drop(dropExtraKeys, n)
			return
		}
	case e.salt != nil:
		f.learned.extraKeys = true
	default:
		f.learned.plain = true
	}
	if e.hasGroup && !m.addGroup(e.group) {
		f.drop(dropCopies, n)
		return
	}
	class, ok := m.copies.intern(e, rule, &m.groups)
	if !ok {
		f.drop(dropCopies, n)
		return
	}
	if e.hasParent && m.keepGhosts {
		m.prove(e.parent, class, f.now)
	}
	run := f.run(e)
	m.warm(run)
	for _, s := range run {
		if m.overworked() {
			return
		}
		var reason drop
		if e.hasParent {
			f.rename(s)
			reason = m.add(s, class)
		} else {
			reason = m.addFirst(s, class)
		}
		if reason != dropNone {
			f.drop(reason, 1)
		}
	}
	f.evidence(e, class)
}

// run makes the blocks of a device store ready to be entered. One whose key
// cannot be known is left out, so that the next waits for it.
func (f *fold) run(e *event) []storeBlock {
	size := int(e.blockSize)
	f.blocks = f.blocks[:0]
	above := e.parent
	for i, h := range e.hashes {
		s := storeBlock{hash: h, above: above, first: i == 0 && !e.hasParent}
		above = h
		extra, salt, ok := f.extraOf(e, s.first)
		if !ok {
			f.drop(dropExtraKeys, 1)
			continue
		}
		s.content = blockhash.Content(e.tokens[i*size:(i+1)*size], extra)
		if s.first {
			f.firstBlock(e, salt, extra)
			s.above = blockhash.Namespace{
				Pool: f.o.pool, Adapter: string(e.loraName), BlockSize: size, Salt: string(salt),
			}.Root()
		}
		f.blocks = append(f.blocks, s)
	}
	return f.blocks
}

// extraOf returns the canonical extra keys of the next block, nil without, and
// the salt if it is a first block.
func (f *fold) extraOf(e *event, first bool) (extra, salt []byte, ok bool) {
	if e.hasExtra {
		f.canonical, salt, ok = f.extra.next(f.canonical[:0], e.loraName, first)
		if !ok {
			return nil, nil, false
		}
		if len(f.canonical) > 0 {
			extra = f.canonical
		}
	}
	switch {
	case !first || len(e.salt) == 0:
	case salt == nil:
		salt = e.salt
	case !bytes.Equal(salt, e.salt):
		return nil, nil, false
	}
	return extra, salt, true
}
