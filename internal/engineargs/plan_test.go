package engineargs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/config"
)

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// one is a configuration with one endpoint.
func one(endpoint string) string {
	return "pools: [{name: chat, models: [tiny], endpoints: [" + endpoint + "]}]"
}

// value returns the argument behind an option, "" when it is not there.
func value(args []string, option string) string {
	for i, a := range args[:max(len(args)-1, 0)] {
		if a == option {
			return args[i+1]
		}
	}
	return ""
}

func TestPlan(t *testing.T) {
	const listen = `{address: "127.0.0.1:8000", events: {listen: "tcp://127.0.0.1:5557"}}`
	const dial = `{address: "10.0.0.2:8000", events: {dial: "tcp://10.0.0.2:5557", topic: kv}}`
	for name, tt := range map[string]struct {
		config  string
		options Options
		events  string // value of --kv-events-config
		note    string // part of a note
		seed    string // default 0
		missing string // part of Missing
		refused bool
	}{
		"listen":           {config: one(listen), events: `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557"}`, note: `hash_seed: "0"`},
		"seed named":       {config: strings.Replace(one(listen), "models:", "hash_seed: \"7\", models:", 1), events: `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557"}`, seed: "7"},
		"replay":           {config: one(listen), options: Options{Replay: true}, events: `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","replay_endpoint":"tcp://127.0.0.1:6557"}`, note: "port 6557"},
		"dial":             {config: one(dial), missing: "--bind", refused: true},
		"dial and bind":    {config: one(dial), options: Options{Bind: true}, events: `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","topic":"kv"}`, note: "EXPOSED: port 5557"},
		"dial on loopback": {config: one(`{address: "127.0.0.1:8000", events: {dial: "tcp://127.0.0.1:5557"}}`), options: Options{Bind: true}, events: `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}`, note: "events.listen would do"},
		"ranks":            {config: one(`{address: "127.0.0.1:8000", events: {listen: "tcp://127.0.0.1:5557", ranks: 4}}`), options: Options{Replay: true}, events: `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","replay_endpoint":"tcp://127.0.0.1:6557"}`, note: "Each of its 4 data-parallel ranks"},
		"sglang":           {config: one(listen), options: Options{Kind: SGLang}, events: `{"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557"}`, note: "not run with its engines"},
		"no events":        {config: one(`{address: "10.0.0.3:8000"}`), missing: `events: {listen: "tcp://127.0.0.1:5557"} when the router runs on its host, else events: {dial: "tcp://10.0.0.3:5557"}`},
		"port 0":           {config: one(`{address: "127.0.0.1:8000", events: {listen: "tcp://127.0.0.1:0"}}`), missing: "port 0", refused: true},
		"IPv6 listen":      {config: one(`{address: "127.0.0.1:8000", events: {listen: "tcp://[::1]:5557"}}`), missing: "IPv6", refused: true},
		"IPv6 dial":        {config: one(`{address: "10.0.0.2:8000", events: {dial: "tcp://[fd00::2]:5557"}}`), options: Options{Bind: true}, missing: "IPv6", refused: true},
		"option as model":  {config: strings.Replace(one(listen), "tiny", `"--port"`, 1), missing: "begins with '-'", refused: true},
		"zero byte":        {config: strings.Replace(one(listen), "tiny", `"a\0b"`, 1), missing: "zero byte", refused: true},
		"salt before":      {config: one(listen), options: Options{Release: "0.16.0"}, events: `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557"}`, note: "0.17.1"},
	} {
		t.Run(name, func(t *testing.T) {
			engines, err := Plan(parse(t, tt.config), tt.options)
			if err != nil || len(engines) != 1 {
				t.Fatalf("%d engines, %v", len(engines), err)
			}
			e := engines[0]
			if got := value(e.Args, "--kv-events-config"); got != tt.events {
				t.Errorf("--kv-events-config %s\nwant %s", got, tt.events)
			}
			want := tt.seed
			if want == "" {
				want = "0"
			}
			if tt.options.Kind != SGLang && len(e.Args) > 0 && !slices.Contains(e.Env, Variable{"PYTHONHASHSEED", want}) {
				t.Errorf("environment %v, want the seed %s", e.Env, want)
			}
			if notes := strings.Join(e.Notes, "\n"); !strings.Contains(notes, tt.note) || tt.note == "" && notes != "" {
				t.Errorf("notes %q, want one with %q", notes, tt.note)
			}
			if !strings.Contains(e.Missing, tt.missing) || (e.Missing == "") != (tt.missing == "") || e.Refused != tt.refused {
				t.Errorf("missing %q, refused %v; want %q, %v", e.Missing, e.Refused, tt.missing, tt.refused)
			}
			if (e.Missing == "") != (len(e.Args) > 0) {
				t.Errorf("arguments %q although missing %q", e.Args, e.Missing)
			}
		})
	}
}

