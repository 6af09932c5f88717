package main

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/discover"
	"github.com/kvsteer/kvsteer/internal/fleet"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
)

// keepTick is how often it is looked at whether endpoints that are gone have ended their requests.
const keepTick = 500 * time.Millisecond

// keeper keeps the router's endpoints those that the configuration, DNS and nodes give together. Whatever changes one of these waits for the router to
// have them all.
type keeper struct {
	router     *router.Router
	discoverer *discover.Discoverer
	watch      func([]nodeAddress) // is told which nodes there are, and asks again then for what it is not told of
	rewatch    chan struct{}       // capacity 1: asks for a call of watch
	log        *slog.Logger

	mu       sync.Mutex
	fleet    *fleet.Fleet
	cfg      *config.Config
	pools    []pool.Config // without what DNS and nodes give
	settings router.Settings
	resolved map[string][]netip.AddrPort // by what DNS was asked for
	plan     fleet.Plan                  // in use
	known    []nodeAddress               // nodes that there were at the last look
}

// nodeAddress is where a node is, and whose endpoints it may announce beside those at its own IP address.
type nodeAddress struct {
	addr  netip.AddrPort
	allow []netip.Prefix
	named bool // DNS gives it
}

// newKeeper makes the keeper of a router that has been made with the pools of cfg. It starts nothing.
func newKeeper(cfg *config.Config, pools []pool.Config, settings router.Settings, r *router.Router, o fleet.Options, d discover.Options, log *slog.Logger) (*keeper, error) {
	k := &keeper{
		router: r, log: log, watch: func([]nodeAddress) {}, rewatch: make(chan struct{}, 1), fleet: fleet.New(o), cfg: cfg, pools: pools, settings: settings,
		resolved: map[string][]netip.AddrPort{},
	}
	d.Changed = k.found
	var err error
	if k.discoverer, err = discover.New(d); err != nil {
		return nil, err
	}
	k.plan = k.fleet.Plan(cfg, time.Now(), r.Busy)
	k.fleet.Commit(k.plan)
	return k, nil
}

// run follows DNS, says which nodes there are, and takes away endpoints that are gone when their requests have ended, until ctx ends.
func (k *keeper) run(ctx context.Context) error {
	cfg := k.config()
	k.discoverer.Set(namesOf(cfg), cfg.DNSRefresh.Std())
	k.look()
	var g errgroup.Group
	g.Go(func() error { return k.discoverer.Run(ctx) })
	g.Go(func() error {
		tick := time.NewTicker(keepTick)
		defer tick.Stop()
		for {
			select {
			case <-k.rewatch:
				k.watch(k.nodes())
			case <-tick.C:
				k.mu.Lock()
				if k.plan.Again {
					k.replan()
				}
				k.mu.Unlock()
			case <-ctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

// look has run say which nodes there are. It waits for nothing: what nodes say comes back to the keeper.
func (k *keeper) look() { nudge(k.rewatch) }

// nodes are all nodes that there are. Where another name is asked for, those that DNS gave before stay until the first answer.
func (k *keeper) nodes() []nodeAddress {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := nodesOf(k.cfg, k.resolved)
	if slices.ContainsFunc(k.cfg.Nodes, func(n config.NodeSource) bool {
		name, ok := nameOf(n.DNS, n.SRV)
		_, told := k.resolved[name.String()]
		return ok && !told
	}) {
		for _, was := range k.known {
			if was.named && !slices.ContainsFunc(all, func(n nodeAddress) bool { return n.addr == was.addr }) {
				all = append(all, was)
			}
		}
		sortNodes(all)
	}
	k.known = all
	return all
}

func (k *keeper) config() *config.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cfg
}

// set takes over a configuration. An error changes nothing.
func (k *keeper) set(cfg *config.Config, pools []pool.Config, settings router.Settings) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	plan := k.fleet.Plan(cfg, time.Now(), k.router.Busy)
	if err := k.router.Apply(plan.Enter(pools), settings); err != nil {
		return err
	}
	k.cfg, k.pools, k.settings = cfg, pools, settings
	k.commit(plan)
	names := namesOf(cfg)
	for text := range k.resolved {
		if !slices.ContainsFunc(names, func(n discover.Name) bool { return n.String() == text }) {
			delete(k.resolved, text)
			k.fleet.Forget(text)
		}
	}
	k.discoverer.Set(names, cfg.DNSRefresh.Std())
	k.look()
	return nil
}

// found takes over what DNS gives for a name.
func (k *keeper) found(n discover.Name, addrs []netip.AddrPort) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Contains(namesOf(k.cfg), n) {
		return // it has just been left out
	}
	k.resolved[n.String()] = addrs
	k.fleet.Resolved(n.String(), addrs)
	k.replan()
	k.look()
}

// announced takes over all that a node announces.
func (k *keeper) announced(node string, replicas []fleet.Replica) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fleet.Announced(node, replicas)
	k.replan()
}

// replan gives the router the endpoints that there are. The caller holds mu.
func (k *keeper) replan() {
	plan := k.fleet.Plan(k.cfg, time.Now(), k.router.Busy)
	if slices.Equal(plan.Endpoints, k.plan.Endpoints) {
		k.commit(plan)
		return
	}
	if err := k.router.Apply(plan.Enter(k.pools), k.settings); err != nil {
		k.log.Error("endpoints that DNS and nodes give could not be taken over", "error", err)
		return
	}
	k.commit(plan)
}

// commit takes over a plan that the router has. The caller holds mu.
func (k *keeper) commit(plan fleet.Plan) {
	before := k.plan
	k.fleet.Commit(plan)
	k.plan = plan
	k.tell(before)
	if !slices.Equal(before.Refused, plan.Refused) {
		k.look() // some may be taken
	}
}

// maxTold bounds the log lines about refused endpoints of one change.
const maxTold = 10

// tell logs what is different in the plan. The caller holds mu.
func (k *keeper) tell(before fleet.Plan) {
	was := map[string]fleet.Endpoint{}
	for _, e := range before.Endpoints {
		was[e.Address] = e
	}
	come, leaving := map[string]int{}, map[string]int{}
	for _, e := range k.plan.Endpoints {
		b, ok := was[e.Address]
		delete(was, e.Address)
		if e.Origin != fleet.Configured && !e.Leaving && (!ok || b.Leaving) {
			come[e.Pool]++
		}
		if e.Leaving && ok && !b.Leaving {
			leaving[e.Pool]++
		}
	}
	gone := map[string]int{}
	for _, b := range was {
		if b.Origin != fleet.Configured {
			gone[b.Pool]++
		}
	}
	for _, p := range k.plan.Pools {
		if come[p]+leaving[p]+gone[p] > 0 {
			k.log.Info("the pool's endpoints have changed", "pool", p, "come", come[p], "leaving", leaving[p], "gone", gone[p])
		}
	}
	told := 0
	for _, r := range k.plan.Refused {
		if slices.Contains(before.Refused, r) {
			continue
		}
		if told++; told > maxTold {
			k.log.Warn("more endpoints are refused", "all", len(k.plan.Refused))
			return
		}
		attrs := []any{"pool", r.Pool, "endpoint", r.Address, "why", r.Why}
		if r.Node != "" {
			attrs = append(attrs, "node", r.Node)
		}
		k.log.Warn("an endpoint is refused", attrs...)
	}
}

// planned are the endpoints that there are to be, and those that are refused.
func (k *keeper) planned() ([]fleet.Endpoint, []fleet.Refusal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.plan.Endpoints, k.plan.Refused
}

// expected is how many nodes there are, a name without an address as one.
func (k *keeper) expected() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(nodesOf(k.cfg, k.resolved))
	for _, source := range k.cfg.Nodes {
		if name, ok := nameOf(source.DNS, source.SRV); ok && len(k.resolved[name.String()]) == 0 {
			n++
		}
	}
	return n
}

