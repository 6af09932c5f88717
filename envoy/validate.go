package envoy

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// checker gathers what is wrong with Options.
type checker struct{ errs []error }

func (c *checker) bad(key string, value any, want string, args ...any) {
	c.errs = append(c.errs, &OptionError{Key: key, Value: fmt.Sprint(value), Want: fmt.Sprintf(want, args...)})
}

const wantAddress = "ip:port or [ip6]:port with a port from %d to 65535; a host name is not resolved here"

// address parses ip:port. Zones are refused: Envoy's socket addresses have none.
func (c *checker) address(key, value string, minPort uint16) (netip.AddrPort, bool) {
	a, err := netip.ParseAddrPort(value)
	if err != nil || a.Port() < minPort || a.Addr().Zone() != "" {
		c.bad(key, value, wantAddress, minPort)
		return a, false
	}
	return a, true
}

// destination is an address that something connects to.
func (c *checker) destination(key, value string) (netip.AddrPort, bool) {
	a, ok := c.address(key, value, 1)
	if ok && (a.Addr().IsUnspecified() || a.Addr().IsMulticast()) {
		c.bad(key, value, "an address that can be connected to, such as 127.0.0.1:%d", a.Port())
		return a, false
	}
	return a, ok
}

func (c *checker) routers(values []string) {
	if len(values) > maxRouters {
		c.bad("routers", len(values), "1 to %d routers", maxRouters)
	}
	sockets, names := 0, 0
	first := map[string]int{}
	for i, v := range values {
		key := fmt.Sprintf("routers[%d]", i)
		if j, dup := first[v]; dup {
			c.bad(key, v, "a router once: routers[%d] is the same", j)
			continue
		}
		first[v] = i
		file, unix := unixPath(v)
		switch {
		case unix:
			sockets++
			if !path.IsAbs(file) || len(file) > maxUnixPath || !printable(file) {
				c.bad(key, v, "unix: with an absolute path of at most %d bytes, ip:port or name:port", maxUnixPath)
			}
		case isName(v):
			names++
		default:
			c.router(key, v)
		}
	}
	if sockets > 0 && names > 0 {
		c.bad("routers", strings.Join(values, ", "), "either Unix sockets or names: one cluster of Envoy's cannot hold both")
	}
}

func (c *checker) router(key, value string) {
	a, err := netip.ParseAddrPort(value)
	if err != nil || a.Port() == 0 || a.Addr().Zone() != "" {
		c.bad(key, value, "ip:port, [ip6]:port, name:port or unix:/path with a port from 1 to 65535")
		return
	}
	c.destination(key, value)
}

