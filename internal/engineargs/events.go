package engineargs

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
)

// events is the value of --kv-events-config. Keys that are left out have the engine's default: 10,000 batches to repeat,
// 100,000 batches between engine and socket.
type events struct {
	kind                    Kind
	endpoint, replay, topic string
}

func (e events) json() string {
	value := struct {
		Enable    bool   `json:"enable_kv_cache_events,omitempty"` // vLLM's switch; SGLang's is the publisher
		Publisher string `json:"publisher"`                        // vLLM up to 0.11 and SGLang publish nothing without it
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint,omitempty"`
		Topic     string `json:"topic,omitempty"`
	}{e.kind == VLLM, "zmq", e.endpoint, e.replay, e.topic}
	return compact(value)
}

// compact is JSON in one line, with characters as they are; no value here fails.
func compact(value any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(value)
	return strings.TrimSuffix(b.String(), "\n")
}

const (
	replayDistance = 1000 // between an engine's events port and its replay port
	firstEvents    = 5557 // the engines' own default
)

// ports are replay ports, and others that the configuration does not name, by endpoint.
type ports struct {
	replay    map[string]uint16
	suggested map[string]uint16 // of endpoints without events
}

// host is a host whose ports are told apart from those of others: "" for that of who follows it, else the endpoint's ip.
func host(e *config.Endpoint) string {
	addr := address(e.Address).Addr()
	if e.Events.Listen != "" || addr.IsLoopback() {
		return ""
	}
	return addr.String()
}

// taken holds the ports used on each host.
type taken map[string]map[uint16]bool

// use takes as many ports as there are ranks, from that of ip:port or tcp://ip:port on; other texts have none.
func (t taken) use(host, value string, ranks int) {
	if addr, err := netip.ParseAddrPort(strings.TrimPrefix(value, "tcp://")); err == nil {
		t.add(host, addr.Port(), ranks)
	}
}

func (t taken) add(host string, port uint16, ranks int) {
	if t[host] == nil {
		t[host] = map[uint16]bool{}
	}
	for r := range ranks {
		t[host][port+uint16(r)] = true
	}
}

// next takes the first port from one on, and around, that is free with those of further ranks behind it; ports below 1024 are the system's.
func (t taken) next(host string, port uint16, ranks int) uint16 {
	for range 1 << 16 {
		if t.free(host, port, ranks) {
			break
		}
		port++
	}
	t.add(host, port, ranks)
	return port
}

func (t taken) free(host string, port uint16, ranks int) bool {
	for r := range ranks {
		if p := port + uint16(r); p < 1024 || t[host][p] {
			return false
		}
	}
	return true
}

// assignPorts gives each endpoint ports that nothing else of the configuration uses on its host: a replay port as far from the
// events port as the others', so that replicas of one template have one set of arguments.
func assignPorts(cfg *config.Config) *ports {
	used := taken{}
	for _, address := range []string{cfg.Listen, cfg.Admin.Listen, cfg.Envoy.Listen, cfg.Envoy.Admin} {
		used.use("", address, 1)
	}
	for _, p := range cfg.Pools {
		for _, e := range p.Endpoints {
			used.add(host(&e), address(e.Address).Port(), 1)
			for _, source := range []string{e.Events.Listen, e.Events.Dial, e.Events.Replay} {
				used.use(host(&e), source, e.Events.Ranks)
			}
		}
	}
	a := &ports{replay: map[string]uint16{}, suggested: map[string]uint16{}}
	for _, p := range cfg.Pools {
		for _, e := range p.Endpoints {
			source := e.Events.Listen + e.Events.Dial // at most one of them is set
			if at, err := netip.ParseAddrPort(strings.TrimPrefix(e.Events.Replay, "tcp://")); err == nil {
				a.replay[e.Address] = at.Port()
			} else if source == "" {
				a.suggested[e.Address] = used.next("", firstEvents, e.Events.Ranks)
			} else if addr, err := netip.ParseAddrPort(strings.TrimPrefix(source, "tcp://")); err == nil {
				a.replay[e.Address] = used.next(host(&e), addr.Port()+replayDistance, e.Events.Ranks)
			}
		}
	}
	return a
}
