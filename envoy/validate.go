package envoy

import (
	"fmt"
	"net/netip"
	"path"
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

func (c *checker) router(value string) {
	file, unix := unixPath(value)
	if !unix {
		c.destination("router", value)
		return
	}
	if !path.IsAbs(file) || len(file) > maxUnixPath || !printable(file) {
		c.bad("router", value, "unix: with an absolute path of at most %d bytes, or ip:port", maxUnixPath)
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

func (c *checker) pools(pools []Pool) {
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
		if p.Fallback != FallbackEndpoints && p.Fallback != FallbackNone {
			c.bad(key+"fallback", p.Fallback, "%s or %s", FallbackEndpoints, FallbackNone)
		}
		if len(p.Endpoints) == 0 {
			c.bad(key+"endpoints", "", "at least one ip:port")
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
