package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/pool"
)

// Plan is which endpoints there are to be.
type Plan struct {
	Pools     []string   // names, in the order of the configuration
	Endpoints []Endpoint // in the order of the configuration's pools; in each, configured ones first, in their order, then by address
	Refused   []Refusal
	Again     bool // some are leaving that nothing gives: plan again after a while
}

// planning is a plan in the making.
type planning struct {
	f       *Fleet
	cfg     *config.Config
	now     time.Time
	busy    func(pool, address string) bool
	pools   map[string]*config.Pool // by name
	at      map[string]*Endpoint    // by address
	refused []Refusal
}

// Plan puts together what is known. busy tells whether requests of an endpoint are open. It changes nothing.
func (f *Fleet) Plan(cfg *config.Config, now time.Time, busy func(pool, address string) bool) Plan {
	p := planning{f: f, cfg: cfg, now: now, busy: busy, pools: map[string]*config.Pool{}, at: make(map[string]*Endpoint, len(f.present))}
	for i := range cfg.Pools {
		p.pools[cfg.Pools[i].Name] = &cfg.Pools[i]
	}
	p.configured()
	p.resolved(true)
	p.announced(true)
	p.resolved(false)
	p.announced(false)
	p.gone()
	return p.finish()
}

func (p *planning) configured() {
	for _, c := range p.cfg.Pools {
		for _, e := range c.Endpoints {
			addr, _ := netip.ParseAddrPort(e.Address) // checked by package config
			p.at[e.Address] = &Endpoint{Pool: c.Name, Address: e.Address, Origin: Configured, Ranks: max(1, e.Events.Ranks), addr: addr}
		}
	}
}

// resolved takes what DNS gives: first the addresses that their pool had before, then those that nobody has.
func (p *planning) resolved(had bool) {
	for i := range p.cfg.Pools {
		c := &p.cfg.Pools[i]
		for _, addr := range p.given(c) {
			address := addr.String()
			if p.had(c.Name, address) != had {
				continue
			}
			switch e := p.at[address]; {
			case e == nil:
				p.at[address] = &Endpoint{Pool: c.Name, Address: address, Origin: Resolved, Ranks: 1, addr: addr}
			case e.Pool != c.Name:
				p.refuse("", c.Name, address, fmt.Sprintf("it is an endpoint of pool %q", e.Pool))
			}
		}
	}
}

// given is what DNS gives for a pool: while there is no answer for its name, what DNS gave for another one before.
func (p *planning) given(c *config.Pool) []netip.AddrPort {
	name := cmp.Or(c.DNS, c.SRV)
	addrs, answered := p.f.resolved[name]
	if answered || name == "" {
		return addrs
	}
	for _, e := range p.f.present {
		if e.Pool == c.Name && e.Origin == Resolved {
			addrs = append(addrs, e.addr)
		}
	}
	return addrs
}

func (p *planning) had(pool, address string) bool { return p.f.present[address].Pool == pool }

// announced takes what nodes announce, as resolved does.
func (p *planning) announced(had bool) {
	for _, node := range slices.Sorted(maps.Keys(p.f.nodes)) {
		for _, r := range p.f.nodes[node] {
			was := p.f.present[r.Endpoint].Node
			if (p.had(r.Pool, r.Endpoint) && (was == "" || was == node)) == had {
				p.replica(node, r, p.pools[r.Pool])
			}
		}
	}
}

func (p *planning) replica(node string, r Replica, c *config.Pool) {
	e := p.at[r.Endpoint]
	addr, host := hostOf(r.Endpoint)
	switch {
	case !host:
		p.refuse(node, r.Pool, r.Endpoint, "its address is not ip:port of one host")
		return
	case r.Ranks > maxRanks:
		p.refuse(node, r.Pool, r.Endpoint, fmt.Sprintf("it has %d data-parallel ranks, at most %d", r.Ranks, maxRanks))
		return
	case c == nil:
		p.refuse(node, r.Pool, r.Endpoint, "the router has no such pool")
		return
	case len(r.Models) > 0 && !slices.ContainsFunc(r.Models, func(m string) bool { return slices.Contains(c.Models, m) }):
		p.refuse(node, r.Pool, r.Endpoint, fmt.Sprintf("it serves %q, none of the pool's models", r.Models[0]))
		return
	case e != nil && e.Pool != r.Pool:
		p.refuse(node, r.Pool, r.Endpoint, fmt.Sprintf("it is an endpoint of pool %q", e.Pool))
		return
	case e != nil && e.Node != "":
		p.refuse(node, r.Pool, r.Endpoint, fmt.Sprintf("node %q announces it", e.Node))
		return
	case e != nil:
	case p.cfg.Announces(c):
		e = &Endpoint{Pool: r.Pool, Address: r.Endpoint, Origin: Announced, addr: addr}
	case p.cfg.Dynamic(c):
		e = &Endpoint{Pool: r.Pool, Address: r.Endpoint, Origin: Announced, Leaving: true, addr: addr}
	default:
		p.refuse(node, r.Pool, r.Endpoint, "the pool's endpoints stand in the configuration, and it is none of them (announced: true takes it)")
		return
	}
	e.Node = node
	e.Leaving = e.Leaving || r.Draining
	if !c.PinRank { // whose ranks the configuration knows
		e.Ranks = max(e.Ranks, r.Ranks, 1)
	}
	p.at[r.Endpoint] = e
}

