package vllmdemo

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/lab"
)

// settleTime is how long the router is waited for: it knows of events and ends within milliseconds, and probes every 2 s.
const settleTime = 60 * time.Second

// site is a running configuration of the example.
type site struct {
	lab  *lab.Lab
	opt  Options
	name string // of the configuration
	path string // of the configuration
	dir  string // of logs and what is written

	text           string // of the configuration
	model, adapter string
	engines        []string           // addresses, in the configuration's order
	events         map[string]string  // where the router listens for an engine's events, by the engine's address
	ranks          int                // of each engine
	how            map[string]program // each engine's own settings, by address
	ports          []int              // that the engines' processes and the router bind
	admin          string             // URL of the router's admin listener
	follower       string             // URL of the admin listener of what follows the engines: the router, or the node
	nodePath       string             // of the configuration of the node that can follow them
	watching       string             // of the configuration of a router that watches the node
	nodeAdmin      string             // URL
	envoyAdmin     string             // URL
	accessLog      string
	client         *lab.Client
	log            *lab.LogReader
	entries        map[string]lab.LogEntry // of the access log so far, by request id

	router, envoy *lab.Process
	node          *lab.Process            // nil until it follows the engines
	relays        map[string]*lab.Relay   // between an engine and the router's port for its events, by the engine's address
	running       map[string]*lab.Process // engines by address
}

// program is what one engine has beyond what kvsteer engine-args prints.
type program struct {
	env, flags []string
}

// programs are the two ways in which the demo's engines hash and publish, in turn: vLLM's default algorithm with hashes as integers, and
// sha256_cbor, which engine-args asks for, with whole ones.
var programs = []program{
	{flags: []string{"--prefix-caching-hash-algo", "sha256"}},
	{env: []string{"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0"}},
}

// newSite reads one of the example's configurations, with at least so many endpoints, each of so many ranks.
func newSite(l *lab.Lab, o Options, dir, name string, endpoints, ranks int) (*site, error) {
	s := &site{
		lab: l, opt: o, name: name, ranks: ranks, path: filepath.Join(o.Example, name+".yaml"), dir: dir, accessLog: filepath.Join(dir, name+"-access.log"),
		entries: map[string]lab.LogEntry{}, running: map[string]*lab.Process{}, relays: map[string]*lab.Relay{},
		events: map[string]string{}, how: map[string]program{},
	}
	text, err := os.ReadFile(s.path)
	if err != nil {
		return nil, err
	}
	s.text = string(text)
	cfg, err := config.Load(s.path)
	if err != nil {
		return nil, err
	}
	if len(cfg.Pools) != 1 || len(cfg.Pools[0].Adapters) == 0 || len(cfg.Pools[0].Endpoints) < endpoints {
		return nil, fmt.Errorf("%s: the demo needs one pool with an adapter and endpoints: %d of them", s.path, endpoints)
	}
	p := cfg.Pools[0]
	s.model, s.adapter = p.Models[0], p.Adapters[0]
	bound := []string{cfg.Listen, cfg.Admin.Listen, cfg.Envoy.Listen, cfg.Envoy.Admin}
	for i, e := range p.Endpoints {
		if e.Events.Listen == "" || e.Events.Replay == "" || e.Events.Ranks != ranks {
			return nil, fmt.Errorf("%s: the demo needs events.listen and events.replay of endpoint %s, and ranks: %d", s.path, e.Address, ranks)
		}
		s.engines = append(s.engines, e.Address)
		s.events[e.Address], s.how[e.Address] = strings.TrimPrefix(e.Events.Listen, "tcp://"), programs[i%len(programs)]
		bound = append(bound, e.Address)
		for r := range ranks {
			at := e.Events.Of(r)
			bound = append(bound, strings.TrimPrefix(at.Listen, "tcp://"), strings.TrimPrefix(at.Replay, "tcp://"))
		}
	}
	if err := s.bind(s.path, bound...); err != nil {
		return nil, err
	}
	s.admin, s.envoyAdmin = "http://"+cfg.Admin.Listen, "http://"+cfg.Envoy.Admin
	s.follower = s.admin
	s.client = &lab.Client{URL: "http://" + cfg.Envoy.Listen, HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	return s, nil
}

// takeNode reads the configurations of a node that follows the site's engines, at the ports at which the router does, and of the router that watches it.
func (s *site) takeNode(folder string) error {
	node, router := filepath.Join(s.opt.Example, folder, "node.yaml"), filepath.Join(s.opt.Example, folder, "kvsteer.yaml")
	cfg, err := config.LoadNode(node)
	if err != nil {
		return err
	}
	if len(cfg.Pools) != 1 || len(cfg.Pools[0].Engines) != len(s.engines) {
		return fmt.Errorf("%s: the demo needs one pool with the %d engines of %s", node, len(s.engines), s.path)
	}
	for i, a := range s.engines {
		e := cfg.Pools[0].Engines[i]
		if e.Address != a || e.Events.Listen != "tcp://"+s.events[a] || e.Events.Replay == "" {
			return fmt.Errorf("%s: the demo needs engine %s with events.listen tcp://%s and events.replay, as %s has it", node, a, s.events[a], s.path)
		}
	}
	watching, err := config.Load(router)
	if err != nil {
		return err
	}
	if len(watching.Nodes) != 1 || watching.Nodes[0].Address != cfg.Listen || "http://"+watching.Admin.Listen != s.admin {
		return fmt.Errorf("%s: the demo needs the listeners of %s, and one node: %s", router, s.path, cfg.Listen)
	}
	s.nodePath, s.watching, s.nodeAdmin = node, router, "http://"+cfg.Admin.Listen
	return s.bind(node, cfg.Listen, cfg.Admin.Listen)
}

// bind adds addresses that a configuration names to the ports that the site uses.
func (s *site) bind(path string, addresses ...string) error {
	for _, a := range addresses {
		addr, err := netip.ParseAddrPort(a)
		if err != nil {
			return fmt.Errorf("%s: %q is not ip:port", path, a)
		}
		s.ports = append(s.ports, int(addr.Port()))
	}
	return nil
}

// variant writes the configuration with other text in some places and returns its path.
func (s *site) variant(name string, change func(string) string) (string, error) {
	changed := change(s.text)
	if changed == s.text {
		return "", fmt.Errorf("%s: it has nothing to change for %s", s.path, name)
	}
	path := filepath.Join(s.dir, s.name+"-"+name+".yaml")
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		return "", fmt.Errorf("write a configuration: %w", err)
	}
	return path, nil
}

