package doctor

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
)

// site is one HTTP connection manager whose ext_proc filter leads to the router.
type site struct {
	facts     *facts
	manager   *manager
	filter    processor
	fallbacks []string // clusters that serve requests without a decision
	followers []string // those among them that follow the choice
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
	for _, h := range slices.Concat(s.facts.targetHeaders(), s.facts.rankHeader(), s.facts.saltHeaders()) {
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
		s.examineFilter(c, s.filter, true, false)
		return
	}
	steered := s.steered()
	if len(steered) == 0 {
		s.examineFilter(c, s.filter, s.readsHeader(), false)
		c.found(ChoiceUnused, s.subject(), "%s", s.whyUnused())
		return
	}
	for _, st := range steered {
		byList := slices.Contains(st.roles, listed)
		byHeader := st.conditional || slices.ContainsFunc(st.roles, role.readsHeader)
		s.examineFilter(c, st.filter, byHeader, byList)
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
	override             // it takes the first choice from a header, and spreads requests itself without one
	listed               // it tries the list in metadata, and spreads requests itself without one
	foreign              // it dials an address from elsewhere
)

// roleOf tells a cluster's role behind this manager.
func (s *site) roleOf(cluster string) role {
	config := s.facts.envoy.dump.clusters[cluster]
	for _, policy := range config.list("load_balancing_policy", "policies") {
		for _, source := range typed(policy.at("typed_extension_config", "typed_config")).list("override_host_sources") {
			if r := s.sourceOf(source); r != foreign {
				return r
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
	switch slices.Index(s.facts.targetHeaders(), strings.ToLower(header)) {
	case 0:
		return first
	case 1:
		return second
	}
	return foreign
}

// sourceOf is the role of a cluster whose override_host policy has a source.
func (s *site) sourceOf(source tree) role {
	target := s.facts.targetHeaders()[0]
	if strings.EqualFold(source.text("header"), target) {
		return override
	}
	namespace, key := s.facts.rankedAt()
	path := source.list("metadata", "path")
	switch at := source.text("metadata", "key"); {
	case len(path) != 1:
	case at == namespace && path[0].text("key") == key:
		return listed
	case strings.EqualFold(s.headerIn(at, path[0].text("key")), target):
		return override
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
			st := steered{route: r, at: i, filter: filter, conditional: s.onChoice(r), cluster: cluster, members: s.facts.envoy.dump.members(cluster)}
			for _, m := range st.members {
				st.roles = append(st.roles, s.roleOf(m))
			}
			if st.conditional && s.keepsRoute(filter) {
				continue // it is never taken
			}
			if slices.ContainsFunc(st.roles, role.follows) {
				all = append(all, st)
			}
		}
	}
	return all
}

// follows reports whether a cluster of the role is for the first choice.
func (r role) follows() bool { return r == first || r == override || r == listed }

// readsHeader reports whether a cluster of the role needs the headers that the router sets.
func (r role) readsHeader() bool { return r == first || r == second || r == override }

// spreads reports whether a cluster of the role serves requests without a choice too.
func (r role) spreads() bool { return r == plain || r == override || r == listed }

// onChoice reports whether a route is taken only when the first choice is there.
func (s *site) onChoice(r *route) bool {
	return slices.ContainsFunc(r.config.list("match", "headers"), func(h tree) bool {
		return strings.EqualFold(h.text("name"), s.facts.targetHeaders()[0]) && !h.flag("invert_match") && h.at("present_match").v != false
	})
}

// keepsRoute reports whether the filter does not let the router have the route chosen again.
func (s *site) keepsRoute(p processor) bool {
	return p.config.text("route_cache_action") == "RETAIN" || p.config.flag("disable_clear_route_cache")
}

// readsHeader reports whether anything of this Envoy looks at the headers that the router sets.
func (s *site) readsHeader() bool {
	for name := range s.facts.envoy.dump.clusters {
		if s.roleOf(name).readsHeader() {
			return true
		}
	}
	return slices.ContainsFunc(s.manager.routes, s.onChoice)
}

func (s *site) whyUnused() string {
	if s.keepsRoute(s.filter) {
		return "the filter keeps the route that was chosen before the router's choice (route_cache_action)"
	}
	for name := range s.facts.envoy.dump.clusters {
		if s.roleOf(name).follows() {
			return "no route that the filter runs on leads to cluster " + name
		}
	}
	namespace, key := s.facts.rankedAt()
	return "no cluster takes its address from " + s.facts.targetHeaders()[0] + ", or from metadata that a filter behind ext_proc fills with it, or the list " +
		key + " of the namespace " + namespace
}
