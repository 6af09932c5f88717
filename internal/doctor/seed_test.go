package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSound holds that a site without a fault gives no finding, on every layout.
func TestSound(t *testing.T) {
	for _, tt := range []struct {
		envoy  string
		damage func(w *world)
	}{
		{"envoy-1.40.0", nil},
		{"envoy-1.37.0", nil},
		{"envoy-foreign", (*world).onlyFirst},
		{"envoy-override", nil},
		{"envoy-gaie", nil},
	} {
		t.Run(tt.envoy, func(t *testing.T) {
			w := newWorld(t, tt.envoy)
			if tt.damage != nil {
				tt.damage(w)
			}
			r := w.run()
			if len(r.Findings) > 0 || r.Status != "ok" || !r.Sound() {
				t.Errorf("findings %+v", r.Findings)
			}
			if len(r.NotChecked) > 0 {
				t.Errorf("not looked at: %+v", r.NotChecked)
			}
			for _, seen := range w.seen {
				method, at, _ := strings.Cut(seen, " ")
				if path := at[strings.IndexByte(at, '/'):]; method != "GET" && path != "/tokenize" && path != "/v1/completions" {
					t.Errorf("request %s", seen)
				}
			}
		})
	}
}

// dropRouterEndpoint takes the second engine out of the router's page.
func (w *world) dropRouterEndpoint() {
	var kept []string
	for line := range strings.Lines(w.pages[routerAddr+"/metrics"]) {
		if !strings.Contains(line, engine2) {
			kept = append(kept, line)
		}
	}
	w.pages[routerAddr+"/metrics"] = strings.Join(kept, "")
}

// fleet has the pool's second endpoint come from a node or DNS, and the router say of nodes and endpoints what state says.
func (w *world) fleet(keys, state string) {
	w.configure("\n  - address: "+engine2+"\n    events: {listen: \"tcp://127.0.0.1:23102\", replay: \"tcp://127.0.0.1:23112\"}", "")
	w.configure("pools:\n- name: chat", keys+"\npools:\n- name: chat\n  fallback: none")
	w.opt.Envoy = "" // whose recorded configuration has both endpoints
	w.configure("  models: [tiny]", "  models: [tiny]\n  dns: engines.test:23002\n  announced: true")
	lines := strings.Split(strings.TrimSpace(w.pages[routerPage]), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "kvsteer_subscriber_") && strings.Contains(l, engine2)
	})
	w.pages[routerPage] = strings.Join(lines, "\n") + "\n" + `kvsteer_discover_addresses{name="engines.test:23002"} 1
kvsteer_discover_failing{name="engines.test:23002"} 0
`
	w.pages[routerAddr+"/api/v1/state"] = state
}

// What the router says of a fleet without a fault: a node, whose endpoint DNS gives too.
const (
	fleetNode  = "nodes: [{address: \"127.0.0.1:23010\"}]"
	fleetState = `{"pools":[{"name":"chat","endpoints":[{"address":"` + engine1 + `","origin":"configured"},{"address":"` + engine2 + `","origin":"dns","node":"127.0.0.1:23010"}]}],` +
		`"nodes":[{"address":"127.0.0.1:23010","name":"gpu-1","connected":true}]}`
)

// fleetBut is the fleet with something else in its state.
func fleetBut(old, other string) func(w *world) {
	return func(w *world) {
		w.fleet(fleetNode, fleetState)
		w.replace(routerAddr+"/api/v1/state", old, other)
	}
}

// TestFleet holds that a fleet without a fault gives no finding, and that its engines are looked at.
func TestFleet(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	w.fleet(fleetNode, fleetState)
	if r := w.run(); len(r.Findings) > 0 {
		t.Errorf("findings %+v", r.Findings)
	}
	if !slices.ContainsFunc(w.seen, func(s string) bool { return strings.Contains(s, engine2+"/health") }) {
		t.Error("an engine that DNS gives is not asked")
	}
	w = newWorld(t, "envoy-1.40.0")
	w.fleet(fleetNode, fleetState)
	w.metric(routerPage, `kvsteer_pool_endpoint_draining{endpoint="`+engine2, "1")
	w.replace(routerAddr+"/api/v1/state", `"origin":"dns"`, `"origin":"dns","leaving":true`)
	if r := w.run(); len(r.Findings) > 0 {
		t.Errorf("a node drains its endpoint, and findings are %+v", r.Findings)
	}
}

const routerPage = routerAddr + "/metrics"

// seed damages the site in one way.
type seed struct {
	name   string
	code   Code
	also   []Code // that the same damage brings
	envoy  string // default envoy-1.40.0
	damage func(w *world)
}

