package config

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// NodeSource is where one node is found, or all nodes that a DNS name gives: exactly one of its first three keys is set.
type NodeSource struct {
	Address string   `yaml:"address" doc:"One node: ip:port of its listener."`
	DNS     string   `yaml:"dns" doc:"A node at each address that DNS gives for a name: name:port."`
	SRV     string   `yaml:"srv" doc:"A node at each address and port that DNS gives for a name's SRV records, such as _feed._tcp.nodes.example.org."`
	Allow   []string `yaml:"allow" doc:"Addresses, or networks such as 10.1.0.0/16, whose endpoints the node may announce beside those at the IP address that it is dialled at: whoever can answer as a node can send requests there."`
}

// name tells one from the others.
func (n NodeSource) name() string {
	switch {
	case n.Address != "":
		return n.Address
	case n.DNS != "":
		return n.DNS
	}
	return n.SRV
}

// Feed is how the router speaks to nodes.
type Feed struct {
	TLS        ClientTLS `yaml:"tls" doc:"How nodes are dialled. Without server_name their certificates must hold the IP address that is dialled."`
	TokenFile  string    `yaml:"token_file" doc:"File with a token that nodes want, sent as Authorization: Bearer. Read again when it changes."`
	Insecure   bool      `yaml:"insecure" default:"false" doc:"Allows nodes off loopback in clear text."`
	StaleAfter Duration  `yaml:"stale_after" default:"3s" doc:"How long a node may be silent or out of reach until its endpoints are not matched any more; they get requests by their load. Range: 2s to 10m; nodes say something each second."`
}

// Announces reports whether the endpoints that nodes announce for a pool become endpoints of it.
func (c *Config) Announces(p *Pool) bool {
	switch p.Announced {
	case "true":
		return true
	case "false":
		return false
	}
	return len(c.Nodes) > 0 && len(p.Endpoints) == 0 && p.DNS == "" && p.SRV == ""
}

// Dynamic reports whether a pool has endpoints that do not stand in the configuration.
func (c *Config) Dynamic(p *Pool) bool { return p.DNS != "" || p.SRV != "" || c.Announces(p) }

// SeveralRouters says why there is more than one router, as far as envoy.routers tells; "" when there is one. certain is false for a name, which may
// have one address.
func (c *Config) SeveralRouters() (why string, certain bool) {
	if len(c.Envoy.Routers) > 1 {
		return fmt.Sprintf("envoy.routers names %d", len(c.Envoy.Routers)), true
	}
	for _, r := range c.Envoy.Routers {
		if host, _, err := net.SplitHostPort(r); err == nil && !isIP(host) {
			return fmt.Sprintf("envoy.routers names %q, which may have several addresses", r), false
		}
	}
	return "", false
}

// Listens reports whether an engine connects to this router for its events.
func (c *Config) Listens() bool {
	for _, p := range c.Pools {
		for _, e := range p.Endpoints {
			if e.Events.Listen != "" {
				return true
			}
		}
	}
	return false
}

// Bounds of lists.
const (
	maxNodes = 1024
	maxAllow = 256
)

