package engineargs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
)

// Kind is the make of an engine.
type Kind string

// The engines whose arguments are known.
const (
	VLLM   Kind = "vllm"
	SGLang Kind = "sglang"
)

// Options say what is asked for. The zero value is vLLM of no certain release, all endpoints, nothing that another host can reach.
type Options struct {
	Kind     Kind // default: that of the pool in Kinds, else VLLM
	Kinds    map[string]Kind
	Node     bool   // a node follows the engines, not the router
	Nodes    bool   // the configuration is that of a router with nodes
	Release  string // of the engine, such as 0.32.0; "" for arguments that every supported release takes
	Endpoint string // only this ip:port; "" for all
	Bind     bool   // also give the arguments of engines that bind their events port (events.dial)
	Replay   bool   // with a socket that repeats past batches
}

// Engine is how to start the engine of one endpoint.
type Engine struct {
	Pool     string
	Endpoint string // ip:port, or :port for all addresses of the host
	Node     bool   // a node follows it, not the router
	Kind     Kind
	Events   string // one sentence: where its events go
	Env      []Variable
	Args     []string // behind the model; nil when Missing says why
	Notes    []string // what to know or to add, a sentence each
	Missing  string   // why there are no arguments, and what to do about it
	Refused  bool     // the configuration names an event source, and still there are none
}

// Variable is one variable of an environment.
type Variable struct{ Name, Value string }

// Plan returns the engines of a configuration in its order, or why that is not possible: an unknown kind, release or endpoint.
func Plan(cfg *config.Config, o Options) ([]Engine, error) {
	r, err := parseRelease(o.Release)
	if err != nil {
		return nil, err
	}
	only, err := endpointOf(cfg, o)
	if err != nil {
		return nil, err
	}
	ports := assignPorts(cfg)
	var engines []Engine
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		o := o
		o.Kind = cmp.Or(o.Kind, o.Kinds[p.Name], VLLM)
		limits, ok := kinds[o.Kind]
		if !ok {
			return nil, fmt.Errorf("engine %q: neither vllm nor sglang", o.Kind)
		}
		if r.before(limits.oldest) {
			return nil, fmt.Errorf("engine release %s: KV cache events need %s %s or newer", o.Release, limits.name, limits.oldest)
		}
		for j := range p.Endpoints {
			if e := &p.Endpoints[j]; only == "" || e.Address == only {
				engines = append(engines, plan(p, e, o, r, ports))
			}
		}
	}
	return engines, nil
}

// endpointOf returns the spelling that the configuration gives the asked endpoint.
func endpointOf(cfg *config.Config, o Options) (string, error) {
	asked := o.Endpoint
	if asked == "" {
		return "", nil
	}
	spelled := asked
	if addr, err := netip.ParseAddrPort(asked); err == nil {
		spelled = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).String()
	}
	if here := "127.0.0.1"; o.Node && strings.HasPrefix(spelled, here+":") && !names(cfg, spelled) {
		spelled = strings.TrimPrefix(spelled, here) // as the node's own addresses of its engines
	}
	var all []string
	for _, p := range cfg.Pools {
		for _, e := range p.Endpoints {
			if e.Address == spelled {
				return spelled, nil
			}
			all = append(all, e.Address)
		}
	}
	return "", fmt.Errorf("endpoint %q is not in the configuration, which has %s", asked, strings.Join(all, ", "))
}

// names reports whether a configuration has an endpoint.
func names(cfg *config.Config, endpoint string) bool {
	return slices.ContainsFunc(cfg.Pools, func(p config.Pool) bool {
		return slices.ContainsFunc(p.Endpoints, func(e config.Endpoint) bool { return e.Address == endpoint })
	})
}

// address is that of an endpoint; :port stands for all addresses of the engine's host.
func address(endpoint string) netip.AddrPort {
	if strings.HasPrefix(endpoint, ":") {
		endpoint = "0.0.0.0" + endpoint
	}
	return netip.MustParseAddrPort(endpoint)
}

// follower is who takes an engine's events.
func follower(node bool) string {
	if node {
		return "node"
	}
	return "router"
}

func plan(p *config.Pool, e *config.Endpoint, o Options, r release, ports *ports) Engine {
	engine, who := Engine{Pool: p.Name, Endpoint: e.Address, Node: o.Node, Kind: o.Kind}, follower(o.Node)
	if err := usable(p, e, who); err != nil {
		engine.Refused, engine.Missing = true, err.Error()
		return engine
	}
	if e.Events.None() && o.Nodes {
		engine.Missing = "its node tells the router of it, and the node's file says where its events go: kvsteer engine-args --config NODE'S-FILE prints the arguments."
		return engine
	}
	if e.Events.None() {
		engine.Missing = fmt.Sprintf(`the configuration names no event source. To match its prompts exactly add to this endpoint `+
			`events: {listen: "tcp://127.0.0.1:%d"} when the router runs on its host, else events: {dial: "tcp://%s"}.`,
			ports.suggested[e.Address], netip.AddrPortFrom(address(e.Address).Addr(), firstEvents))
		return engine
	}
	if e.Events.Dial != "" && !o.Bind {
		engine.Refused = true
		engine.Missing = fmt.Sprintf("events.dial %s makes the engine bind that port on every interface of its host, and it then publishes "+
			"the token ids of every prompt to whoever reaches the port, without a password. "+
			"--bind prints the arguments; with the %s on the same host, events.listen needs no open port.", e.Events.Dial, who)
		return engine
	}
	events := events{kind: o.Kind, topic: e.Events.Topic, endpoint: e.Events.Listen}
	engine.Events = "it connects to the " + who + " at " + e.Events.Listen + " and sends its events there"
	if e.Events.Dial != "" {
		events.endpoint = fmt.Sprintf("tcp://*:%d", portOf(e.Events.Dial))
		engine.Events = "it binds " + events.endpoint + ", where the " + who + " dials it as " + e.Events.Dial
		engine.Notes = append(engine.Notes, exposure(e, who))
	}
	if o.Replay {
		events.replay = replay(&engine, e, o, ports)
		if engine.Missing != "" {
			return engine
		}
	}
	switch o.Kind {
	case SGLang:
		sglang(&engine, p, r)
	default:
		vllm(&engine, p, r)
	}
	if n := e.Events.Ranks; n > 1 {
		engine.Args = append(engine.Args, kinds[o.Kind].ranks, strconv.Itoa(n))
		engine.Notes = append(engine.Notes, fmt.Sprintf("Each of its %d data-parallel ranks takes the next port for its events, and for its replay.", n))
	}
	engine.Args = append(engine.Args, "--kv-events-config", events.json())
	return engine
}

