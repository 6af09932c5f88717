package envoy

import (
	"fmt"
	"strings"
)

// note is a comment above one value of the configuration. Where is the end of the value's path: keys, and for elements of a
// sequence their name (or position, where they have none), joined by " "; "^" stands before the first. A note appears once, at the first
// value that it fits, or at all of them when all is set.
type note struct {
	where string
	text  string
	all   bool
}

// notes are the comments that say why a setting stands as it does.
func (b *builder) notes() []note {
	ns := append(b.commonNotes(), b.scopeNotes()...)
	for _, p := range b.Pools {
		if !b.unkeyed(p) {
			ns = append(ns, b.poolNotes(p)...)
		}
	}
	return ns
}

// scopeNotes are those of a whole configuration or of its pieces.
func (b *builder) scopeNotes() []note {
	if b.scope == filterOnly {
		return b.filterNotes()
	}
	return b.wholeNotes()
}

func (b *builder) wholeNotes() []note {
	return []note{
		{where: "layered_runtime", text: "Lists of paths are longer regular expressions than the default bound (100 instructions) lets through."},
		{where: "admin", text: "Loopback only: whoever reaches this port can read the configuration and stop Envoy."},
		{where: "typed_config stream_idle_timeout", text: "A long prefill sends nothing for minutes, and Envoy counts that as idle."},
		{where: "typed_config use_remote_address", text: "Log the address of the connection, not one that the client claims."},
		{where: "typed_config normalize_path", text: "Routes see one spelling of a path."},
		{where: "typed_config http_protocol_options", text: "Upgrades are ignored: an upgrade with a body hangs in the filters until the idle timeout."},
		{where: "typed_config early_header_mutation_extensions", text: "Before routing and before any filter: a client cannot name the endpoint that serves it, " +
			"nor steer Envoy's retries and timeouts."},
		{where: "typed_config access_log", text: "One JSON line per request: Envoy's view beside the router's decision. Nothing in it comes from a body."},
		{where: "typed_config access_log envoy.access_loggers.http_grpc", text: "Tells the router of each request when it has ended. Nothing waits for it."},
		{where: "^ node", text: "Envoy wants both for the files with the paths of certificates."},
		{where: "typed_config local_reply_config", text: "What Envoy answers by itself has the shape of OpenAI errors."},
		{where: "route_config ignore_port_in_host_matching", text: "A client may name the port beside the host."},
		{where: "request_body_buffer_limit", text: b.roomNote()},
		{where: "typed_per_filter_config", text: "No decision is needed here, so the router is not asked."},
		{where: "routes not_routed", text: "Engines serve metrics, cache resets, adapter loading and more on the port of their API."},
		{where: "static_resources clusters", text: "Circuit breakers are raised everywhere: their defaults turn load into 503s, and how much an engine gets " +
			"is the router's business."},
		{where: "virtual_hosts any_host", text: b.anyHostNote()},
	}
}

func (b *builder) commonNotes() []note {
	return []note{
		{where: "http_filters " + b.filterName(filterBuffer), text: "Larger bodies are answered with 413, whether or not the router reads them; the router is asked when the whole body is " +
			"here, and a retry has all of it."},
		{where: "http_filters " + b.filterName(filterExtProc), text: "Asks the router for each request."},
		{where: "typed_config failure_mode_allow", text: b.failureNote()},
		{where: "typed_config message_timeout", text: "How long the router may take; its own budget must be smaller."},
		{where: "typed_config processing_mode", text: b.processingNote()},
		{where: "typed_config mutation_rules", text: b.mutationNote()},
		{where: "typed_config forward_rules", text: "Credentials stay out of the router."},
		{where: "typed_config metadata_options", text: b.metadataNote()},
		{where: "route timeout", text: "The default would cut every answer after 15 s."},
		{where: "route retry_policy", text: b.retryNote()},
		{where: "route regex_rewrite", text: "Engines know their paths without the pool's prefix. The router sees the path with it."},
		{where: b.inClusters(ClusterPick), text: "The address in " + b.Headers.Targets()[0] + "."},
		{where: b.inClusters(ClusterSecond), text: "The address in " + HeaderSecond + "."},
		{where: b.inClusters(ClusterRouter), text: "The router, or several of them."},
		{where: b.inClusters(ClusterNoFallback), text: "For requests that only a decision can place; without one no host is found: 503."},
		{where: upstreamOptions + " common_http_protocol_options", text: "Below the keep-alive of the engine's web server (uvicorn: 5 s): a request on a connection " +
			"that the engine is closing is a 503."},
		{where: "http_filters " + b.filterName(filterMove), text: "Takes the decision out of the headers, where engines would see it, into metadata, where every attempt of the request " +
			"finds it."},
		{where: upstreamOptions + " http_filters", text: "Hides the headers from engines once the host is chosen. Envoy runs the upstream filters of the cluster that a " +
			"route names, not those of a composite's members."},
		{where: ClusterRouter + " typed_extension_protocol_options", text: b.pingNote()},
		{where: ClusterRouter + " outlier_detection", text: "A router that refuses a connection is left out from then on, until a health check succeeds."},
		{where: ClusterRouter + " common_lb_config", text: "A router that fails its checks gets no streams, from that moment on: requests fall back at once instead of after " +
			"message_timeout."},
		{where: b.ownFallback() + " common_lb_config healthy_panic_threshold", text: "Endpoints that fail their checks are left out, unless all do."},
		{where: "transport_socket", text: "The certificate must come from this authority and carry this name."},
		{where: "common_tls_context validation_context", text: "Read once, at Envoy's start: with kvsteer envoy --secrets DIR Envoy takes files that are replaced."},
		{where: "common_tls_context validation_context_sds_secret_config", text: "The paths stand in files of their own, which makes Envoy take certificates that are replaced."},
		{where: "upstream_connection_options", text: "Notices within a minute that a host died without a word while a request waits for its answer."},
		{where: "response_headers_to_add", text: "For debugging: tells clients which engine served them, and why."},
		{where: "routes no_pool", all: true, text: b.keylessNote()},
		{where: "override_host_sources", text: "The router's list: the first attempt goes to its first endpoint, the next attempts to those behind it. Endpoints that the " +
			"cluster does not hold are passed over. Envoy's own health checks do not count here: the router leaves out what is unhealthy."},
		{where: "fallback_policy", text: "Without a list, and behind its end. Here health checks count."},
		{where: "selected_host_key", text: "Tells the router which endpoint gave the answer."},
	}
}

