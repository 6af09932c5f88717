package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const good = `
listen: unix:/run/kvsteer/extproc.sock
budget: 300ms
limits: {body: 16MiB}
pools:
- name: chat
  models: [llama]
  adapters: [legal]
  endpoints:
  - address: 10.0.0.11:8000
    events: {listen: "tcp://127.0.0.1:5557"}
  - address: 10.0.0.12:8000
    events: {dial: "tcp://10.0.0.12:5557", topic: kv}
  - address: "[fd00::1]:8000"
`

func TestParseFillsDefaults(t *testing.T) {
	got, err := Parse("k.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Listen = "unix:/run/kvsteer/extproc.sock"
	want.Budget = Duration(300 * time.Millisecond)
	want.Limits.Body = 16 << 20
	want.Pools = []Pool{{
		Name: "chat", Models: []string{"llama"}, Adapters: []string{"legal"}, AdaptersRefresh: Duration(30 * time.Second), PrefillRate: 8000, Mode: "on", Percent: 100, Announced: "auto", Fallback: Fallback{To: "endpoints"},
		Approximate: Approximate{CacheTokens: 400_000, Lifetime: Duration(time.Hour)},
		Tiers:       Tiers{HostWeight: 0.8, DiskWeight: 0.5},
		Endpoints: []Endpoint{
			{Address: "10.0.0.11:8000", Events: Events{Listen: "tcp://127.0.0.1:5557", Ranks: 1}},
			{Address: "10.0.0.12:8000", Events: Events{Dial: "tcp://10.0.0.12:5557", Topic: "kv", Ranks: 1}},
			{Address: "[fd00::1]:8000", Events: Events{Ranks: 1}},
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config differs (-want +got):\n%s", diff)
	}
	if want.Tokenize.Timeout.Std() != 250*time.Millisecond || want.Limits.Bodies != 1<<30 || want.Limits.PromptTokens != 262144 {
		t.Errorf("documented defaults differ: %+v", want)
	}
}

// Mappings whose first key says most have a short form.
func TestShortForms(t *testing.T) {
	long, err := Parse("k.yaml", []byte("admin: {listen: \"127.0.0.1:1\"}\n"+good+"  fallback: {to: none}\n"))
	if err != nil {
		t.Fatal(err)
	}
	short, err := Parse("k.yaml", []byte("admin: 127.0.0.1:1\n"+good+"  fallback: none\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(long, short); diff != "" {
		t.Errorf("short forms differ (-long +short):\n%s", diff)
	}
}

// Off loopback, each listener has a way to be safe.
func TestOffLoopback(t *testing.T) {
	for _, head := range []string{
		"listen: 10.0.0.1:9002\ninsecure: true\n",
		"listen: 10.0.0.1:9002\ntls: {cert_file: c, key_file: k}\n",
		"admin: {listen: \"10.0.0.1:9003\", token_file: t, tls: {cert_file: c, key_file: k}}\n",
		"admin: {listen: \"10.0.0.1:9003\", token_file: t}\ninsecure: true\n",
	} {
		if _, err := Parse("k.yaml", []byte(head+strings.Replace(good, "listen: unix:/run/kvsteer/extproc.sock\n", "", 1))); err != nil {
			t.Errorf("%s%v", head, err)
		}
	}
}

// Endpoints are named by one spelling of their address wherever they are compared.
func TestAddressesAreCanonical(t *testing.T) {
	cfg, err := Parse("k.yaml", []byte(strings.Replace(good, "[fd00::1]:8000", "[FD00:0:0::01]:8000", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Pools[0].Endpoints[2].Address; got != "[fd00::1]:8000" {
		t.Errorf("address %q", got)
	}
}

func TestParseReportsEveryProblem(t *testing.T) {
	endpoint := "  endpoints: [{address: \"10.0.0.1:80\"}]\n"
	pool := "pools:\n- name: a\n  models: [m]\n" + endpoint
	tests := []struct {
		name, file string
		want       []string
	}{
		{"empty file", "", []string{"k.yaml: pools: at least one pool is needed, with name, models and endpoints"}},
		{"not YAML", "pools: [", []string{"k.yaml:1: not valid YAML at column 8: sequence end token ']' not found"}},
		{"a header in one text", pool + "  match: {header: \"authorization: Bearer a-secret\"}\n", []string{"k.yaml:5: pools[0].match.header: a mapping of keys to values is needed here, not a text"}},
		{"not a configuration", strings.Repeat("a", 201), []string{"k.yaml:1: a mapping of keys to values is needed here, not a text of 201 bytes", "pools: at least one"}},
		{"not a mapping", "- 1", []string{"k.yaml:1: a mapping of keys to values is needed here, not a list", "pools: at least one"}},
		{"misspelt keys at two depths", "lisen: x\n" + pool + "  endpoits: []\n", []string{
			`k.yaml:1: lisen: unknown key, did you mean "listen"?`,
			`k.yaml:6: pools[0].endpoits: unknown key, did you mean "endpoints"?`,
		}},
		{"far key lists the known ones", "probe: {zzzzzzzz: 1}\n" + pool, []string{`k.yaml:1: probe.zzzzzzzz: unknown key; known here: interval`}},
		{"twice", "budget: 1ms\nbudget: 2ms\n" + pool, []string{`"budget" already defined`}},
		{"wrong types", "insecure: maybe\nbudget: 5\nlimits: {body: 32, prompt_tokens: many}\nindex: 5\n" + pool, []string{
			`k.yaml:1: insecure: "maybe" is neither true nor false`,
			`k.yaml:2: budget: "5" is not a duration such as 250ms, 2s or 1m30s`,
			`k.yaml:3: limits.body: "32" is not a size such as 512B, 64KiB, 32MiB or 1GiB`,
			`k.yaml:3: limits.prompt_tokens: "many" is not a whole number`,
			`k.yaml:4: index: a mapping of keys to values is needed here, not "5"`,
		}},
		{"ranges", "tokenize: {concurrency: 0, timeout: 2s}\nprobe: {interval: 1ms}\nindex: {max_blocks: 1}\n" + pool, []string{
			"k.yaml:1: tokenize.concurrency: 0 is not in the range 1 to 65536",
			"k.yaml:1: tokenize.timeout: 2s is above budget (400ms)",
			"k.yaml:2: probe.interval: 1ms is not in the range 10ms to 1h0m0s",
			"k.yaml:3: index.max_blocks: 1 is not in the range 1000 to 1000000000",
		}},
		{"vocabulary that is not spoken", "gaie: {unavailable: pass, shed_backlog: 9, list: true, served: true}\n" + pool, []string{
			"k.yaml:1: gaie.unavailable: has no effect without headers: gaie",
			"k.yaml:1: gaie.shed_backlog: has no effect without headers: gaie",
			"k.yaml:1: gaie.list: has no effect without headers: gaie",
			"k.yaml:1: gaie.served: has no effect without headers: gaie",
		}},
		{"vocabulary", "headers: x-kvsteer\ngaie: {unavailable: 503, shed_backlog: -1, list: 8}\n" + pool, []string{
			`k.yaml:1: headers: "x-kvsteer" is neither kvsteer nor gaie`,
			`k.yaml:2: gaie.unavailable: "503" is neither error nor pass`,
			"k.yaml:2: gaie.shed_backlog: -1 is not in the range 0 to 1000000000",
			`k.yaml:2: gaie.list: "8" is neither true nor false`,
		}},
		{"size overflow", "limits: {body: 99999999999GiB}\n" + pool, []string{`"99999999999GiB" is not a size`}},
		{"budget against Envoy", "budget: 1s\n" + pool, []string{"k.yaml:1: budget: 1s is not below envoy.message_timeout (1s)"}},
		{"default budget against Envoy", "envoy: {message_timeout: 300ms}\n" + pool, []string{"k.yaml: budget: 400ms is not below envoy.message_timeout (300ms)"}},
		{"open listener", "listen: 0.0.0.0:9002\nadmin: 10.0.0.1:9003\n" + pool, []string{
			`k.yaml:1: listen: "0.0.0.0:9002" is not on loopback`,
			`k.yaml:2: admin.listen: "10.0.0.1:9003" is not on loopback`,
		}},
		{"names for addresses", "pools:\n- name: a b\n  models: [\"\"]\n  fallback: maybe\n  endpoints:\n  - address: engine:80\n    events: {dial: \"tcp://engine:1\"}\n", []string{
			`k.yaml:2: pools[0].name: "a b" is not a name`,
			`k.yaml:3: pools[0].models[0]: a served name cannot be empty`,
			`k.yaml:4: pools[0].fallback: "maybe" is neither endpoints nor none`,
			`k.yaml:6: pools[0].endpoints[0].address: "engine:80" is not ip:port`,
			`k.yaml:7: pools[0].endpoints[0].events.dial: "tcp://engine:1" is not tcp://ip:port`,
		}},
		{"used twice", pool + "- name: a\n  models: [m]\n" + endpoint, []string{
			`k.yaml:5: pools[1].name: "a" stands at pools[0].name already`,
			`k.yaml:6: pools[1].models[0]: "m" stands at pools[0].models[0] already`,
			`k.yaml:7: pools[1].endpoints[0].address: "10.0.0.1:80" stands at pools[0].endpoints[0].address already`,
		}},
		{"used twice in other words", pool + "- name: b\n  models: [n]\n  adapters: [o, n]\n  endpoints: [{address: \"[::ffff:10.0.0.1]:80\"}]\n", []string{
			`k.yaml:7: pools[1].adapters[1]: "n" stands at pools[1].models[0] already`,
			`k.yaml:8: pools[1].endpoints[0].address: "10.0.0.1:80" stands at pools[0].endpoints[0].address already`,
		}},
		{"bound twice", "listen: 127.0.0.1:9003\nenvoy: {admin: \"127.0.0.1:8080\"}\n" + pool[:len(pool)-len(endpoint)] +
			"  endpoints:\n  - address: 10.0.0.1:80\n    events: {listen: \"tcp://127.0.0.1:9003\"}\n", []string{
			`k.yaml:1: listen: "127.0.0.1:9003" stands at admin.listen already`,
			`k.yaml:2: envoy.admin: "127.0.0.1:8080" stands at envoy.listen already`,
			`k.yaml:8: pools[0].endpoints[0].events.listen: "127.0.0.1:9003" stands at admin.listen already`,
		}},
		{"address of many hosts", pool[:len(pool)-len(endpoint)] + "  endpoints: [{address: \"224.0.0.1:80\"}]\n", []string{
			`k.yaml:4: pools[0].endpoints[0].address: "224.0.0.1:80" is not ip:port`,
		}},
		{"events", pool[:len(pool)-len(endpoint)] + "  endpoints:\n  - address: 10.0.0.1:80\n    events: {listen: \"tcp://0.0.0.0:1\"}\n" +
			"  - address: 10.0.0.2:80\n    events: {listen: \"tcp://127.0.0.1:1\", dial: \"tcp://10.0.0.2:1\"}\n" +
			"  - address: 10.0.0.3:80\n    events: {topic: kv}\n", []string{
			`k.yaml:6: pools[0].endpoints[0].events.listen: "tcp://0.0.0.0:1" is not tcp://ip:port on loopback`,
			"k.yaml:8: pools[0].endpoints[1].events: listen and dial exclude each other",
			"k.yaml:10: pools[0].endpoints[2].events.topic: a topic without listen or dial has no effect",
		}},
		{"replay", pool[:len(pool)-len(endpoint)] + "  endpoints:\n" +
			"  - {address: \"10.0.0.1:80\", events: {dial: \"tcp://10.0.0.1:5557\", replay: \"tcp://*:5558\"}}\n" +
			"  - {address: \"10.0.0.2:80\", events: {replay: \"tcp://10.0.0.2:5558\"}}\n" +
			"  - {address: \"10.0.0.3:80\", events: {dial: \"tcp://10.0.0.3:5557\", replay: \"tcp://10.0.0.3:5557\"}}\n" +
			"  - {address: \"10.0.0.4:80\", events: {dial: \"tcp://10.0.0.4:5557\", replay: \"tcp://10.0.0.4:5559\", ranks: 4}}\n" +
			"  - {address: \"10.0.0.5:80\", events: {listen: \"tcp://127.0.0.1:7000\", replay: \"tcp://127.0.0.1:9003\"}}\n" +
			"  - {address: \"10.0.0.6:80\", events: {dial: \"tcp://10.0.0.6:5557\", replay: \"tcp://10.0.0.6:0\"}}\n", []string{
			`k.yaml:5: pools[0].endpoints[0].events.replay: "tcp://*:5558" is not tcp://ip:port of one host`,
			`k.yaml:6: pools[0].endpoints[1].events.replay: replay without listen or dial has no effect`,
			`k.yaml:7: pools[0].endpoints[2].events.replay: "10.0.0.3:5557" stands at pools[0].endpoints[2].events.dial already`,
			`k.yaml:8: pools[0].endpoints[3].events.replay: "10.0.0.4:5559", where rank 0 is, stands at pools[0].endpoints[3].events.dial already: each rank takes the next port, so space the two by at least 4`,
			`k.yaml:9: pools[0].endpoints[4].events.replay: "127.0.0.1:9003" stands at admin.listen already`,
			`k.yaml:10: pools[0].endpoints[5].events.replay: "tcp://10.0.0.6:0" is not tcp://ip:port of one host`,
		}},
		{"ranks out of range", pool[:len(pool)-len(endpoint)] + "  endpoints:\n  - address: 10.0.0.1:80\n    events: {dial: \"tcp://10.0.0.1:5557\", ranks: 0}\n" +
			"  - address: 10.0.0.2:80\n    events: {ranks: 65}\n", []string{
			"k.yaml:6: pools[0].endpoints[0].events.ranks: 0 is not in the range 1 to 64",
			"k.yaml:8: pools[0].endpoints[1].events.ranks: 65 is not in the range 1 to 64",
		}},
		{"ranks whose ports meet", "listen: 127.0.0.1:7003\n" + pool[:len(pool)-len(endpoint)] + "  endpoints:\n" +
			"  - {address: \"10.0.0.1:80\", events: {dial: \"tcp://10.0.0.9:5557\", ranks: 4}}\n" +
			"  - {address: \"10.0.0.2:80\", events: {dial: \"tcp://10.0.0.9:5560\"}}\n" +
			"  - {address: \"10.0.0.3:80\", events: {dial: \"tcp://10.0.0.9:5554\", ranks: 4}}\n" +
			"  - {address: \"10.0.0.4:80\", events: {dial: \"tcp://10.0.0.8:65534\", ranks: 3}}\n" +
			"  - {address: \"10.0.0.5:80\", events: {listen: \"tcp://127.0.0.1:7000\", ranks: 4}}\n", []string{
			`k.yaml:7: pools[0].endpoints[1].events.dial: "10.0.0.9:5560" stands at pools[0].endpoints[0].events.dial already`,
			`k.yaml:8: pools[0].endpoints[2].events.dial: "10.0.0.9:5557", where rank 3 is, stands at pools[0].endpoints[0].events.dial already: each rank takes the next port`,
			`k.yaml:9: pools[0].endpoints[3].events.dial: rank 2 would be at port 65536, and ports end at 65535`,
			`k.yaml:10: pools[0].endpoints[4].events.listen: "127.0.0.1:7003", where rank 3 is, stands at listen already: each rank takes the next port`,
		}},
		{"pinned without ranks", pool + "  pin_rank: true\n  fallback: {cluster: others}\n", []string{
			"k.yaml:4: pools[0].endpoints[0].events.ranks: 1: pin_rank needs at least 2 ranks at each endpoint of the pool",
			"k.yaml:5: pools[0].pin_rank: excludes fallback: {cluster: others}",
		}},
		{"pinned with different ranks", pool[:len(pool)-len(endpoint)] + "  pin_rank: true\n  endpoints:\n" +
			"  - {address: \"10.0.0.1:80\", events: {ranks: 2}}\n  - {address: \"10.0.0.2:80\", events: {ranks: 4}}\n", []string{
			"k.yaml:7: pools[0].endpoints[1].events.ranks: 4 is not the 2 of the pool's first endpoint",
		}},
		{"more ranks than the index takes", "index: {max_endpoints: 7}\n" + pool[:len(pool)-len(endpoint)] + "  endpoints: [{address: \"10.0.0.1:80\", events: {ranks: 8}}]\n", []string{
			"k.yaml:1: index.max_endpoints: 7 is below the 8 endpoints of all pools, each of their ranks counted",
		}},
		{"match", pool + "  match: {path_prefix: chat, header: {name: x-pool}}\n", []string{
			`k.yaml:5: pools[0].match.path_prefix: "chat" is not a path such as /chat`,
			"k.yaml:5: pools[0].match.header: name and value are both needed",
		}},
		{"half a TLS listener", "listen: 10.0.0.1:9002\ntls: {client_ca_file: ca.pem}\nadmin: {listen: \"10.0.0.1:9003\", token_file: t, tls: {cert_file: c}}\n" + pool, []string{
			"k.yaml:2: tls: cert_file and key_file are both needed",
			"k.yaml:3: admin.tls: cert_file and key_file are both needed",
		}},
		{"a token in clear text", "admin: {listen: \"10.0.0.1:9003\", token_file: t}\n" + pool, []string{
			`k.yaml:1: admin.listen: "10.0.0.1:9003" is not on loopback: the token would travel in clear text; use admin.tls, or write insecure: true`,
		}},
		{"TLS to engines without a name", "engines: {tls: {ca_file: ca.pem, cert_file: c}}\nenvoy: {router_tls: {ca_file: ca.pem, server_name: r, key_file: k}}\n" + pool, []string{
			"k.yaml:1: engines.tls: ca_file and server_name are both needed",
			"k.yaml:2: envoy.router_tls: cert_file and key_file are both needed for a client certificate",
		}},
		{"ways of Envoy", "envoy: {layout: two, body: streamed}\n" + pool, []string{
			`k.yaml:1: envoy.layout: "two" is none of auto, composite, compat and override_host`,
			`k.yaml:1: envoy.body: "streamed" is none of buffered and full_duplex`,
		}},
		{"mode", pool + "  mode: maybe\n  percent: 101\n  approximate: {cache_tokens: -1, lifetime: 1ms}\n", []string{
			`k.yaml:5: pools[0].mode: "maybe" is none of on, observe and off`,
			"k.yaml:6: pools[0].percent: 101 is not in the range 0 to 100",
			"k.yaml:7: pools[0].approximate.cache_tokens: -1 is not in the range 0 to 100000000",
			"k.yaml:7: pools[0].approximate.lifetime: 1ms is not in the range 1s to 24h0m0s",
		}},
		{"adapters and salt", pool + "  adapters_refresh: 10ms\n  salt_header: \"x salt\"\n", []string{
			"k.yaml:5: pools[0].adapters_refresh: 10ms is not in the range 1s to 1h0m0s",
			`k.yaml:6: pools[0].salt_header: "x salt" is not the name of a header`,
		}},
		{"a pseudo header for the salt", pool + "  salt_header: \":authority\"\n", []string{`k.yaml:5: pools[0].salt_header: ":authority" is not the name of a header`}},
		{"a header of the connection for the salt", pool + "  salt_header: Keep-Alive\n", []string{`k.yaml:5: pools[0].salt_header: "Keep-Alive" belongs to one connection, not to a request`}},
		{"a credential for the salt", pool + "  salt_header: X-API-Key\n", []string{`k.yaml:5: pools[0].salt_header: "X-API-Key" may hold a credential, which Envoy keeps from the router`}},
		{"a pool's own header for the salt", pool + "  salt_header: X-Tenant\n  match: {header: {name: x-tenant, value: a}}\n", []string{
			`k.yaml:5: pools[0].salt_header: "X-Tenant" stands at pools[0].match.header: a header that clients send can be no salt`,
		}},
		{"a gateway's header for the salt", pool + "  salt_header: X-Gateway-Destination-Endpoint-Subset\n", []string{
			`k.yaml:5: pools[0].salt_header: "X-Gateway-Destination-Endpoint-Subset" has a meaning of its own`,
		}},
		{"a target for the salt", pool + "  salt_header: X-Target-Endpoint-2\n", []string{`k.yaml:5: pools[0].salt_header: "X-Target-Endpoint-2" has a meaning of its own`}},
		{"tiers", pool + "  tiers:\n    host_weight: 1.5\n    disk_weight: NaN\n    demote: 25h\n    media:\n    - {name: CPU, tier: host}\n    - {name: cpu, tier: ram}\n" +
			"    - {name: x, tier: ignore, lifetime: 1m}\n    - {tier: disk, lifetime: 48h}\n  adapter_ids: [{id: -1, name: a}, {id: 2}, {id: 2, name: b}, {name: c}]\n", []string{
			"k.yaml:6: pools[0].tiers.host_weight: 1.5 is not in the range 0 to 1",
			"k.yaml:7: pools[0].tiers.disk_weight: NaN is not in the range 0 to 1",
			"k.yaml:8: pools[0].tiers.demote: 25h0m0s is not in the range 0s to 24h0m0s",
			`k.yaml:11: pools[0].tiers.media[1].name: "cpu" stands at pools[0].tiers.media[0].name already`,
			`k.yaml:11: pools[0].tiers.media[1].tier: "ram" is none of device, host, disk and ignore`,
			"k.yaml:12: pools[0].tiers.media[2].lifetime: 1m0s: only copies in host and disk have one",
			`k.yaml:13: pools[0].tiers.media[3].name: "" is not a name of 1 to 256 bytes`,
			"k.yaml:13: pools[0].tiers.media[3].lifetime: 48h0m0s is not in the range 0s to 24h0m0s",
			"k.yaml:14: pools[0].adapter_ids[0].id: -1 is not in the range 1 to 2147483647",
			"k.yaml:14: pools[0].adapter_ids[1].name: a served name cannot be empty",
			`k.yaml:14: pools[0].adapter_ids[2].id: "2" stands at pools[0].adapter_ids[1].id already`,
			"k.yaml:14: pools[0].adapter_ids[3].id: 0 is not in the range 1 to 2147483647",
		}},
		{"a weight that is no number", pool + "  tiers: {host_weight: much}\n", []string{`k.yaml:5: pools[0].tiers.host_weight: "much" is not a number`}},
		{"adapters and salt", pool + "  adapters_refresh: 10ms\n  salt_header: \"x salt\"\n", []string{
			"k.yaml:5: pools[0].adapters_refresh: 10ms is not in the range 1s to 1h0m0s",
			`k.yaml:6: pools[0].salt_header: "x salt" is not the name of a header`,
		}},
		{"a pseudo header for the salt", pool + "  salt_header: \":authority\"\n", []string{`k.yaml:5: pools[0].salt_header: ":authority" is not the name of a header`}},
		{"a header of the connection for the salt", pool + "  salt_header: Keep-Alive\n", []string{`k.yaml:5: pools[0].salt_header: "Keep-Alive" belongs to one connection, not to a request`}},
		{"a credential for the salt", pool + "  salt_header: X-API-Key\n", []string{`k.yaml:5: pools[0].salt_header: "X-API-Key" may hold a credential, which Envoy keeps from the router`}},
		{"a target for the salt", pool + "  salt_header: X-Target-Endpoint-2\n", []string{`k.yaml:5: pools[0].salt_header: "X-Target-Endpoint-2" has a meaning of its own`}},
		{"routers", "envoy: {routers: [\"kvsteer:9002\", kvsteer, \":9002\"]}\nwarmup: 1h\nnotice: 1h\n" + pool, []string{
			`k.yaml:1: envoy.routers[1]: "kvsteer" is neither ip:port nor name:port`,
			`k.yaml:1: envoy.routers[2]: ":9002" is neither ip:port nor name:port`,
			"k.yaml:2: warmup: 1h0m0s is not in the range 0s to 10m0s",
			"k.yaml:3: notice: 1h0m0s is not in the range 0s to 10m0s",
		}},
		{"hash seed", pool + "  hash_seed: " + strings.Repeat("9", 257) + "\n", []string{"k.yaml:5: pools[0].hash_seed: 257 bytes, at most 256"}},
		{"second document", pool + "---\npools: []\n", []string{"a second YAML document"}},
		{"anchor", "budget: &b 1ms\n" + pool, []string{"k.yaml:1: budget: anchors, aliases and tags are not supported here"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("k.yaml", []byte(tt.file))
			if err == nil {
				t.Fatal("accepted")
			}
			lines := strings.Split(err.Error(), "\n")
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q; it is:\n%s", want, err)
				}
			}
			if !strings.Contains(tt.name, "YAML") && tt.name != "twice" && len(lines) != len(tt.want) {
				t.Errorf("%d problems, want %d:\n%s", len(lines), len(tt.want), err)
			}
		})
	}
}

// TestExcerpt holds that what a log gets of a file that is no YAML is one line without its source, and that a terminal can have more.
func TestExcerpt(t *testing.T) {
	tests := []struct {
		name, header string
		want         string
	}{
		{"a colon too much", "\n      name: authorization\n      value: Bearer: a-secret", "k.yaml:6: not valid YAML at column "},
		{"no end of quotes", `{name: authorization, value: "Bearer a-secret}`, "k.yaml:4: not valid YAML at column "},
		{"no end of the mapping", "{name: authorization, value: Bearer a-secret", "k.yaml:4: not valid YAML at column "},
		{"indented too far", "\n      name: authorization\n        value: Bearer a-secret", "k.yaml:5: not valid YAML at column "},
		{"twice", "\n      value: Bearer a-secret\n      value: Bearer a-secret", `k.yaml:6: not valid YAML at column 7: mapping key "value" already defined at [5:7]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("k.yaml", []byte("pools:\n- name: a\n  match:\n    header: "+tt.header+"\n"))
			var p Problem
			if !errors.As(err, &p) {
				t.Fatalf("%v is no problem", err)
			}
			if text := err.Error(); !strings.HasPrefix(text, tt.want) || strings.Contains(text, "secret") || strings.Contains(text, "\n") {
				t.Errorf("error %q, want %q", text, tt.want)
			}
			if !strings.Contains(p.Excerpt, "a-secret") || strings.Contains(p.Excerpt, "already defined") {
				t.Errorf("excerpt:\n%s", p.Excerpt)
			}
		})
	}
}

func TestLoadMissingFile(t *testing.T) {
	if _, err := Load(t.TempDir() + "/none.yaml"); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("error %v does not name the file", err)
	}
}

func TestSizeRoundTrip(t *testing.T) {
	for _, text := range []string{"0B", "1B", "1KiB", "1536B", "3KiB", "32MiB", "1GiB", "1025MiB"} {
		var s Size
		if err := s.parse(text); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if s.String() != text {
			t.Errorf("%s reads back as %s", text, s)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	table := Reference()
	for _, key := range []string{"`listen`", "`limits.body`", "`pools[].endpoints[].events.listen`", "`pools[].match.header.value`", "`envoy.all_paths`"} {
		if !strings.Contains(table, key) {
			t.Errorf("the reference lacks %s", key)
		}
	}
}

// FuzzParse holds that no input panics and that what is accepted satisfies the rules that other packages rely on.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("pools: [{name: a, models: [m], endpoints: [{address: '1.2.3.4:5'}]}]"))
	f.Add([]byte("a: {b: [1, {c: d}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("k.yaml", data)
		if err != nil {
			return
		}
		if len(cfg.Pools) == 0 || cfg.Budget >= cfg.Envoy.MessageTimeout || cfg.Limits.Bodies < cfg.Limits.Body {
			t.Errorf("accepted a configuration that breaks its own rules: %+v", cfg)
		}
		for _, p := range cfg.Pools {
			if len(p.Endpoints) == 0 || len(p.Models) == 0 {
				t.Errorf("accepted a pool without endpoints or models: %+v", p)
			}
		}
	})
}

// Adapters may be left to the configuration, and a salt may come in any header of a request.
func TestAdaptersAndSaltHeader(t *testing.T) {
	const more = "  adapters_refresh: %s\n  salt_header: %s\n"
	for _, given := range [][2]string{{"0s", "x-cache-salt"}, {"1s", "X-Tenant"}, {"1h", "tenant_salt"}} {
		cfg, err := Parse("k.yaml", []byte(good+fmt.Sprintf(more, given[0], given[1])))
		if err != nil {
			t.Fatal(err)
		}
		p := cfg.Pools[0]
		if want, _ := time.ParseDuration(given[0]); p.AdaptersRefresh.Std() != want || p.SaltHeader != given[1] {
			t.Errorf("%s, %q", p.AdaptersRefresh, p.SaltHeader)
		}
	}
}

func TestEventsOfARank(t *testing.T) {
	tests := []struct {
		events Events
		rank   int
		want   Events
	}{
		{Events{Dial: "tcp://10.0.0.1:5557", Topic: "kv", Ranks: 2}, 0, Events{Dial: "tcp://10.0.0.1:5557", Topic: "kv", Ranks: 2}},
		{Events{Dial: "tcp://10.0.0.1:5557", Topic: "kv", Ranks: 2}, 1, Events{Dial: "tcp://10.0.0.1:5558", Topic: "kv", Ranks: 2}},
		{Events{Dial: "tcp://[fd00::1]:5557", Ranks: 8}, 7, Events{Dial: "tcp://[fd00::1]:5564", Ranks: 8}},
		{Events{Dial: "tcp://10.0.0.1:5557", Replay: "tcp://10.0.0.1:6557", Ranks: 2}, 1, Events{Dial: "tcp://10.0.0.1:5558", Replay: "tcp://10.0.0.1:6558", Ranks: 2}},
		{Events{Listen: "tcp://127.0.0.1:5557", Ranks: 2}, 1, Events{Listen: "tcp://127.0.0.1:5558", Ranks: 2}},
		{Events{Listen: "tcp://127.0.0.1:0", Ranks: 2}, 1, Events{Listen: "tcp://127.0.0.1:0", Ranks: 2}},
		{Events{Ranks: 2}, 1, Events{Ranks: 2}},
	}
	for _, tt := range tests {
		if got := tt.events.Of(tt.rank); got != tt.want {
			t.Errorf("rank %d of %+v: %+v, want %+v", tt.rank, tt.events, got, tt.want)
		}
	}
}
