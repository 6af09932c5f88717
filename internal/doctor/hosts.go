package doctor

import (
	"net/netip"
	"slices"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/config"
)

// examineHosts compares the endpoints of the configuration with the hosts of Envoy's fallback clusters.
func (f *facts) examineHosts(c *collector, clusters []string) {
	configured := map[string]bool{}
	for _, e := range f.engines {
		configured[e.endpoint.Address] = true
	}
	inEnvoy := map[string]bool{}
	compared := 0
	slices.Sort(clusters)
	for _, cluster := range slices.Compact(clusters) {
		hosts := f.envoy.dump.endpoints(cluster)
		// A cluster without a single endpoint of ours is something else: another balancer, another fleet.
		if !slices.ContainsFunc(hosts, func(h string) bool { return configured[h] }) && !f.printed(cluster) {
			c.unknown("envoy cluster "+cluster, "endpoints", "it holds none of the configuration's: it is taken for another service")
			continue
		}
		compared++
		for _, h := range hosts {
			inEnvoy[h] = true
			if !configured[h] {
				c.found(EndpointOnlyEnvoy, "envoy cluster "+cluster, "it holds %s, which no pool has", h)
			}
		}
	}
	if compared == 0 {
		return
	}
	for _, e := range f.engines {
		if !inEnvoy[e.endpoint.Address] && e.pool.Fallback.To != "none" && e.pool.Fallback.Cluster == "" {
			c.found(EndpointNotInEnvoy, e.subject(), "no fallback cluster of Envoy holds it, so nobody serves from it without the router")
		}
	}
}

// printed reports whether a cluster is one that kvsteer envoy prints for a pool.
func (f *facts) printed(cluster string) bool {
	return slices.ContainsFunc(f.cfg.Pools, func(p config.Pool) bool { return cluster == envoy.FallbackCluster(p.Name) })
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
