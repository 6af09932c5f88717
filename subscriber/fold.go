package subscriber

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// foldOptions configure a fold.
type foldOptions struct {
	pool      string // namespace of the fingerprints
	endpoint  string // for the log only
	maxBlocks int    // bound of the mirror; 0 = defaultMaxBlocks
	media     map[string]MediumRule
	demote    time.Duration
	adapters  map[int64]string
	sink      Sink
	log       *slog.Logger
	hashSeed  *string    // PYTHONHASHSEED of the engine; nil = not set
	wanted    func(Want) // told which prompts help when that changes; nil = nobody asks
}

// defaultMaxBlocks bounds a mirror at roughly 400 MB.
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
	withdrawn int             // blocks forgotten to make room for newer ones
	bytes     int             // that the mirror takes
	healed    [allMeans]int   // blocks taken for resident although no event announced them
	witnesses [hearings]int   // prompts, by what became of them
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
	heal   *healer
	media  mediaSet
	// adapters are names by lora_id, of engines that send only that.
	adapters map[int64][]byte
	now      time.Time // of the call
	made     time.Time // when the engine made the event, as far as is known: times that begin with it begin then

	online    bool
	complete  bool // nothing that the engine published is missing
	hushed    bool // the sink is not told of changes
	learned   learned
	fullAt    time.Time        // when room was last made; zero: not by this process
	described Description      // as last told to the sink
	asked     wanting          // as last told to o.wanted
	logged    map[Problem]bool // problems named in the log
	nameless  map[int64]bool   // adapter ids named in the log

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
	lookahead bool
	full      bool // blocks were withdrawn or refused for want of room, within fullFor
	pages     bool // blocks of one token
	sizes     bool // full-attention groups differ in block size
	hybrid    bool
	forgot    bool // blocks were withdrawn or refused, so that the engine may hold what is not known, until it clears its cache
}

// fullFor is how long a mirror counts as full after it last made room.
const fullFor = 10 * time.Minute

