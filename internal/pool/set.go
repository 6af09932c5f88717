package pool

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Options of a Set. Only Pools is needed.
type Options struct {
	Pools []Config

	// ProbeInterval is the time between two probes of a healthy endpoint. Default 2 s.
	ProbeInterval time.Duration
	// ProbeTimeout bounds one probe, connecting included. Default half of ProbeInterval.
	ProbeTimeout time.Duration
	// MaxBackoff bounds the time between two probes of an endpoint that fails. Default 5 × ProbeInterval.
	MaxBackoff time.Duration
	// HTTP sends the probes. The default opens one connection per probe, so that a probe also shows that connections are accepted,
	// follows no redirects and uses no proxy.
	HTTP *http.Client

	Log     *slog.Logger // default: none
	Metrics *Metrics     // default: not exported
}

// Set is all pools of one router. Its pools and endpoints are fixed.
type Set struct {
	view   atomic.Pointer[view]
	health schedule
	probe  prober
	log    *slog.Logger
	m      *Metrics
}

// view is what lookups read; it is never changed once stored.
type view struct {
	pools   []*Pool
	byModel map[string]served
	matched []*Pool // those with a match, the most specific first
	only    *Pool   // the one pool without a match of its own, nil when there are several or none
}

type served struct {
	pool    *Pool
	adapter string
}

// Pool is one set of endpoints with the same base weights.
type Pool struct {
	config    Config
	endpoints []*Endpoint
}

// New validates the options; all problems are reported in one error. It starts nothing.
func New(o Options) (*Set, error) {
	if o.ProbeInterval == 0 {
		o.ProbeInterval = 2 * time.Second
	}
	if o.ProbeTimeout == 0 {
		o.ProbeTimeout = o.ProbeInterval / 2
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = 5 * o.ProbeInterval
	}
	if o.HTTP == nil {
		o.HTTP = probeClient()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	err := validate(o.Pools)
	if o.ProbeInterval < 0 || o.ProbeTimeout < 0 || o.MaxBackoff < 0 {
		err = errors.Join(err, errors.New("probe: negative interval, timeout or backoff"))
	}
	if err != nil {
		return nil, err
	}

	s := &Set{
		health: schedule{interval: o.ProbeInterval, first: o.ProbeInterval / 4, cap: o.MaxBackoff},
		probe:  prober{client: o.HTTP, timeout: o.ProbeTimeout},
		log:    o.Log,
		m:      o.Metrics,
	}
	s.view.Store(newView(o.Pools))
	return s, nil
}

func newView(configs []Config) *view {
	v := &view{byModel: map[string]served{}}
	open := 0
	for _, c := range configs {
		p := &Pool{config: c}
		for _, text := range c.Endpoints {
			addr, _ := parseAddress(text) // checked by validate
			p.endpoints = append(p.endpoints, newEndpoint(c.Name, addr))
		}
		for _, m := range c.Models {
			v.byModel[m] = served{pool: p}
		}
		for _, a := range c.Adapters {
			v.byModel[a] = served{pool: p, adapter: a}
		}
		if c.Match.zero() {
			open++
			v.only = p
		} else {
			v.matched = append(v.matched, p)
		}
		v.pools = append(v.pools, p)
	}
	slices.SortStableFunc(v.matched, func(p, q *Pool) int { return bySpecificity(p.config.Match, q.config.Match) })
	if open != 1 {
		v.only = nil
	}
	return v
}

// Pools returns all pools in the order of the configuration. The slice must not be changed.
func (s *Set) Pools() []*Pool { return s.view.Load().pools }

// ByModel returns the pool that serves a model name, and the adapter when the name is one of an adapter.
func (s *Set) ByModel(model string) (p *Pool, adapter string, ok bool) {
	e, ok := s.view.Load().byModel[model]
	return e.pool, e.adapter, ok
}

// ByRequest returns the pool that Envoy's own route table takes without the body: the pool with the most specific Match that agrees, else the
// pool without a Match when there is exactly one such. host may carry a port, path a query; header may be nil.
func (s *Set) ByRequest(host, path string, header func(name string) string) (*Pool, bool) {
	v := s.view.Load()
	host = withoutPort(host)
	path, _, _ = strings.Cut(path, "?")
	for _, p := range v.matched {
		if p.config.Match.matches(host, path, header) {
			return p, true
		}
	}
	return v.only, v.only != nil
}

// withoutPort takes the port from a host, as Envoy does; an IPv6 address keeps its brackets.
func withoutPort(host string) string {
	h, _, err := net.SplitHostPort(host)
	switch {
	case err != nil:
		return host
	case strings.Contains(h, ":"):
		return "[" + h + "]"
	}
	return h
}

// Name is the pool's name.
func (p *Pool) Name() string { return p.config.Name }

// MaxModelLen is the configured length of prompt and answer in tokens, 0 when not known.
func (p *Pool) MaxModelLen() int { return p.config.MaxModelLen }

// PrefillRate is the estimated prefill speed of one endpoint in prompt tokens per second, 0 when not known.
func (p *Pool) PrefillRate() float64 { return p.config.PrefillRate }

// Cache is what an endpoint's KV cache plausibly keeps: so many tokens, each for so long without being used. No tokens: prompts are not matched
// by their text.
func (p *Pool) Cache() (tokens int, lifetime time.Duration) {
	return p.config.CacheTokens, p.config.CacheLifetime
}

// Endpoints returns the pool's endpoints, healthy or not, in the order of the configuration. The slice must not be changed.
func (p *Pool) Endpoints() []*Endpoint { return p.endpoints }