// ownFallback is the first fallback cluster of this package, if there is one.
func (b *builder) ownFallback() string {
	for _, p := range b.Pools {
		if p.Fallback == FallbackEndpoints {
			return b.fallbackCluster(p)
		}
	}
	return ""
}

// inClusters is where a cluster of this package stands.
func (b *builder) inClusters(name string) string {
	if b.scope == filterOnly {
		return "^ clusters " + name
	}
	return "^ static_resources clusters " + name
}

func (b *builder) anyHostNote() string {
	for _, p := range b.Pools {
		if p.Match.Host != "" {
			return "Every other host."
		}
	}
	return ""
}

func (b *builder) poolNotes(p Pool) []note {
	decided := fmt.Sprintf("Pool %s (%s).", p.Name, p.Match)
	if b.layout == LayoutOverride {
		return b.overrideNotes(p)
	}
	if p.Fallback == FallbackNone {
		return []note{{where: "routes " + p.Name + "/decided", all: true, text: decided + " Without a decision: 503."}}
	}
	order := "the first choice, then the second, then the fallback"
	if len(b.choices()) == 1 {
		order = "the choice, then the fallback"
	}
	members := fmt.Sprintf("Pool %s: %s. A member without a host (no decision) is passed over within the attempt.", p.Name, order)
	if b.layout == LayoutCompat {
		decided += " The router has decided: its reply set the header and cleared the route that was chosen without it."
		members = fmt.Sprintf("Pool %s: the first choice, then the fallback. No second choice: before 1.40 a member without a host ends the request.", p.Name)
	} else {
		decided += " With a decision or without: the composite cluster passes over members that have no host."
	}
	members += " The fallback stands twice, as its first endpoint may be the dead first choice again."
	return []note{
		{where: "routes " + p.Name + "/models", all: true, text: fmt.Sprintf("Any endpoint of pool %s can list its models.", p.Name)},
		{where: "routes " + p.Name + "/decided", all: true, text: decided},
		{where: "routes " + p.Name + "/fallback", all: true, text: "No decision: Envoy spreads the requests itself."},
		{where: b.inClusters(PoolCluster(p.Name)), text: members},
		{where: b.inClusters(FallbackCluster(p.Name)), text: fmt.Sprintf("Endpoints of pool %s, for requests without a decision.", p.Name)},
	}
}

// annotate puts notes on the values below n.
func (n *node) annotate(notes []note) {
	used := make([]bool, len(notes))
	n.walk(nil, func(path []string, v *node) {
		at := " ^ " + strings.Join(path, " ")
		for i, note := range notes {
			if strings.HasSuffix(at, " "+note.where) && (note.all || !used[i]) {
				used[i] = true
				v.note = note.text
			}
		}
	})
}

// walk visits every value below n in the order of the document.
func (n *node) walk(path []string, visit func(path []string, v *node)) {
	for _, e := range n.entries {
		at := append(path[:len(path):len(path)], e.key)
		visit(at, e.value)
		e.value.walk(at, visit)
	}
	for i, v := range n.items {
		at := append(path[:len(path):len(path)], v.name(i))
		visit(at, v)
		v.walk(at, visit)
	}
}

// name is the name of an element of a sequence.
func (n *node) name(position int) string {
	for _, e := range n.entries {
		if e.key == "name" && e.value.kind == scalar {
			return e.value.text
		}
	}
	return fmt.Sprint(position)
}
