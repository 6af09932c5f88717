package doctor

import (
	"net/netip"

	"github.com/kvsteer/kvsteer/internal/config"
)

// examineConfig judges what the configuration alone shows.
func (f *facts) examineConfig(c *collector) {
	cfg := f.cfg
	if cfg.Insecure {
		if !cfg.TLS.On() && beyondLoopback(cfg.Listen) {
			c.found(ClearText, "config", "listen %s: prompts travel in clear text", cfg.Listen)
		}
		if !cfg.Admin.TLS.On() && beyondLoopback(cfg.Admin.Listen) {
			c.found(ClearText, "config", "admin.listen %s: the admin token travels in clear text", cfg.Admin.Listen)
		}
	}
	f.examineState(c)
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		if sources(p) == 0 && len(cfg.Nodes) == 0 {
			c.found(NoEventSources, "pool "+p.Name, "none of its %s has an event source", plural(len(p.Endpoints)+len(f.found(p)), "endpoint"))
		} else if sources(p) > 0 {
			for _, e := range p.Endpoints {
				if node, _ := f.teller(p, e.Address); e.Events.None() && node == "" {
					c.found(EndpointNoEvents, "engine "+e.Address, "no events are configured for it, and for %d of pool %s they are", sources(p), p.Name)
				}
			}
		}
		for _, e := range p.Endpoints {
			if e.Drain {
				c.found(Draining, "engine "+e.Address, "drain: true")
			}
		}
		f.examineMode(c, p)
	}
}

// sources is the number of a pool's endpoints with an event source.
func sources(p *config.Pool) int {
	n := 0
	for _, e := range p.Endpoints {
		if !e.Events.None() {
			n++
		}
	}
	return n
}

// beyondLoopback reports whether an ip:port can be reached from other hosts, as far as its address tells.
func beyondLoopback(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && !a.Addr().Unmap().IsLoopback()
}