// isName reports whether s is name:port, and no address.
func isName(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || !validHost(host) {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// tls checks the files that one side of a connection names.
func (c *checker) tls(key string, t TLS) {
	if !t.On() {
		return
	}
	c.file(key+".ca_file", t.CAFile)
	if _, err := netip.ParseAddr(t.ServerName); err != nil && !validHost(t.ServerName) {
		c.bad(key+".server_name", t.ServerName, "the name or IP address that the server's certificate carries")
	}
	switch {
	case t.CertFile == "" && t.KeyFile == "":
	case t.CertFile == "":
		c.bad(key+".cert_file", "", "a client certificate beside key_file")
	case t.KeyFile == "":
		c.bad(key+".key_file", "", "the key beside cert_file")
	default:
		c.file(key+".cert_file", t.CertFile)
		c.file(key+".key_file", t.KeyFile)
	}
}

// file is read on Envoy's host, so it need not exist here.
func (c *checker) file(key, value string) {
	if !path.IsAbs(value) || !printable(value) {
		c.bad(key, value, "an absolute path on Envoy's host")
	}
}

// unixPath splits unix:/path and unix:///path.
func unixPath(s string) (file string, unix bool) {
	file, unix = strings.CutPrefix(s, "unix:")
	if rest, ok := strings.CutPrefix(file, "//"); ok && strings.HasPrefix(rest, "/") {
		file = rest
	}
	return file, unix
}

func (c *checker) listen(value string) { c.address("listen", value, 0) }

func (c *checker) admin(value string) {
	if a, ok := c.address("admin", value, 0); ok && !a.Addr().Unmap().IsLoopback() {
		c.bad("admin", value, "a loopback address, as 127.0.0.1:9901: Envoy's admin interface asks nobody for a key and can stop Envoy")
	}
}

func (c *checker) accessLog(value string) {
	if value != "" && (!path.IsAbs(value) || !printable(value)) {
		c.bad("access_log", value, "an absolute path, or nothing for standard output")
	}
}

// stripped checks the headers that are removed early. One that Envoy needs for itself is refused, as is one by which a pool is told: it
// would never be seen. A secret one would be taken from the engines too, and the router is not shown it anyway.
func (c *checker) stripped(o Options) {
	if len(o.StripHeaders) > maxStripped {
		c.bad("strip_headers", len(o.StripHeaders), "at most %d headers", maxStripped)
	}
	for i, h := range o.StripHeaders {
		key, name := fmt.Sprintf("strip_headers[%d]", i), strings.ToLower(h)
		if !validHeader(name) || framing(name) {
			c.bad(key, h, "an ordinary header name (no pseudo header, host, %s, x-envoy-…, header of the message's form, or header that is kept from the router: %s)",
				strings.Join(reservedHeaders(), ", "), strings.Join(secretHeaders(), ", "))
			continue
		}
		for j, p := range o.Pools {
			if p.Match.HeaderName == name {
				c.bad(key, h, "a header that tells no pool: pools[%d].match.header is the same, and clients must be able to send it", j)
			}
		}
	}
}

// framing reports whether a header says how the body is to be read.
func framing(name string) bool {
	switch name {
	case "content-length", "transfer-encoding", "content-type", "connection", "te", "upgrade", "expect", "trailer":
		return true
	}
	return false
}

func (c *checker) pools(pools []Pool, s scope) {
	if len(pools) == 0 || len(pools) > maxPools {
		c.bad("pools", len(pools), "1 to %d pools", maxPools)
	}
	names := map[string]int{}
	owner := map[netip.AddrPort]string{}
	for i, p := range pools {
		key := fmt.Sprintf("pools[%d].", i)
		if !validName(p.Name) {
			c.bad(key+"name", p.Name, "1 to %d letters, digits, - and _", maxName)
		} else if first, dup := names[p.Name]; dup {
			c.bad(key+"name", p.Name, "a name of its own: pools[%d] has it too", first)
		} else {
			names[p.Name] = i
		}
		c.fallback(key+"fallback", p, s)
		if len(p.Endpoints) == 0 && p.DNS == "" && p.Cluster == "" && p.Fallback == FallbackEndpoints {
			c.bad(key+"fallback", p.Fallback, "%s, or a cluster of your own with kvsteer envoy --filter-only: Envoy does not know the pool's endpoints, which takes at least one "+
				"ip:port or a name with A and AAAA records", FallbackNone)
		}
		if p.DNS != "" && !isName(p.DNS) {
			c.bad(key+"dns", p.DNS, "name:port with a port from 1 to 65535")
		}
		for j, e := range p.Endpoints {
			ekey := fmt.Sprintf("%sendpoints[%d]", key, j)
			a, ok := c.destination(ekey, e)
			if !ok {
				continue
			}
			if other, dup := owner[a]; dup {
				c.bad(ekey, e, "an endpoint once, in one pool: it stands at %s too", other)
				continue
			}
			owner[a] = ekey
		}
		c.match(key+"match.", p.Match)
	}
}

// overridden: what the policy does not find it draws, so nothing of it waits for a decision.
func (c *checker) overridden(pools []Pool) {
	for i, p := range pools {
		if p.Fallback == FallbackNone {
			c.bad(fmt.Sprintf("pools[%d].fallback", i), p.Fallback, "%s, or a cluster of your own with kvsteer envoy --filter-only, in the layout %s: its clusters "+
				"always draw an endpoint when there is no decision", FallbackEndpoints, LayoutOverride)
		}
	}
}

func (c *checker) fallback(key string, p Pool, s scope) {
	switch {
	case p.Cluster == "":
		if p.Fallback != FallbackEndpoints && p.Fallback != FallbackNone {
			c.bad(key, p.Fallback, "%s or %s", FallbackEndpoints, FallbackNone)
		}
	case s == whole:
		c.bad(key+".cluster", p.Cluster, "%s or %s in a whole configuration, which has no cluster of this name; the pieces for an Envoy that has "+
			"it come with kvsteer envoy --filter-only", FallbackEndpoints, FallbackNone)
	case p.Fallback != "":
		c.bad(key, p.Fallback, "nothing beside the cluster %q", p.Cluster)
	case !printable(p.Cluster) || len(p.Cluster) > 255 || strings.HasPrefix(p.Cluster, clusterPrefix):
		c.bad(key+".cluster", p.Cluster, "the name of a cluster of your own, of at most 255 bytes, that does not begin with %s", clusterPrefix)
	}
}

func validName(s string) bool {
	return s != "" && len(s) <= maxName && only(s, func(r rune) bool { return isAlnum(r) || r == '-' || r == '_' })
}

func isAlnum(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

func only(s string, ok func(rune) bool) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
}

// printable keeps control characters and bytes that are no UTF-8 (which protobuf cannot hold) out of the configuration.
func printable(s string) bool {
	return utf8.ValidString(s) && only(s, unicode.IsPrint)
}
