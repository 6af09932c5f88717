package envoy

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// Sections of what RenderFilter gives, in their order.
const (
	sectionRuntime  = "layered_runtime"
	sectionEarly    = "early_header_mutation_extensions"
	sectionFilters  = "http_filters"
	sectionLog      = "access_log"
	sectionFields   = "access_log_json_format"
	sectionHosts    = "virtual_hosts"
	sectionClusters = "clusters"
	sectionOwn      = "your_clusters"
)

// RenderFilter gives what a configuration of the reader's own needs beside what it has, as one YAML document: a mapping of sections, each
// with a comment that says where its content goes. Listen, Admin and AccessLog are not used, and a pool's fallback may be a cluster of
// the reader's own. Equal options give equal bytes. An error joins everything that is wrong with the options, as ValidateFilter does.
//
// The filters are disabled but for the routes among the pieces, which enable them: requests of other routes are neither held nor shown to
// the router.
func RenderFilter(o Options) ([]byte, error) {
	b, err := newBuilder(o, filterOnly)
	if err != nil {
		return nil, err
	}
	root := &node{kind: mapping}
	for _, p := range b.pieces() {
		t, err := tree(p.from)
		if err != nil {
			return nil, err
		}
		if b.err != nil {
			return nil, fmt.Errorf("pack extension config: %w", b.err)
		}
		t.arrange(first(), last())
		value := t
		if p.key != "" {
			value = t.get(p.key)
		}
		if value != nil {
			root.entries = append(root.entries, entry{p.section, value})
		}
	}
	return b.document(root), nil
}

// piece is one section: a message, or the value of one key of it.
type piece struct {
	section string
	from    proto.Message
	key     string
}

func (b *builder) pieces() []piece {
	manager := &hcmv3.HttpConnectionManager{
		EarlyHeaderMutationExtensions: b.earlyMutations(removals(b.clientHeaders())),
		HttpFilters:                   b.ownFilters(),
		AccessLog:                     b.accessLogService(),
	}
	var ps []piece
	if !b.AllPaths {
		ps = append(ps, piece{sectionRuntime, b.runtime(), ""})
	}
	ps = append(ps,
		piece{sectionEarly, manager, "early_header_mutation_extensions"},
		piece{sectionFilters, manager, "http_filters"},
		piece{sectionLog, manager, "access_log"},
		piece{sectionFields, stringStruct(b.decisionFields()), ""},
		piece{sectionHosts, b.routeTable(), "virtual_hosts"},
		piece{sectionClusters, &bootstrapv3.Bootstrap_StaticResources{Clusters: b.clusters()}, "clusters"},
	)
	if own := b.ownClusters(); own != nil {
		ps = append(ps, piece{sectionOwn, &bootstrapv3.Bootstrap_StaticResources{Clusters: own}, "clusters"})
	}
	return ps
}

// get gives the value of a key, nil when it is not there.
func (n *node) get(key string) *node {
	for _, e := range n.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

func (b *builder) filterHeader(release string) string {
	text := fmt.Sprintf("Pieces for an Envoy configuration of your own, written by `kvsteer envoy --filter-only`. For Envoy %s; layout %s. "+
		"This file is no configuration by itself: the comment above each section says where its content goes. Nothing else of yours changes.",
		release, b.layout)
	if b.secrets() {
		text += " The node of your bootstrap needs an id and a cluster, for the files with paths of certificates."
	}
	return text + "\nCheck the result: envoy --mode validate -c FILE."
}

// filterNotes are the comments above the sections.
func (b *builder) filterNotes() []note {
	return []note{
		{where: "^ " + sectionRuntime, text: "Goes to the top level, its layer to your layers if you have some. The lists of paths below are longer regular expressions " +
			"than the default bound (100 instructions) lets through; with matches of your own leave it out."},
		{where: "^ " + sectionEarly, text: "Goes to the http_connection_manager of each listener whose virtual hosts get the routes below. Before routing and before any " +
			"filter: a client cannot name the endpoint that serves it."},
		{where: "^ " + sectionFilters, text: "Goes to the http_filters of the same http_connection_manager, in this order, right before envoy.filters.http.router: what " +
			"authenticates, limits or changes requests comes first. Each is disabled but for the routes that enable it, so your other " +
			"routes stay as they are."},
		{where: "^ " + sectionLog, text: "Goes to the access_log of the same http_connection_manager, beside yours. Tells the router of each request that it decided, " +
			"when it has ended, and of no other. Nothing waits for it."},
		{where: "^ " + sectionFields, text: "Optional: fields for the json_format of your own access log, which show each decision."},
		{where: "^ " + sectionHosts, text: "Routes for your virtual hosts: they go before your other routes of the same domains. A match of yours may stand in the place of " +
			"each match here, and further settings of yours beside each."},
		{where: "^ " + sectionClusters, text: "Goes to static_resources.clusters, or into what your cluster discovery serves. Circuit breakers are raised everywhere: their " +
			"defaults turn load into 503s, and how much an engine gets is the router's business."},
		{where: "typed_per_filter_config", text: "Enables the filters for the requests of this route."},
		{where: "route idle_timeout", text: "A long prefill sends nothing for minutes, and Envoy counts that as idle."},
		{where: "route upgrade_configs", text: b.upgradeNote()},
		{where: "request_body_buffer_limit", text: b.roomNote()},
		{where: "^ " + sectionOwn, text: "What to add to clusters that you have. load_balancing_policy takes the place of their lb_policy; what you have balanced by so far may stand in " +
			"its fallback_policy. Their hosts must be the endpoints of kvsteer's configuration, ip:port for ip:port: whatever of its list a cluster does not " +
			"hold is passed over. Give them an idle_timeout of 3s too (HttpProtocolOptions, common_http_protocol_options): engines close idle " +
			"connections after 5 s, and a request on such a connection is a 503."},
	}
}
