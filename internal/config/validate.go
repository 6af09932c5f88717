package config

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	poolName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	headerName   = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	envoyVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+)?$`)
)

var (
	// hopByHop are the headers of RFC 9110, section 7.6.1, and what else does not pass a proxy.
	hopByHop = []string{"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
	// withheld are the headers that Envoy does not forward to the router, as kvsteer envoy configures it.
	withheld = []string{"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key"}
	// meant are headers that Envoy, the router or engines read or write.
	meant = []string{
		"host", "content-length", "content-type", "content-encoding", "expect", "x-request-id", "x-forwarded-for", "x-forwarded-proto",
		"x-data-parallel-rank",
	}
)

// maxHashSeed bounds PYTHONHASHSEED, in bytes. Python itself takes a number or "random".
const maxHashSeed = 256

// validate checks ranges and what keys say together. A key whose value did not parse is not judged again.
func (d *decoder) validate(c *Config) {
	d.listen(c)
	d.adminListener(c.Admin.Listen, c.Admin.TokenFile, c.Admin.TLS, c.Insecure)
	d.clientTLS("engines.tls", c.Engines.TLS)
	d.duration("budget", c.Budget, time.Millisecond, time.Minute)
	d.duration("warmup", c.Warmup, 0, 10*time.Minute)
	d.duration("notice", c.Notice, 0, 10*time.Minute)
	d.duration("drain", c.Drain, 0, 10*time.Minute)
	d.size("limits.body", c.Limits.Body, 1<<20, 1<<30) // Envoy does not lower its own limit of 1 MiB
	// A stream holds its headers too: 1 MiB covers what Envoy lets through.
	if c.Limits.Bodies < c.Limits.Body+1<<20 {
		d.at("limits.bodies", "%s is below limits.body (%s) plus 1MiB", c.Limits.Bodies, c.Limits.Body)
	}
	d.number("limits.prompt_tokens", c.Limits.PromptTokens, 1, 1<<24)
	d.duration("tokenize.timeout", c.Tokenize.Timeout, time.Millisecond, time.Minute)
	if c.Tokenize.Timeout > c.Budget {
		d.at("tokenize.timeout", "%s is above budget (%s)", c.Tokenize.Timeout, c.Budget)
	}
	d.size("tokenize.cache", c.Tokenize.Cache, 0, 64<<30)
	d.number("tokenize.concurrency", c.Tokenize.Concurrency, 1, 1<<16)
	if c.Headers != "kvsteer" && c.Headers != "gaie" {
		d.at("headers", "%q is neither kvsteer nor gaie", c.Headers)
	}
	if c.GAIE.Unavailable != "error" && c.GAIE.Unavailable != "pass" {
		d.at("gaie.unavailable", "%q is neither error nor pass", c.GAIE.Unavailable)
	}
	d.number("gaie.shed_backlog", c.GAIE.ShedBacklog, 0, 1_000_000_000)
	if c.Headers == "kvsteer" {
		d.idle("gaie.unavailable", c.GAIE.Unavailable == "pass")
		d.idle("gaie.shed_backlog", c.GAIE.ShedBacklog > 0)
		d.idle("gaie.list", c.GAIE.List)
		d.idle("gaie.served", c.GAIE.Served)
	}
	d.number("index.max_blocks", c.Index.MaxBlocks, 1000, 1_000_000_000)
	d.number("index.max_endpoints", c.Index.MaxEndpoints, 0, 10_000)
	d.duration("probe.interval", c.Probe.Interval, 10*time.Millisecond, time.Hour)
	d.envoy(c)
	d.pools(c)
	d.fleet(c)
	if n := c.Ranks(); c.Index.MaxEndpoints > 0 && n > c.Index.MaxEndpoints {
		d.at("index.max_endpoints", "%d is below the %d endpoints of all pools, each of their ranks counted", c.Index.MaxEndpoints, n)
	}
	d.ports(c)
}

// ports finds addresses that one process would bind twice. Port 0 is a free one each time. Envoy and the router may live in
// different containers, so they are not compared.
func (d *decoder) ports(c *Config) {
	u := uniques{d: d}
	router, proxy := map[string]string{}, map[string]string{}
	d.pair(&u, router, "listen", c.Listen, "admin.listen", c.Admin.Listen)
	for i, p := range c.Pools {
		for j, e := range p.Endpoints {
			if addr, err := tcp(e.Events.Listen); err == nil {
				d.rankPorts(fmt.Sprintf("pools[%d].endpoints[%d].events.listen", i, j), addr, e.Events.Ranks, router)
			}
			if addr, err := tcp(e.Events.Replay); err == nil && addr.Addr().IsLoopback() {
				d.rankPorts(fmt.Sprintf("pools[%d].endpoints[%d].events.replay", i, j), addr, e.Events.Ranks, router)
			}
		}
	}
	d.pair(&u, proxy, "envoy.listen", c.Envoy.Listen, "envoy.admin", c.Envoy.Admin)
}

// pair claims the addresses of two listeners of one process. A problem stands at a line of the file, so the key that has none claims first.
func (d *decoder) pair(u *uniques, used map[string]string, a, addressA, b, addressB string) {
	if d.lines[a] > 0 && d.lines[b] == 0 {
		a, addressA, b, addressB = b, addressB, a, addressA
	}
	bind := func(path, value string) {
		if addr, err := netip.ParseAddrPort(value); err == nil && addr.Port() != 0 {
			u.claim(used, path, addr.String())
		}
	}
	bind(a, addressA)
	bind(b, addressB)
}

// at records a problem with the key at path, at its line or at the nearest enclosing key that stands in the file.
func (d *decoder) at(path, format string, args ...any) {
	if d.failed[path] {
		return
	}
	line := 0
	for p := path; p != "" && line == 0; p = parent(p) {
		line = d.lines[p]
	}
	d.problem(line, path, fmt.Sprintf(format, args...))
}

func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

func (d *decoder) number(path string, v, lo, hi int) {
	if v < lo || v > hi {
		d.at(path, "%d is not in the range %d to %d", v, lo, hi)
	}
}

// idle refuses a setting of the endpoint-picker protocol that waits for headers: gaie.
func (d *decoder) idle(path string, set bool) {
	if set {
		d.at(path, "has no effect without headers: gaie")
	}
}

// oneOf names the words that a key takes.
func (d *decoder) oneOf(path, v string, words ...string) {
	if !slices.Contains(words, v) {
		last := len(words) - 1
		d.at(path, "%q is none of %s and %s", v, strings.Join(words[:last], ", "), words[last])
	}
}

func (d *decoder) duration(path string, v Duration, lo, hi time.Duration) {
	if v.Std() < lo || v.Std() > hi {
		d.at(path, "%s is not in the range %s to %s", v, lo, hi)
	}
}

func (d *decoder) size(path string, v, lo, hi Size) {
	if v < lo || v > hi {
		d.at(path, "%s is not in the range %s to %s", v, lo, hi)
	}
}

func (d *decoder) listen(c *Config) {
	d.serverTLS("tls", c.TLS)
	if path, ok := strings.CutPrefix(c.Listen, "unix:"); ok {
		// The kernel's limit for the path of a Unix socket is 108 bytes with its end mark.
		if path == "" || len(path) > 107 {
			d.at("listen", "%q is not unix:PATH with a path of 1 to 107 bytes", c.Listen)
		}
		return
	}
	addr, err := netip.ParseAddrPort(c.Listen)
	switch {
	case err != nil:
		d.at("listen", "%q is neither unix:PATH nor ip:port", c.Listen)
	case !addr.Addr().IsLoopback() && !c.Insecure && !c.TLS.On():
		d.at("listen", "%q is not on loopback: prompts would travel in clear text; use tls, unix:PATH or 127.0.0.1, or write insecure: true", c.Listen)
	}
}

func (d *decoder) adminListener(listen, tokenFile string, tls ServerTLS, insecure bool) {
	addr, err := netip.ParseAddrPort(listen)
	switch {
	case err != nil:
		d.at("admin.listen", "%q is not ip:port", listen)
	case addr.Addr().IsLoopback():
	case tokenFile == "":
		d.at("admin.listen", "%q is not on loopback (127.0.0.1:port or [::1]:port): that needs admin.token_file", listen)
	case !tls.On() && !insecure:
		d.at("admin.listen", "%q is not on loopback: the token would travel in clear text; use admin.tls, or write insecure: true", listen)
	}
	d.serverTLS("admin.tls", tls)
}

func (d *decoder) serverTLS(path string, t ServerTLS) {
	if t.On() && (t.CertFile == "" || t.KeyFile == "") {
		d.at(path, "cert_file and key_file are both needed")
	}
}

func (d *decoder) clientTLS(path string, t ClientTLS) {
	switch {
	case !t.On():
	case t.CAFile == "" || t.ServerName == "":
		d.at(path, "ca_file and server_name are both needed")
	case (t.CertFile == "") != (t.KeyFile == ""):
		d.at(path, "cert_file and key_file are both needed for a client certificate")
	}
}

func (d *decoder) loopback(path, value string) {
	addr, err := netip.ParseAddrPort(value)
	switch {
	case err != nil:
		d.at(path, "%q is not ip:port", value)
	case !addr.Addr().IsLoopback():
		d.at(path, "%q is not on loopback (127.0.0.1:port or [::1]:port)", value)
	}
}

func (d *decoder) envoy(c *Config) {
	if _, err := netip.ParseAddrPort(c.Envoy.Listen); err != nil {
		d.at("envoy.listen", "%q is not ip:port", c.Envoy.Listen)
	}
	d.loopback("envoy.admin", c.Envoy.Admin)
	if c.Envoy.Version != "" && !envoyVersion.MatchString(c.Envoy.Version) {
		d.at("envoy.version", "%q is not a release such as 1.40.0", c.Envoy.Version)
	}
	d.oneOf("envoy.layout", c.Envoy.Layout, "auto", "composite", "compat", "override_host")
	d.oneOf("envoy.body", c.Envoy.Body, "buffered", "full_duplex")
	d.duration("envoy.message_timeout", c.Envoy.MessageTimeout, 10*time.Millisecond, time.Minute)
	for i, r := range c.Envoy.Routers {
		if host, port, err := net.SplitHostPort(r); err != nil || host == "" || port == "" || port == "0" {
			d.at(fmt.Sprintf("envoy.routers[%d]", i), "%q is neither ip:port nor name:port", r)
		}
	}
	d.clientTLS("envoy.router_tls", c.Envoy.RouterTLS)
	if c.Budget >= c.Envoy.MessageTimeout {
		d.at("budget", "%s is not below envoy.message_timeout (%s): Envoy would give up before the router decides", c.Budget, c.Envoy.MessageTimeout)
	}
}

func (d *decoder) pools(c *Config) {
	if len(c.Pools) == 0 {
		d.at("pools", "at least one pool is needed, with name, models and endpoints")
	}
	u := uniques{d: d, names: map[string]string{}, models: map[string]string{}, addresses: map[string]string{}, events: map[string]string{}}
	for i := range c.Pools {
		d.pool(fmt.Sprintf("pools[%d]", i), &c.Pools[i], &u)
		d.origins(fmt.Sprintf("pools[%d]", i), &c.Pools[i], c)
	}
	d.saltAndMatch(c)
}

// uniques remembers which key used a value first.
type uniques struct {
	d                                *decoder
	names, models, addresses, events map[string]string
}

func (u *uniques) claim(used map[string]string, path, value string) {
	if first, ok := used[value]; ok {
		u.d.at(path, "%q stands at %s already", value, first)
		return
	}
	used[value] = path
}

func (d *decoder) pool(path string, p *Pool, u *uniques) {
	if !poolName.MatchString(p.Name) {
		d.at(path+".name", "%q is not a name: 1 to 63 letters, digits, '-' and '_', a letter or digit first", p.Name)
	} else {
		u.claim(u.names, path+".name", p.Name)
	}
	if len(p.Models) == 0 {
		d.at(path+".models", "at least one served model name is needed")
	}
	d.served(path+".models", p.Models, u)
	d.served(path+".adapters", p.Adapters, u)
	if p.AdaptersRefresh != 0 {
		d.duration(path+".adapters_refresh", p.AdaptersRefresh, time.Second, time.Hour)
	}
	if p.SaltHeader != "" {
		d.saltHeader(path+".salt_header", p.SaltHeader)
	}
	if p.MaxModelLen < 0 {
		d.at(path+".max_model_len", "%d is below 0", p.MaxModelLen)
	}
	d.number(path+".prefill_rate", p.PrefillRate, 1, 10_000_000)
	if n := len(p.HashSeed); n > maxHashSeed {
		d.at(path+".hash_seed", "%d bytes, at most %d", n, maxHashSeed)
	}
	switch p.Mode {
	case "on", "observe", "off":
	default:
		d.at(path+".mode", "%q is none of on, observe and off", p.Mode)
	}
	d.number(path+".percent", p.Percent, 0, 100)
	d.number(path+".approximate.cache_tokens", p.Approximate.CacheTokens, 0, 100_000_000)
	d.duration(path+".approximate.lifetime", p.Approximate.Lifetime, time.Second, 24*time.Hour)
	d.tiers(path+".tiers", &p.Tiers)
	d.adapterIDs(path+".adapter_ids", p.AdapterIDs)
	if p.Fallback.To != "endpoints" && p.Fallback.To != "none" {
		d.at(path+".fallback", "%q is neither endpoints nor none (another cluster: {cluster: NAME})", p.Fallback.To)
	}
	if p.Match.PathPrefix != "" && (!strings.HasPrefix(p.Match.PathPrefix, "/") || strings.HasSuffix(p.Match.PathPrefix, "/")) {
		d.at(path+".match.path_prefix", "%q is not a path such as /chat, without a slash at its end", p.Match.PathPrefix)
	}
	if (p.Match.Header.Name == "") != (p.Match.Header.Value == "") {
		d.at(path+".match.header", "name and value are both needed")
	}
	for j := range p.Endpoints {
		d.endpoint(at(path, j), &p.Endpoints[j], u)
	}
	d.ranks(path, p)
}

// at is the path of one endpoint of a pool.
func at(pool string, endpoint int) string { return fmt.Sprintf("%s.endpoints[%d]", pool, endpoint) }

func (d *decoder) served(path string, names []string, u *uniques) {
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		if name == "" {
			d.at(at, "a served name cannot be empty")
			continue
		}
		u.claim(u.models, at, name)
	}
}

// saltAndMatch finds salts in headers that tell pools: clients must be able to send those.
func (d *decoder) saltAndMatch(c *Config) {
	for i, p := range c.Pools {
		for j, q := range c.Pools {
			if p.SaltHeader != "" && strings.EqualFold(p.SaltHeader, q.Match.Header.Name) {
				d.at(fmt.Sprintf("pools[%d].salt_header", i), "%q stands at pools[%d].match.header: a header that clients send can be no salt", p.SaltHeader, j)
			}
		}
	}
}

// saltHeader refuses names that cannot be set by a filter before the router, or that it never sees.
func (d *decoder) saltHeader(path, name string) {
	switch lower := strings.ToLower(name); {
	case !headerName.MatchString(name):
		d.at(path, "%q is not the name of a header: letters, digits and !#$%%&'*+-.^_`|~", name)
	case slices.Contains(hopByHop, lower):
		d.at(path, "%q belongs to one connection, not to a request", name)
	case slices.Contains(withheld, lower):
		d.at(path, "%q may hold a credential, which Envoy keeps from the router", name)
	case slices.Contains(meant, lower), strings.HasPrefix(lower, "x-envoy-"), strings.HasPrefix(lower, "x-kvsteer-"), strings.HasPrefix(lower, "x-target-endpoint"),
		strings.HasPrefix(lower, "x-gateway-destination-endpoint"):
		d.at(path, "%q has a meaning of its own", name)
	}
}

