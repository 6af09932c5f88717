package fleet

import (
	"net/netip"
	"time"
)

// Bounds of the time that an endpoint stays, leaving, which nothing gives any more.
const (
	leaveAtLeast = 5 * time.Second // DNS and nodes that are restarted leave things out for a moment
	leaveAtMost  = 2 * time.Minute // no record of the access log tells of the end of its requests
)

// Replica is an engine as a node announces it.
type Replica struct {
	Endpoint string // ip:port
	Pool     string
	Models   []string // served names of the base weights; none: not known
	Ranks    int      // data-parallel ranks, 0 as 1
	Draining bool
}

// Options of a Fleet.
type Options struct {
	Capacity int      // endpoints that there may be, each of their ranks counted; below 1 for no bound
	Metrics  *Metrics // default: not exported
}

// Fleet is what is known of endpoints beside the configuration.
type Fleet struct {
	capacity int
	m        *Metrics
	resolved map[string][]netip.AddrPort // by the name that DNS was asked for
	nodes    map[string][]Replica
	present  map[string]Endpoint // by address, as of the last commit
}

// New makes a Fleet that knows nothing.
func New(o Options) *Fleet {
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	return &Fleet{
		capacity: o.Capacity, m: o.Metrics,
		resolved: map[string][]netip.AddrPort{}, nodes: map[string][]Replica{}, present: map[string]Endpoint{},
	}
}

// Resolved takes over what DNS gives for a name: name:port, or that of SRV records, as it stands in the configuration.
func (f *Fleet) Resolved(name string, addrs []netip.AddrPort) { f.resolved[name] = addrs }

// Forget is told that a name is not asked for any more.
func (f *Fleet) Forget(name string) { delete(f.resolved, name) }

// Announced takes over all that a node announces; nothing when there is no such node any more.
func (f *Fleet) Announced(node string, replicas []Replica) {
	if len(replicas) == 0 {
		delete(f.nodes, node)
		return
	}
	f.nodes[node] = replicas
}

// Origin says where an endpoint comes from; one of a closed set.
type Origin string

// The origins, the first that holds.
const (
	Configured Origin = "configured"
	Resolved   Origin = "dns"
	Announced  Origin = "node"
	Gone       Origin = "gone" // nothing gives it any more
)

func origins() []Origin { return []Origin{Configured, Resolved, Announced, Gone} }

// Endpoint is one endpoint of a plan.
type Endpoint struct {
	Pool, Address string
	Origin        Origin
	Ranks         int       // at least 1
	Leaving       bool      // it is to get nothing new
	Node          string    // that announces it; "" for none
	Since         time.Time // when it was first not given any more; zero while it is given

	addr netip.AddrPort
}

// Refusal is an endpoint that is not taken.
type Refusal struct {
	Node    string // that announces it; "": DNS gives it, or it was there
	Pool    string
	Address string
	Why     string
}
