package doctor

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/config"
)

// site is one HTTP connection manager whose ext_proc filter leads to the router.
type site struct {
	facts     *facts
	manager   *manager
	filter    processor
	fallbacks []string // clusters that serve requests without a decision
}

func (s *site) subject() string { return "envoy listener " + s.manager.name }

// sites finds the managers that ask the router.
func (f *facts) sites() []*site {
	var all []*site
	for _, m := range f.envoy.dump.managers {
		for _, p := range m.processors() {
			if f.isOurs(p.cluster()) {
				all = append(all, &site{facts: f, manager: m, filter: p})
				break
			}
		}
	}
	return all
}

// isOurs reports whether a cluster is the router's: by its address or, so that a wrong address is found, by its name.
func (f *facts) isOurs(cluster string) bool {
	return strings.HasPrefix(cluster, "kvsteer") || f.leadsToRouter(cluster)
}

func (f *facts) leadsToRouter(cluster string) bool {
	return slices.ContainsFunc(append(f.envoy.dump.addresses(cluster), cluster), f.isRouter)
}

// isRouter compares an address with those that the configuration gives the router.
func (f *facts) isRouter(address string) bool {
	if slices.Contains(f.cfg.Envoy.Routers, address) {
		return true
	}
	if path, ok := strings.CutPrefix(f.cfg.Listen, "unix:"); ok {
		full, err := filepath.Abs(path)
		return address == path || err == nil && address == full
	}
	host, port, err := net.SplitHostPort(f.cfg.Listen)
	if err != nil {
		return false
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() { // every address of the router's host
		_, other, err := net.SplitHostPort(address)
		return err == nil && other == port
	}
	return address == f.cfg.Listen
}

// examine judges one manager.
func (s *site) examine(c *collector) {
	for _, h := range targetHeaders() {
		if !s.manager.removed(h) {
			c.found(HeadersKept, s.subject(), "%s of a client's request is not removed", h)
		}
	}
	s.examineRouter(c)
	if s.facts.cfg.Envoy.AccessLogService && !s.sendsRecords() {
		c.found(NoRecords, s.subject(), "no gRPC access logger leads to the router")
	}
	if s.manager.partly {
		c.unknown(s.subject(), "routes", "they come from a source that is not in /config_dump")
		s.examineFilter(c, s.filter)
		return
	}
	steered := s.steered()
	if len(steered) == 0 {
		s.examineFilter(c, s.filter)
		c.found(ChoiceUnused, s.subject(), "%s", s.whyUnused())
		return
	}
	for _, st := range steered {
		s.examineFilter(c, st.filter)
		s.examineRoute(c, st)
	}
}

// examineRouter judges the cluster by which the filter reaches the router.
func (s *site) examineRouter(c *collector) {
	name, d := s.filter.cluster(), s.facts.envoy.dump
	cluster, ok := d.clusters[name]
	if !ok {
		if s.filter.config.at("grpc_service", "google_grpc").there() {
			return
		}
		c.found(RouterUnreachable, s.subject(), "its ext_proc filter names the cluster %s, which is not there", name)
		return
	}
	if !speaksHTTP2(cluster) {
		c.found(RouterUnreachable, s.subject(), "cluster %s does not speak HTTP/2, which gRPC needs", name)
	}
	if hosts := d.hosts[name]; len(hosts) > 0 && !slices.ContainsFunc(hosts, func(h host) bool { return !h.failed }) {
		c.found(RouterUnreachable, s.subject(), "every host of cluster %s fails its health check", name)
	}
	if addresses := d.addresses(name); len(addresses) > 0 && !s.facts.leadsToRouter(name) {
		c.found(RouterElsewhere, s.subject(), "cluster %s leads to %s, and listen is %s", name, some(addresses), s.facts.cfg.Listen)
	}
}

const protocolOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func speaksHTTP2(cluster tree) bool {
	options := cluster.at("typed_extension_protocol_options", protocolOptions)
	return options.at("explicit_http_config", "http2_protocol_options").there() || options.at("use_downstream_protocol_config").there() ||
		options.at("auto_config").there() || cluster.at("http2_protocol_options").there()
}

// sendsRecords looks for a gRPC access logger whose stream goes where the filter's does.
func (s *site) sendsRecords() bool {
	for _, l := range s.manager.config.list("access_log") {
		target := grpcTarget(typed(l.at("typed_config")).at("common_config", "grpc_service"))
		if target != "" && (target == s.filter.cluster() || s.facts.leadsToRouter(target)) {
			return true
		}
	}
	return false
}

// role is what a cluster does with the router's choice.
type role int

const (
	plain    role = iota // nothing: it spreads requests itself
	first                // it dials the first choice
	second               // it dials the second choice
	override             // it takes the first choice, and spreads requests itself without one
	foreign              // it dials an address from elsewhere
)

// roleOf tells a cluster's role behind this manager.
func (s *site) roleOf(cluster string) role {
	config := s.facts.envoy.dump.clusters[cluster]
	for _, policy := range config.list("load_balancing_policy", "policies") {
		for _, source := range typed(policy.at("typed_extension_config", "typed_config")).list("override_host_sources") {
			if strings.EqualFold(source.text("header"), envoy.HeaderTarget) {
				return override
			}
		}
	}
	if config.text("type") != "ORIGINAL_DST" {
		return plain
	}
	lb := config.at("original_dst_lb_config")
	header := lb.text("http_header_name")
	if key := lb.text("metadata_key", "key"); key != "" {
		header = ""
		if path := lb.list("metadata_key", "path"); len(path) == 1 {
			header = s.headerIn(key, path[0].text("key"))
		}
	}
	switch strings.ToLower(header) {
	case envoy.HeaderTarget:
		return first
	case envoy.HeaderSecond:
		return second
	}
	return foreign
}

// headerIn is the header that a filter behind ours writes into metadata.
func (s *site) headerIn(namespace, key string) string {
	for i, f := range s.manager.config.list("http_filters") {
		if i <= s.filter.at {
			continue
		}
		for _, rule := range typed(f.at("typed_config")).list("request_rules") {
			if to := rule.at("on_header_present"); to.text("metadata_namespace") == namespace && to.text("key") == key {
				return rule.text("header")
			}
		}
	}
	return ""
}

// steered is a route that follows the router's choice.
type steered struct {
	route       *route
	at          int // its position
	filter      processor
	conditional bool // it is taken only when there is a choice
	cluster     string
	members     []string
	roles       []role // of members
}

// steered finds the routes that the filter runs on and that follow the choice.
func (s *site) steered() []steered {
	var all []steered
	for i, r := range s.manager.routes {
		filter, on := s.filter.on(r)
		if !on {
			continue
		}
		for _, cluster := range r.targets() {
			st := steered{route: r, at: i, filter: filter, conditional: onChoice(r), cluster: cluster, members: s.facts.envoy.dump.members(cluster)}
			for _, m := range st.members {
				st.roles = append(st.roles, s.roleOf(m))
			}
			if st.conditional && s.keepsRoute(filter) {
				continue // it is never taken
			}
			if slices.Contains(st.roles, first) || slices.Contains(st.roles, override) {
				all = append(all, st)
			}
		}
	}
	return all
}

// onChoice reports whether a route is taken only when the first choice is there.
func onChoice(r *route) bool {
	return slices.ContainsFunc(r.config.list("match", "headers"), func(h tree) bool {
		return strings.EqualFold(h.text("name"), envoy.HeaderTarget) && !h.flag("invert_match") && h.at("present_match").v != false
	})
}

// keepsRoute reports whether the filter does not let the router have the route chosen again.
func (s *site) keepsRoute(p processor) bool {
	return p.config.text("route_cache_action") == "RETAIN" || p.config.flag("disable_clear_route_cache")
}

func (s *site) whyUnused() string {
	if s.keepsRoute(s.filter) {
		return "the filter keeps the route that was chosen before the router's choice (route_cache_action)"
	}
	for name := range s.facts.envoy.dump.clusters {
		if s.roleOf(name) == first || s.roleOf(name) == override {
			return "no route that the filter runs on leads to cluster " + name
		}
	}
	return "no cluster takes its address from " + envoy.HeaderTarget + ", or from metadata that a filter behind ext_proc fills with it"
}

// engineKeepAlive is how long uvicorn, the web server of vLLM and SGLang, keeps an idle connection.
const engineKeepAlive = 5 * time.Second

// defaultIdleTimeout is Envoy's own.
const defaultIdleTimeout = time.Hour

// examineRoute judges one route that follows the choice.
func (s *site) examineRoute(c *collector, st steered) {
	spread := slices.Contains(st.roles, plain) || slices.Contains(st.roles, override)
	old := olderThan(s.facts.envoy.release, minorComposite)
	switch {
	case st.conditional:
		if old && slices.Contains(st.roles, second) {
			c.found(LayoutWrong, s.subject(), "route %s: before Envoy 1.40 a second choice that is missing ends the request; this is %s", st.route.label, s.facts.envoy.release)
		}
		if next := s.otherwise(st); next != nil {
			for _, cluster := range next.targets() {
				s.fallbacks = append(s.fallbacks, s.facts.envoy.dump.members(cluster)...)
			}
		} else if !s.meantToFail(st.cluster) {
			c.found(NoFallback, s.subject(), "route %s is taken when there is a choice, and no route behind it without one", st.route.label)
		}
		if !spread && !s.meantToFail(st.cluster) {
			c.found(NoFallback, s.subject(), "route %s: behind a dead choice cluster %s has nothing", st.route.label, st.cluster)
		}
	case old && len(st.members) > 1:
		c.found(LayoutWrong, s.subject(), "route %s: before Envoy 1.40 the composite cluster %s answers 503 without a choice; this is %s",
			st.route.label, st.cluster, s.facts.envoy.release)
	case !spread && !s.meantToFail(st.cluster):
		c.found(NoFallback, s.subject(), "route %s: without a choice cluster %s has nowhere to go", st.route.label, st.cluster)
	}
	for i, m := range st.members {
		if st.roles[i] == plain || st.roles[i] == override {
			s.fallbacks = append(s.fallbacks, m)
		}
	}
	s.examineTimes(c, st)
	if !s.meantToFail(st.cluster) {
		s.examineRetry(c, st)
	}
	s.examineRoom(c, st)
}

// meantToFail reports whether a cluster is the one without a fallback, and kvsteer envoy prints it for this configuration: for pools that
// are to have none, and with several pools for requests that belong to none of them as far as Envoy can tell.
func (s *site) meantToFail(cluster string) bool {
	pools := s.facts.cfg.Pools
	none := slices.ContainsFunc(pools, func(p config.Pool) bool { return p.Fallback.To == "none" })
	return cluster == envoy.ClusterNoFallback && (none || len(pools) > 1)
}

// otherwise is the route behind a conditional one, in the same virtual host, that takes the same requests without a choice.
func (s *site) otherwise(st steered) *route {
	path := func(r *route) string {
		m := r.config.at("match")
		return m.text("prefix") + "\n" + m.text("path") + "\n" + m.text("path_separated_prefix") + "\n" + m.text("safe_regex", "regex")
	}
	var loose *route
	for _, r := range s.manager.routes[st.at+1:] {
		if _, on := s.filter.on(r); r.host != st.route.host || !on || onChoice(r) || len(r.targets()) == 0 {
			continue
		}
		if path(r) == path(st.route) {
			return r
		}
		if loose == nil && r.config.text("match", "prefix") != "" {
			loose = r
		}
	}
	return loose
}

// examineTimes judges the timeouts of a route and of the clusters that follow the choice.
func (s *site) examineTimes(c *collector, st steered) {
	timeout, ok := st.route.config.duration("route", "timeout")
	if !ok {
		timeout = 15 * time.Second // Envoy's own
	}
	if timeout > 0 && timeout < 10*time.Minute {
		c.found(RouteTimeout, s.subject(), "route %s: answers are cut after %s", st.route.label, timeout)
	}
	for i, m := range st.members {
		if st.roles[i] != first && st.roles[i] != second {
			continue
		}
		options := s.facts.envoy.dump.clusters[m].at("typed_extension_protocol_options", protocolOptions, "common_http_protocol_options")
		idle, ok := options.duration("idle_timeout")
		if !ok {
			idle = defaultIdleTimeout
		}
		if idle == 0 || idle >= engineKeepAlive {
			c.found(IdleTimeout, s.subject(), "cluster %s: idle_timeout is %s, and engines close after %s", m, idle, engineKeepAlive)
		}
	}
}

// examineRetry looks for a way on from a dead first choice.
func (s *site) examineRetry(c *collector, st steered) {
	retry := st.route.config.at("route", "retry_policy")
	if !retry.there() {
		for _, level := range st.route.room { // a virtual host's policy counts for its routes
			if p := level.at("retry_policy"); p.there() {
				retry = p
			}
		}
	}
	on := strings.Split(retry.text("retry_on"), ",")
	tries, ok := retry.number("num_retries")
	if !ok {
		tries = 1 // Envoy's own
	}
	if tries < 1 || !slices.ContainsFunc(on, func(s string) bool {
		return slices.Contains([]string{"connect-failure", "5xx", "gateway-error", "reset", "reset-before-request"}, strings.TrimSpace(s))
	}) {
		c.found(NoRetry, s.subject(), "route %s: retry_on is %q", st.route.label, retry.text("retry_on"))
	}
}

// examineRoom compares the bytes of a body that Envoy lets a filter hold with those that the router takes.
func (s *site) examineRoom(c *collector, st steered) {
	room := s.manager.bodyRoom
found:
	for _, level := range st.route.room {
		for _, key := range []string{"request_body_buffer_limit", "per_request_buffer_limit_bytes"} {
			if n, ok := level.number(key); ok {
				room = n
				break found
			}
		}
	}
	if limit := float64(s.facts.cfg.Limits.Body.Bytes()); room < limit {
		c.found(BodyLimit, s.subject(), "route %s: bodies beyond %.0f bytes are refused, and limits.body is %s", st.route.label, room, s.facts.cfg.Limits.Body)
	}
}