// unresolved are the names that DNS has not answered for.
func (k *keeper) unresolved() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range namesOf(k.cfg) {
		if _, told := k.resolved[n.String()]; !told {
			names = append(names, n.String())
		}
	}
	return names
}

// nodesOf are all nodes of a configuration, with what DNS gives. One that stands there twice may announce what either entry allows.
func nodesOf(cfg *config.Config, resolved map[string][]netip.AddrPort) []nodeAddress {
	at := map[netip.AddrPort]int{}
	var all []nodeAddress
	for _, n := range cfg.Nodes {
		var addrs []netip.AddrPort
		name, named := nameOf(n.DNS, n.SRV)
		if named {
			addrs = resolved[name.String()]
		} else if addr, err := netip.ParseAddrPort(n.Address); err == nil {
			addrs = []netip.AddrPort{addr}
		}
		var allow []netip.Prefix
		for _, text := range n.Allow {
			if p, err := config.ParsePrefix(text); err == nil {
				allow = append(allow, p)
			}
		}
		for _, addr := range addrs {
			i, ok := at[addr]
			if !ok {
				i, at[addr] = len(all), len(all)
				all = append(all, nodeAddress{addr: addr, named: named})
			}
			all[i].allow = append(all[i].allow, allow...)
		}
	}
	sortNodes(all)
	return all
}

func sortNodes(all []nodeAddress) {
	slices.SortFunc(all, func(a, b nodeAddress) int { return a.addr.Compare(b.addr) })
}

// namesOf are all names that DNS is asked for.
func namesOf(cfg *config.Config) []discover.Name {
	var names []discover.Name
	add := func(dns, srv string) {
		if n, ok := nameOf(dns, srv); ok && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	for _, n := range cfg.Nodes {
		add(n.DNS, n.SRV)
	}
	for _, p := range cfg.Pools {
		add(p.DNS, p.SRV)
	}
	return names
}

// nameOf is what DNS is asked for, false for nothing.
func nameOf(dns, srv string) (discover.Name, bool) {
	if n, err := discover.ParseName(dns); err == nil {
		return n, true
	}
	host := cmp.Or(dns, srv)
	return discover.Name{Host: host}, host != ""
}