// maxRanks bounds the data-parallel ranks of one endpoint.
const maxRanks = 64

// hostOf reads the address and port of one host, in its one spelling.
func hostOf(text string) (addr netip.AddrPort, ok bool) {
	addr, err := netip.ParseAddrPort(text)
	ip := addr.Addr()
	return addr, err == nil && addr.String() == text && addr.Port() != 0 && !ip.IsUnspecified() && !ip.IsMulticast() && !ip.Is4In6() && ip.Zone() == ""
}

// gone keeps endpoints that nothing gives any more for a while. Those that stood in the configuration leave with it.
func (p *planning) gone() {
	for address, was := range p.f.present {
		if p.at[address] != nil || was.Origin == Configured || p.pools[was.Pool] == nil {
			continue
		}
		if was.Since.IsZero() {
			was.Since = p.now
		}
		age := p.now.Sub(was.Since)
		if age >= leaveAtMost || age >= leaveAtLeast && !p.busy(was.Pool, address) {
			continue
		}
		was.Origin, was.Leaving, was.Node = Gone, true, ""
		p.at[address] = &was
	}
}

func (p *planning) refuse(node, pool, address, why string) {
	p.refused = append(p.refused, Refusal{node, pool, address, why})
}

// finish sorts what there is, and refuses what does not fit.
func (p *planning) finish() Plan {
	all, ranks := slices.Collect(maps.Values(p.at)), 0
	for _, e := range all {
		ranks += e.Ranks
	}
	if p.f.capacity > 0 && ranks > p.f.capacity {
		all = p.fit(all)
	}
	plan := Plan{Endpoints: make([]Endpoint, 0, len(all))}
	for _, e := range all {
		plan.Endpoints = append(plan.Endpoints, *e)
		plan.Again = plan.Again || e.Origin == Gone
	}
	pools, configured := map[string]int{}, map[string]int{}
	for i, c := range p.cfg.Pools {
		pools[c.Name] = i
		plan.Pools = append(plan.Pools, c.Name)
		for j, e := range c.Endpoints {
			configured[e.Address] = j + 1
		}
	}
	last := len(p.at) + 1
	order := func(e *Endpoint) int {
		if e.Origin != Configured {
			return last
		}
		return configured[e.Address]
	}
	slices.SortFunc(plan.Endpoints, func(a, b Endpoint) int {
		if a.Pool != b.Pool {
			return cmp.Compare(pools[a.Pool], pools[b.Pool])
		}
		return cmp.Or(cmp.Compare(order(&a), order(&b)), a.addr.Compare(b.addr))
	})
	slices.SortFunc(p.refused, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Node, b.Node))
	})
	plan.Refused = slices.Compact(p.refused)
	return plan
}

// fit keeps as many of all endpoints as the index has room for.
func (p *planning) fit(all []*Endpoint) (kept []*Endpoint) {
	place := func(e *Endpoint) int {
		switch _, was := p.f.present[e.Address]; {
		case e.Origin == Configured:
			return 0
		case e.Origin == Gone:
			return 3
		case was:
			return 1
		}
		return 2
	}
	slices.SortFunc(all, func(a, b *Endpoint) int { return cmp.Or(cmp.Compare(place(a), place(b)), a.addr.Compare(b.addr)) })
	ranks := 0
	for _, e := range all {
		if ranks+e.Ranks > p.f.capacity && e.Origin != Configured {
			if e.Origin != Gone {
				p.refuse(e.Node, e.Pool, e.Address, fmt.Sprintf("the index was made for %d endpoints, each of their ranks counted: restart the router with a larger index.max_endpoints", p.f.capacity))
			}
			continue
		}
		ranks += e.Ranks
		kept = append(kept, e)
	}
	return kept
}

// Commit makes a plan the state of things. It must be the last one, and of the configuration in use.
func (f *Fleet) Commit(p Plan) {
	f.present = make(map[string]Endpoint, len(p.Endpoints))
	for _, e := range p.Endpoints {
		f.present[e.Address] = e
	}
	f.m.set(p)
}

// Enter returns the pools with the endpoints of the plan.
func (p Plan) Enter(pools []pool.Config) []pool.Config {
	out := slices.Clone(pools)
	at := map[string]*pool.Config{}
	for i := range out {
		out[i].Endpoints, out[i].Ranks, out[i].Leaving = nil, nil, nil
		at[out[i].Name] = &out[i]
	}
	for _, e := range p.Endpoints {
		c := at[e.Pool]
		if c == nil {
			continue
		}
		c.Endpoints = append(c.Endpoints, e.Address)
		if e.Leaving {
			c.Leaving = append(c.Leaving, e.Address)
		}
		if e.Ranks > 1 {
			if c.Ranks == nil {
				c.Ranks = map[string]int{}
			}
			c.Ranks[e.Address] = e.Ranks
		}
	}
	return out
}
