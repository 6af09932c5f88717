package doctor

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/config"
)

// processor is one ext_proc filter of a manager.
type processor struct {
	at       int // position among the HTTP filters
	name     string
	config   tree
	disabled bool // until a route enables it
}

// processors are the ext_proc filters of a manager, in order.
func (m *manager) processors() []processor {
	var all []processor
	for i, f := range m.config.list("http_filters") {
		if c := typed(f.at("typed_config")); isType(c, "ExternalProcessor") {
			all = append(all, processor{i, f.text("name"), c, f.flag("disabled")})
		}
	}
	return all
}

// cluster is where its stream goes, for google_grpc the address.
func (p processor) cluster() string { return grpcTarget(p.config.at("grpc_service")) }

func grpcTarget(service tree) string {
	if name := service.text("envoy_grpc", "cluster_name"); name != "" {
		return name
	}
	return service.text("google_grpc", "target_uri")
}

// on returns the filter as it is for a route, and whether it runs there at all. The most specific configuration counts.
func (p processor) on(r *route) (processor, bool) {
	for _, level := range r.around {
		c := typed(level.at(p.name))
		if !c.there() {
			continue
		}
		if isType(c, "FilterConfig") { // of any filter, around its own
			if c.flag("disabled") {
				return p, false
			}
			c = typed(c.at("config"))
		}
		if c.flag("disabled") {
			return p, false
		}
		return p.with(c.at("overrides")), true
	}
	return p, !p.disabled
}

// with lays a route's overrides over the filter's own settings.
func (p processor) with(overrides tree) processor {
	own, ok := p.config.v.(map[string]any)
	more, ok2 := overrides.v.(map[string]any)
	if !ok || !ok2 {
		return p
	}
	merged := map[string]any{}
	for k, v := range own {
		merged[k] = v
	}
	for k, v := range more {
		merged[k] = v
	}
	p.config = tree{merged}
	return p
}

// vocabulary is that of the router's replies.
func (f *facts) vocabulary() envoy.Headers { return envoy.Headers(f.cfg.Headers) }

// targetHeaders are the headers that the router sets, the first choice's first.
func (f *facts) targetHeaders() []string { return f.vocabulary().Targets() }

// rankedAt is where the router puts its list of endpoints into metadata.
func (f *facts) rankedAt() (namespace, key string) {
	if f.vocabulary() == envoy.HeadersGAIE {
		return envoy.GatewayNamespace, envoy.GatewayEndpoint
	}
	return envoy.MetadataNamespace, envoy.KeyRanked
}

// rankHeader is the header of the data-parallel rank where the router sets it, else nothing.
func (f *facts) rankHeader() []string {
	if slices.ContainsFunc(f.cfg.Pools, func(p config.Pool) bool { return p.PinRank }) {
		return []string{envoy.HeaderRank}
	}
	return nil
}

// saltHeaders are the headers in which the router takes a cache salt.
func (f *facts) saltHeaders() []string {
	var all []string
	for _, p := range f.cfg.Pools {
		if p.SaltHeader != "" && !slices.Contains(all, p.SaltHeader) {
			all = append(all, p.SaltHeader)
		}
	}
	return all
}

// removed reports whether the manager takes a header from what clients send, before any route is chosen.
func (m *manager) removed(header string) bool {
	for _, e := range m.config.list("early_header_mutation_extensions") {
		for _, mutation := range typed(e.at("typed_config")).list("mutations") {
			if strings.EqualFold(mutation.text("remove"), header) || matches(mutation.at("remove_on_match", "key_matcher"), header) {
				return true
			}
		}
	}
	return false
}

// matches evaluates a StringMatcher.
func matches(m tree, s string) bool {
	if !m.there() {
		return false
	}
	fold := func(t string) string { return t }
	if m.flag("ignore_case") {
		fold = strings.ToLower
	}
	s = fold(s)
	for _, key := range m.keys() {
		want := fold(m.text(key))
		switch key {
		case "exact":
			return s == want
		case "prefix":
			return strings.HasPrefix(s, want)
		case "suffix":
			return strings.HasSuffix(s, want)
		case "contains":
			return strings.Contains(s, want)
		case "safe_regex":
			return wholly(m.text(key, "regex"), s)
		}
	}
	return false
}