var seeds = []seed{
	{"a node that is not there", NodeUnreachable, nil, "", fleetBut(`"connected":true`, `"connected":false,"problem":"unreachable: connection refused","stale":true`)},
	{"a node that was never there", NodeUnreachable, nil, "", fleetBut(`"connected":true`, `"connected":false`)},
	{"a node of another protocol", NodeVersion, nil, "", fleetBut(`"connected":true`, `"connected":false,"problem":"version: the node speaks 2 to 3: upgrade this router"`)},
	{"a node whose blocks do not come", NodeStale, nil, "", fleetBut(`"connected":true`, `"connected":true,"stale":true`)},
	{"a node that the router does not know", OtherConfig, nil, "", fleetBut(`{"address":"127.0.0.1:23010","name":"gpu-1","connected":true}`, "")},
	{"an endpoint announced twice", EndpointRefused, nil, "", fleetBut(`"nodes":[`, `"refused":[{"node":"127.0.0.1:23011","pool":"chat","endpoint":"`+engine2+`","why":"node \"127.0.0.1:23010\" announces it"}],"nodes":[`)},
	{"an address of another pool", EndpointRefused, nil, "", fleetBut(`"nodes":[`, `"refused":[{"pool":"chat","endpoint":"`+engine2+`","why":"it is an endpoint of pool \"code\""}],"nodes":[`)},
	{"nodes in clear text", ClearText, nil, "", func(w *world) { w.fleet("feed: {insecure: true}\nnodes: [{dns: \"nodes.test:9010\"}]", fleetState) }},
	{"a pool without endpoints", PoolEmpty, []Code{OtherConfig}, "", func(w *world) {
		w.fleet(fleetNode, `{"pools":[{"name":"chat","endpoints":[]}],"nodes":[{"address":"127.0.0.1:23010","connected":true}]}`)
		w.pages[routerPage] = strings.ReplaceAll(w.pages[routerPage], "kvsteer_pool_endpoint_up{endpoint=\""+engine1, "kvsteer_pool_endpoint_up{endpoint=\"127.0.0.1:9")
	}},
	{"a name without addresses", NameEmpty, nil, "", func(w *world) {
		w.fleet(fleetNode, fleetState)
		w.metric(routerPage, "kvsteer_discover_addresses", "0")
	}},
	{"a name that DNS does not answer for", NameEmpty, nil, "", func(w *world) {
		w.fleet(fleetNode, fleetState)
		w.metric(routerPage, "kvsteer_discover_failing", "1")
	}},
	{"engines that connect to one of several routers", SeveralRouters, nil, "", func(w *world) {
		w.configure("envoy:\n", "envoy:\n  routers: [\"router.test:23082\"]\n")
	}},

	{"a pool without events", NoEventSources, []Code{OtherConfig}, "", func(w *world) {
		w.configure("\n    events: {listen: \"tcp://127.0.0.1:23101\", replay: \"tcp://127.0.0.1:23111\"}", "")
		w.configure("\n    events: {listen: \"tcp://127.0.0.1:23102\", replay: \"tcp://127.0.0.1:23112\"}", "")
	}},
	{"a pool that is observed", NotSteering, nil, "", func(w *world) { w.configure("- name: chat", "- name: chat\n  mode: observe") }},
	{"a pool steered in part", NotSteering, nil, "", func(w *world) { w.configure("- name: chat", "- name: chat\n  percent: 10") }},
	{"clear text off loopback", ClearText, nil, "", func(w *world) { w.configure("listen: 127.0.0.1:23082", "listen: 0.0.0.0:23082\ninsecure: true") }},
	{"a key file that is not there", FileUnreadable, nil, "", func(w *world) {
		w.configure("- name: chat", "- name: chat\n  api_key_file: "+filepath.Join(w.t.TempDir(), "key"))
	}},
	{"a key file of two lines", FileUnreadable, nil, "", func(w *world) {
		w.configure("- name: chat", "- name: chat\n  api_key_file: "+w.file("one\ntwo\n"))
	}},
	{"a token of nodes that is not there", FileUnreadable, nil, "", func(w *world) {
		w.configure("pools:", "feed: {token_file: "+filepath.Join(w.t.TempDir(), "token")+"}\npools:")
	}},
	{"a certificate that is none", FileUnreadable, nil, "", func(w *world) {
		w.configure("pools:", "engines: {tls: {server_name: e.test, ca_file: "+w.file("none")+"}}\npools:")
		w.opt.Admin, w.opt.Envoy = "", ""
		w.down[engine1], w.down[engine2] = true, true
	}},

	{"state that no replay can prove", StateUnused, []Code{NoReplay}, "", func(w *world) {
		w.configure("pools:", "state_dir: "+w.t.TempDir()+"\npools:")
		w.configure(`, replay: "tcp://127.0.0.1:23111"`, "")
		w.configure(`, replay: "tcp://127.0.0.1:23112"`, "")
	}},
	{"a file in place of the folder", StateUnwritable, nil, "", func(w *world) { w.configure("pools:", "state_dir: "+w.file("")+"\npools:") }},

	{"an endpoint that the configuration drains", Draining, nil, "", func(w *world) { w.configure("- address: "+engine2, "- address: "+engine2+"\n    drain: true") }},
	{"an endpoint that somebody drained", Draining, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_pool_endpoint_draining{endpoint="`+engine2, "1")
	}},
	{"a pool switched off by a call", NotSteering, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_pool_percent{mode="on"`, "0")
	}},

	{"an engine that is not there", EngineSilent, nil, "", func(w *world) { w.down[engine2] = true }},
	{"an engine that fails", EngineSilent, nil, "", func(w *world) { w.status[engine2+"/health"] = 503 }},
	{"another served name", NameDiffers, []Code{NameUnlisted}, "", func(w *world) { w.replace(engine1+"/v1/models", `"id":"tiny"`, `"id":"Tiny"`) }},
	{"an adapter that is not loaded", NameDiffers, nil, "", func(w *world) { w.configure("adapters: [adapter-a]", "adapters: [adapter-a, legal]") }},
	{"an adapter that is not listed", NameUnlisted, nil, "", func(w *world) { w.configure("adapters: [adapter-a]", "adapters_refresh: 0s") }},
	{"an adapter of another model", NameUnlisted, nil, "", func(w *world) {
		w.configure("  adapters: [adapter-a]\n", "")
		for _, e := range []string{engine1, engine2} {
			w.replace(e+"/v1/models", `"parent":"tiny"`, `"parent":"other"`)
		}
	}},
	{"prefix caching off", PrefixCachingOff, nil, "", func(w *world) {
		w.replace(engine1+"/metrics", `enable_prefix_caching="True"`, `enable_prefix_caching="False"`)
	}},
	{"SGLang's radix cache off", PrefixCachingOff, []Code{EndpointNoEvents, OtherConfig}, "", func(w *world) {
		w.sglang(`{"page_size":64,"version":"0.5.20","disable_radix_cache":true}`)
	}},
	{"no cache settings", BlockSizeUnknown, nil, "", func(w *world) { w.replace(engine1+"/metrics", "vllm:cache_config_info", "vllm:other_info") }},
	{"no hash algorithm", HashUnknown, nil, "", func(w *world) { w.replace(engine1+"/metrics", `prefix_caching_hash_algo="sha256_cbor",`, "") }},
	{"blocks of one token", PageSizeOne, nil, "", func(w *world) { w.replace(engine1+"/metrics", `,block_size="32"`, `,block_size="1"`) }},
	{"SGLang's pages of one token", PageSizeOne, []Code{EndpointNoEvents, OtherConfig}, "", func(w *world) { w.sglang(`{"page_size":1,"version":"0.5.20"}`) }},
	{"a release without events", EngineBad, nil, "", func(w *world) { w.pages[engine1+"/version"] = `{"version":"0.8.5.post1"}` }},
	{"a release without extra keys", EngineLimited, nil, "", func(w *world) { w.pages[engine1+"/version"] = `{"version":"0.16.0"}` }},
	{"an SGLang without media", EngineLimited, []Code{EndpointNoEvents, OtherConfig}, "", func(w *world) { w.sglang(`{"page_size":64,"version":"0.5.7"}`) }},
	{"no token details", DetailsOff, nil, "", func(w *world) { w.pages[engine1+"/v1/completions"] = w.read("vllm-0.23.0/completion.json") }},
	{"no key", KeyRefused, nil, "", func(w *world) { w.status[engine1+"/v1/models"] = 401 }},
	{"a wrong key", KeyRefused, nil, "", func(w *world) {
		w.configure("- name: chat", "- name: chat\n  api_key_file: "+w.file("secret\n"))
		w.status[engine1+"/v1/models"] = 401
	}},
	{"no /tokenize", TokenizeRefused, nil, "", func(w *world) { delete(w.pages, engine1+"/tokenize") }},
	{"a /tokenize without tokens", TokenizeRefused, nil, "", func(w *world) { w.pages[engine1+"/tokenize"] = `{"count":0,"tokens":[]}` }},
	{"another model length", ModelLenDiffers, nil, "", func(w *world) { w.configure("- name: chat", "- name: chat\n  max_model_len: 4096") }},
	{"a completion that fails", ProbeFailed, nil, "", func(w *world) { w.status[engine1+"/v1/completions"] = 500 }},

	{"one endpoint without events", EndpointNoEvents, []Code{OtherConfig}, "", func(w *world) {
		w.configure("\n    events: {listen: \"tcp://127.0.0.1:23102\", replay: \"tcp://127.0.0.1:23112\"}", "")
	}},
	{"an engine that does not connect", EventsUnconnected, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_subscriber_connected{endpoint="`+engine2, "0")
	}},
	{"an engine that cannot be dialled", EventsUnconnected, []Code{EventsElsewhere}, "", func(w *world) {
		w.configure("listen: \"tcp://127.0.0.1:23102\"", "dial: \"tcp://127.0.0.1:23102\"")
		w.metric(routerPage, `kvsteer_subscriber_connected{endpoint="`+engine2, "0")
	}},
	{"no event of any engine", EventsAbsent, nil, "", func(w *world) {
		w.metric(routerPage, "kvsteer_subscriber_batches_total", "0")
		w.metric(routerPage, `kvsteer_router_decisions_total{mode="on",pool="chat",reason="no_index"`, "20")
	}},
	{"a dialled address on the network", EventsOpen, nil, "", func(w *world) {
		w.configure("listen: \"tcp://127.0.0.1:23102\"", "dial: \"tcp://10.0.0.12:23102\"")
	}},
	{"sockets that an engine binds", EventsOpen, nil, "", func(w *world) {
		w.pages[engine2+"/kv_event_sources"] = w.read("vllm-0.32.0/kv_event_sources.json")
	}},
	{"a replay socket that an engine binds", EventsOpen, nil, "", func(w *world) {
		w.replace(engine2+"/kv_event_sources", "tcp://127.0.0.1:23112", "tcp://0.0.0.0:23112")
	}},
	{"a port of this host", EventsOpen, nil, "", func(w *world) {
		w.configure("listen: \"tcp://127.0.0.1:23102\"", "dial: \"tcp://127.0.0.1:6789\"")
	}},
	{"events switched off", EventsOff, nil, "", func(w *world) {
		w.replace(engine2+"/kv_event_sources", `"enable_kv_cache_events":true`, `"enable_kv_cache_events":false`)
	}},
	{"the null publisher", EventsOff, nil, "", func(w *world) { w.replace(engine2+"/kv_event_sources", `"zmq"`, `"null"`) }},
	{"no publisher", EventsOff, nil, "", func(w *world) { w.pages[engine2+"/kv_event_sources"] = "{}" }},
	{"another topic", EventsElsewhere, nil, "", func(w *world) {
		w.configure("events: {listen: \"tcp://127.0.0.1:23102\", replay: \"tcp://127.0.0.1:23112\"}", "events: {listen: \"tcp://127.0.0.1:23102\", replay: \"tcp://127.0.0.1:23112\", topic: kv@}")
	}},
	{"another port", EventsElsewhere, []Code{EventsUnconnected}, "", func(w *world) {
		w.replace(engine2+"/kv_event_sources", "23102", "5557")
		w.metric(routerPage, `kvsteer_subscriber_connected{endpoint="`+engine2, "0")
	}},
	{"both bind", EventsElsewhere, []Code{EventsUnconnected, EventsOpen}, "", func(w *world) {
		w.replace(engine2+"/kv_event_sources", "tcp://127.0.0.1:23102", "tcp://*:23102")
		w.metric(routerPage, `kvsteer_subscriber_connected{endpoint="`+engine2, "0")
	}},
	{"events without token ids", NoTokenIDs, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_subscriber_problem{endpoint="`+engine2+`",pool="chat",problem="no_token_ids"}`, "1")
	}},
	{"hashes that look ahead", Speculates, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_subscriber_problem{endpoint="`+engine2+`",pool="chat",problem="lookahead"}`, "1")
	}},
	{"pairs of token ids", Speculates, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="bigram"}`, "1")
	}},
	{"a full mirror", MirrorFull, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="mirror_full"}`, "1")
	}},
	{"events that cannot be read", EventsUnreadable, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_subscriber_events_total{endpoint="`+engine2+`",pool="chat",rank="0",type="malformed"`, "3")
	}},
	{"a full mirror of a node", MirrorFull, nil, "", func(w *world) {
		w.fleet(fleetNode, fleetState)
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="mirror_full"}`, "1")
	}},
	{"two ranks where a node follows one", SeveralRanks, nil, "", func(w *world) {
		w.fleet(fleetNode, fleetState)
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="ranks_mismatch"}`, "1")
	}},
	{"a model of several groups", BlocksPartly, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="hybrid"}`, "1")
	}},
	{"two ranks", SeveralRanks, nil, "", func(w *world) {
		w.replace(engine2+"/kv_event_sources", `{"0":`, `{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:23103","topic":"kv-events"},"0":`)
	}},
	{"a rank that is not connected", EventsUnconnected, nil, "", func(w *world) {
		w.replace(engine2+"/kv_event_sources", `{"0":`, `{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:23103","topic":"kv-events"},"0":`)
		w.configure(`23112"}`, `23112", ranks: 2}`)
	}},
	{"two engines at one port", SecondEngine, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_subscriber_refused_connections_total{endpoint="`+engine2+`",pool="chat",rank="0",reason="second_peer"`, "7")
	}},

	{"a pool without replays", NoReplay, nil, "", func(w *world) {
		for _, i := range []string{"1", "2"} {
			w.configure(`, replay: "tcp://127.0.0.1:2311`+i+`"`, "")
			w.replace("127.0.0.1:2300"+i+"/kv_event_sources", `"tcp://127.0.0.1:2311`+i+`"`, "null")
		}
	}},
	{"a replay socket that nobody asks", NoReplay, nil, "", func(w *world) { w.configure(`, replay: "tcp://127.0.0.1:23112"`, "") }},
	{"an engine without a replay socket", ReplayElsewhere, nil, "", func(w *world) {
		w.replace(engine2+"/kv_event_sources", `"tcp://127.0.0.1:23112"`, "null")
	}},
	{"another port for replays", ReplayElsewhere, nil, "", func(w *world) {
		w.replace(engine2+"/kv_event_sources", "23112", "5558")
		w.counter("replays_total", "unreachable", "40")
	}},
	{"a replay socket that does not answer", ReplayFailing, nil, "", func(w *world) { w.counter("replays_total", "timeout", "40") }},
	{"holes in replays", ReplayHoles, nil, "", func(w *world) { w.counter("replays_total", "hole", "2") }},
	{"a gap that was not closed", EventsLost, nil, "", func(w *world) { w.counter("gaps_total", "reset", "1") }},
	{"blocks recognised by their hashes", Healing, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_subscriber_healed_blocks_total{endpoint="`+engine2+`",means="hash"`, "90")
	}},
	{"blocks recognised by their content", HealingByContent, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_subscriber_healed_blocks_total{endpoint="`+engine2+`",means="content"`, "90")
	}},
	{"orphans", OrphansHigh, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_subscriber_blocks{endpoint="`+engine2, "1000")
		w.metric(routerPage, `kvsteer_subscriber_orphan_blocks{endpoint="`+engine2, "300")
	}},
	{"a damaged file", MirrorDamaged, nil, "", func(w *world) { w.counter("restores_total", "damaged", "1") }},
	{"a file that cannot be read", MirrorDamaged, nil, "", func(w *world) { w.counter("restores_total", "failed", "1") }},
	{"a full disk", SavesFailing, nil, "", func(w *world) { w.counter("saves_total", "failed", "3") }},
	{"blocks of one token in events", PageSizeOne, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="page_size"}`, "1")
	}},

	{"no Envoy", EnvoySilent, nil, "", func(w *world) { w.down[envoyAddr] = true }},
	{"something else at Envoy's address", EnvoySilent, nil, "", func(w *world) { w.pages[envoyAddr+"/server_info"] = `{"version":"nginx"}` }},
	{"an Envoy that does not show its configuration", EnvoySilent, nil, "", func(w *world) { w.status[envoyAddr+"/config_dump"] = 403 }},
	{"an old Envoy", EnvoyOld, nil, "", func(w *world) { w.replace(envoyAddr+"/server_info", "/1.40.0/", "/1.36.4/") }},
	{"the composite layout on an Envoy before it", LayoutWrong, nil, "", func(w *world) { w.replace(envoyAddr+"/server_info", "/1.40.0/", "/1.39.3/") }},
	{"a second choice on an Envoy before it", LayoutWrong, nil, "envoy-1.37.0", func(w *world) {
		w.edit(named("kvsteer_pick", set("x-target-endpoint-2", "original_dst_lb_config", "http_header_name")))
		w.edit(func(o map[string]any) bool {
			if _, ok := o["static_clusters"]; !ok {
				return false
			}
			o["static_clusters"] = append(o["static_clusters"].([]any), map[string]any{"cluster": map[string]any{
				"name": "kvsteer_first", "type": "ORIGINAL_DST", "original_dst_lb_config": map[string]any{"use_http_header": true, "http_header_name": "x-target-endpoint"},
				"typed_extension_protocol_options": map[string]any{protocolOptions: map[string]any{"common_http_protocol_options": map[string]any{"idle_timeout": "3s"}}},
			}})
			return true
		})
		w.edit(ofType("ClusterConfig", func(o map[string]any) {
			o["clusters"] = append([]any{map[string]any{"name": "kvsteer_first"}}, o["clusters"].([]any)...)
		}))
	}},
	{"no filter", NoFilter, nil, "", func(w *world) { w.edit(ofType("HttpConnectionManager", set(nil, "http_filters"))) }},
	{"another's filter", NoFilter, nil, "", func(w *world) {
		w.edit(ofType("ExternalProcessor", set("other", "grpc_service", "envoy_grpc", "cluster_name")))
	}},
	{"client's headers kept", HeadersKept, nil, "", func(w *world) {
		w.edit(ofType("HttpConnectionManager", set(nil, "early_header_mutation_extensions")))
	}},
	{"the second header kept", HeadersKept, nil, "envoy-1.37.0", func(w *world) {
		w.edit(func(o map[string]any) bool {
			if o["remove"] != "x-target-endpoint-2" {
				return false
			}
			o["remove"] = "x-other"
			return true
		})
	}},
	{"a salt header kept", HeadersKept, nil, "", func(w *world) { w.configure("- name: chat", "- name: chat\n  salt_header: x-tenant") }},
	{"no failing open", FailClosed, nil, "", func(w *world) { w.edit(ofType("ExternalProcessor", set(nil, "failure_mode_allow"))) }},
	{"no failing open on the route", FailClosed, nil, "", func(w *world) {
		w.edit(named("chat/decided", set(map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute", "overrides": map[string]any{"failure_mode_allow": false},
		}, "typed_per_filter_config", "envoy.filters.http.ext_proc")))
	}},
	{"a timeout equal to the budget", TimeoutShort, nil, "", func(w *world) { w.edit(ofType("ExternalProcessor", set("0.400s", "message_timeout"))) }},
	{"Envoy's own timeout", TimeoutShort, nil, "envoy-1.37.0", func(w *world) { w.edit(ofType("ExternalProcessor", set(nil, "message_timeout"))) }},
	{"a composite without a fallback", NoFallback, nil, "", func(w *world) {
		w.edit(ofType("ClusterConfig", set([]any{map[string]any{"name": "kvsteer_pick"}, map[string]any{"name": "kvsteer_pick_2"}}, "clusters")))
	}},
	{"no route without a choice", NoFallback, nil, "envoy-1.37.0", func(w *world) {
		w.edit(named("chat/fallback", set(nil, "route")))
	}},
	{"a choice without a cluster behind it", NoFallback, nil, "envoy-1.37.0", func(w *world) {
		w.edit(named("chat/decided", set("kvsteer_pick", "route", "cluster")))
	}},
	{"no filter that moves the choice", ChoiceUnused, nil, "", func(w *world) {
		w.edit(func(o map[string]any) bool {
			c, _ := o["typed_config"].(map[string]any)
			if c == nil || !isType(tree{c}, "v3.Config") || c["request_rules"] == nil {
				return false
			}
			delete(c, "request_rules")
			return true
		})
	}},
	{"a route past the choice", ChoiceUnused, nil, "", func(w *world) {
		w.edit(named("chat/decided", set("kvsteer_fallback_chat", "route", "cluster")))
	}},
	{"a filter that is off on the route", ChoiceUnused, nil, "envoy-foreign", func(w *world) {
		w.edit(named("envoy.filters.http.ext_proc", set(true, "disabled")))
	}},
	{"a route that is kept", ChoiceUnused, nil, "envoy-1.37.0", func(w *world) { w.edit(ofType("ExternalProcessor", set("RETAIN", "route_cache_action"))) }},
	{"an endpoint that Envoy lacks", EndpointNotInEnvoy, nil, "envoy-foreign", func(*world) {}},
	{"an endpoint that Envoy alone has", EndpointOnlyEnvoy, []Code{OtherConfig}, "", func(w *world) {
		w.configure("  - address: "+engine2+"\n    events: {listen: \"tcp://127.0.0.1:23102\", replay: \"tcp://127.0.0.1:23112\"}\n", "")
	}},
	{"an endpoint in the cluster of another pool", EndpointOnlyEnvoy, []Code{EndpointNotInEnvoy, OtherConfig}, "", func(w *world) {
		w.configure("  - address: "+engine2, "- name: other\n  models: [other]\n  endpoints:\n  - address: "+engine2)
		w.replace(engine2+"/v1/models", `"id":"tiny"`, `"id":"other"`)
		w.replace(engine2+"/v1/models", `"id":"adapter-a"`, `"id":"other"`)
	}},
	{"no body", BodyNotBuffered, nil, "", func(w *world) { w.edit(ofType("ExternalProcessor", set(nil, "processing_mode"))) }},
	{"a streamed body", BodyNotBuffered, nil, "envoy-1.37.0", func(w *world) {
		w.edit(ofType("ExternalProcessor", set("STREAMED", "processing_mode", "request_body_mode")))
	}},
	{"a list that is not received", MetadataDropped, nil, "envoy-override", func(w *world) {
		w.edit(ofType("ExternalProcessor", set(nil, "metadata_options")))
	}},
	{"a list that no cluster reads", ChoiceUnused, nil, "envoy-override", func(w *world) {
		w.edit(ofType("OverrideHost", set([]any{map[string]any{"metadata": map[string]any{"key": "kvsteer", "path": []any{map[string]any{"key": "endpoint"}}}}}, "override_host_sources")))
	}},
	{"a list whose end ends the request", NoRetry, nil, "envoy-override", func(w *world) {
		w.edit(named("chat/decided", set(nil, "route", "retry_policy")))
	}},
	{"a follower that keeps connections", IdleTimeout, nil, "envoy-override", func(w *world) {
		w.edit(named("kvsteer_pool_chat", set(nil, "typed_extension_protocol_options")))
	}},
	{"a follower without an endpoint", EndpointNotInEnvoy, []Code{EngineSilent, EndpointNoEvents, EndpointOnlyEnvoy, OtherConfig}, "envoy-override", func(w *world) {
		w.down["127.0.0.1:9"] = true
		w.configure("  - address: "+engine2+"\n    events: {listen: \"tcp://127.0.0.1:23102\", replay: \"tcp://127.0.0.1:23112\"}\n", "  - address: 127.0.0.1:9\n")
	}},
	{"a body that is streamed both ways", BodyStreamed, nil, "envoy-1.37.0", func(w *world) {
		w.edit(ofType("ExternalProcessor", set(fullDuplex, "processing_mode", "request_body_mode")))
	}},
	{"a subset that the router is not shown", MetadataDropped, nil, "envoy-gaie", func(w *world) {
		w.edit(ofType("ExternalProcessor", set(nil, "metadata_options", "forwarding_namespaces")))
	}},
	{"a list for gateways that is not received", MetadataDropped, nil, "envoy-gaie", func(w *world) {
		w.edit(ofType("ExternalProcessor", set([]any{"kvsteer"}, "metadata_options", "receiving_namespaces", "untyped")))
	}},
	{"a follower of another fleet", EndpointNotInEnvoy, nil, "envoy-override", func(w *world) {
		w.replace(envoyAddr+"/config_dump", `kvsteer_pool_chat`, `theirs`)
		w.replace(envoyAddr+"/clusters", `kvsteer_pool_chat`, `theirs`)
		for _, page := range []string{"/config_dump", "/clusters"} {
			w.replace(envoyAddr+page, `"port_value":23001`, `"port_value":7001`)
			w.replace(envoyAddr+page, `"port_value":23002`, `"port_value":7002`)
		}
	}},
	{"no header with the body", BodyNotBuffered, nil, "", func(w *world) {
		w.edit(ofType("ExternalProcessor", set("SKIP", "processing_mode", "request_header_mode")))
	}},
	{"headers that may not be set", MutationRefused, nil, "", func(w *world) {
		w.edit(ofType("ExternalProcessor", set("x-target-endpoint", "mutation_rules", "allow_expression", "regex")))
	}},
	{"headers that are refused", MutationRefused, nil, "", func(w *world) {
		w.edit(ofType("ExternalProcessor", set(map[string]any{"disallow_expression": map[string]any{"regex": "x-.*"}}, "mutation_rules")))
	}},
	{"a cluster that is not there", RouterUnreachable, nil, "", func(w *world) {
		w.edit(ofType("ExternalProcessor", set("kvsteer_gone", "grpc_service", "envoy_grpc", "cluster_name")))
	}},
	{"a cluster of HTTP/1", RouterUnreachable, nil, "", func(w *world) {
		w.edit(named("kvsteer_router", set(nil, "typed_extension_protocol_options")))
	}},
	{"a router that fails its checks", RouterUnreachable, nil, "", func(w *world) {
		w.replace(envoyAddr+"/clusters", `"health_status":{`, `"health_status":{"failed_active_health_check":true,`)
	}},
	{"another address of the router", RouterElsewhere, nil, "", func(w *world) { w.configure("listen: 127.0.0.1:23082", "listen: 127.0.0.1:9002") }},
	{"no records", NoRecords, nil, "", func(w *world) { w.edit(ofType("HttpConnectionManager", set(nil, "access_log"))) }},
	{"metadata that is dropped", MetadataDropped, nil, "", func(w *world) { w.edit(ofType("ExternalProcessor", set(nil, "metadata_options"))) }},
	{"Envoy's own body limit", BodyLimit, nil, "", func(w *world) { w.edit(named("any_host", set(nil, "request_body_buffer_limit"))) }},
	{"a larger limit of the router", BodyLimit, nil, "", func(w *world) { w.configure("pools:", "limits: {body: 64MiB}\npools:") }},
	{"Envoy's own route timeout", RouteTimeout, nil, "envoy-foreign", func(w *world) {
		w.onlyFirst()
		w.edit(func(o map[string]any) bool {
			if o["cluster"] != "llm" {
				return false
			}
			delete(o, "timeout")
			return true
		})
	}},
	{"no retries", NoRetry, nil, "", func(w *world) { w.edit(named("chat/decided", set(nil, "route", "retry_policy"))) }},
	{"retries of something else", NoRetry, nil, "", func(w *world) {
		w.edit(named("chat/decided", set("retriable-4xx", "route", "retry_policy", "retry_on")))
	}},
	{"connections kept for an hour", IdleTimeout, nil, "", func(w *world) { w.edit(named("kvsteer_pick", set(nil, "typed_extension_protocol_options"))) }},

	{"no router", RouterSilent, nil, "", func(w *world) { w.down[routerAddr] = true }},
	{"a router that wants a token", RouterSilent, nil, "", func(w *world) { w.status[routerPage] = 401 }},
	{"something else at the router's address", RouterSilent, nil, "", func(w *world) { w.pages[routerPage] = "go_goroutines 7\n" }},
	{"a router that is not ready", RouterUnready, nil, "", func(w *world) {
		w.status[routerAddr+"/readyz"] = 503
		w.pages[routerAddr+"/readyz"] = "pool chat: no endpoint is up\n"
	}},
	{"a wrong match", IndexDiffers, nil, "", func(w *world) { w.metric(routerPage, "kvsteer_index_walking", "1") }},
	{"a full index", IndexFull, nil, "", func(w *world) { w.metric(routerPage, "kvsteer_index_full_slots", "2") }},
	{"an endpoint that did not fit", IndexFull, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="index_full"}`, "1")
	}},
	{"a node with too much", IndexFull, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="index_share"}`, "1")
	}},
	{"blocks without their ancestors", BlocksUnclosed, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_endpoint_problem{endpoint="`+engine2+`",pool="chat",problem="not_closed"}`, "1")
	}},
	{"an endpoint that the router lacks", OtherConfig, nil, "", func(w *world) { w.dropRouterEndpoint() }},
	{"an endpoint that the router alone has", OtherConfig, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_pool_endpoint_up{endpoint="10.0.0.9:8000",pool="chat"}`, "1")
	}},
	{"an endpoint that is down for the router", EndpointDown, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_pool_endpoint_up{endpoint="`+engine2, "0")
	}},
	{"failing /tokenize", TokenizeFailing, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_tokenize_duration_seconds_count{outcome="timeout"`, "20")
	}},
	{"panics", RouterPanics, nil, "", func(w *world) { w.metric(routerPage, "kvsteer_extproc_panics_total", "1") }},
	{"a configuration that was refused", ReloadRefused, nil, "", func(w *world) { w.metric(routerPage, "kvsteer_config_last_reload_successful", "0") }},
	{"requests that ran elsewhere", ChoiceNotObeyed, nil, "", func(w *world) { w.metric(routerPage, `kvsteer_router_records_total{outcome="moved"`, "40") }},
	{"questions for models that fail", RefreshFailing, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_pool_models_refreshes_total{endpoint="`+engine1+`",outcome="unreachable"`, "9")
	}},
	{"unknown models", ModelsUnknown, nil, "", func(w *world) {
		w.metric(routerPage, `kvsteer_router_decisions_total{mode="on",pool="",reason="unknown_model",rung="load"}`, "30")
	}},
}

