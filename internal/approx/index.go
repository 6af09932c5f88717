package approx

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/kvindex"
)

// Options bounds an Index. Zero fields take their defaults.
type Options struct {
	// MaxSlots is how many endpoints there may be at one time, twice: a forgotten endpoint takes a fresh slot before the old one is given back.
	// 1 to 65,536; default 1,024.
	MaxSlots int
	// MaxBlocks bounds the blocks of all endpoints together, 1,000 to 2^30; default 4,000,000. Each endpoint may have an even share.
	MaxBlocks int

	Log     *slog.Logger // default: none
	Metrics *Metrics     // default: not exported
}

// Limits say how long one endpoint plausibly keeps what it was sent. They may differ from call to call.
type Limits struct {
	Blocks   int           // text blocks in its cache
	Lifetime time.Duration // without being used
}

// Index is what all endpoints were sent.
type Index struct {
	blocks *kvindex.Index
	max    int
	log    *slog.Logger
	m      *Metrics

	mu        sync.Mutex // of endpoints
	endpoints map[*Endpoint]struct{}
	count     atomic.Int64 // of endpoints
}

// New validates the options. It starts nothing.
func New(o Options) (*Index, error) {
	if o.MaxSlots == 0 {
		o.MaxSlots = 1024
	}
	if o.MaxBlocks == 0 {
		o.MaxBlocks = 4_000_000
	}
	var errs []error
	if o.MaxBlocks < 1000 || o.MaxBlocks > 1<<30 {
		errs = append(errs, fmt.Errorf("max blocks: %d, want 1,000 to 2^30", o.MaxBlocks))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	// What is held is bounded here, endpoint by endpoint. The index's own bounds drop an endpoint as a whole, so they are never to be met: a set of
	// holders exists for a block at most, and blocks are counted once per holder.
	blocks, err := kvindex.New(kvindex.Options{
		MaxSlots: o.MaxSlots, MaxBlocks: min(2*max(o.MaxBlocks, 0)+1000, 1<<30), MaxSets: min(2*max(o.MaxBlocks, 0)+1000, 1<<30), Log: o.Log,
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("approximate index: %w", err)
	}
	x := &Index{blocks: blocks, max: o.MaxBlocks, log: o.Log, m: o.Metrics, endpoints: map[*Endpoint]struct{}{}}
	o.Metrics.index.Store(x)
	return x, nil
}

// Endpoint enters an endpoint, or one of its ranks, which has been sent nothing. Close ends it.
func (x *Index) Endpoint(pool, address string) *Endpoint {
	e := &Endpoint{index: x, pool: pool, address: address}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.endpoints[e] = struct{}{}
	x.count.Store(int64(len(x.endpoints)))
	return e
}

func (x *Index) remove(e *Endpoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.endpoints, e)
	x.count.Store(int64(len(x.endpoints)))
}

func (x *Index) all() []*Endpoint {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.endpoints))
}

// Match finds how many leading keys of a chain each slot holds; see [Endpoint.Slot]. held must not be shorter than slots.
func (x *Index) Match(keys []uint64, slots []kvindex.Slot, held []kvindex.Held) {
	x.blocks.Match(keys, slots, held)
}

// Sound reports that no check has found the index not to be closed under prefix.
func (x *Index) Sound() bool {
	st := x.blocks.Stats()
	return st.Differences == 0 && st.Opened == 0
}

// share is how many blocks one endpoint may have.
func (x *Index) share() int { return max(1, x.max/int(max(1, x.count.Load()))) }