// wholly matches a regular expression of Envoy's, which is RE2 as Go's are, with a whole text. One that does not compile matches nothing.
func wholly(expression, s string) bool {
	re, err := regexp.Compile(`^(?:` + expression + `)$`)
	return err == nil && re.MatchString(s)
}

// allows reports whether the filter lets the router set a header.
func (p processor) allows(header string) bool {
	rules := p.config.at("mutation_rules")
	if e := rules.text("disallow_expression", "regex"); e != "" && wholly(e, header) {
		return false
	}
	if e := rules.text("allow_expression", "regex"); e != "" && wholly(e, header) {
		return true
	}
	return !rules.flag("disallow_all")
}

// defaultMessageTimeout is Envoy's own.
const defaultMessageTimeout = 200 * time.Millisecond

// Body modes that the router routes in.
const (
	buffered   = "BUFFERED"
	fullDuplex = "FULL_DUPLEX_STREAMED"
)

func (p processor) bodyMode() string { return p.config.text("processing_mode", "request_body_mode") }

// receives reports whether the filter takes the router's metadata of a namespace, and forwards whether it shows the router a request's.
func (p processor) receives(namespace string) bool { return p.names("receiving_namespaces", namespace) }

func (p processor) forwards(namespace string) bool {
	return p.names("forwarding_namespaces", namespace)
}

func (p processor) names(list, namespace string) bool {
	return slices.ContainsFunc(p.config.list("metadata_options", list, "untyped"), func(t tree) bool { return t.v == namespace })
}

// examineFilter judges the settings of the filter for routes that follow the choice in one of two ways: from headers, or from the list in metadata.
func (s *site) examineFilter(c *collector, p processor, byHeader, byList bool) {
	if !p.config.flag("failure_mode_allow") {
		c.found(FailClosed, s.subject(), "failure_mode_allow is false")
	}
	timeout, ok := p.config.duration("message_timeout")
	if !ok {
		timeout = defaultMessageTimeout
	}
	if budget := s.facts.cfg.Budget.Std(); timeout <= budget && p.bodyMode() != fullDuplex {
		c.found(TimeoutShort, s.subject(), "message_timeout is %s, and the router's budget is %s", timeout, budget)
	}
	mode := p.config.at("processing_mode")
	if m := p.bodyMode(); m != buffered && m != fullDuplex {
		if m == "" {
			m = "NONE"
		}
		c.found(BodyNotBuffered, s.subject(), "request_body_mode is %s", m)
	}
	if p.bodyMode() == fullDuplex && s.facts.cfg.Envoy.Body != "full_duplex" { // else it is meant
		c.found(BodyStreamed, s.subject(), "request_body_mode is %s", fullDuplex)
	}
	if mode.text("request_header_mode") == "SKIP" {
		c.found(BodyNotBuffered, s.subject(), "request_header_mode is SKIP")
	}
	wanted := s.facts.rankHeader()
	if byHeader {
		wanted = append(s.facts.targetHeaders(), wanted...)
	}
	for _, h := range wanted {
		if !p.allows(h) {
			c.found(MutationRefused, s.subject(), "the router may not set %s", h)
		}
	}
	if s.facts.vocabulary() == envoy.HeadersGAIE && !p.forwards(envoy.GatewaySubsetNamespace) {
		c.found(MetadataDropped, s.subject(), "the namespace %s is not forwarded", envoy.GatewaySubsetNamespace)
	}
	if !p.receives(envoy.MetadataNamespace) {
		c.found(MetadataDropped, s.subject(), "the namespace %s is not received", envoy.MetadataNamespace)
	}
	if namespace, _ := s.facts.rankedAt(); byList && namespace != envoy.MetadataNamespace && !p.receives(namespace) {
		c.found(MetadataDropped, s.subject(), "the namespace %s is not received", namespace)
	}
}
