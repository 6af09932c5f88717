package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode"
)

// MaxNodeBlocks bounds the blocks of one engine, or of one data-parallel rank of it, at a node and at its routers: at 16 tokens each some 268 million tokens.
const MaxNodeBlocks = 1 << 24

// maxEngines bounds the engines of one node.
const maxEngines = 1024

// maxLabels bounds the labels of a scrape.
const maxLabels = 16

// nodeName reports whether a name can be shown in logs and labels.
func nodeName(name string) bool {
	return name != "" && len(name) <= 253 && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar })
}

// nodeFile checks ranges and what keys say together, and fills in what follows from others. A key whose value did not parse is not judged again.
func (d *decoder) nodeFile(n *Node) {
	if n.Name != "" && !nodeName(n.Name) {
		d.at("name", "%.80q is not a name: 1 to 253 bytes without spaces", n.Name)
	}
	addr, err := netip.ParseAddrPort(n.Listen)
	switch {
	case err != nil:
		d.at("listen", "%q is not ip:port", n.Listen)
	case !addr.Addr().IsLoopback() && !n.Insecure && !n.TLS.On():
		d.at("listen", "%q is not on loopback: what engines hold would travel in clear text; use tls, or write insecure: true", n.Listen)
	}
	d.serverTLS("tls", n.TLS)
	d.adminListener(n.Admin.Listen, n.Admin.TokenFile, n.Admin.TLS, n.Insecure)
	d.duration("warmup", n.Warmup, 0, time.Minute)
	d.duration("window", n.Window, time.Millisecond, time.Second)
	d.number("window_keys", n.WindowKeys, 64, 1<<16)
	d.number("max_blocks", n.MaxBlocks, 1000, MaxNodeBlocks)
	if n.Scrape.Interval != 0 {
		d.duration("scrape.interval", n.Scrape.Interval, 100*time.Millisecond, time.Minute)
	}
	d.oneOf("scrape.profile", n.Scrape.Profile, "auto", "vllm", "sglang")
	if len(n.Scrape.Labels) > maxLabels {
		d.at("scrape.labels", "%d labels, want at most %d", len(n.Scrape.Labels), maxLabels)
	}
	for i, l := range n.Scrape.Labels {
		if name, _, ok := strings.Cut(l, "="); !ok || name == "" {
			d.at(fmt.Sprintf("scrape.labels[%d]", i), "%q is not name=value", l)
		}
	}
	d.duration("probe.interval", n.Probe.Interval, 10*time.Millisecond, time.Hour)
	d.clientTLS("engines.tls", n.Engines.TLS)
	d.nodePools(n)
	d.nodePorts(n)
}

func (d *decoder) nodePools(n *Node) {
	if len(n.Pools) == 0 {
		d.at("pools", "at least one pool is needed, with name, models and engines")
	}
	u := uniques{d: d, names: map[string]string{}, models: map[string]string{}, addresses: map[string]string{}, events: map[string]string{}}
	engines := 0
	for i := range n.Pools {
		p, path := &n.Pools[i], fmt.Sprintf("pools[%d]", i)
		if !poolName.MatchString(p.Name) {
			d.at(path+".name", "%q is not a name: 1 to 63 letters, digits, '-' and '_', a letter or digit first", p.Name)
		} else {
			u.claim(u.names, path+".name", p.Name)
		}
		if len(p.Models) == 0 {
			d.at(path+".models", "at least one served model name is needed")
		}
		d.served(path+".models", p.Models, &u)
		d.oneOf(path+".engine", p.Engine, "vllm", "sglang")
		if p.AdaptersRefresh != 0 {
			d.duration(path+".adapters_refresh", p.AdaptersRefresh, time.Second, time.Hour)
		}
		if n := len(p.HashSeed); n > maxHashSeed {
			d.at(path+".hash_seed", "%d bytes, at most %d", n, maxHashSeed)
		}
		d.tiers(path+".tiers", &Tiers{Media: p.Tiers.Media, Demote: p.Tiers.Demote})
		d.adapterIDs(path+".adapter_ids", p.AdapterIDs)
		d.size(path+".tokenizer.max_size", p.Tokenizer.MaxSize, 1<<10, 1<<30)
		if len(p.Engines) == 0 {
			d.at(path+".engines", "at least one engine is needed")
		}
		if engines += len(p.Engines); engines > maxEngines {
			d.at(path+".engines", "a node has at most %d engines", maxEngines)
			return
		}
		for j := range p.Engines {
			d.engine(fmt.Sprintf("%s.engines[%d]", path, j), &p.Engines[j], n, &u)
		}
	}
}