func newFold(o foldOptions) *fold {
	if o.maxBlocks <= 0 {
		o.maxBlocks = defaultMaxBlocks
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	f := &fold{
		o: o, dec: newDecoder(), extra: newExtraKeys(), mirror: newMirror(o.maxBlocks), heal: newHealer(o.hashSeed), media: newMediaSet(o.media),
		logged: make(map[Problem]bool), nameless: make(map[int64]bool),
		adapters: make(map[int64][]byte, len(o.adapters)),
	}
	for id, name := range o.adapters {
		f.adapters[id] = []byte(name)
	}
	f.apply = f.event
	return f
}

// errCostly rejects a batch that takes more work than any engine's.
var errCostly = errors.New("too much work for one batch")

// fold applies one batch and tells the sink the net change. An error means
// that the batch could be read or applied in part at most: the sink was told nothing but
// perhaps a Reset, and the fold has to be reset.
func (f *fold) fold(payload []byte, now time.Time) (foldStats, error) {
	f.begin(now)
	b, err := f.dec.decode(payload, f.apply)
	f.release()
	f.stats.published, f.stats.rank = b.published, b.rank
	f.count()
	if err != nil {
		return f.stats, fmt.Errorf("decode batch: %w", err)
	}
	if f.mirror.overworked() {
		return f.stats, fmt.Errorf("apply batch: %w", errCostly)
	}
	f.tell()
	return f.stats, nil
}

// begin starts on a batch or a prompt.
func (f *fold) begin(now time.Time) {
	f.stats = foldStats{}
	f.mirror.work, f.mirror.proofs, f.mirror.withdrawn = 0, 0, 0
	f.now, f.mirror.now = now, now
}

// count finishes a batch or a prompt.
func (f *fold) count() {
	m := f.mirror
	f.stats.blocks, f.stats.orphans, f.stats.bytes, f.stats.withdrawn = m.present, m.orphans(), m.bytes(), m.withdrawn
	switch {
	case m.withdrawn > 0, f.stats.dropped[dropFull] > 0:
		f.learned.full, f.learned.forgot = true, true
		f.heal.complete = false // the engine stores under what was forgotten, which prompts can show
		f.fullAt = f.now
	case f.learned.full && f.fullAt.IsZero():
		f.fullAt = f.now
	case f.learned.full && f.now.Sub(f.fullAt) >= fullFor:
		f.learned.full = false
	}
}

// tell tells the sink what changed. A quiet fold keeps it for later, and forgets what came and went meanwhile.
func (f *fold) tell() {
	if f.hushed {
		f.mirror.prints.shed()
		return
	}
	f.describe()
	f.mirror.prints.flush(f.o.sink)
}

// tick ends the copies whose time has come, looks again at prompts that wait, and tells the sink the net change. It is called about once a
// second, so that much later than its time a copy may end.
func (f *fold) tick(now time.Time) foldStats {
	f.begin(now)
	lapsed := f.mirror.lapse(now)
	f.heal.age(now)
	if f.learned.blockSize > 0 {
		f.drain()
	}
	full := f.learned.full
	f.count()
	if lapsed > 0 || f.stats.healed != [allMeans]int{} || f.stats.withdrawn > 0 || f.learned.full != full {
		f.release()
		f.tell()
	}
	return f.stats
}

// quiet says whether the sink is to be told of changes. What changed meanwhile it is told when quiet ends, as one net change. A
// Reset is told at once.
func (f *fold) quiet(on bool) {
	f.hushed = on
	if !on {
		f.mirror.lapse(f.now) // what is replayed may have ended long ago
	}
	f.tell()
}

// release lets go of the payload and of buffers that one huge event grew.
func (f *fold) release() {
	f.extra.release()
	if cap(f.blocks) > keepBuffer {
		f.blocks = nil
	}
	if cap(f.mirror.stack) > keepBuffer {
		f.mirror.stack = nil
	}
	f.heal.release()
}

// reset forgets all blocks and all that was learned of the engine, as another
// one may answer next.
func (f *fold) reset(cause Cause) {
	f.mirror.clear()
	f.mirror.forgetGhosts()
	f.learned, f.fullAt = learned{}, time.Time{}
	f.heal.reset()
	f.complete = false
	f.o.sink.Reset(cause)
	f.describe()
}

// connected notes whether the engine can be heard.
func (f *fold) connected(on bool) {
	f.online = on
	f.describe()
}

// history notes whether everything that the engine published is in the mirror or was taken out of it again. The sink is told with what
// comes next.
func (f *fold) history(complete bool) {
	f.complete = complete
	if complete && !f.learned.forgot {
		f.heal.finish()
	} else {
		f.heal.complete = false
	}
}

func (f *fold) describe() {
	f.ask()
	if f.hushed {
		return
	}
	d := Description{
		Connected: f.online,
		Complete:  f.complete,
		BlockSize: f.learned.blockSize,
		ExtraKeys: f.learned.extraKeys,
		Coldest:   f.mirror.copies.coldest(),
		Problem:   f.learned.problem(),
	}
	if d == f.described {
		return
	}
	f.described = d
	if d.Problem != ProblemNone && !f.logged[d.Problem] {
		f.logged[d.Problem] = true
		args := []any{"pool", f.o.pool, "endpoint", f.o.endpoint, "problem", string(d.Problem)}
		if advice := d.Problem.advice(); advice != "" {
			args = append(args, "advice", advice)
		}
		f.o.log.Warn("engine is known in part only", args...)
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
	case l.lookahead:
		return ProblemLookahead
	case l.full:
		return ProblemMirrorFull
	case l.sizes:
		return ProblemBlockSize
	case l.pages:
		return ProblemPageSize
	case l.hybrid:
		return ProblemHybrid
	case l.plain && !l.extraKeys:
		return ProblemNoExtraKeys
	}
	return ProblemNone
}

func (f *fold) event(e *event) {
	f.stats.events[e.kind]++
	f.heal.clock++
	f.mirror.clock++
	f.made = f.now
	if at := f.dec.batch.published; f.hushed && !at.IsZero() && at.Before(f.now) {
		f.made = at // it waited, or is replayed; by the engine's clock, which is of no account for live ones
	}
	if f.mirror.overworked() {
		return
	}
	switch e.kind {
	case eventStored:
		f.stored(e)
	case eventRemoved:
		f.removed(e)
	case eventCleared:
		f.cleared()
	}
}

// cleared empties the mirror, in all tiers: the event names none. vLLM's
// contract says that it means all entries of the publisher, and SGLang's flush
// empties its host tier too; a reset of vLLM's GPU cache may leave copies with
// the offload connector, which are lost to us until they are stored again.
// Crediting too little is safe, too much is not.
//
// The engine stays the same, so what was learned stays, and ghosts stay, as
// they say what a hash means and not what is held. Some engines clear again and
// again: the sink hears of it only when there was something to forget.
func (f *fold) cleared() {
	f.stats.cleared = true
	f.forget(CauseCleared)
	f.learned.forgot = false
	f.heal.finish()
}

func (f *fold) forget(cause Cause) {
	if f.mirror.empty() {
		return
	}
	announced := f.mirror.prints.sent > 0
	f.mirror.clear()
	f.heal.complete = false
	if announced {
		f.o.sink.Reset(cause)
	}
}

func (f *fold) removed(e *event) {
	m := f.mirror
	medium := f.media.of(e.medium).Medium
	if medium == MediumNone {
		return
	}
	class, ok := m.copies.find(e, medium)
	if !f.heal.complete && medium == MediumDevice {
		for _, h := range e.hashes {
			f.removedBlock(h, class, ok)
		}
	}
	if !ok {
		return
	}
	for _, h := range e.hashes {
		m.byHash.warm(h)
	}
	var host copyClass
	demote := false
	if f.o.demote > 0 && medium == MediumDevice {
		// Of each group, as a block is resident while all groups have it.
		host, demote = m.copies.assume(MediumHost, e.group, e.hasGroup, &m.groups)
	}
	for _, h := range e.hashes {
		if demote {
			m.demote(h, class, host, f.made.Add(f.o.demote))
		}
		m.remove(h, class, f.now)
	}
}
