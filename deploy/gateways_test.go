package deploy

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/config"
)

// at follows keys and positions through what was read from YAML; nil where there is nothing.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

// printed is what kvsteer envoy prints for the routers' configuration, with a cluster of the gateway as that of the engines.
func printed(t *testing.T, cluster string) map[string]any {
	t.Helper()
	file := here(t, "kubernetes/router/kvsteer.yaml", "  dns: chat-engines:8000", "  fallback: {cluster: \""+cluster+"\"}\n  endpoints: [{address: \"10.0.0.11:8000\"}]\n  #")
	var pieces map[string]any
	if err := yaml.Unmarshal([]byte(run(t, ".", kvsteer(t), "envoy", "--config", file, "--filter-only")), &pieces); err != nil {
		t.Fatal(err)
	}
	return pieces
}

// TestIstioFilter holds the EnvoyFilter to what kvsteer envoy prints: every piece is in its place, and nothing else.
func TestIstioFilter(t *testing.T) {
	const engines = "outbound|8000||chat.llm.svc.cluster.local"
	filter := documents[map[string]any](t, "kubernetes/gateways/istio/envoyfilter.yaml", "EnvoyFilter")[0]
	pieces := printed(t, engines)
	route := at(pieces, "virtual_hosts", 0, "routes", 1).(map[string]any)
	if route["name"] != "chat/decided" {
		t.Fatalf("the second printed route is %v", route["name"])
	}
	action := map[string]any{}
	for k, v := range route["route"].(map[string]any) {
		action[k] = v
	}
	delete(action, "cluster") // Istio's own
	retry := map[string]any{}
	for k, v := range action["retry_policy"].(map[string]any) {
		retry[k] = v
	}
	delete(retry, "retry_host_predicate") // the same is in every route of Istio's; a merge would double it
	action["retry_policy"] = retry
	router := at(pieces, "clusters", 0).(map[string]any)
	// DNS of another namespace than the proxies' own is asked by the whole name.
	socket := at(router, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address", "socket_address").(map[string]any)
	socket["address"] = socket["address"].(string) + ".llm.svc.cluster.local"
	enabled := func(filter any) any {
		m := filter.(map[string]any)
		delete(m, "disabled") // the Gateway serves this route alone
		return m
	}
	cluster := at(pieces, "your_clusters", 0).(map[string]any)
	want := []any{
		map[string]any{"typed_config": map[string]any{
			"@type":                            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
			"early_header_mutation_extensions": pieces["early_header_mutation_extensions"],
			"access_log":                       pieces["access_log"],
		}},
		enabled(at(pieces, "http_filters", 0)),
		enabled(at(pieces, "http_filters", 1)),
		map[string]any{"request_body_buffer_limit": route["request_body_buffer_limit"], "route": action},
		router,
		map[string]any{"load_balancing_policy": cluster["load_balancing_policy"]}, // circuit breakers are the DestinationRule's
	}
	var got []any
	for _, p := range at(filter, "spec", "configPatches").([]any) {
		got = append(got, at(p, "patch", "value"))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the EnvoyFilter is not what kvsteer envoy prints (-want +got):\n%s", diff)
	}
	match := at(filter, "spec", "configPatches", 5, "match", "cluster")
	if diff := cmp.Diff(map[string]any{"service": "chat.llm.svc.cluster.local", "portNumber": uint64(8000)}, match); diff != "" {
		t.Errorf("the engines' cluster (-want +got):\n%s", diff)
	}
}

// TestEnvoyGatewayPolicies holds policies and patches of Envoy Gateway to the routers' configuration and to what kvsteer envoy prints.
func TestEnvoyGatewayPolicies(t *testing.T) {
	cfg, err := config.Load("kubernetes/router/kvsteer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pieces := printed(t, "httproute/llm/chat/rule/0")
	const dir = "kubernetes/gateways/envoy-gateway"
	client := documents[map[string]any](t, dir+"/policies.yaml", "ClientTrafficPolicy")[0]
	var removed []any
	for _, m := range at(pieces, "early_header_mutation_extensions", 0, "typed_config", "mutations").([]any) {
		removed = append(removed, at(m, "remove"))
	}
	if diff := cmp.Diff(removed, at(client, "spec", "headers", "earlyRequestHeaders", "remove")); diff != "" {
		t.Errorf("headers that are removed early (-want +got):\n%s", diff)
	}
	ask := at(documents[map[string]any](t, dir+"/policies.yaml", "EnvoyExtensionPolicy")[0], "spec", "extProc", 0)
	filter := at(pieces, "http_filters", 1, "typed_config").(map[string]any)
	if got, want := at(ask, "messageTimeout"), at(filter, "message_timeout"); got != want || at(ask, "failOpen") != true || at(ask, "processingMode", "request", "body") != "Buffered" {
		t.Errorf("the routers are asked by %+v", ask)
	}
	if diff := cmp.Diff(at(filter, "metadata_options", "receiving_namespaces", "untyped"), at(ask, "metadata", "writableNamespaces")); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
	traffic := documents[map[string]any](t, dir+"/policies.yaml", "BackendTrafficPolicy")[0]
	if got := at(traffic, "spec", "requestBuffer", "limit"); got != strings.TrimSuffix(cfg.Limits.Body.String(), "B") {
		t.Errorf("bodies of up to %v are held, the routers take %s", got, cfg.Limits.Body)
	}
	// The header of the endpoint-picker protocol holds the list.
	if cfg.Headers != "gaie" || !cfg.GAIE.List || at(traffic, "spec", "loadBalancer", "endpointOverride", "extractFrom", 0, "header") != removed[0] {
		t.Errorf("the list is read from %v", at(traffic, "spec", "loadBalancer"))
	}

	values := map[string]any{}
	for _, p := range at(documents[map[string]any](t, dir+"-patches/envoypatchpolicy.yaml", "EnvoyPatchPolicy")[0], "spec", "jsonPatches").([]any) {
		path := at(p, "operation", "path").(string)
		values[path[strings.LastIndex(path, "/")+1:]] = at(p, "operation", "value")
	}
	want := map[string]any{
		"mutation_rules":    filter["mutation_rules"],
		"forward_rules":     filter["forward_rules"],
		"buffer_size_bytes": at(pieces, "access_log", 0, "typed_config", "common_config", "buffer_size_bytes"),
		"override_host_sources": at(pieces, "your_clusters", 0, "load_balancing_policy", "policies", 0, "typed_extension_config", "typed_config",
			"override_host_sources"),
	}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}
