package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/fleet"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
)

// peers have the router speak to the other ones, through the nodes that they all watch.
type peers struct {
	feed atomic.Pointer[feed.Router] // nil until there is one
}

var _ router.Peers = (*peers)(nil)

func (p *peers) Charged(c router.Charge) {
	if f := p.feed.Load(); f != nil {
		f.Charged(feed.Charge(c))
	}
}

func (p *peers) Released(pool string, number uint64) {
	if f := p.feed.Load(); f != nil {
		f.Released(pool, number)
	}
}

func (p *peers) Pass(instance string, c router.Completion) router.Passing {
	f := p.feed.Load()
	if f == nil {
		return router.NoWay
	}
	switch f.Pass(instance, feed.Record{
		Instance: instance, ID: c.ID, Pool: c.Pool, Upstream: c.Upstream, Attempts: c.Attempts, Code: c.Code, Answered: c.Answered,
		ConnectFailed: c.ConnectFailed, Broken: c.Broken,
	}) {
	case feed.Passed:
		return router.Passed
	case feed.Kept:
		return router.Kept
	default:
		return router.NoWay
	}
}

// listener takes what nodes say to the parts of the router that it concerns.
type listener struct {
	router *router.Router
	keeper *keeper
	pools  *pool.Set

	mu     sync.Mutex
	served map[string]map[string]string // pool by endpoint, by node
}

var _ feed.Fleet = (*listener)(nil)

// Serve enters the endpoints of a node. What their engines said of themselves counts no more where the node does not speak for them any more.
func (l *listener) Serve(node string, replicas []feed.Replica) {
	pools := make(map[string]string, len(replicas))
	announced := make([]fleet.Replica, len(replicas))
	for i, r := range replicas {
		pools[r.Endpoint] = r.Pool
		announced[i] = fleet.Replica{Endpoint: r.Endpoint, Pool: r.Pool, Models: r.Models, Ranks: len(r.Sources), Draining: r.Draining}
	}
	l.mu.Lock()
	was := l.served[node]
	l.served[node] = pools
	if replicas == nil {
		delete(l.served, node)
	}
	l.mu.Unlock()
	for endpoint, pool := range was {
		if pools[endpoint] != pool {
			l.pools.Announce(pool, endpoint, nil)
		}
	}
	for _, r := range replicas {
		l.pools.Announce(r.Pool, r.Endpoint, servedBy(r)) // before there is an endpoint that would be asked
	}
	l.keeper.announced(node, announced)
	for endpoint, pool := range was {
		if pools[endpoint] != pool {
			l.router.Report(pool, endpoint, router.Load{Stale: true})
		}
	}
}

// servedBy is what a node says that an engine serves; nil where the engine has to be asked.
func servedBy(r feed.Replica) *pool.Announced {
	if r.Listing == feed.ListingNone {
		return nil
	}
	a := &pool.Announced{Told: pool.Told{Models: r.Models, ModelLen: r.MaxModelLen}, Known: r.Listing == feed.ListingTold, Version: r.Version}
	for _, adapter := range r.Adapters {
		a.Adapters = append(a.Adapters, pool.Adapter(adapter))
	}
	return a
}

// Silent has a node's engines asked what they serve until it says something again.
func (l *listener) Silent(node string) {
	l.mu.Lock()
	served := l.served[node]
	l.mu.Unlock()
	for endpoint, pool := range served {
		l.pools.Announce(pool, endpoint, nil)
	}
}

// sink is the source of one rank that a node tells of.
type sink struct {
	*router.Source
	router *router.Router
	taken  func() bool // the router follows the engine itself
}

func (s sink) TellPrompts(h feed.Hearer) { s.Source.TellPrompts(h) }

func (s sink) Lost() bool { return s.taken() || !s.router.Follows(s.Source) }

// Sink takes the blocks of endpoints that are taken, unless the router is connected with their engines itself.
func (l *listener) Sink(pool, endpoint string, rank int) (feed.Sink, error) {
	node, err := l.keeper.wants(pool, endpoint)
	if err != nil {
		return nil, err
	}
	s, err := l.router.SourceOf("node "+node, pool, endpoint, rank)
	if err != nil {
		return nil, err
	}
	return sink{s, l.router, func() bool { return l.keeper.followed(pool, endpoint) }}, nil
}

