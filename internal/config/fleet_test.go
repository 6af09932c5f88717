package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const fleetPool = "pools:\n- name: chat\n  models: [llama]\n"

func TestNodes(t *testing.T) {
	text := `
nodes:
- address: 127.0.0.1:9010
- {address: "[::ffff:10.0.0.1]:9010", allow: [10.0.1.0/24, "fd00::1"]}
- dns: nodes.example.org:9010
- srv: _feed._tcp.nodes.example.org.
feed: {insecure: true, stale_after: 5s}
` + fleetPool
	c, err := Parse("k.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []NodeSource{
		{Address: "127.0.0.1:9010"},
		{Address: "10.0.0.1:9010", Allow: []string{"10.0.1.0/24", "fd00::1"}},
		{DNS: "nodes.example.org:9010"},
		{SRV: "_feed._tcp.nodes.example.org."},
	}
	if diff := cmp.Diff(want, c.Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if !c.Announces(&c.Pools[0]) || !c.Dynamic(&c.Pools[0]) {
		t.Error("a pool without endpoints takes none of those that nodes announce")
	}
}

func TestOrigins(t *testing.T) {
	const nodes, endpoints = "nodes: [{address: \"127.0.0.1:9010\"}]\n", "  endpoints: [{address: \"10.0.0.1:80\"}]\n"
	tests := []struct {
		name, text         string
		announced, dynamic bool
	}{
		{"static", fleetPool + endpoints, false, false},
		{"static beside nodes", nodes + fleetPool + endpoints, false, false},
		{"static and announced", nodes + fleetPool + endpoints + "  announced: true\n", true, true},
		{"dns", fleetPool + "  dns: engines.test:8000\n", false, true},
		{"dns beside nodes", nodes + fleetPool + "  dns: engines:8000\n", false, true},
		{"dns and announced", nodes + fleetPool + "  dns: engines.test:8000\n  announced: true\n", true, true},
		{"srv", fleetPool + "  srv: _http._tcp.engines.test\n", false, true},
		{"static and dns", fleetPool + endpoints + "  dns: engines.test:8000\n", false, true},
		{"announced", nodes + fleetPool, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("k.yaml", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if a, d := c.Announces(&c.Pools[0]), c.Dynamic(&c.Pools[0]); a != tt.announced || d != tt.dynamic {
				t.Errorf("announced %v, dynamic %v", a, d)
			}
		})
	}
}

func TestFleetProblems(t *testing.T) {
	const endpoints = "  endpoints: [{address: \"10.0.0.1:80\"}]\n"
	one := func(n string) string { return "feed: {insecure: true}\nnodes: [" + n + "]\n" + fleetPool + endpoints }
	tests := []struct {
		name, text string
		want       string // "" = none
	}{
		{"no endpoints", fleetPool, "k.yaml:2: pools[0].endpoints: at least one endpoint is needed, or dns, srv, or nodes that announce some"},
		{"not announced", "nodes: [{address: \"127.0.0.1:9010\"}]\n" + fleetPool + "  announced: false\n", "k.yaml:3: pools[0].endpoints: at least one"},
		{"announced without nodes", fleetPool + "  announced: true\n", "k.yaml:4: pools[0].announced: has no effect without nodes"},
		{"another word", fleetPool + endpoints + "  announced: maybe\n", `pools[0].announced: "maybe" is none of auto, true and false`},
		{"both names", fleetPool + "  dns: a.test:80\n  srv: _a._tcp.test\n", "pools[0].srv: dns and srv exclude each other"},
		{"an address for a name", fleetPool + "  dns: 10.0.0.1:80\n", `pools[0].dns: "10.0.0.1:80" is an address, no name`},
		{"no port", fleetPool + "  dns: engines.test\n", `pools[0].dns: "engines.test" is not name:port`},
		{"port 0", fleetPool + "  dns: engines.test:0\n", `pools[0].dns: "engines.test:0" is not name:port`},
		{"a port with a name", fleetPool + "  dns: engines.test:http\n", "is not name:port"},
		{"long name", fleetPool + "  dns: " + strings.Repeat("a.", 127) + "a:80\n", "is not name:port"},
		{"spaces", fleetPool + "  dns: \"a b:80\"\n", "is not name:port"},
		{"srv with a port", fleetPool + "  srv: _a._tcp.test:80\n", "is not the name of SRV records"},
		{"srv of one label", fleetPool + "  srv: engines\n", "is not the name of SRV records"},
		{"pinned ranks of names", fleetPool + "  dns: a.test:80\n  pin_rank: true\n", "pools[0].pin_rank: needs endpoints that stand in the configuration"},
		{"refresh", "dns_refresh: 1ms\n" + fleetPool + endpoints, "k.yaml:1: dns_refresh: 1ms is not in the range 100ms to 1h0m0s"},
		{"a name for a name server", "dns_servers: [\"127.0.0.1:53\", \"ns.test:53\"]\n" + fleetPool + endpoints, `k.yaml:1: dns_servers[1]: "ns.test:53" is not ip:port of one host`},
		{"stale as soon as a node is silent at all", "feed: {stale_after: 1s}\n" + fleetPool + endpoints, "k.yaml:1: feed.stale_after: 1s is not in the range 2s to 10m0s"},
		{"no authorities", "feed: {tls: {server_name: a}}\n" + fleetPool + endpoints, "k.yaml:1: feed.tls: ca_file is needed"},
		{"half a certificate", "feed: {tls: {ca_file: a, key_file: k}}\n" + fleetPool + endpoints, "k.yaml:1: feed.tls: cert_file and key_file are both needed"},
		{"no server name", "feed: {tls: {ca_file: a}}\n" + fleetPool + endpoints, ""},

		{"nothing", one("{allow: [10.0.0.1]}"), "k.yaml:2: nodes[0]: exactly one of address, dns and srv is needed"},
		{"two", one("{address: \"127.0.0.1:1\", dns: \"a:1\"}"), "k.yaml:2: nodes[0]: exactly one of address, dns and srv is needed"},
		{"name as address", one("{address: \"node1:9010\"}"), `nodes[0].address: "node1:9010" is not ip:port with an address of one host (for a name: dns)`},
		{"any address", one("{address: \"0.0.0.0:9010\"}"), "is not ip:port with an address of one host"},
		{"a zone", one("{address: \"[fe80::1%eth0]:9010\"}"), "is not ip:port with an address of one host"},
		{"twice", one("{address: \"127.0.0.1:1\"}, {address: \"[::ffff:127.0.0.1]:1\"}"), `nodes[1].address: "127.0.0.1:1" stands at nodes[0].address already`},
		{"bad allow", one("{dns: \"a:1\", allow: [all]}"), `nodes[0].allow[0]: "all" is neither an IP address nor a network`},
		{"allow with host bits", one("{dns: \"a:1\", allow: [10.0.0.1/8]}"), `"10.0.0.1/8" is neither`},
		{"clear text", "nodes: [{address: \"10.0.0.9:9010\"}]\n" + fleetPool + endpoints, `nodes[0]: "10.0.0.9:9010" is not on loopback`},
		{"clear text to a name", "nodes: [{dns: \"node:9010\"}]\n" + fleetPool + endpoints, `nodes[0]: "node:9010" is not on loopback`},
		{"tls to a name", "feed: {tls: {ca_file: a}}\nnodes: [{dns: \"node:9010\"}]\n" + fleetPool + endpoints, ""},
		{"too many", one(strings.Repeat("{dns: \"a:1\"}, ", 1025)), "nodes: 1025 entries, want at most 1024"},

		{
			"an engine cannot connect to two routers", "envoy: {routers: [\"10.0.0.1:1\", \"10.0.0.2:1\"]}\n" + fleetPool + "  endpoints: [{address: \"10.0.0.1:80\", events: {listen: \"tcp://127.0.0.1:5557\"}}]\n",
			"k.yaml:5: pools[0].endpoints[0].events.listen: an engine that connects feeds exactly one subscriber, and envoy.routers names 2: let a node (kvsteer node) listen",
		},
		{"two routers may dial one", "envoy: {routers: [\"10.0.0.1:1\", \"10.0.0.2:1\"]}\n" + fleetPool + "  endpoints: [{address: \"10.0.0.1:80\", events: {dial: \"tcp://127.0.0.1:5557\"}}]\n", ""},
		{"a name may have one address", "envoy: {routers: [\"router:9002\"]}\n" + fleetPool + "  endpoints: [{address: \"10.0.0.1:80\", events: {listen: \"tcp://127.0.0.1:5557\"}}]\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("k.yaml", []byte(tt.text))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestSeveralRouters(t *testing.T) {
	tests := []struct {
		name, routers string
		why           string
		certain       bool
	}{
		{"none", "", "", false},
		{"one", `"10.0.0.1:9002"`, "", false},
		{"one name", `"router:9002"`, `envoy.routers names "router:9002", which may have several addresses`, false},
		{"two", `"10.0.0.1:9002", "[fd00::1]:9002"`, "envoy.routers names 2", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("k.yaml", []byte("envoy: {routers: ["+tt.routers+"]}\n"+fleetPool+"  endpoints: [{address: \"10.0.0.1:80\"}]\n"))
			if err != nil {
				t.Fatal(err)
			}
			if why, certain := c.SeveralRouters(); why != tt.why || certain != tt.certain {
				t.Errorf("%q, certain %v", why, certain)
			}
		})
	}
}

// Entries of nodes are told apart by what they name.
func TestDiffOfNodes(t *testing.T) {
	parse := func(nodes string) *Config {
		c, err := Parse("k.yaml", []byte("feed: {insecure: true}\nnodes: ["+nodes+"]\n"+fleetPool))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	got := Diff(parse(`{dns: "a:1"}, {dns: "b:1"}, {srv: "c.test"}`), parse(`{srv: "c.test", allow: [10.0.0.1]}, {dns: "b:1"}, {address: "10.0.0.1:1"}`))
	want := []Change{
		{"nodes[a:1]", "nodes", Removed}, {"nodes[c.test].allow", "nodes.allow", Changed}, {"nodes[10.0.0.1:1]", "nodes", Added},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