// relayed puts a relay between each engine and the router. It returns the configuration that tells the engines of it.
func (s *site) relayed() (string, error) {
	var words []string
	for engine, to := range s.events {
		r, err := s.lab.StartRelay(to)
		if err != nil {
			return "", err
		}
		s.relays[engine] = r
		words = append(words, "tcp://"+to, "tcp://"+r.Addr())
	}
	return s.variant("engines", strings.NewReplacer(words...).Replace)
}

// free reports an error when something uses the site's ports.
func (s *site) free() error {
	for _, port := range s.ports {
		if err := lab.CheckPorts(port, 1); err != nil {
			return fmt.Errorf("%w: end what uses it (another demo?)", err)
		}
	}
	return nil
}

// metric is the sum of the series of one name: of engines' events those of what follows the engines, else the router's; 0 when there is none, for
// series begin when something has happened.
func (s *site) metric(ctx context.Context, name string, labels ...string) float64 {
	admin := s.admin
	if strings.HasPrefix(name, "kvsteer_subscriber_") {
		admin = s.follower
	}
	v, err := lab.Metric(ctx, admin+"/metrics", name, labels...)
	if err != nil {
		return 0
	}
	return v
}

func label(endpoint string) string { return fmt.Sprintf("endpoint=%q", endpoint) }

func rank(n int) string { return fmt.Sprintf("rank=\"%d\"", n) }

// until polls a condition of the router.
func (s *site) until(ctx context.Context, what string, condition func() bool) error {
	return within(ctx, settleTime, func(ctx context.Context) error {
		for !condition() {
			if !lab.Wait(ctx, 20*time.Millisecond) {
				return fmt.Errorf("waiting until %s: %w", what, context.Cause(ctx))
			}
		}
		return nil
	})
}

// settle waits until the router has had no event for half a second.
func (s *site) settle(ctx context.Context) error {
	last, since := -1.0, time.Now()
	return s.until(ctx, "no more events come", func() bool {
		if n := s.metric(ctx, "kvsteer_subscriber_batches_total"); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) >= 500*time.Millisecond
	})
}

func within(ctx context.Context, d time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %s", d))
	defer cancel()
	return do(ctx)
}