// endpoint also gives the address its one canonical spelling, since endpoints are told apart by it everywhere.
func (d *decoder) endpoint(path string, e *Endpoint, u *uniques) {
	if addr, err := hostPort(e.Address); err != nil {
		d.at(path+".address", "%q is not ip:port with an address of one host (Envoy follows it, so a name is not possible: for names there is dns)", e.Address)
	} else {
		e.Address = addr.String()
		u.claim(u.addresses, path+".address", e.Address)
	}
	switch {
	case e.Events.Listen != "" && e.Events.Dial != "":
		d.at(path+".events", "listen and dial exclude each other")
	case e.Events.Listen != "":
		addr, err := tcp(e.Events.Listen)
		if err != nil || !addr.Addr().IsLoopback() {
			d.at(path+".events.listen", "%q is not tcp://ip:port on loopback", e.Events.Listen)
		}
	case e.Events.Dial != "":
		addr, err := tcp(e.Events.Dial)
		if err != nil || addr.Port() == 0 || addr.Addr().IsUnspecified() {
			d.at(path+".events.dial", "%q is not tcp://ip:port of one host", e.Events.Dial)
		} else {
			d.rankPorts(path+".events.dial", addr, e.Events.Ranks, u.events)
		}
	case e.Events.Topic != "":
		d.at(path+".events.topic", "a topic without listen or dial has no effect")
	}
	d.replay(path+".events.replay", e, u)
}

func (d *decoder) replay(path string, e *Endpoint, u *uniques) {
	if e.Events.Replay == "" {
		return
	}
	addr, err := tcp(e.Events.Replay)
	switch {
	case e.Events.None():
		d.at(path, "replay without listen or dial has no effect")
	case err != nil || addr.Port() == 0 || addr.Addr().IsUnspecified():
		d.at(path, "%q is not tcp://ip:port of one host", e.Events.Replay)
	default:
		d.rankPorts(path, addr, e.Events.Ranks, u.events)
	}
}

func tcp(value string) (netip.AddrPort, error) {
	rest, ok := strings.CutPrefix(value, "tcp://")
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q does not start with tcp://", value)
	}
	return netip.ParseAddrPort(rest)
}