// replay is the address of the engine's replay socket, "" for none. It is where the configuration looks for it; without that it is one
// that the configuration could name.
func replay(engine *Engine, e *config.Endpoint, o Options, ports *ports) string {
	who := follower(o.Node)
	port := ports.replay[e.Address]
	if e.Events.Replay == "" {
		if dial := strings.TrimPrefix(e.Events.Dial, "tcp://"); dial != "" && !netip.MustParseAddrPort(dial).Addr().IsLoopback() {
			engine.Notes = append(engine.Notes, fmt.Sprintf("What the %s misses of the events costs what it knows of the cache: "+
				"events: {replay: \"tcp://%s\"} beside dial has the engine repeat it there, on another open port.", who,
				netip.AddrPortFrom(netip.MustParseAddrPort(dial).Addr(), port)))
			return ""
		}
		engine.Notes = append(engine.Notes, fmt.Sprintf("The %s asks for what it missed of the events only with "+
			"events: {replay: \"tcp://127.0.0.1:%d\"}.", who, port))
	} else if at := netip.MustParseAddrPort(strings.TrimPrefix(e.Events.Replay, "tcp://")); !at.Addr().IsLoopback() {
		if !o.Bind {
			engine.Refused = true
			engine.Missing = fmt.Sprintf("events.replay %s makes the engine bind that port on every interface of its host, and it repeats the token ids "+
				"of the latest prompts to whoever asks there, without a password. --bind prints the arguments; with the %s on the same host, "+
				"a replay port on loopback needs no open port.", e.Events.Replay, who)
			return ""
		}
		engine.Notes = append(engine.Notes, fmt.Sprintf("EXPOSED: the replay port %d repeats the token ids of the latest prompts to whoever reaches it: "+
			"let only the %s's host through.", port, who))
		return fmt.Sprintf("tcp://*:%d", port)
	}
	engine.Notes = append(engine.Notes, fmt.Sprintf(
		"The replay port %d is bound on loopback: every process of the engine's host can read the latest batches there, token ids included (--no-replay leaves it out).", port))
	return fmt.Sprintf("tcp://127.0.0.1:%d", port)
}

// usable finds what no arguments can express.
func usable(p *config.Pool, e *config.Endpoint, who string) error {
	for _, name := range append(append([]string{e.Events.Topic}, p.Models...), p.Adapters...) {
		switch {
		case strings.ContainsRune(name, 0):
			return fmt.Errorf("%q holds a zero byte, which no argument can", name)
		case strings.HasPrefix(name, "-") && name != e.Events.Topic:
			return fmt.Errorf("the served name %q begins with '-': the engine would take it for an option", name)
		}
	}
	for _, source := range []string{e.Events.Listen, e.Events.Dial, e.Events.Replay} {
		if source == "" {
			continue
		}
		addr, err := netip.ParseAddrPort(strings.TrimPrefix(source, "tcp://"))
		switch {
		case err != nil:
			return fmt.Errorf("event source %q is not tcp://ip:port", source)
		case !addr.Addr().Unmap().Is4():
			return fmt.Errorf("event source %s is an IPv6 address: engines bind an endpoint with \"::\" instead of connecting to it, and do not bind IPv6. Use an IPv4 address", source)
		case addr.Port() == 0:
			return fmt.Errorf("events.listen has port 0, which the %s replaces at each start: write a fixed port", who)
		}
	}
	return nil
}

// serve adds what makes the engine the endpoint of the configuration, with the names that it is asked for.
func serve(engine *Engine, names []string) {
	addr := address(engine.Endpoint)
	switch {
	case addr.Addr().IsLoopback():
		engine.Args = append(engine.Args, "--host", addr.Addr().String())
	case engine.Kind == SGLang: // whose own default is loopback; vLLM's is all addresses
		all := netip.IPv4Unspecified()
		if addr.Addr().Is6() {
			all = netip.IPv6Unspecified()
		}
		engine.Args = append(engine.Args, "--host", all.String())
	}
	engine.Args = append(engine.Args, "--port", strconv.Itoa(int(addr.Port())), "--served-model-name")
	engine.Args = append(engine.Args, names...)
}

func exposure(e *config.Endpoint, who string) string {
	text := fmt.Sprintf("EXPOSED: port %d is bound on every interface of the engine's host. Whoever reaches it reads the token ids of every prompt, "+
		"without a password and in clear text: let only the %s's host through.", portOf(e.Events.Dial), who)
	if netip.MustParseAddrPort(strings.TrimPrefix(e.Events.Dial, "tcp://")).Addr().IsLoopback() {
		text += " The " + who + " dials it on loopback, so events.listen would do without an open port."
	}
	return text
}

func portOf(source string) uint16 {
	return netip.MustParseAddrPort(strings.TrimPrefix(source, "tcp://")).Port()
}