// dnsName is a name that DNS may know; labels of services and their protocols begin with an underscore.
var dnsName = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_-]{0,62})\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})\.?$`)

const maxDNSName = 253

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// fleet checks what tells of nodes.
func (d *decoder) fleet(c *Config) {
	d.duration("dns_refresh", c.DNSRefresh, 100*time.Millisecond, time.Hour)
	for i, text := range c.DNSServers {
		if _, err := hostPort(text); err != nil {
			d.at(fmt.Sprintf("dns_servers[%d]", i), "%q is not ip:port of one host", text)
		}
	}
	d.duration("feed.stale_after", c.Feed.StaleAfter, 2*time.Second, 10*time.Minute) // nodes are silent for 1 s
	switch t := c.Feed.TLS; {
	case !t.On():
	case t.CAFile == "":
		d.at("feed.tls", "ca_file is needed")
	case (t.CertFile == "") != (t.KeyFile == ""):
		d.at("feed.tls", "cert_file and key_file are both needed for a client certificate")
	}
	if len(c.Nodes) > maxNodes {
		d.at("nodes", "%d entries, want at most %d: a DNS name stands for any number of nodes", len(c.Nodes), maxNodes)
		return
	}
	used := map[string]string{}
	u := uniques{d: d}
	for i := range c.Nodes {
		d.nodeSource(fmt.Sprintf("nodes[%d]", i), &c.Nodes[i], c, &u, used)
	}
	if why, certain := c.SeveralRouters(); certain {
		d.oneSubscriber(c, why)
	}
}

func (d *decoder) nodeSource(path string, n *NodeSource, c *Config, u *uniques, used map[string]string) {
	set, local := 0, false
	if n.Address != "" {
		set++
		if addr, err := hostPort(n.Address); err != nil {
			d.at(path+".address", "%q is not ip:port with an address of one host (for a name: dns)", n.Address)
		} else {
			n.Address, local = addr.String(), addr.Addr().IsLoopback()
			u.claim(used, path+".address", n.Address)
		}
	}
	if n.DNS != "" {
		set++
		d.dns(path+".dns", n.DNS)
		u.claim(used, path+".dns", n.DNS)
	}
	if n.SRV != "" {
		set++
		d.srv(path+".srv", n.SRV)
		u.claim(used, path+".srv", n.SRV)
	}
	switch {
	case set != 1:
		d.at(path, "exactly one of address, dns and srv is needed")
	case !local && !c.Feed.TLS.On() && !c.Feed.Insecure:
		d.at(path, "%q is not on loopback: whoever is on the way could read and change what nodes say; use feed.tls, or write feed.insecure: true", n.name())
	}
	if len(n.Allow) > maxAllow {
		d.at(path+".allow", "%d entries, want at most %d", len(n.Allow), maxAllow)
		return
	}
	for i, text := range n.Allow {
		if _, err := ParsePrefix(text); err != nil {
			d.at(fmt.Sprintf("%s.allow[%d]", path, i), "%q is neither an IP address nor a network such as 10.1.0.0/16", text)
		}
	}
}

// ParsePrefix reads an IP address or a network.
func ParsePrefix(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, err
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%q has bits beyond its length", text)
	}
	return p, nil
}

// hostPort reads the address and port of one host, in its one spelling.
func hostPort(text string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return addr, err
	}
	ip := addr.Addr().Unmap()
	if addr.Port() == 0 || ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" {
		return addr, fmt.Errorf("%q is not the address of one host", text)
	}
	return netip.AddrPortFrom(ip, addr.Port()), nil
}

// dns checks name:port.
func (d *decoder) dns(path, text string) {
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || portErr != nil || n == 0 || !isName(host):
		d.at(path, "%q is not name:port", text)
	case isIP(host):
		d.at(path, "%q is an address, no name", text)
	}
}

func (d *decoder) srv(path, text string) {
	if !isName(text) || isIP(text) || !strings.Contains(text, ".") {
		d.at(path, "%q is not the name of SRV records, such as _http._tcp.engines.example.org", text)
	}
}

func isName(text string) bool { return len(text) <= maxDNSName && dnsName.MatchString(text) }

// origins checks where a pool's endpoints come from.
func (d *decoder) origins(path string, p *Pool, c *Config) {
	d.oneOf(path+".announced", p.Announced, "auto", "true", "false")
	if p.DNS != "" {
		d.dns(path+".dns", p.DNS)
	}
	if p.SRV != "" {
		d.srv(path+".srv", p.SRV)
	}
	switch {
	case p.DNS != "" && p.SRV != "":
		d.at(path+".srv", "dns and srv exclude each other")
	case p.Announced == "true" && len(c.Nodes) == 0:
		d.at(path+".announced", "has no effect without nodes")
	case len(p.Endpoints) > 0 || c.Dynamic(p):
	default:
		d.at(path+".endpoints", "at least one endpoint is needed, or dns, srv, or nodes that announce some")
	}
	if p.PinRank && c.Dynamic(p) {
		d.at(path+".pin_rank", "needs endpoints that stand in the configuration, all with the same events.ranks: it excludes dns, srv and announced endpoints")
	}
}

// oneSubscriber refuses engines that connect to one of several routers.
func (d *decoder) oneSubscriber(c *Config, why string) {
	for i, p := range c.Pools {
		for j, e := range p.Endpoints {
			if e.Events.Listen != "" {
				d.at(fmt.Sprintf("pools[%d].endpoints[%d].events.listen", i, j), "an engine that connects feeds exactly one subscriber, and %s: let a node (kvsteer node) listen, and give each router nodes, or use dial", why)
			}
		}
	}
}
