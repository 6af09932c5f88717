package envoy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// canonical gives the form in which two matches can be compared: hosts and header names have no case.
func (m Match) canonical() Match {
	m.Host = strings.ToLower(m.Host)
	m.HeaderName = strings.ToLower(m.HeaderName)
	return m
}

func (m Match) empty() bool { return m == Match{} }

// String describes the match for people.
func (m Match) String() string {
	var parts []string
	if m.Host != "" {
		parts = append(parts, "host "+m.Host)
	}
	if m.PathPrefix != "" {
		parts = append(parts, "path "+m.PathPrefix+"/…")
	}
	if m.HeaderName != "" {
		parts = append(parts, fmt.Sprintf("header %s: %s", m.HeaderName, m.HeaderValue))
	}
	if parts == nil {
		return "every request"
	}
	return strings.Join(parts, ", ")
}

// overlaps reports whether one request can satisfy both.
func (m Match) overlaps(n Match) bool {
	return eitherOr(m.Host, n.Host, m.Host == n.Host) &&
		eitherOr(m.PathPrefix, n.PathPrefix, within(m.PathPrefix, n.PathPrefix) || within(n.PathPrefix, m.PathPrefix)) &&
		eitherOr(m.HeaderName, n.HeaderName, m.HeaderName != n.HeaderName || m.HeaderValue == n.HeaderValue)
}

// eitherOr: a field that one side leaves open excludes nothing.
func eitherOr(a, b string, meet bool) bool { return a == "" || b == "" || meet }

// within reports whether path is prefix or lies below it, by whole segments.
func within(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// bySpecificity orders pools as Envoy tries their routes, first match wins: longer path prefixes first, then keys with a header, then
// keys with a host. It matters only where a pool without a fallback overlaps another.
func bySpecificity(pools []Pool) []Pool {
	set := func(s string) int { return min(len(s), 1) }
	return slices.SortedStableFunc(slices.Values(pools), func(p, q Pool) int {
		a, b := p.Match, q.Match
		return cmp.Or(
			cmp.Compare(len(b.PathPrefix), len(a.PathPrefix)),
			cmp.Compare(set(b.HeaderName), set(a.HeaderName)),
			cmp.Compare(set(b.Host), set(a.Host)),
		)
	})
}

// match checks the fields of one match.
func (c *checker) match(key string, m Match) {
	if m.Host != "" && !validHost(m.Host) {
		c.bad(key+"host", m.Host, "a host name or IP address without port, wildcard or scheme")
	}
	if m.PathPrefix != "" {
		c.pathPrefix(key+"path_prefix", m.PathPrefix)
	}
	switch {
	case m.HeaderName == "" && m.HeaderValue == "":
	case m.HeaderName == "":
		c.bad(key+"header.name", "", "a header name beside the value %q", m.HeaderValue)
	case m.HeaderValue == "" || !printable(m.HeaderValue) || strings.TrimSpace(m.HeaderValue) != m.HeaderValue:
		c.bad(key+"header.value", m.HeaderValue, "a value without control characters and outer spaces beside the name %q", m.HeaderName)
	}
	if m.HeaderName != "" && !validHeader(m.HeaderName) {
		c.bad(key+"header.name", m.HeaderName, "an ordinary header name (no pseudo header, host, %s, x-envoy-… or a header that is kept from the router: %s)",
			strings.Join(reservedHeaders(), ", "), strings.Join(secretHeaders(), ", "))
	}
}

func (c *checker) pathPrefix(key, p string) {
	ok := strings.HasPrefix(p, "/") && only(p, func(r rune) bool { return isAlnum(r) || strings.ContainsRune("/-._~", r) })
	for _, seg := range strings.Split(p, "/")[1:] {
		ok = ok && seg != "" && seg != "." && seg != ".."
	}
	if !ok || len(p) > maxPathPrefix {
		c.bad(key, p, "at most %d bytes, segments of letters, digits, - . _ ~, with a leading and without a trailing slash, as /chat", maxPathPrefix)
		return
	}
	for _, path := range append(InferencePaths(), modelsPath) {
		if within(path, p) {
			c.bad(key, p, "a prefix in front of the API's paths, as /chat for /chat%s: %s itself lies below this one", path, path)
			return
		}
	}
}

func validHost(h string) bool {
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(h, "["), "]")); err == nil {
		return a.Is4() == (h[0] != '[') && a.Zone() == ""
	}
	if len(h) > 253 {
		return false
	}
	for _, label := range strings.Split(h, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			!only(label, func(r rune) bool { return isAlnum(r) || r == '-' || r == '_' }) {
			return false
		}
	}
	return true
}

// validHeader takes a canonical name. A header that the router is not shown cannot be a key, as both must see the same.
func validHeader(name string) bool {
	return name != "" && name != "host" && !slices.Contains(reservedHeaders(), name) && !slices.Contains(secretHeaders(), name) &&
		!strings.HasPrefix(name, internalPrefix) &&
		only(name, func(r rune) bool { return isAlnum(r) || strings.ContainsRune("!#$%&'*+-.^_`|~", r) })
}

// keys checks that Envoy can tell the fallback of each request. A request that the wrong pool's engines get is a 404 or, worse, an
// answer by another model; so each pool with a fallback needs a key, and no request may satisfy the keys of two such pools.
func (c *checker) keys(pools []Pool) {
	if len(pools) < 2 {
		return
	}
	for i, p := range pools {
		if p.Fallback == FallbackNone {
			continue
		}
		key := fmt.Sprintf("pools[%d].match", i)
		if p.Match.empty() {
			c.bad(key, "", "a host, path_prefix or header for pool %q, or fallback: none: without the router Envoy does not know the model "+
				"of a request (it stands in the body), so with several pools it could not tell whose engines serve it", p.Name)
			continue
		}
		for j, q := range pools[:i] {
			if q.Fallback == FallbackNone || q.Match.empty() || !p.Match.overlaps(q.Match) {
				continue
			}
			c.bad(key, p.Match, "a key that excludes pools[%d] (%s), or fallback: none for one of the two: one request can satisfy both, "+
				"and Envoy could not tell whose engines serve it without the router", j, q.Match)
		}
	}
}
