package lab

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

const ownConfig = `
static_resources:
  listeners:
  - filter_chains:
    - filters:
      - typed_config:
          access_log: [{typed_config: {log_format: {json_format: {code: c}}}}]
          http_filters: [{name: auth}, {name: router}]
          route_config: {virtual_hosts: [{domains: [a], routes: [{name: mine}]}]}
  clusters: [{name: engines}]
`

func TestMerge(t *testing.T) {
	const pieces = `
layered_runtime: {layers: [{name: kvsteer}]}
early_header_mutation_extensions: [{name: early}]
http_filters: [{name: ask}, {name: move}]
access_log: [{name: records}]
access_log_json_format: {pool: p}
virtual_hosts: [{domains: [a], routes: [{name: one}, {name: two}]}, {domains: [b], routes: [{name: three}]}]
clusters: [{name: pick}]
your_clusters: [{name: engines, load_balancing_policy: {a: b}}]
`
	const want = `
layered_runtime: {layers: [{name: kvsteer}]}
static_resources:
  listeners:
  - filter_chains:
    - filters:
      - typed_config:
          early_header_mutation_extensions: [{name: early}]
          access_log: [{typed_config: {log_format: {json_format: {code: c, pool: p}}}}, {name: records}]
          http_filters: [{name: auth}, {name: ask}, {name: move}, {name: router}]
          route_config:
            virtual_hosts:
            - {domains: [a], routes: [{name: one}, {name: two}, {name: mine}]}
            - {domains: [b], routes: [{name: three}]}
  clusters: [{name: engines, load_balancing_policy: {a: b}}, {name: pick}]
`
	for _, tt := range []struct {
		name, config, pieces, want, err string
	}{
		{"all pieces", ownConfig, pieces, want, ""},
		{"few pieces", ownConfig, "http_filters: [{name: ask}]", strings.Replace(ownConfig, "{name: router}", "{name: ask}, {name: router}", 1), ""},
		{"a layer is there", "layered_runtime: {layers: [{name: mine}]}" + ownConfig, "layered_runtime: {layers: [{name: kvsteer}]}", "layered_runtime: {layers: [{name: mine}, {name: kvsteer}]}" + ownConfig, ""},
		{"no such cluster", ownConfig, "your_clusters: [{name: shop}]", "", `no cluster "shop"`},
		{"no listener", "static_resources: {clusters: []}", pieces, "", "no HTTP connection manager"},
		{"no routes", strings.Replace(ownConfig, "route_config", "rds", 1), pieces, "", "no HTTP connection manager"},
		{"no filters", strings.Replace(ownConfig, "[{name: auth}, {name: router}]", "[]", 1), pieces, "", "no HTTP connection manager"},
		{"not a configuration", "[1, 2]", pieces, "", "merge"},
		{"pieces are none", ownConfig, "{", "", "merge"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := Merge([]byte(tt.config), []byte(tt.pieces))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got, want object
			if err := yaml.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
