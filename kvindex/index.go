package kvindex

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// Tier is a family of holder sets. Device is what an engine can use at once; Any adds the copies in slower memory.
type Tier uint8

// The two tiers. Whoever holds a block on Device holds it on Any: the caller stores Any before Device and removes Device
// before Any.
const (
	Device Tier = iota
	Any
)

// Errors of Store, Remove, Acquire and Reset.
var (
	// ErrStale means that the slot has been released: whatever was meant for it is dropped.
	ErrStale = errors.New("slot is released")
	// ErrFull means that a bound (Options.MaxBlocks, Options.MaxSets) has been met. The slot holds nothing any more and
	// is not matched until it is reset: matched in part it would look like an endpoint that evicted blocks.
	ErrFull = errors.New("index is full")
	// ErrOpen means that a check has found a block of the slot without one before it: what it holds is not closed under
	// prefix. It is not matched until it is reset, and keeps its blocks until then.
	ErrOpen = errors.New("blocks are not closed under prefix")
	// ErrSlots means that all Options.MaxSlots slots are in use.
	ErrSlots = errors.New("all slots are in use")
)

// Options bounds an Index. Zero fields take their defaults.
type Options struct {
	// MaxSlots is how many slots may be in use at once, 1 to 65,536; default 1,024. A set of holders takes MaxSlots/8
	// bytes. A slot that is being replaced (see Reset) counts twice.
	MaxSlots int

	// MaxBlocks is how many different blocks are kept, 1 to 2^30; default 10,000,000. A block takes 20 to 29 bytes.
	MaxBlocks int

	// MaxSets is how many different sets of holders are kept, 1 to 2^30; default 1,000,000. Sets that Release is about
	// to replace and sets that a running match may still read are kept beyond it.
	MaxSets int

	// CheckEvery is the number of matches of which one is checked by a walk over every block; default 1,000, negative
	// for never.
	CheckEvery int

	// Log gets one line when a check finds a difference that no slot's blocks explain. Default: none.
	Log *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	setting := func(name string, v *int, def, limit int) {
		if *v == 0 {
			*v = def
		}
		if *v < 1 || *v > limit {
			errs = append(errs, fmt.Errorf("%s %d: want 1 to %d", name, *v, limit))
		}
	}
	setting("MaxSlots", &o.MaxSlots, 1024, 1<<16)
	setting("MaxBlocks", &o.MaxBlocks, 10_000_000, 1<<30)
	setting("MaxSets", &o.MaxSets, 1_000_000, 1<<30)
	if o.CheckEvery == 0 {
		o.CheckEvery = 1000
	}
	if o.CheckEvery < 0 {
		o.CheckEvery = math.MaxInt
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

// Index knows which slots hold which blocks. Make one with New. All methods may be called concurrently; see the package
// comment for what is ordered.
type Index struct {
	options  Options
	seed     uint64 // of the tables' hash: which keys collide cannot be chosen from outside
	slots    slots
	sets     *sets
	epochs   epochs
	matchers matchers

	blocks      atomic.Int64 // keys in the tables, and up to quotaStep per running Store
	tableBytes  atomic.Int64
	checks      atomic.Uint64
	differences atomic.Uint64
	opened      atomic.Uint64
	walking     atomic.Bool

	sweeping sync.Mutex // one sweep at a time bounds the sets that sweeps add
	shards   [shardCount]shard
}

// New returns an empty index. The error names every option that is out of range.
func New(o Options) (*Index, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("index options: %w", err)
	}
	x := &Index{options: o, seed: rand.Uint64()}
	x.epochs.init()
	x.slots.init(o.MaxSlots)
	x.sets = newSets(o.MaxSlots, o.MaxSets, &x.epochs)
	x.matchers.init()
	for i := range x.shards {
		x.shards[i].init(x)
	}
	return x, nil
}

// Stats is a snapshot of an index's counts. They are read one after the other while writers go on.
type Stats struct {
	Slots       int    // in use
	FullSlots   int    // in use, but dropped because a bound was met: not matched
	Blocks      int64  // different blocks
	Sets        int    // different sets of holders, those no block refers to any more included until they are collected
	Bytes       int64  // held by tables, sets and slots
	Checks      uint64 // matches checked by a walk
	Opened      uint64 // slots that checks found not to be closed under prefix
	Differences uint64 // checks that found another result for a slot nobody wrote to, and whose blocks are closed under prefix
	Walking     bool   // a difference was found: all matches walk
}

// Stats returns the index's counts.
func (x *Index) Stats() Stats {
	st := Stats{
		Blocks:      x.blocks.Load(),
		Checks:      x.checks.Load(),
		Opened:      x.opened.Load(),
		Differences: x.differences.Load(),
		Walking:     x.walking.Load(),
	}
	st.Slots, st.FullSlots = x.slots.count()
	sets, bytes := x.sets.size()
	st.Sets = sets
	st.Bytes = bytes + x.tableBytes.Load() + x.slots.bytes() + shardCount*shardBytes
	return st
}

// Blocks returns how many blocks s holds on each tier; zeros for a released slot. While a Store or Remove of s runs, its
// part is not yet counted.
func (x *Index) Blocks(s Slot) (device, any int64) {
	if !x.slots.isValid(s) {
		return 0, 0
	}
	p := &x.slots.places[s.index]
	return p.blocks[Device].Load(), p.blocks[Any].Load()
}

// Full reports whether s was dropped because a bound was met. It stays so until s is released or reset.
func (x *Index) Full(s Slot) bool { return x.slots.has(s, fullFlag) }

// Open reports whether a check has found that what s holds is not closed under prefix. It stays so until s is released or reset.
func (x *Index) Open(s Slot) bool { return x.slots.has(s, openFlag) }

// Share is how much of Options.MaxBlocks n blocks are.
func (x *Index) Share(n int64) float64 { return float64(n) / float64(x.options.MaxBlocks) }

// Used is how much of Options.MaxBlocks is taken.
func (x *Index) Used() float64 { return x.Share(x.blocks.Load()) }