// file writes a file for the configuration to name.
func (w *world) file(text string) string {
	path := filepath.Join(w.t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// counter sets one of the second engine's counters that have an outcome.
func (w *world) counter(name, outcome, value string) {
	w.metric(routerPage, `kvsteer_subscriber_`+name+`{endpoint="`+engine2+`",outcome="`+outcome+`"`, value)
}

// onlyFirst leaves the foreign site one engine, which its Envoy knows.
func (w *world) onlyFirst() {
	w.configure("  - address: "+engine2+"\n    events: {listen: \"tcp://127.0.0.1:23102\", replay: \"tcp://127.0.0.1:23112\"}\n", "")
	w.dropRouterEndpoint()
}

// sglang makes the first engine one of that kind, without events. Its pages are written after its documentation: no such server was run.
func (w *world) sglang(info string) {
	w.configure("\n    events: {listen: \"tcp://127.0.0.1:23101\", replay: \"tcp://127.0.0.1:23111\"}", "")
	delete(w.pages, engine1+"/version")
	delete(w.pages, engine1+"/kv_event_sources")
	w.pages[engine1+"/server_info"] = info
	w.pages[engine1+"/metrics"] = "sglang:num_running_reqs{model_name=\"tiny\"} 0\n"
}

// TestSeeds holds that each damage is found, and nothing else.
func TestSeeds(t *testing.T) {
	for _, s := range seeds {
		t.Run(string(s.code)+" "+s.name, func(t *testing.T) {
			envoy := s.envoy
			if envoy == "" {
				envoy = "envoy-1.40.0"
			}
			w := newWorld(t, envoy)
			if envoy == "envoy-foreign" && s.code != EndpointNotInEnvoy && s.code != RouteTimeout {
				w.onlyFirst()
			}
			s.damage(w)
			r := w.run()
			want := append([]Code{s.code}, s.also...)
			slices.Sort(want)
			got := codes(r)
			if s.name == "a certificate that is none" {
				got = slices.DeleteFunc(got, func(c Code) bool { return c == EngineSilent })
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("codes (-want +got):\n%s\n%+v", diff, r.Findings)
			}
		})
	}
}

// TestModes holds that there is one finding for a pool, which says both what is configured and what a call has set.
func TestModes(t *testing.T) {
	tests := []struct {
		name         string
		configured   string
		on, off, obs string // of the router
		want         string // "": no finding
	}{
		{"as configured, all", "mode: on", "100", "0", "0", ""},
		{"as configured, in part", "percent: 10", "10", "0", "90", "10 % of its requests are steered"},
		{"as configured, off", "mode: off", "0", "100", "0", "its mode is off"},
		{"observed, on by a call", "mode: observe", "100", "0", "0", "the configuration says mode observe, and the router is in mode on with 100 % by an admin call, until it restarts"},
		{"on, observed by a call", "mode: on", "0", "0", "100", "the configuration says mode on with 100 %, and the router is in mode observe by an admin call, until it restarts"},
		{"observed, off by a call", "mode: observe", "0", "100", "0", "the configuration says mode observe, and the router is in mode off by an admin call, until it restarts"},
		{"in part, more by a call", "percent: 10", "50", "0", "50", "the configuration says mode on with 10 %, and the router is in mode on with 50 % by an admin call, until it restarts"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "envoy-1.40.0")
			w.configure("- name: chat", "- name: chat\n  "+tt.configured)
			for mode, share := range map[string]string{"on": tt.on, "off": tt.off, "observe": tt.obs} {
				w.metric(routerPage, `kvsteer_router_pool_percent{mode="`+mode+`"`, share)
			}
			var got, want []string
			for _, f := range w.run().Findings {
				got = append(got, string(f.Code)+" "+f.Message)
			}
			if tt.want != "" {
				want = []string{"KV102 " + tt.want}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("findings, -want +got:\n%s", diff)
			}
		})
	}
}

// TestEveryCodeIsSeeded holds that no code of the catalogue is without a damage that brings it out.
func TestEveryCodeIsSeeded(t *testing.T) {
	for _, e := range Catalogue() {
		if !slices.ContainsFunc(slices.Concat(seeds, nodeSeeds()), func(s seed) bool { return s.code == e.Code }) {
			t.Errorf("%s (%s) has no seed", e.Code, e.Meaning)
		}
	}
}
