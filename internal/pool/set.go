package pool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
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
	// DialTLS connects to endpoints that speak TLS; nil stands for clear text. The default HTTP uses it, and probes say https with it.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// HTTP2 has the default HTTP speak HTTP/2, without DialTLS by prior knowledge.
	HTTP2 bool

	Log     *slog.Logger // default: none
	Metrics *Metrics     // default: not exported
}

// Set is all pools of one router.
type Set struct {
	client  *http.Client
	given   Options // its zero times follow the interval
	probing atomic.Pointer[probing]
	view    atomic.Pointer[view]
	changed chan struct{} // capacity 1: tells Run that there is another view
	told    chan struct{} // capacity 1: tells Run that endpoints have told other names
	log     *slog.Logger
	m       *Metrics

	mu    sync.Mutex          // held by Apply, and while names change
	owned map[string][]string // adapters that endpoints told of, by pool
	// What others tell of endpoints, those included that are to come.
	announced map[place]*announcement
	warned    map[string]bool // what has been said of names, bounded
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
	found     atomic.Pointer[found]
}

// New validates the options; all problems are reported in one error. It starts nothing.
func New(o Options) (*Set, error) {
	if o.ProbeInterval == 0 {
		o.ProbeInterval = 2 * time.Second
	}
	if o.HTTP == nil {
		o.HTTP = probeClient(o)
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
	s := &Set{client: o.HTTP, given: o, changed: make(chan struct{}, 1), told: make(chan struct{}, 1), log: o.Log, m: o.Metrics, warned: map[string]bool{}, announced: map[place]*announcement{}}
	s.probing.Store(newProbing(o, o.ProbeInterval))
	s.view.Store(s.named(newView(o.Pools, nil, nil)))
	return s, nil
}

// Apply replaces all pools. An endpoint that stays, with its address and the name of its pool, keeps its health, and whether it drains unless
// the configuration says otherwise than before. An error reports every problem, and changes nothing.
func (s *Set) Apply(pools []Config) error {
	if err := validate(pools); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view.Store(s.named(newView(pools, s.view.Load(), s.announced)))
	select {
	case s.changed <- struct{}{}:
	default: // Run has not seen the one before and will see this one
	}
	return nil
}

// SetProbeInterval changes Options.ProbeInterval, which must be above zero. Endpoints are probed at once.
func (s *Set) SetProbeInterval(d time.Duration) {
	s.probing.Store(newProbing(s.given, d))
	for _, p := range s.Pools() {
		for _, e := range p.endpoints {
			e.Recheck()
		}
	}
}

// newView makes the view of a configuration, with the endpoints of the one before that stay, what is announced of those that come, and without names.
func newView(configs []Config, before *view, announced map[place]*announcement) *view {
	v := &view{}
	known := before.endpoints()
	open := 0
	for _, c := range configs {
		p := &Pool{config: c}
		p.found.Store(&found{})
		draining, leaving := addressSet(c.Draining), addressSet(c.Leaving)
		for _, text := range c.Endpoints {
			addr, _ := parseAddress(text) // checked by validate
			e := known[place{c.Name, addr}]
			if e == nil {
				e = newEndpoint(c.Name, addr)
				e.announced.Store(announced[place{c.Name, addr}])
			}
			e.listen(asking{every: c.AdaptersRefresh, after: c.AdaptersAfter, key: c.APIKey})
			e.configure(draining[addr], leaving[addr])
			p.endpoints = append(p.endpoints, e)
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

// place is where an endpoint stands.
type place struct{ pool, addr string }

// endpoints are all endpoints by their place.
func (v *view) endpoints() map[place]*Endpoint {
	all := map[place]*Endpoint{}
	if v == nil {
		return all
	}
	for _, p := range v.pools {
		for _, e := range p.endpoints {
			all[place{p.config.Name, e.addr}] = e
		}
	}
	return all
}

// addressSet are addresses, which validate has checked.
func addressSet(texts []string) map[string]bool {
	set := make(map[string]bool, len(texts))
	for _, text := range texts {
		addr, _ := parseAddress(text)
		set[addr] = true
	}
	return set
}

// Pools returns all pools in the order of the configuration. The slice must not be changed.
func (s *Set) Pools() []*Pool { return s.view.Load().pools }

// ByModel returns the pool that serves a model name, and the adapter when the name is one of an adapter, configured or told of by an engine.
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
	if strings.IndexByte(host, ':') < 0 {
		return host // what SplitHostPort would make an error of
	}
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

// Models are the served names of the base weights. The slice must not be changed.
func (p *Pool) Models() []string { return p.config.Models }

// Adapters are the served names of adapters: the configured ones, then those that only endpoints tell of, sorted.
func (p *Pool) Adapters() []string { return slices.Concat(p.config.Adapters, p.told().adapters) }

// Configures reports whether an adapter stands in the configuration, which says of all endpoints that they serve it.
func (p *Pool) Configures(adapter string) bool { return slices.Contains(p.config.Adapters, adapter) }

// AdapterPath is what an adapter was loaded from, as the first endpoint says that tells of it; "" when none does.
func (p *Pool) AdapterPath(adapter string) string { return p.told().paths[adapter] }

// ToldModelLen is the longest prompt and answer in tokens that an endpoint says the base weights take, 0 when none says.
func (p *Pool) ToldModelLen() int { return p.told().modelLen }

// SaltHeader is the name of the request header that has the cache salt, "" when there is none.
func (p *Pool) SaltHeader() string { return p.config.SaltHeader }

func (p *Pool) told() *found { return p.found.Load() }

// MaxModelLen is the configured length of prompt and answer in tokens, 0 when not known.
func (p *Pool) MaxModelLen() int { return p.config.MaxModelLen }

// PrefillRate is the estimated prefill speed of one rank of an endpoint in prompt tokens per second, 0 when not known.
func (p *Pool) PrefillRate() float64 { return p.config.PrefillRate }

// Cache is what the KV cache of one rank of an endpoint plausibly keeps: so many tokens, each for so long without being used. No tokens: prompts are not matched
// by their text.
func (p *Pool) Cache() (tokens int, lifetime time.Duration) {
	return p.config.CacheTokens, p.config.CacheLifetime
}

// Mode is what becomes of the pool's decisions as the configuration says: "on", "observe" or "off".
func (p *Pool) Mode() string { return cmp.Or(p.config.Mode, "on") }

// Unsteered is the percentage of requests that mode on leaves to Envoy.
func (p *Pool) Unsteered() int { return p.config.Unsteered }

// Endpoints returns the pool's endpoints, healthy or not, in the order of the configuration. The slice must not be changed.
func (p *Pool) Endpoints() []*Endpoint { return p.endpoints }

// Ranks is the number of data-parallel ranks of Endpoints()[i]: engines behind one address, each with a cache of its own.
func (p *Pool) Ranks(i int) int { return p.config.ranks(i) }

// PinRank says that decisions choose a rank of an endpoint, and not only the endpoint.
func (p *Pool) PinRank() bool { return p.config.PinRank }
