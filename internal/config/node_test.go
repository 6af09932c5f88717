package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const goodNode = `
name: gpu-7
listen: 10.0.0.7:9010
tls: {cert_file: c, key_file: k, client_ca_file: a}
state_dir: /var/lib/kvsteer-node
pools:
- name: chat
  models: [llama]
  engines:
  - address: ":8001"
  - address: "[::ffff:10.0.0.7]:8002"
    drain: true
    events: {listen: "tcp://127.0.0.1:6000", replay: "tcp://127.0.0.1:6100", topic: kv, ranks: 2}
  - address: 10.0.0.7:8003
    events: {dial: "tcp://127.0.0.1:6200"}
  - address: :08004
    events: {replay: none}
`

func TestParseNodeFillsDefaults(t *testing.T) {
	got, err := ParseNode("n.yaml", []byte(goodNode))
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultNode()
	want.Name, want.Listen, want.StateDir = "gpu-7", "10.0.0.7:9010", "/var/lib/kvsteer-node"
	want.TLS = ServerTLS{CertFile: "c", KeyFile: "k", ClientCAFile: "a"}
	want.Pools = []NodePool{{
		Name: "chat", Models: []string{"llama"}, Engine: "vllm", AdaptersRefresh: Duration(30 * time.Second), Tokenizer: Tokenizer{MaxSize: 64 << 20},
		Engines: []Engine{
			{Address: ":8001", Events: EngineEvents{Listen: Auto, Replay: Auto, Ranks: 1}},
			{Address: "10.0.0.7:8002", Drain: true, Events: EngineEvents{Listen: "tcp://127.0.0.1:6000", Replay: "tcp://127.0.0.1:6100", Topic: "kv", Ranks: 2}},
			{Address: "10.0.0.7:8003", Events: EngineEvents{Dial: "tcp://127.0.0.1:6200", Ranks: 1}},
			{Address: ":8004", Events: EngineEvents{Listen: Auto, Replay: None, Ranks: 1}},
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config differs (-want +got):\n%s", diff)
	}
	if want.Admin.Listen != "127.0.0.1:9011" || want.Window.Std() != 20*time.Millisecond || want.WindowKeys != 4096 || want.Ports != (PortRange{5557, 5999}) {
		t.Errorf("documented defaults differ: %+v", want)
	}
	if e := got.Pools[0].Engines; e[0].Local() != "127.0.0.1:8001" || e[1].Local() != "10.0.0.7:8002" || e[0].AutoPorts() != 2 || e[1].AutoPorts() != 0 || e[3].AutoPorts() != 1 {
		t.Errorf("engines %+v", e)
	}
}

// A node without a name has the host's.
func TestNodeName(t *testing.T) {
	n, err := ParseNode("n.yaml", []byte(strings.Replace(goodNode, "name: gpu-7\n", "", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if host, err := os.Hostname(); err != nil || n.Name != host {
		t.Errorf("name %q, host %q, %v", n.Name, host, err)
	}
}

func TestParseNodeReportsEveryProblem(t *testing.T) {
	engine := "  engines: [{address: \":80\"}]\n"
	state := "state_dir: s\n"
	head := "pools:\n- name: a\n  models: [m]\n"
	pool := head + engine
	tests := []struct {
		name, file string
		want       []string
	}{
		{"empty file", "", []string{"n.yaml: pools: at least one pool is needed, with name, models and engines"}},
		{"not YAML", "pools: [", []string{"n.yaml:1: not valid YAML at column 8"}},
		{"a router's file", state + head + "  endpoints: [{address: \"10.0.0.1:80\"}]\n", []string{
			"n.yaml:3: pools[0].engines: at least one engine is needed", "n.yaml:5: pools[0].endpoints: unknown key",
		}},
		{"misspelt", state + "windw: 1ms\n" + head + "  engines: [{address: \":80\", draim: true}]\n", []string{
			`n.yaml:2: windw: unknown key, did you mean "window"?`, `n.yaml:6: pools[0].engines[0].draim: unknown key, did you mean "drain"?`,
		}},
		{"no state folder", pool, []string{"n.yaml:4: pools[0].engines[0].events.listen: auto needs state_dir"}},
		{"ranges", state + "warmup: 2m\nwindow: 2s\nwindow_keys: 1\nmax_blocks: 1\nprobe: {interval: 1ms}\nscrape: {interval: 1ms, profile: tgi, labels: [a=b, c]}\n" + pool, []string{
			"n.yaml:2: warmup: 2m0s is not in the range 0s to 1m0s",
			"n.yaml:3: window: 2s is not in the range 1ms to 1s",
			"n.yaml:4: window_keys: 1 is not in the range 64 to 65536",
			"n.yaml:5: max_blocks: 1 is not in the range 1000 to 16777216",
			"n.yaml:6: probe.interval: 1ms is not in the range 10ms to 1h0m0s",
			"n.yaml:7: scrape.interval: 1ms is not in the range 100ms to 1m0s",
			`n.yaml:7: scrape.profile: "tgi" is none of auto, vllm and sglang`,
			`n.yaml:7: scrape.labels[1]: "c" is not name=value`,
		}},
		{"open listeners", state + "listen: 0.0.0.0:9010\nadmin: 10.0.0.1:9011\n" + pool, []string{
			`n.yaml:2: listen: "0.0.0.0:9010" is not on loopback: what engines hold would travel in clear text`,
			`n.yaml:3: admin.listen: "10.0.0.1:9011" is not on loopback`,
		}},
		{"an open admin listener with a token in clear text", state + "admin: {listen: \"10.0.0.1:9011\", token_file: t}\n" + pool, []string{
			"n.yaml:2: admin.listen: \"10.0.0.1:9011\" is not on loopback: the token would travel in clear text",
		}},
		{"half of TLS", state + "tls: {cert_file: c}\nadmin: {tls: {key_file: k}}\nengines: {tls: {ca_file: a}}\n" + pool, []string{
			"n.yaml:2: tls: cert_file and key_file are both needed", "n.yaml:3: admin.tls: cert_file and key_file are both needed",
			"n.yaml:4: engines.tls: ca_file and server_name are both needed",
		}},
		{"no name", state + "name: a b\n" + pool, []string{`n.yaml:2: name: "a b" is not a name`}},
		{"no listeners", state + "listen: here\nadmin: there\n" + pool, []string{
			`n.yaml:2: listen: "here" is not ip:port`, `n.yaml:3: admin: "there" is not ip:port`,
		}},
		{"ports", state + "ports: 5557\n" + pool, []string{`n.yaml:2: ports: "5557" is not a range of ports such as 5557-5999`}},
		{"ports that nobody may bind", state + "ports: 80-90\n" + pool, []string{`n.yaml:2: ports: "80-90" is not a range of ports`}},
		{"ports backwards", state + "ports: 6000-5000\n" + pool, []string{`n.yaml:2: ports: "6000-5000" is not a range of ports`}},
		{"too few ports", state + "ports: 5557-5559\n" + head + "  engines: [{address: \":80\", events: {ranks: 2}}]\n", []string{
			"n.yaml:2: ports: 5557-5559 has 3 ports, and the engines with events.listen: auto need 4",
		}},
		{"pool", state + "pools:\n- name: a b\n  engine: tgi\n  adapters_refresh: 1ms\n  tokenizer: {max_size: 1B}\n", []string{
			`n.yaml:3: pools[0].name: "a b" is not a name`,
			"n.yaml:3: pools[0].models: at least one served model name is needed",
			"n.yaml:3: pools[0].engines: at least one engine is needed",
			`n.yaml:4: pools[0].engine: "tgi" is none of vllm and sglang`,
			"n.yaml:5: pools[0].adapters_refresh: 1ms is not in the range 1s to 1h0m0s",
			"n.yaml:6: pools[0].tokenizer.max_size: 1B is not in the range 1KiB to 1GiB",
		}},
		{"what a copy is worth is the routers' to say", state + head + "  tiers: {host_weight: 0.5}\n" + engine, []string{
			"n.yaml:5: pools[0].tiers.host_weight: unknown key; known here: media, demote",
		}},
		{"used twice", state + pool + "- name: a\n  models: [m]\n  engines: [{address: \"127.0.0.1:80\"}]\n", []string{
			`n.yaml:6: pools[1].name: "a" stands at pools[0].name already`,
			`n.yaml:7: pools[1].models[0]: "m" stands at pools[0].models[0] already`,
			`n.yaml:8: pools[1].engines[0].address: "127.0.0.1:80" stands at pools[0].engines[0].address already`,
		}},
		{"addresses", state + head + "  engines:\n  - address: engine:80\n  - address: \":0\"\n  - address: 0.0.0.0:80\n  - address: \"\"\n", []string{
			`n.yaml:6: pools[0].engines[0].address: "engine:80" is neither ip:port with an address of one host nor :port for this one`,
			`n.yaml:7: pools[0].engines[1].address: ":0" is neither`,
			`n.yaml:8: pools[0].engines[2].address: "0.0.0.0:80" is neither`,
			`n.yaml:9: pools[0].engines[3].address: "" is neither`,
		}},
		{"events", state + head + "  engines:\n" +
			"  - {address: \":81\", events: {listen: \"tcp://10.0.0.1:5557\"}}\n" +
			"  - {address: \":82\", events: {listen: auto, dial: \"tcp://127.0.0.1:6000\"}}\n" +
			"  - {address: \":83\", events: {listen: \"tcp://127.0.0.1:0\"}}\n" +
			"  - {address: \":84\", events: {dial: auto}}\n" +
			"  - {address: \":85\", events: {listen: \"tcp://127.0.0.1:6000\", replay: auto}}\n" +
			"  - {address: \":86\", events: {replay: \"tcp://*:1\"}}\n" +
			"  - {address: \":87\", events: {ranks: 65}}\n", []string{
			`n.yaml:6: pools[0].engines[0].events.listen: "tcp://10.0.0.1:5557" is neither tcp://ip:port on loopback nor auto`,
			"n.yaml:7: pools[0].engines[1].events: listen and dial exclude each other",
			`n.yaml:8: pools[0].engines[2].events.listen: "tcp://127.0.0.1:0" is neither`,
			`n.yaml:9: pools[0].engines[3].events.dial: "auto" is not tcp://ip:port of one host`,
			"n.yaml:10: pools[0].engines[4].events.replay: auto goes with listen: auto",
			`n.yaml:11: pools[0].engines[5].events.replay: "tcp://*:1" is none of tcp://ip:port of one host, auto and none`,
			"n.yaml:12: pools[0].engines[6].events.ranks: 65 is not in the range 1 to 64",
		}},
		{"bound twice", state + "listen: 127.0.0.1:9011\n" + head + "  engines:\n" +
			"  - {address: \":81\", events: {listen: \"tcp://127.0.0.1:7000\", ranks: 2}}\n" +
			"  - {address: \":82\", events: {listen: \"tcp://127.0.0.1:7001\"}}\n" +
			"  - {address: \":83\", events: {listen: \"tcp://127.0.0.1:7002\", replay: \"tcp://127.0.0.1:9011\"}}\n", []string{
			`n.yaml:2: listen: "127.0.0.1:9011" stands at admin.listen already`,
			`n.yaml:8: pools[0].engines[1].events.listen: "127.0.0.1:7001" stands at pools[0].engines[0].events.listen already`,
			`n.yaml:9: pools[0].engines[2].events.replay: "127.0.0.1:9011" stands at admin.listen already`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseNode("n.yaml", []byte(tt.file))
			if err == nil {
				t.Fatal("no error")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tt.want) {
				t.Fatalf("%d problems, want %d:\n%v", len(lines), len(tt.want), err)
			}
			for i, want := range tt.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("problem %d: %s\nwant: %s", i, lines[i], want)
				}
			}
		})
	}
}

func TestTooManyEngines(t *testing.T) {
	text := "state_dir: s\nports: 1024-65535\npools:\n- name: a\n  models: [m]\n  engines:\n" + strings.Repeat("  - {}\n", maxEngines+1)
	if _, err := ParseNode("n.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "a node has at most 1024 engines") || len(err.Error()) > 1000 {
		t.Errorf("error %.1000v", err)
	}
}

// What is shown is a configuration that is read as the same.
func TestNodeShown(t *testing.T) {
	n, err := ParseNode("n.yaml", []byte(goodNode))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseNode("n.json", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if changes := Diff(n, again); len(changes) > 0 {
		t.Errorf("changes %v", changes)
	}
	again.Pools[0].Engines = again.Pools[0].Engines[1:]
	again.Pools[0].Engines[0].Drain = false
	again.Ports[1]++
	want := []Change{
		{"ports", "ports", Changed}, {"pools[chat].engines[:8001]", "pools.engines", Removed}, {"pools[chat].engines[10.0.0.7:8002].drain", "pools.engines.drain", Changed},
	}
	if diff := cmp.Diff(want, Diff(n, again)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestNodeReference(t *testing.T) {
	table := NodeReference()
	for _, want := range []string{"| `ports` | `5557-5999` |", "| `pools[].engines[].events.ranks` | `1` |", "| `admin.listen` | `127.0.0.1:9011` |"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %s:\n%s", want, table)
		}
	}
}

func TestIsNode(t *testing.T) {
	tests := []struct {
		name, file string
		want       bool
	}{
		{"a node's", goodNode, true},
		{"a node's with problems", "pools: [{engines: 5, endpoits: 6}]", true},
		{"both", "pools: [{engines: 5, endpoints: 6}]", false},
		{"a router's", good, false},
		{"a router's with engines of its own", "engines: {http2: true}\n" + good, false},
		{"no pools", "listen: x", false},
		{"pools of no list", "pools: {engines: 1}", false},
		{"pools of no mappings", "pools: [engines]", false},
		{"not YAML", "pools: [{engines: [", false},
		{"empty", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f.yaml")
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := IsNode(path); got != tt.want {
				t.Errorf("%v", got)
			}
			if _, err := Load(path); (err != nil && strings.Contains(err.Error(), "this is the file of a node")) != tt.want {
				t.Errorf("Load: %v", err)
			}
			routers := strings.Contains(tt.name, "a router's")
			if _, err := LoadNode(path); (err != nil && strings.Contains(err.Error(), "this is the file of a router")) != routers {
				t.Errorf("LoadNode: %v", err)
			}
		})
	}
	if IsNode(filepath.Join(t.TempDir(), "none")) {
		t.Error("a file that is not there is one")
	}
}
