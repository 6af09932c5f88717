package config

import "net/netip"

// maxRanks bounds the data-parallel ranks of one endpoint.
const maxRanks = 64

// Of gives the event source of one rank: its engine adds the rank to the ports that it is told. Port 0 stands for a free one at each rank.
func (e Events) Of(rank int) Events {
	e.Listen, e.Dial, e.Replay = ranked(e.Listen, rank), ranked(e.Dial, rank), ranked(e.Replay, rank)
	return e
}

func ranked(address string, rank int) string {
	addr, err := tcp(address)
	if err != nil || addr.Port() == 0 {
		return address
	}
	return "tcp://" + netip.AddrPortFrom(addr.Addr(), addr.Port()+uint16(rank)).String()
}

// Ranks is the number of data-parallel ranks of all endpoints of all pools that stand in the configuration, at least one for each.
func (c *Config) Ranks() int {
	n := 0
	for _, p := range c.Pools {
		for _, e := range p.Endpoints {
			n += max(1, e.Events.Ranks)
		}
	}
	return n
}

// ranks checks what the ranks of a pool's endpoints say together.
func (d *decoder) ranks(path string, p *Pool) {
	for i, e := range p.Endpoints {
		d.number(at(path, i)+".events.ranks", e.Events.Ranks, 1, maxRanks)
	}
	if !p.PinRank {
		return
	}
	if p.Fallback.Cluster != "" {
		d.at(path+".pin_rank", "excludes fallback: {cluster: %s}: a request that moves there keeps its rank, and how many the hosts there have is not known", p.Fallback.Cluster)
	}
	for i, e := range p.Endpoints {
		first := p.Endpoints[0].Events.Ranks
		switch n := e.Events.Ranks; {
		case n < 2:
			d.at(at(path, i)+".events.ranks", "%d: pin_rank needs at least 2 ranks at each endpoint of the pool", n)
		case n != first:
			d.at(at(path, i)+".events.ranks", "%d is not the %d of the pool's first endpoint: with pin_rank a request that moves to another endpoint keeps its rank", n, first)
		}
	}
}

// rankPorts claims a port for each rank, from that of addr on.
func (d *decoder) rankPorts(path string, addr netip.AddrPort, ranks int, used map[string]string) {
	ranks = max(1, min(ranks, maxRanks))
	if addr.Port() == 0 {
		return
	}
	if last := int(addr.Port()) + ranks - 1; last > 65535 {
		d.at(path, "rank %d would be at port %d, and ports end at 65535", ranks-1, last)
		return
	}
	for r := range ranks {
		port := netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()+uint16(r)).String()
		first, taken := used[port]
		switch {
		case !taken:
			used[port] = path
		case ranks > 1 && parent(first) == parent(path):
			d.at(path, "%q, where rank %d is, stands at %s already: each rank takes the next port, so space the two by at least %d", port, r, first, ranks)
		case ranks > 1:
			d.at(path, "%q, where rank %d is, stands at %s already: each rank takes the next port", port, r, first)
		default:
			d.at(path, "%q stands at %s already", port, first)
		}
		if taken {
			return
		}
	}
}