func TestPlanErrors(t *testing.T) {
	cfg := parse(t, one(`{address: "127.0.0.1:8000"}`))
	for name, tt := range map[string]struct {
		options Options
		want    string
	}{
		"unknown make":      {Options{Kind: "tgi"}, `engine "tgi"`},
		"unknown endpoint":  {Options{Endpoint: "127.0.0.1:8001"}, "which has 127.0.0.1:8000"},
		"not an address":    {Options{Endpoint: "chat"}, `endpoint "chat"`},
		"no release":        {Options{Release: "latest"}, `engine release "latest"`},
		"one number":        {Options{Release: "1"}, `engine release "1"`},
		"vLLM too old":      {Options{Release: "0.8.5"}, "need vLLM 0.9 or newer"},
		"SGLang too old":    {Options{Kind: SGLang, Release: "0.4.8.post1"}, "need SGLang 0.4.9 or newer"},
		"absurdly long one": {Options{Release: "0.99999999999999999999"}, "not a release"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Plan(cfg, tt.options); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%d engines, error %v; want %q", len(got), err, tt.want)
			}
		})
	}
}

// TestReleases holds what differs between releases.
func TestReleases(t *testing.T) {
	cfg := parse(t, one(`{address: "127.0.0.1:8000", events: {listen: "tcp://127.0.0.1:5557"}}`))
	for release, algorithm := range map[string]string{
		"": "sha256_cbor", "0.9.0.1": "sha256", "0.9": "sha256", "0.10.1.1": "sha256", "0.10.2": "sha256_cbor", "v0.32.0": "sha256_cbor",
		"0.32.0+cpu": "sha256_cbor", "0.33.0rc1": "sha256_cbor", "1.0": "sha256_cbor", "0.10.2.post1": "sha256_cbor",
	} {
		engines, err := Plan(cfg, Options{Release: release})
		if err != nil {
			t.Errorf("release %q: %v", release, err)
			continue
		}
		if got := value(engines[0].Args, "--prefix-caching-hash-algo"); got != algorithm {
			t.Errorf("release %q: hash algorithm %q, want %q", release, got, algorithm)
		}
	}
}

// TestSelection holds that one endpoint has the same arguments alone and among all.
func TestSelection(t *testing.T) {
	cfg := parse(t, `pools:
- name: a
  models: [one]
  endpoints:
  - {address: "127.0.0.1:8000", events: {listen: "tcp://127.0.0.1:5557"}}
  - {address: "[fd00::1]:8000", events: {dial: "tcp://10.0.0.1:5557"}}
- {name: b, models: [two], match: {host: b}, endpoints: [{address: "127.0.0.1:8001", events: {listen: "tcp://127.0.0.1:5558"}}]}
`)
	all, err := Plan(cfg, Options{Bind: true, Replay: true})
	if err != nil || len(all) != 3 {
		t.Fatalf("%d engines, %v", len(all), err)
	}
	for i, asked := range []string{"127.0.0.1:8000", "[FD00:0::1]:8000", "[::ffff:127.0.0.1]:8001"} {
		got, err := Plan(cfg, Options{Bind: true, Replay: true, Endpoint: asked})
		if err != nil {
			t.Errorf("%s: %v", asked, err)
		}
		if d := cmp.Diff(all[i:i+1], got); d != "" {
			t.Errorf("%s (-among all +alone):\n%s", asked, d)
		}
	}
}

