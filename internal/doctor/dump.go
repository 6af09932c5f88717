package doctor

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// dump is Envoy's /config_dump, as far as it concerns us.
type dump struct {
	managers []*manager
	clusters map[string]tree
	hosts    map[string][]host // by cluster, as /clusters lists them
}

// host is one resolved address of a cluster.
type host struct {
	address string // ip:port, or the path of a Unix socket
	failed  bool   // Envoy's active health check has failed
}

// manager is one HTTP connection manager.
type manager struct {
	name     string // of its listener
	config   tree
	routes   []*route // of all virtual hosts, in order
	bodyRoom float64  // bytes of a body that the listener lets a filter hold
	partly   bool     // its routes come from a source that was not in the dump
}

// route is one route, with the parts of its surroundings that reach into it.
type route struct {
	host   int // position of its virtual host
	label  string
	config tree
	around []tree // per-filter configurations, the route's first, then its virtual host's and its table's
	room   []tree // where a body limit may stand, likewise
}

const bodyRoom = 1 << 20 // Envoy's default of per_connection_buffer_limit_bytes

func newDump(config, clusters tree) *dump {
	d := &dump{clusters: map[string]tree{}, hosts: map[string][]host{}}
	tables := map[string]tree{}
	for _, part := range config.list("configs") {
		for _, key := range []string{"static_clusters", "dynamic_active_clusters"} {
			for _, entry := range part.list(key) {
				if c := entry.at("cluster"); c.text("name") != "" {
					d.clusters[c.text("name")] = c
				}
			}
		}
		for _, key := range []string{"static_route_configs", "dynamic_route_configs"} {
			for _, entry := range part.list(key) {
				if t := entry.at("route_config"); t.text("name") != "" {
					tables[t.text("name")] = t
				}
			}
		}
	}
	for _, part := range config.list("configs") {
		for _, entry := range part.list("static_listeners") {
			d.listener(entry.at("listener"), tables)
		}
		for _, entry := range part.list("dynamic_listeners") {
			d.listener(entry.at("active_state", "listener"), tables)
		}
	}
	for _, status := range clusters.list("cluster_statuses") {
		for _, h := range status.list("host_statuses") {
			if a := address(h.at("address")); a != "" {
				d.hosts[status.text("name")] = append(d.hosts[status.text("name")], host{a, h.flag("health_status", "failed_active_health_check")})
			}
		}
	}
	return d
}

func (d *dump) listener(l tree, tables map[string]tree) {
	name := l.text("name")
	if name == "" {
		name = address(l.at("address"))
	}
	room := float64(bodyRoom)
	if n, ok := l.number("per_connection_buffer_limit_bytes"); ok {
		room = n
	}
	configs := []tree{l.at("api_listener", "api_listener")}
	for _, chain := range append(l.list("filter_chains"), l.at("default_filter_chain")) {
		for _, f := range chain.list("filters") {
			configs = append(configs, typed(f.at("typed_config")))
		}
	}
	for _, c := range configs {
		if isType(c, "HttpConnectionManager") {
			d.managers = append(d.managers, newManager(name, c, room, tables))
		}
	}
}

func newManager(name string, c tree, room float64, tables map[string]tree) *manager {
	m := &manager{name: name, config: c, bodyRoom: room}
	table := c.at("route_config")
	if !table.there() {
		table = tables[c.text("rds", "route_config_name")]
	}
	m.partly = !table.there()
	for i, vh := range table.list("virtual_hosts") {
		for j, r := range vh.list("routes") {
			label := r.text("name")
			if label == "" {
				label = vh.text("name") + " #" + strconv.Itoa(j+1)
			}
			const perFilter = "typed_per_filter_config"
			m.routes = append(m.routes, &route{
				host: i, label: label, config: r, around: []tree{r.at(perFilter), vh.at(perFilter), table.at(perFilter)}, room: []tree{r, vh},
			})
		}
	}
	return m
}

// isType compares the last part of a type URL.
func isType(t tree, name string) bool {
	url := t.text("@type")
	return url == name || strings.HasSuffix(url, "."+name)
}

// typed looks into a TypedStruct, the form in which control planes pass on what they have no type for.
func typed(t tree) tree {
	if !isType(t, "TypedStruct") {
		return t
	}
	value, _ := t.at("value").v.(map[string]any)
	inner := map[string]any{"@type": t.text("type_url")}
	for k, v := range value {
		inner[k] = v
	}
	return tree{inner}
}

// address writes an address of Envoy's as ip:port, name:port or the path of a socket.
func address(a tree) string {
	if path := a.text("pipe", "path"); path != "" {
		return path
	}
	port, ok := a.number("socket_address", "port_value")
	if !ok {
		return ""
	}
	return net.JoinHostPort(a.text("socket_address", "address"), strconv.Itoa(int(port)))
}

// addresses are where a cluster leads: its own list, and what Envoy has resolved.
func (d *dump) addresses(cluster string) []string {
	var all []string
	for _, group := range d.clusters[cluster].list("load_assignment", "endpoints") {
		for _, e := range group.list("lb_endpoints") {
			all = append(all, address(e.at("endpoint", "address")))
		}
	}
	for _, h := range d.hosts[cluster] {
		if !slices.Contains(all, h.address) {
			all = append(all, h.address)
		}
	}
	return all
}

// members are the clusters behind one, in order: those of a composite or aggregate cluster, else itself.
func (d *dump) members(cluster string) []string {
	config := typed(d.clusters[cluster].at("cluster_type", "typed_config"))
	var all []string
	for _, m := range config.list("clusters") {
		if name := m.text("name"); name != "" {
			all = append(all, name)
		} else if name, ok := m.v.(string); ok {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return []string{cluster}
	}
	return all
}

// targets are the clusters that a route names.
func (r *route) targets() []string {
	action := r.config.at("route")
	if name := action.text("cluster"); name != "" {
		return []string{name}
	}
	var all []string
	for _, w := range action.list("weighted_clusters", "clusters") {
		all = append(all, w.text("name"))
	}
	return all
}
