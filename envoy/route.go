package envoy

import (
	"regexp"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	previousv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Only failures before an engine has seen the request are repeated: a repeated prompt would be computed twice.
const retryOn = "connect-failure,refused-stream,reset-before-request"

func (b *builder) routeTable() *routev3.RouteConfiguration {
	t := &routev3.RouteConfiguration{Name: RouteTable, IgnorePortInHostMatching: true}
	var anyHost []Pool
	hosts := map[string]bool{}
	for _, p := range b.Pools {
		if p.Match.Host == "" {
			anyHost = append(anyHost, p)
		}
	}
	for _, p := range b.Pools {
		h := p.Match.Host
		if h == "" || hosts[h] {
			continue
		}
		hosts[h] = true
		var pools []Pool
		for _, q := range b.Pools {
			if q.Match.Host == h || q.Match.Host == "" {
				pools = append(pools, q)
			}
		}
		t.VirtualHosts = append(t.VirtualHosts, b.virtualHost(h, h, pools))
	}
	t.VirtualHosts = append(t.VirtualHosts, b.virtualHost("any_host", "*", anyHost))
	return t
}

func (b *builder) virtualHost(name, domain string, pools []Pool) *routev3.VirtualHost {
	vh := &routev3.VirtualHost{Name: name, Domains: []string{domain}}
	if b.scope == whole {
		vh.RequestBodyBufferLimit = wrapperspb.UInt64(uint64(b.MaxBody))
	}
	covered := false // every request on an allowed path has met a route
	for _, p := range bySpecificity(pools) {
		if b.unkeyed(p) {
			continue
		}
		vh.Routes = append(vh.Routes, b.poolRoutes(p)...)
		covered = covered || p.Match.PathPrefix == "" && p.Match.HeaderName == ""
	}
	switch {
	case covered || !b.needsDecision():
	case b.layout == LayoutOverride:
		vh.Routes = append(vh.Routes, b.keylessRoute())
	default:
		vh.Routes = append(vh.Routes, b.noFallbackRoute("no_pool", Match{}))
	}
	if !b.AllPaths && b.scope == whole {
		vh.Routes = append(vh.Routes, b.refusedRoute())
	}
	return vh
}

// unkeyed pools have no route of their own: their requests are told apart by the model, which only the router reads.
func (b *builder) unkeyed(p Pool) bool { return p.Match.empty() && p.Fallback == FallbackNone }

// needsDecision reports whether some requests have no fallback: those of pools without one and, unless they are somebody else's, those
// that no key fits.
func (b *builder) needsDecision() bool {
	for _, p := range b.Pools {
		if p.Fallback == FallbackNone || !p.Match.empty() && b.scope == whole {
			return true
		}
	}
	return false
}

func (b *builder) poolRoutes(p Pool) []*routev3.Route {
	if p.Fallback == FallbackNone {
		return []*routev3.Route{b.noFallbackRoute(p.Name+"/decided", p.Match)}
	}
	fallback := b.fallbackCluster(p)
	models := b.plainRoute(p.Name+"/models", b.modelsMatch(p.Match), p.Match, fallback, b.fallbackRetries())
	if b.scope == whole {
		models.TypedPerFilterConfig = b.withoutRouter()
	}

	if b.layout == LayoutOverride {
		return []*routev3.Route{models, b.route(p.Name+"/decided", b.match(p.Match), p.Match, fallback, b.retries(overrideAttempts-1))}
	}
	decided := b.route(p.Name+"/decided", b.match(p.Match), p.Match, PoolCluster(p.Name), b.compositeRetries(len(b.members(p))))
	if b.layout == LayoutComposite {
		return []*routev3.Route{models, decided}
	}
	decided.Match.Headers = append(decided.Match.Headers, &routev3.HeaderMatcher{
		Name:                 b.Headers.Targets()[0],
		HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	})
	undecided := b.route(p.Name+"/fallback", b.match(p.Match), p.Match, fallback, b.fallbackRetries())
	return []*routev3.Route{models, decided, undecided}
}

// noFallbackRoute serves requests that only a decision can place; without one the cluster finds no host and Envoy answers 503.
func (b *builder) noFallbackRoute(name string, m Match) *routev3.Route {
	match := b.match(m)
	if !b.AllPaths {
		match.PathSpecifier = regexPath(m.PathPrefix, append(InferencePaths(), modelsPath))
	}
	return b.route(name, match, m, ClusterNoFallback, b.compositeRetries(len(b.choices())))
}

func (b *builder) refusedRoute() *routev3.Route {
	return b.answer("not_routed", &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}, 404,
		"this path is not routed to engines: only inference paths and GET "+modelsPath+" are, because engines serve "+
			"their management on the same port (kvsteer envoy --all-paths routes everything)")
}

// keylessRoute answers requests that no pool's key fits, where a decision could not place them.
func (b *builder) keylessRoute() *routev3.Route {
	match := b.match(Match{})
	if !b.AllPaths {
		match.PathSpecifier = regexPath("", append(InferencePaths(), modelsPath))
	}
	return b.answer("no_pool", match, 503, "no engine was chosen: no pool matches the host, path and headers of this request")
}

// answer is a route that Envoy serves by itself.
func (b *builder) answer(name string, match *routev3.RouteMatch, status uint32, text string) *routev3.Route {
	return &routev3.Route{
		Name:                 name,
		Match:                match,
		Action:               &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: status, Body: inline(text)}},
		TypedPerFilterConfig: b.withoutBody(),
	}
}

