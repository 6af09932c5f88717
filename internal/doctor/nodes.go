package doctor

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
)

// fleetFacts are what the router's state says of nodes, and of endpoints that do not stand in the configuration.
type fleetFacts struct {
	known bool
	Pools []struct {
		Name      string         `json:"name"`
		Endpoints []endpointFact `json:"endpoints"`
	} `json:"pools"`
	Nodes   []nodeFact    `json:"nodes"`
	Refused []refusalFact `json:"refused"`
}

type endpointFact struct {
	Address string `json:"address"`
	Origin  string `json:"origin"`
	Node    string `json:"node"`
	Leaving bool   `json:"leaving"`
}

type nodeFact struct {
	Address   string `json:"address"`
	Name      string `json:"name"`
	Connected bool   `json:"connected"`
	Problem   string `json:"problem"`
	Stale     bool   `json:"stale"`
}

type refusalFact struct {
	Node     string `json:"node"`
	Pool     string `json:"pool"`
	Endpoint string `json:"endpoint"`
	Why      string `json:"why"`
}

// hasFleet reports whether a configuration leaves something to DNS or nodes.
func hasFleet(cfg *config.Config) bool {
	return len(cfg.Nodes) > 0 || slices.ContainsFunc(cfg.Pools, func(p config.Pool) bool { return cfg.Dynamic(&p) })
}

// readFleet asks the router for its state, where that says something of nodes or DNS.
func (d *Doctor) readFleet(ctx context.Context, base, token string) (f fleetFacts) {
	if !hasFleet(d.opt.Config) {
		return f
	}
	reply := d.clients.router.get(ctx, base+"/api/v1/state", token, maxReply*16)
	f.known = reply.ok() && json.Unmarshal(reply.body, &f) == nil
	return f
}

// found are the engines of a pool that do not stand in the configuration, as the router knows them.
func (f *facts) found(p *config.Pool) (addresses []string) {
	for _, known := range f.router.fleet.Pools {
		for _, e := range known.Endpoints {
			if known.Name == p.Name && (e.Origin == "dns" || e.Origin == "node") {
				addresses = append(addresses, e.Address)
			}
		}
	}
	return addresses
}

// teller is the node that tells of an endpoint; "" for none.
func (f *facts) teller(p *config.Pool, address string) (node string, leaving bool) {
	for _, known := range f.router.fleet.Pools {
		for _, e := range known.Endpoints {
			if known.Name == p.Name && e.Address == address {
				return e.Node, e.Leaving
			}
		}
	}
	return "", false
}

// examineNodes judges nodes, DNS names and what comes from both.
func (f *facts) examineNodes(c *collector) {
	cfg := f.cfg
	if why, _ := cfg.SeveralRouters(); why != "" && cfg.Listens() {
		c.found(SeveralRouters, "config", "%s, and engines connect to events.listen of this router", why)
	}
	if cfg.Feed.Insecure && !cfg.Feed.TLS.On() && slices.ContainsFunc(cfg.Nodes, func(n config.NodeSource) bool { return n.Address == "" || beyondLoopback(n.Address) }) {
		c.found(ClearText, "config", "feed.insecure: what nodes say, and a token, travel in clear text")
	}
	if m := f.router.metrics; m != nil {
		for _, s := range m.named("kvsteer_discover_addresses") {
			failing, _ := m.sum("kvsteer_discover_failing", "name", s.labels["name"])
			switch {
			case failing > 0:
				c.found(NameEmpty, "router", "DNS does not answer for %s; %s of the last answer are in use", s.labels["name"], plural(int(s.value), "address"))
			case s.value == 0:
				c.found(NameEmpty, "router", "DNS gives no address for %s", s.labels["name"])
			}
		}
	}
	if !f.router.fleet.known {
		if hasFleet(cfg) && f.router.metrics != nil {
			c.unknown("router", "nodes", "GET /api/v1/state does not tell of them")
		}
		return
	}
	for _, n := range f.router.fleet.Nodes {
		subject := "node " + n.Address
		switch {
		case !n.Connected && strings.HasPrefix(n.Problem, "version"):
			c.found(NodeVersion, subject, "%s", n.Problem)
		case !n.Connected && n.Problem == "":
			c.found(NodeUnreachable, subject, "not connected yet")
		case !n.Connected:
			c.found(NodeUnreachable, subject, "%s", n.Problem)
		case n.Stale:
			c.found(NodeStale, subject, "connected, and some of its blocks have not come")
		}
	}
	for _, n := range cfg.Nodes {
		if n.Address != "" && !slices.ContainsFunc(f.router.fleet.Nodes, func(known nodeFact) bool { return known.Address == n.Address }) {
			c.found(OtherConfig, "router", "it does not know the node %s", n.Address)
		}
	}
	for _, r := range f.router.fleet.Refused {
		from := "DNS"
		if r.Node != "" {
			from = "node " + r.Node
		}
		c.found(EndpointRefused, "pool "+r.Pool, "%s of %s: %s", r.Endpoint, from, r.Why)
	}
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		for _, known := range f.router.fleet.Pools {
			if known.Name == p.Name && cfg.Dynamic(p) && len(known.Endpoints) == 0 {
				c.found(PoolEmpty, "pool "+p.Name, "nothing gives it one: %s", awaited(cfg, p))
			}
		}
	}
}

// awaited is where a pool's endpoints come from.
func awaited(cfg *config.Config, p *config.Pool) string {
	var all []string
	if name := p.DNS + p.SRV; name != "" {
		all = append(all, "DNS is asked for "+name)
	}
	if cfg.Announces(p) {
		all = append(all, "nodes may announce some")
	}
	return strings.Join(all, ", and ")
}
