package doctor

import (
	"slices"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/config"
)

// engineKeepAlive is how long uvicorn, the web server of vLLM and SGLang, keeps an idle connection.
const engineKeepAlive = 5 * time.Second

// defaultIdleTimeout is Envoy's own.
const defaultIdleTimeout = time.Hour

// examineRoute judges one route that follows the choice.
func (s *site) examineRoute(c *collector, st steered) {
	spread := slices.ContainsFunc(st.roles, role.spreads)
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
		if st.roles[i].spreads() {
			s.fallbacks = append(s.fallbacks, m)
		}
		if st.roles[i] == override || st.roles[i] == listed {
			s.followers = append(s.followers, m)
		}
	}
	s.examineTimes(c, st)
	if !s.meantToFail(st.cluster) {
		s.examineRetry(c, st)
	}
	if st.filter.bodyMode() != fullDuplex { // which holds no body: longer ones pass
		s.examineRoom(c, st)
	}
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
		if _, on := s.filter.on(r); r.host != st.route.host || !on || s.onChoice(r) || len(r.targets()) == 0 {
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
		if st.roles[i] == plain || st.roles[i] == foreign {
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
