package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/tokenize"
	"github.com/kvsteer/kvsteer/kvindex"
)

// Tokenizer turns a prompt into token ids, by asking the engine of one endpoint if need be.
type Tokenizer interface {
	// Tokens returns no later than ctx ends. Its errors are *tokenize.Error.
	Tokens(ctx context.Context, c tokenize.Call) (tokenize.Result, error)
}

// Options of a Router. Pools and Index are needed.
type Options struct {
	Pools     *pool.Set
	Index     *kvindex.Index
	Tokenizer Tokenizer         // nil: only prompts given as token ids are matched
	Render    bool              // Tokenizer asks render endpoints
	Texts     *approx.Index     // what endpoints were sent, by text; nil: prompts are not matched by their text
	APIKeys   map[string]string // by pool: what the engines' tokenizer asks for as Bearer; none for pools not named

	// Budget bounds a whole decision. It must be smaller than Envoy's message_timeout. Default 400 ms.
	Budget time.Duration
	// Limits bound what is read of a body, and the tokens of a prompt that is matched.
	Limits openai.Limits

	// PrefillRate is the estimated speed of one endpoint in prompt tokens per second, at which charged tokens are worked off, in pools
	// that name none of their own. Default 8,000.
	PrefillRate float64
	// Tiers is the worth of tokens held outside of the device, by pool. Pools not named have [DefaultTierWeights].
	Tiers map[string]TierWeights
	// MemoryWeight is the price of a token that already fills an endpoint's cache with running and recent requests, in prefill tokens.
	// Default 0.01; negative for none.
	MemoryWeight float64
	// NearTie is how many tokens apart two costs count as equal. Default 16; negative for none.
	NearTie int

	// Peers share charges and records with the other routers of the same endpoints. Default: none.
	Peers Peers

	Log     *slog.Logger     // default: none
	Metrics *Metrics         // default: not exported
	Now     func() time.Time // default time.Now
}

// Router decides where requests go.
type Router struct {
	pools       *pool.Set
	index       *kvindex.Index
	texts       *approx.Index // nil: none
	peers       Peers         // nil: none
	weights     weights
	prefillRate float64
	log         *slog.Logger
	m           *Metrics
	now         func() time.Time
	random      func(n int) int // uniform in [0, n)
	ids         ids
	recent      recent
	scratch     sync.Pool // of *scratch
	settings    atomic.Pointer[Settings]
	fleets      atomic.Pointer[[]*fleet]
	owners      owners
	swaps       atomic.Uint64 // times that blocks of a source have been replaced as a whole

	mu sync.Mutex // held by Apply
}

// New validates the options; all problems are reported in one error. It starts nothing.
func New(o Options) (*Router, error) {
	var errs []error
	if o.Pools == nil {
		errs = append(errs, errors.New("pools: none given"))
	}
	if o.Index == nil {
		errs = append(errs, errors.New("index: none given"))
	}
	settings, err := Settings{Tokenizer: o.Tokenizer, Render: o.Render, APIKeys: o.APIKeys, Tiers: o.Tiers, Budget: o.Budget, Limits: o.Limits}.withDefaults()
	if err != nil {
		errs = append(errs, err)
	}
	if o.PrefillRate < 0 {
		errs = append(errs, fmt.Errorf("prefill rate: %v tokens per second, want more than 0", o.PrefillRate))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.PrefillRate == 0 {
		o.PrefillRate = 8_000
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Now == nil {
		o.Now = time.Now
	}

	r := &Router{
		pools: o.Pools,
		index: o.Index,
		texts: o.Texts,
		peers: o.Peers,
		weights: weights{
			memory: orDefault(o.MemoryWeight, 0.01),
			near:   orDefault(float64(o.NearTie), 16),
		},
		prefillRate: o.PrefillRate,
		ids:         ids{instance: newInstance()},
		log:         o.Log,
		m:           o.Metrics,
		now:         o.Now,
		random:      rand.IntN,
	}
	r.settings.Store(settings)
	r.scratch.New = func() any { return new(scratch) }
	var fleets []*fleet
	for _, p := range o.Pools.Pools() {
		fleets = append(fleets, newFleet(p, r.rate(p), r.texts, r.peers))
	}
	r.fleets.Store(&fleets)
	o.Metrics.router.Store(r)
	return r, nil
}

// orDefault gives zero its default and takes a negative value for none.
func orDefault(v, d float64) float64 {
	switch {
	case v == 0:
		return d
	case v < 0:
		return 0
	}
	return v
}

// all are the fleets at this time, in the order of the configuration.
func (r *Router) all() []*fleet { return *r.fleets.Load() }

// fleet finds the fleet of a pool by its name; nil when there is none (any more).
func (r *Router) fleet(pool string) *fleet {
	for _, f := range r.all() {
		if f.name() == pool {
			return f
		}
	}
	return nil
}
