package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/goccy/go-yaml"
)

type object = map[string]any

// Merge adds what `kvsteer envoy --filter-only` prints to an Envoy configuration with one listener and one filter chain, as the comments
// in the pieces say. The result is JSON, which Envoy reads from a .yaml file as well.
func Merge(config, pieces []byte) ([]byte, error) {
	var c, p object
	if err := errors.Join(yaml.Unmarshal(config, &c), yaml.Unmarshal(pieces, &p)); err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	static := at[object](c, "static_resources")
	manager := at[object](c, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
	routes := at[object](manager, "route_config")
	filters := at[[]any](manager, "http_filters")
	if static == nil || routes == nil || len(filters) == 0 {
		return nil, errors.New("merge: the configuration has no HTTP connection manager with filters and routes in its first listener")
	}
	if layers := at[[]any](p, "layered_runtime", "layers"); layers != nil {
		c["layered_runtime"] = object{"layers": append(at[[]any](c, "layered_runtime", "layers"), layers...)}
	}
	if early := at[[]any](p, "early_header_mutation_extensions"); early != nil {
		manager["early_header_mutation_extensions"] = append(at[[]any](manager, "early_header_mutation_extensions"), early...)
	}
	manager["http_filters"] = slices.Insert(slices.Clone(filters), len(filters)-1, at[[]any](p, "http_filters")...)
	if records := at[[]any](p, "access_log"); records != nil {
		manager["access_log"] = append(at[[]any](manager, "access_log"), records...)
	}
	for _, l := range at[[]any](manager, "access_log") { // the reader's own, where they are JSON
		if format := at[object](l, "typed_config", "log_format", "json_format"); format != nil {
			maps.Copy(format, at[object](p, "access_log_json_format"))
		}
	}
	hosts := at[[]any](routes, "virtual_hosts")
	for _, piece := range at[[]any](p, "virtual_hosts") {
		piece := piece.(object)
		i := slices.IndexFunc(hosts, func(h any) bool { return sharesDomain(h.(object), piece) })
		if i < 0 {
			hosts = append(hosts, piece)
			continue
		}
		host := hosts[i].(object)
		host["routes"] = append(slices.Clone(at[[]any](piece, "routes")), at[[]any](host, "routes")...)
	}
	routes["virtual_hosts"] = hosts
	for _, piece := range at[[]any](p, "your_clusters") {
		piece := piece.(object)
		cs := at[[]any](static, "clusters")
		i := slices.IndexFunc(cs, func(c any) bool { return at[string](c, "name") == at[string](piece, "name") })
		if i < 0 {
			return nil, fmt.Errorf("merge: the configuration has no cluster %q", at[string](piece, "name"))
		}
		maps.Copy(cs[i].(object), piece)
	}
	static["clusters"] = append(at[[]any](static, "clusters"), at[[]any](p, "clusters")...)
	return json.MarshalIndent(c, "", " ")
}

// at follows keys and positions; what is not there, or is of another type, is the zero value.
func at[T any](v any, path ...any) T {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(object)
			v = m[step]
		case int:
			l, _ := v.([]any)
			if step >= len(l) {
				v = nil
				continue
			}
			v = l[step]
		}
	}
	t, _ := v.(T)
	return t
}

func sharesDomain(a, b object) bool {
	for _, d := range at[[]any](a, "domains") {
		if slices.Contains(at[[]any](b, "domains"), d) {
			return true
		}
	}
	return false
}