// engine also gives the address its one canonical spelling, and fills in auto.
func (d *decoder) engine(path string, e *Engine, n *Node, u *uniques) {
	addr, err := netip.ParseAddrPort(e.Local())
	ip := addr.Addr().Unmap()
	if err != nil || addr.Port() == 0 || ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" {
		d.at(path+".address", "%q is neither ip:port with an address of one host nor :port for this one", e.Address)
	} else {
		here := strings.HasPrefix(e.Address, ":")
		if e.Address = netip.AddrPortFrom(ip, addr.Port()).String(); here {
			e.Address = fmt.Sprintf(":%d", addr.Port())
		}
		u.claim(u.addresses, path+".address", e.Local())
	}
	ev := &e.Events
	d.number(path+".events.ranks", ev.Ranks, 1, maxRanks)
	if ev.Listen == "" && ev.Dial == "" {
		ev.Listen = Auto
	}
	switch {
	case ev.Listen != "" && ev.Dial != "":
		d.at(path+".events", "listen and dial exclude each other")
	case ev.Listen == Auto:
		if n.StateDir == "" {
			d.at(path+".events.listen", "auto needs state_dir, where the node keeps the port that it picks; or write tcp://127.0.0.1:5557, or another port")
		}
		if ev.Replay == "" {
			ev.Replay = Auto
		}
	case ev.Listen != "":
		if addr, err := tcp(ev.Listen); err != nil || !addr.Addr().IsLoopback() || addr.Port() == 0 {
			d.at(path+".events.listen", "%q is neither tcp://ip:port on loopback nor auto", ev.Listen)
		}
	default:
		addr, err := tcp(ev.Dial)
		if err != nil || addr.Port() == 0 || addr.Addr().IsUnspecified() {
			d.at(path+".events.dial", "%q is not tcp://ip:port of one host", ev.Dial)
		} else {
			d.rankPorts(path+".events.dial", addr, ev.Ranks, u.events)
		}
	}
	at := path + ".events.replay"
	switch ev.Replay {
	case "", None:
	case Auto:
		if ev.Listen != Auto {
			d.at(at, "auto goes with listen: auto")
		}
	default:
		addr, err := tcp(ev.Replay)
		if err != nil || addr.Port() == 0 || addr.Addr().IsUnspecified() {
			d.at(at, "%q is none of tcp://ip:port of one host, auto and none", ev.Replay)
		} else {
			d.rankPorts(at, addr, ev.Ranks, u.events)
		}
	}
}

// nodePorts finds addresses that are bound twice on this host, and too few ports to pick from.
func (d *decoder) nodePorts(n *Node) {
	used := map[string]string{}
	u := uniques{d: d}
	d.pair(&u, used, "listen", n.Listen, "admin.listen", n.Admin.Listen)
	need := 0
	for i, p := range n.Pools {
		for j, e := range p.Engines {
			path := fmt.Sprintf("pools[%d].engines[%d].events", i, j)
			if addr, err := tcp(e.Events.Listen); err == nil {
				d.rankPorts(path+".listen", addr, e.Events.Ranks, used)
			}
			if addr, err := tcp(e.Events.Replay); err == nil && addr.Addr().IsLoopback() {
				d.rankPorts(path+".replay", addr, e.Events.Ranks, used)
			}
			need += e.AutoPorts()
		}
	}
	if have := n.Ports.Ports(); need > have {
		d.at("ports", "%s has %d ports, and the engines with events.listen: auto need %d", n.Ports, have, need)
	}
}