// TestPorts holds that ports which the configuration does not name are used by nothing else on the same host.
func TestPorts(t *testing.T) {
	var endpoints []string
	for i := range 2000 { // 1000 beyond an events port there are others' events ports, and the end of all ports
		endpoints = append(endpoints, fmt.Sprintf(`{address: "10.%d.%d.1:8000", events: {listen: "tcp://127.0.0.1:%d"}}`, i/250, i%250, 63000+i))
	}
	endpoints = append(endpoints, `{address: "10.9.9.9:8000"}`, `{address: "10.9.9.10:8000"}`)
	cfg := parse(t, one(strings.Join(endpoints, ", ")))
	ports := assignPorts(cfg)
	seen := map[uint16]string{8000: "HTTP", 9002: "listen", 9003: "admin", 8080: "Envoy", 9901: "Envoy's admin"}
	claim := func(port uint16, what string) {
		if other, ok := seen[port]; ok || port < 1024 {
			t.Errorf("port %d is %s and %s", port, other, what)
		}
		seen[port] = what
	}
	for _, e := range cfg.Pools[0].Endpoints {
		if e.Events.None() {
			claim(ports.suggested[e.Address], "suggested for "+e.Address)
			continue
		}
		claim(portOf(e.Events.Listen), "events of "+e.Address)
		claim(ports.replay[e.Address], "replay of "+e.Address)
	}
}

// TestPortsOfHosts holds that engines which differ by their host alone have the same arguments, and two on one host do not share a port.
func TestPortsOfHosts(t *testing.T) {
	cfg := parse(t, one(`{address: "10.0.0.1:8000", events: {dial: "tcp://10.0.0.1:5557"}},
		{address: "10.0.0.2:8000", events: {dial: "tcp://10.0.0.2:5557"}}, {address: "10.0.0.2:6557", events: {dial: "tcp://10.0.0.2:6558"}}`))
	want := map[string]uint16{"10.0.0.1:8000": 6557, "10.0.0.2:8000": 6559, "10.0.0.2:6557": 7558}
	if d := cmp.Diff(want, assignPorts(cfg).replay); d != "" {
		t.Errorf("replay ports (-want +got):\n%s", d)
	}
}

// TestRanks holds that engines are told their ranks, and that a port which the configuration does not name leaves room for all of them.
func TestRanks(t *testing.T) {
	cfg := parse(t, one(`{address: "127.0.0.1:8000", events: {listen: "tcp://127.0.0.1:5557", ranks: 4}}, `+
		`{address: "127.0.0.1:8001", events: {listen: "tcp://127.0.0.1:6559", ranks: 2}}`)) // 1000 beyond the first would meet the second
	for kind, option := range map[Kind]string{VLLM: "--data-parallel-size", SGLang: "--dp-size"} {
		engines, err := Plan(cfg, Options{Kind: kind, Replay: true})
		if err != nil {
			t.Fatal(err)
		}
		if a, b := value(engines[0].Args, option), value(engines[1].Args, option); a != "4" || b != "2" {
			t.Errorf("%s: %s %q and %q", kind, option, a, b)
		}
	}
	ports := assignPorts(cfg)
	if got := [2]uint16{ports.replay["127.0.0.1:8000"], ports.replay["127.0.0.1:8001"]}; got != [2]uint16{6561, 7559} {
		t.Errorf("replay ports %v", got)
	}
}

// TestHashSeed holds that engines get the seed that the router computes their hashes with, and that a seed that it does not know of is said.
func TestHashSeed(t *testing.T) {
	const endpoint = `{address: "127.0.0.1:8000", events: {listen: "tcp://127.0.0.1:5557"}}`
	for name, tt := range map[string]struct {
		seed, want string
		said       bool
	}{
		"not set":        {"", "0", true},
		"a number":       {"42", "42", false},
		"the usual seed": {"0", "0", false},
		"not a number":   {"random", "random", false},
	} {
		t.Run(name, func(t *testing.T) {
			engines, err := Plan(parse(t, fmt.Sprintf("pools: [{name: chat, models: [tiny], hash_seed: %q, endpoints: [%s]}]", tt.seed, endpoint)), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]Variable{{"PYTHONHASHSEED", tt.want}}, engines[0].Env); d != "" {
				t.Errorf("environment (-want +got):\n%s", d)
			}
			if said := strings.Contains(strings.Join(engines[0].Notes, "\n"), "hash_seed"); said != tt.said {
				t.Errorf("a note about hash_seed: %t, want %t", said, tt.said)
			}
		})
	}
}