// wants returns the node whose blocks of an endpoint are wanted, or why those that a node announces are not.
func (k *keeper) wants(pool, endpoint string) (node string, err error) {
	if k.followed(pool, endpoint) {
		return "", errors.New("the router has an event source of its own for it")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.plan.Endpoints {
		if e.Pool == pool && e.Address == endpoint && e.Node != "" {
			return e.Node, nil
		}
	}
	return "", errors.New("it is no endpoint of the pool")
}

// followed reports whether the configuration has the router follow the engine of an endpoint itself.
func (k *keeper) followed(pool, endpoint string) bool {
	for _, p := range k.config().Pools {
		for _, e := range p.Endpoints {
			if p.Name == pool && e.Address == endpoint && !e.Events.None() {
				return true
			}
		}
	}
	return false
}

// Load takes what a node's engines say of themselves.
func (l *listener) Load(node string, loads []feed.Load) {
	l.mu.Lock()
	pools := l.served[node]
	l.mu.Unlock()
	for _, o := range loads {
		if pool, ok := pools[o.Endpoint]; ok {
			l.router.Report(pool, o.Endpoint, router.Load{
				Running: o.Running, Waiting: o.Waiting, KVUsage: o.KVUsage, PrefixHits: o.PrefixHits, PrefixQueries: o.PrefixQueries,
				Sleeping: o.Sleeping, Age: o.Age, Stale: o.Stale,
			})
		}
	}
}

// Charge, Release, Gone and Record are what other routers say.

// Charge enters a charge of another router.
func (l *listener) Charge(origin string, c feed.Charge) { l.router.Charge(origin, router.Charge(c)) }

// Release takes one back.
func (l *listener) Release(origin, pool string, number uint64) {
	l.router.Release(origin, pool, number)
}

// Gone says that nothing more is heard of another router.
func (l *listener) Gone(origin string) { l.router.Gone(origin) }

// Record takes the end of a request of this router's, which another one was told.
func (l *listener) Record(r feed.Record) {
	l.router.CompletePassed(router.Completion{
		ID: r.ID, Pool: r.Pool, Upstream: r.Upstream, Attempts: r.Attempts, Code: r.Code, Answered: r.Answered, ConnectFailed: r.ConnectFailed, Broken: r.Broken,
	})
}

// newFeed makes what watches nodes, of the router's and the keeper's.
func (s *service) newFeed(cfg *config.Config, reg prometheus.Registerer, others *peers, log *slog.Logger) error {
	o := feed.RouterOptions{
		Release: version, Instance: s.router.Instance(), Fleet: &listener{router: s.router, keeper: s.keeper, pools: s.pools, served: map[string]map[string]string{}},
		StaleAfter: cfg.Feed.StaleAfter.Std(), MaxBlocks: config.MaxNodeBlocks, Insecure: cfg.Feed.Insecure, Log: log, Metrics: feed.NewRouterMetrics(reg),
	}
	if s.feedTLS != nil {
		o.TLS = func() *tls.Config { return s.feedTLS.current() }
	}
	if s.feedToken != nil {
		o.Token = s.feedToken.current
	}
	var err error
	if s.feed, err = feed.NewRouter(o); err != nil {
		return fmt.Errorf("feed: %w", err)
	}
	others.feed.Store(s.feed)
	s.keeper.watch = func(nodes []nodeAddress) {
		addrs := make([]feed.Address, len(nodes))
		for i, n := range nodes {
			addrs[i] = feed.Address{Addr: n.addr.String(), Allow: n.allow}
		}
		s.feed.Set(addrs)
	}
	return nil
}

// settledNodes counts the nodes, and of these the ones that are connected and have told all that their engines hold. A name without an
// address counts as one node.
func (s *service) settledNodes() (settled, all int) {
	all = s.keeper.expected()
	for _, n := range s.feed.Nodes() {
		if n.Connected && n.Replicas != nil && n.Copies == 0 {
			settled++
		}
	}
	return min(settled, all), all
}
