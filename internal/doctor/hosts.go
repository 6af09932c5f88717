package doctor

import (
	"net/netip"
	"slices"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/config"
)

// examineHosts compares the endpoints of the configuration with the hosts of Envoy's fallback clusters. Of those some may follow the choice
// themselves, and can do so only for hosts that they hold.
func (f *facts) examineHosts(c *collector, clusters, followers []string) {
	inEnvoy := map[string]bool{}
	compared := 0
	slices.Sort(clusters)
	for _, cluster := range slices.Compact(clusters) {
		owner := f.printedFor(cluster)
		belongs := func(host string) bool {
			return slices.ContainsFunc(f.engines, func(e engineFacts) bool {
				return e.endpoint.Address == host && (owner == nil || e.pool == owner)
			}) || slices.ContainsFunc(f.cfg.Pools, func(p config.Pool) bool { return p.DNS == host && (owner == nil || p.Name == owner.Name) })
		}
		hosts := f.envoy.dump.endpoints(cluster)
		// A cluster without a single endpoint of ours is something else: another balancer, another fleet. One that follows the choice cannot be.
		if owner == nil && !slices.ContainsFunc(hosts, belongs) && slices.Contains(followers, cluster) && (len(hosts) > 0 || f.envoy.clusters.ok()) {
			c.found(EndpointNotInEnvoy, "envoy cluster "+cluster, "it follows the router's choice, and holds none of the configuration's endpoints")
			continue
		}
		if owner == nil && !slices.ContainsFunc(hosts, belongs) {
			c.unknown("envoy cluster "+cluster, "endpoints", "it holds none of the configuration's: it is taken for another service")
			continue
		}
		compared++
		for _, h := range hosts {
			switch {
			case belongs(h):
				inEnvoy[h] = true
			case owner != nil:
				c.found(EndpointOnlyEnvoy, "envoy cluster "+cluster, "it holds %s, which pool %s has not", h, owner.Name)
			default:
				c.found(EndpointOnlyEnvoy, "envoy cluster "+cluster, "it holds %s, which no pool has", h)
			}
		}
	}
	if compared == 0 {
		return
	}
	for _, e := range f.engines {
		own := e.pool.Fallback.Cluster
		switch {
		case inEnvoy[e.endpoint.Address] || e.pool.Fallback.To == "none" || e.dynamic:
		case own == "" && !slices.Contains(followers, envoy.PoolCluster(e.pool.Name)):
			c.found(EndpointNotInEnvoy, e.subject(), "no fallback cluster of Envoy holds it for pool %s: without the router it serves nothing", e.pool.Name)
		case own == "" || slices.Contains(followers, own):
			c.found(EndpointNotInEnvoy, e.subject(), "no cluster of Envoy that follows the router's list holds it for pool %s: it serves nothing", e.pool.Name)
		}
	}
}

// printedFor is the pool that kvsteer envoy prints a cluster for; nil for a cluster of somebody else's.
func (f *facts) printedFor(cluster string) *config.Pool {
	for i := range f.cfg.Pools {
		if p := &f.cfg.Pools[i]; cluster == envoy.FallbackCluster(p.Name) || cluster == envoy.PoolCluster(p.Name) {
			return p
		}
	}
	return nil
}

// endpoints are a cluster's hosts in the form of the configuration's addresses.
func (d *dump) endpoints(cluster string) []string {
	var all []string
	add := func(address string) {
		a, err := netip.ParseAddrPort(address)
		if err != nil {
			return // a name, or a socket: not an endpoint's address
		}
		if s := netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String(); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, a := range d.addresses(cluster) {
		add(a)
	}
	return all
}