// route is one whose requests the router decides.
func (b *builder) route(name string, match *routev3.RouteMatch, m Match, cluster string, retry *routev3.RetryPolicy) *routev3.Route {
	r := b.plainRoute(name, match, m, cluster, retry)
	if b.DecisionHeader {
		r.ResponseHeadersToAdd = []*corev3.HeaderValueOption{decisionHeader()}
	}
	if b.scope == whole {
		return r
	}
	// What a whole configuration sets for all of its requests.
	r.RequestBodyBufferLimit = wrapperspb.UInt64(uint64(b.MaxBody))
	r.GetRoute().IdleTimeout = duration(streamIdleTimeout)
	r.GetRoute().UpgradeConfigs = []*routev3.RouteAction_UpgradeConfig{{UpgradeType: "websocket", Enabled: wrapperspb.Bool(false)}}
	r.TypedPerFilterConfig = map[string]*anypb.Any{}
	for _, f := range b.ownFilters() {
		// A configuration that is there and empty enables a filter as it stands.
		r.TypedPerFilterConfig[f.Name] = b.pack(&routev3.FilterConfig{Config: &anypb.Any{}})
	}
	return r
}

// decisionHeader shows the decision as name=value pairs, for people: without a decision the values are empty.
func decisionHeader() *corev3.HeaderValueOption {
	var parts []string
	for _, f := range [][2]string{
		{"id", KeyDecisionID}, {"mode", KeyMode}, {"rung", KeyRung}, {"reason", KeyReason}, {"endpoint", KeyEndpoint}, {"matched", KeyMatched}, {"prompt", KeyPrompt},
	} {
		parts = append(parts, f[0]+"="+metadata(f[1]))
	}
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: HeaderDecision, Value: strings.Join(parts, "; ")},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

func (b *builder) plainRoute(name string, match *routev3.RouteMatch, m Match, cluster string, retry *routev3.RetryPolicy) *routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		Timeout:          duration(0),
		RetryPolicy:      retry,
	}
	if m.PathPrefix != "" {
		action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{
			Pattern:      &matcherv3.RegexMatcher{Regex: "^" + regexp.QuoteMeta(m.PathPrefix) + "(/|$)"},
			Substitution: "/",
		}
	}
	return &routev3.Route{Name: name, Match: match, Action: &routev3.Route_Route{Route: action}}
}

// match tells a pool's requests apart within its virtual host.
func (b *builder) match(m Match) *routev3.RouteMatch {
	rm := &routev3.RouteMatch{}
	switch {
	case !b.AllPaths:
		rm.PathSpecifier = regexPath(m.PathPrefix, InferencePaths())
	case m.PathPrefix != "":
		rm.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: m.PathPrefix}
	default:
		rm.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/"}
	}
	if m.HeaderName != "" {
		rm.Headers = append(rm.Headers, headerEquals(m.HeaderName, exact(m.HeaderValue)))
	}
	return rm
}

// modelsMatch is GET /v1/models and the OPTIONS by which a browser asks leave for it.
func (b *builder) modelsMatch(m Match) *routev3.RouteMatch {
	rm := b.match(m)
	rm.PathSpecifier = &routev3.RouteMatch_Path{Path: m.PathPrefix + modelsPath}
	rm.Headers = append(rm.Headers, headerEquals(":method", &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "GET|OPTIONS"}},
	}))
	return rm
}

func headerEquals(name string, m *matcherv3.StringMatcher) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}}
}

func regexPath(prefix string, paths []string) *routev3.RouteMatch_SafeRegex {
	return &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: pathRegex(prefix, paths)}}
}

// withoutBody keeps a route's requests from the router, and answers them before their body is there.
func (b *builder) withoutBody() map[string]*anypb.Any {
	c := b.withoutRouter()
	if b.Body == BodyFullDuplex {
		return c
	}
	c[b.filterName(filterBuffer)] = b.pack(&bufferv3.BufferPerRoute{Override: &bufferv3.BufferPerRoute_Disabled{Disabled: true}})
	return c
}

// withoutRouter keeps a route's requests from the router.
func (b *builder) withoutRouter() map[string]*anypb.Any {
	return map[string]*anypb.Any{b.filterName(filterExtProc): b.pack(&extprocv3.ExtProcPerRoute{
		Override: &extprocv3.ExtProcPerRoute_Disabled{Disabled: true},
	})}
}

// compositeRetries: attempt i of a request goes to the i-th member, and an attempt beyond the last finds no host.
func (b *builder) compositeRetries(members int) *routev3.RetryPolicy {
	return b.retries(uint32(members - 1))
}

// fallbackRetries are for a cluster that spreads requests itself.
func (b *builder) fallbackRetries() *routev3.RetryPolicy { return b.retries(2) }

// retries move on to endpoints that the request has not tried.
func (b *builder) retries(n uint32) *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn:    retryOn,
		NumRetries: u32(n),
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: b.pack(&previousv3.PreviousHostsPredicate{})},
		}},
		HostSelectionRetryMaxAttempts: 20, // the balancer draws without looking: the dead one of two endpoints comes up 20 times in a row once in a million
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
			BaseInterval: duration(5 * time.Millisecond),
			MaxInterval:  duration(25 * time.Millisecond),
		},
	}
}
