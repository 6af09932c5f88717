package subscriber

import (
	"bytes"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
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
	o      foldOptions
	dec    *decoder
	apply  func(*event) // f.event, bound once
	extra  *extraKeys
	seen   hashSet
	mirror *mirror

	online    bool
	learned   learned
	described Description      // as last told to the sink
	logged    map[Problem]bool // problems named in the log

	stats     foldStats    // of the batch being folded
	blocks    []storeBlock // of the event being entered
	canonical []byte       // extra keys of the block being entered
}

// learned is what events have shown of the engine since the last reset.
type learned struct {
	blockSize int
	extraKeys bool // a block came with extra keys, or with a salt of its own field
	plain     bool // a block came without
	noTokens  bool
	bigrams   bool
	full      bool
	sizes     bool // full-attention groups differ in block size
	hybrid    bool
}

func newFold(o foldOptions) *fold {
	if o.maxBlocks <= 0 {
		o.maxBlocks = defaultMaxBlocks
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	f := &fold{
		o: o, dec: newDecoder(), extra: newExtraKeys(), mirror: newMirror(o.maxBlocks),
		logged: make(map[Problem]bool),
	}
	f.apply = f.event
	return f
}

// fold applies one batch and tells the sink the net change. An error means
// that the batch could be read in part at most: the sink was told nothing, and
// the fold has to be reset.
func (f *fold) fold(payload []byte, _ time.Time) (foldStats, error) {
	f.stats = foldStats{}
	b, err := f.dec.decode(payload, f.apply)
	f.stats.published, f.stats.rank = b.published, b.rank
	f.stats.blocks, f.stats.orphans = f.mirror.present, f.mirror.orphans()
	if err != nil {
		return f.stats, fmt.Errorf("decode batch: %w", err)
	}
	if f.mirror.present < f.mirror.maxBlocks-f.mirror.maxBlocks/10 {
		f.learned.full = false
	}
	f.describe()
	f.mirror.prints.flush(f.o.sink)
	return f.stats, nil
}

// reset forgets all blocks and all that was learned of the engine, as another
// one may answer next.
func (f *fold) reset(cause Cause) {
	f.mirror.clear()
	f.learned = learned{}
	f.o.sink.Reset(cause)
	f.describe()
}

// connected notes whether the engine can be heard.
func (f *fold) connected(on bool) {
	f.online = on
	f.describe()
}

func (f *fold) describe() {
	d := Description{
		Connected: f.online,
		BlockSize: f.learned.blockSize,
		ExtraKeys: f.learned.extraKeys,
		Problem:   f.learned.problem(),
	}
	if d == f.described {
		return
	}
	f.described = d
	if d.Problem != ProblemNone && !f.logged[d.Problem] {
		f.logged[d.Problem] = true
		f.o.log.Warn("engine is known in part only", "pool", f.o.pool, "endpoint", f.o.endpoint, "problem", string(d.Problem))
	}
	f.o.sink.Describe(d)
}

// problem picks the gravest.
func (l learned) problem() Problem {
	switch {
	case l.noTokens:
		return ProblemNoTokens
	case l.bigrams:
		return ProblemBigram
	case l.full:
		return ProblemMirrorFull
	case l.sizes:
		return ProblemBlockSize
	case l.hybrid:
		return ProblemHybrid
	case l.plain && !l.extraKeys:
		return ProblemNoExtraKeys
	}
	return ProblemNone
}

func (f *fold) event(e *event) {
	f.stats.events[e.kind]++
	switch e.kind {
	case eventStored:
		f.stored(e)
	case eventRemoved:
		f.removed(e)
	case eventCleared:
		f.cleared()
	}
}

// cleared empties the mirror. The engine stays the same, so what was learned
// stays. Some engines clear again and again: the sink hears of it only when
// there was something to forget.
func (f *fold) cleared() {
	f.stats.cleared = true
	f.forget(CauseCleared)
}

func (f *fold) forget(cause Cause) {
	announced := f.mirror.prints.sent > 0
	f.mirror.clear()
	if announced {
		f.o.sink.Reset(cause)
	}
}

func (f *fold) removed(e *event) {
	class, ok := f.mirror.copies.find(e)
	if !ok {
		return
	}
	for _, h := range e.hashes {
		f.mirror.byHash.warm(h)
	}
	for _, h := range e.hashes {
		f.mirror.remove(h, class)
	}
}

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
	device := isDevice(e.medium)
	if e.tokenForm == tokenIDs && (!device || !sliceable(e)) {
		f.storedKnown(e, device)
		return
	}
	switch {
	case !device:
		f.storedKnown(e, device)
	case e.tokenForm == tokenBigrams:
		f.learned.bigrams = true
		f.drop(dropBigram, n)
	case e.tokenForm == tokenOther:
		f.drop(dropTokens, n)
	case e.loraID && len(e.loraName) == 0:
		f.drop(dropAdapter, n)
	case !f.fitsBlockSize(e):
		f.drop(dropBlockSize, n)
	default:
		f.storedBlocks(e)
	}
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
// known, because connectors hash and cut blocks in their own ways, and many
// never tell of a removal.
func (f *fold) storedKnown(e *event, device bool) {
	class, ok := f.mirror.copies.intern(e, &f.mirror.groups)
	if !ok {
		f.drop(dropCopies, len(e.hashes))
		return
	}
	reason := dropSlice
	switch {
	case !device:
		reason = dropOffDevice
	case len(e.tokens) == 0:
		reason = dropNoTokens
	}
	for _, h := range e.hashes {
		if f.mirror.addKnown(h, class) {
			continue
		}
		f.drop(reason, 1)
		if reason == dropNoTokens {
			f.learned.noTokens = true
		}
	}
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
		}
		f.learned.blockSize = size
	case size < f.learned.blockSize:
		if e.hasGroup && !f.mirror.groups.has(e.group) {
			f.learned.sizes = true
		}
		return false
	}
	return true
}

// storedBlocks enters the blocks of a device store with their fingerprints'
// content.
func (f *fold) storedBlocks(e *event) {
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
	class, ok := m.copies.intern(e, &m.groups)
	if !ok {
		f.drop(dropCopies, n)
		return
	}
	run := f.run(e)
	m.warm(run)
	for _, s := range run {
		reason := m.add(s, class)
		if reason != dropNone {
			f.drop(reason, 1)
		}
		if reason == dropFull {
			f.learned.full = true
		}
	}
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
