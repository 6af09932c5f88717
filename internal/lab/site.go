package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// startTimeout bounds the start of one process: long enough for a loaded machine, short enough to be told.
const startTimeout = 30 * time.Second

// SiteOptions describes one site: pools of engines, nodes that follow them, a router and an Envoy before them.
type SiteOptions struct {
	Name         string // prefix of file and process names, "" for the only site
	Pools        []PoolOptions
	BasePort     int    // first of the site's ports; 0 picks free ones
	EnvoyVersion string // passed to kvsteer envoy; "" prints the layout for unknown versions
	RouterConfig string // further top-level lines of the router's configuration; the word ROUTER_NAME in it is replaced by a name of the router's own
	EnvoyConfig  string // further keys of its envoy section, such as "message_timeout: 5s"
	RoundRobin   bool   // no router: Envoy alone spreads the requests round robin
	Routers      int    // routers behind the Envoy; 0 stands for 1. Without nodes each has events of its own: all engines must be dialled
	Nodes        int    // kvsteer node processes, over which the engines are spread in turn; with 0 the routers follow the engines themselves
	NodeConfig   string // further top-level lines of the nodes' configurations

	// Foreign is an Envoy configuration of somebody else's, to which the pieces of kvsteer envoy --filter-only are added. The words
	// LISTEN_PORT, ADMIN_PORT, ACCESS_LOG and ENGINES (a list of endpoints, at localhost) in it are replaced, and those in Replace.
	Foreign string
	Replace map[string]string

	Bearer  string     // token that the site's clients send, "" for none
	HTTP2   bool       // the site's clients speak HTTP/2
	Secure  *Authority // the engines speak TLS and HTTP/2, with certificates of this authority for EngineName
	ExtProc string     // where Envoy asks instead of at the router, ip:port or unix:PATH; "" for the router itself
}

// PoolOptions describes the engines of one pool.
type PoolOptions struct {
	Name    string
	Model   string
	Match   string   // value of the pool's match key, such as {host: a.test}; "" for the only pool
	Config  string   // further keys of the pool, such as "mode: observe"
	Engines int      // how many
	Args    []string // further arguments of each kvsteer engine, such as --hash-algo or --buffer-steps
	Dial    bool     // the engines bind their event sockets and the router dials; default: they connect to it
	Relay   bool     // the engines connect through a Relay; not with Dial, nor with Ranks
	Replay  bool     // the engines have replay sockets, and the router is told of them
	Ranks   int      // data-parallel ranks of each engine; 0 stands for 1, and the router is told of more
	Own     bool     // the routers follow the engines themselves, although there are nodes
	Silent  bool     // the engines publish no events, and the router's configuration names no source of any

	Endpoints []string // ip:port of further engines, that the lab does not start
	Events    []string // by position in Endpoints: ip:port that the engine connects to for its events; those beyond have none
}

// EngineName is what the certificates of secure engines are made out to.
const EngineName = "engine.test"

// Site is a running site.
type Site struct {
	URL         string // where clients send their requests
	EnvoyAdmin  string // URL
	RouterAdmin string // URL, "" without a router
	RouterAddr  string // where the router serves ext_proc, unix:PATH, or ip:port where there are several
	AccessLog   string // path of Envoy's access log
	Config      string // path of the router's configuration
	Engines     []*Engine
	Nodes       []*Node
	Router      *Process // the first one
	Routers     []*Router
	Envoy       *Process

	lab *Lab
	opt SiteOptions
}

// Router is one router of a site.
type Router struct {
	*Process
	Admin  string // URL
	Addr   string // where it serves ext_proc
	Config string // path of its configuration

	lab  *Lab
	name string
}

// Ports returns how many consecutive ports a site needs from BasePort on.
func (o SiteOptions) Ports() int {
	n := 0
	for _, r := range o.runs() {
		n += r
	}
	return n
}

// runs returns what a site needs of ports in the order of their use: each number stands for as many consecutive ones.
func (o SiteOptions) runs() []int {
	n := 3
	if o.Routers > 1 {
		n += 2*o.Routers - 1
	}
	n += 2 * o.Nodes
	runs := slices.Repeat([]int{1}, n)
	for _, p := range o.Pools {
		for range p.Engines {
			runs = append(runs, 1)
			if !p.Silent {
				runs = append(runs, max(1, p.Ranks))
			}
			if !p.Silent && p.Replay {
				runs = append(runs, max(1, p.Ranks))
			}
		}
	}
	return runs
}

// StartSite starts engines, nodes, routers and Envoy, and returns when each answers.
func (l *Lab) StartSite(ctx context.Context, o SiteOptions) (*Site, error) {
	if socket := l.socket(o); !o.RoundRobin && len(socket) > maxSocketPath {
		return nil, fmt.Errorf("the path of the router's socket, %s, has %d bytes, and a Unix socket takes %d: choose a shorter folder (TMPDIR)",
			socket, len(socket), maxSocketPath)
	}
	ports, err := sitePorts(o)
	if err != nil {
		return nil, err
	}
	next := func() int { p := ports[0]; ports = ports[1:]; return p }
	address := func() string { return fmt.Sprintf("127.0.0.1:%d", next()) }
	s := &Site{lab: l, opt: o, AccessLog: l.file(o, "access.log")}
	envoyListen, envoyAdmin := address(), address()
	s.URL, s.EnvoyAdmin = "http://"+envoyListen, "http://"+envoyAdmin
	s.Routers = append(s.Routers, &Router{
		lab: l, name: prefix(o) + "router", Admin: "http://" + address(), Addr: "unix:" + l.socket(o), Config: l.file(o, "kvsteer.yaml"),
	})
	if o.Routers > 1 {
		s.Routers[0].Addr = address()
		for i := 1; i < o.Routers; i++ {
			s.Routers = append(s.Routers, &Router{
				lab: l, name: fmt.Sprintf("%srouter-%d", prefix(o), i), Admin: "http://" + address(), Addr: address(),
				Config: l.file(o, fmt.Sprintf("kvsteer-%d.yaml", i)),
			})
		}
	}
	for i := range o.Nodes {
		s.Nodes = append(s.Nodes, &Node{
			lab: l, name: fmt.Sprintf("%snode-%d", prefix(o), i), Addr: address(), Admin: "http://" + address(), Config: l.file(o, fmt.Sprintf("node-%d.yaml", i)),
		})
	}
	first := s.Routers[0]
	s.RouterAddr, s.Config = first.Addr, first.Config
	var pools strings.Builder
	for _, p := range o.Pools {
		fmt.Fprintf(&pools, "- name: %s\n  models: [%s]\n", p.Name, p.Model)
		if p.Match != "" {
			fmt.Fprintf(&pools, "  match: %s\n", p.Match)
		}
		if p.Config != "" {
			fmt.Fprintf(&pools, "  %s\n", p.Config)
		}
		pools.WriteString("  endpoints:\n")
		for i := range p.Engines {
			e := &Engine{Pool: p.Name, Address: address(), lab: l, client: probe}
			e.argv = []string{l.opt.Kvsteer, "engine", "--listen", e.Address, "--model", p.Model}
			fmt.Fprintf(&pools, "  - address: %s\n", e.Address)
			if !p.Silent {
				events := "tcp://" + address()
				source, flag := "listen", "--events-connect"
				if p.Dial {
					source, flag = "dial", "--events-bind"
				}
				keys := fmt.Sprintf("%s: %q", source, events)
				if p.Replay {
					replay := "tcp://" + address()
					keys += fmt.Sprintf(", replay: %q", replay)
					e.argv = append(e.argv, "--replay-bind", replay)
				}
				if p.Ranks > 1 {
					keys += fmt.Sprintf(", ranks: %d", p.Ranks)
					e.argv = append(e.argv, "--ranks", strconv.Itoa(p.Ranks))
				}
				if o.Nodes > 0 && !p.Own {
					e.argv = append(e.argv, "--seed", "0") // what nodes take for set where they are told nothing
					s.Nodes[len(s.Engines)%o.Nodes].follow(e, p, keys)
				} else {
					fmt.Fprintf(&pools, "    events: {%s}\n", keys)
				}
				if p.Relay {
					if e.Relay, err = l.StartRelay(strings.TrimPrefix(events, "tcp://")); err != nil {
						return nil, err
					}
					events = "tcp://" + e.Relay.Addr()
				}
				e.argv = append(e.argv, flag, events)
			}
			e.argv = append(e.argv, p.Args...)
			if err := e.secure(o.Secure); err != nil {
				return nil, err
			}
			if e.Process, err = l.start(fmt.Sprintf("%sengine-%s-%d", prefix(o), p.Name, i), e.argv...); err != nil {
				return nil, err
			}
			s.Engines = append(s.Engines, e)
		}
		for i, a := range p.Endpoints {
			fmt.Fprintf(&pools, "  - address: %s\n", a)
			if i < len(p.Events) {
				fmt.Fprintf(&pools, "    events: {listen: %q}\n", "tcp://"+p.Events[i])
			}
		}
	}
	for _, e := range s.Engines {
		if err := e.untilHealthy(ctx); err != nil {
			return nil, err
		}
	}
	for _, n := range s.Nodes {
		if err := n.writeConfig(o.NodeConfig); err != nil {
			return nil, err
		}
		if err := n.Start(ctx); err != nil {
			return nil, err
		}
	}
	further := o.EnvoyConfig
	if o.Routers > 1 {
		var addrs []string
		for _, r := range s.Routers {
			addrs = append(addrs, strconv.Quote(r.Addr))
		}
		further = strings.TrimPrefix(fmt.Sprintf("%s, routers: [%s]", further, strings.Join(addrs, ", ")), ", ")
	}
	config := func(listen string, r *Router) []byte {
		return fmt.Appendf(nil, "listen: %s\nadmin: {listen: %q, write: true}\n%s\nenvoy: {listen: %q, admin: %q, %s}\npools:\n%s",
			listen, strings.TrimPrefix(r.Admin, "http://"), strings.TrimLeft(strings.ReplaceAll(o.RouterConfig, "ROUTER_NAME", r.name)+"\n"+watched(s.Nodes), "\n"), envoyListen, envoyAdmin, further, pools.String())
	}
	for _, r := range s.Routers {
		if err := os.WriteFile(r.Config, config(r.Addr, r), 0o644); err != nil {
			return nil, fmt.Errorf("write configuration: %w", err)
		}
	}
	var envoyConfig []byte
	if o.RoundRobin {
		envoyConfig = roundRobin(envoyListen, envoyAdmin, s.AccessLog, s.Engines)
	} else {
		s.RouterAdmin = first.Admin
		for _, r := range s.Routers {
			if err := r.Start(ctx); err != nil {
				return nil, err
			}
		}
		s.Router = first.Process
		asked := s.Config
		if o.ExtProc != "" {
			asked = l.file(o, "asked.yaml")
			if err := os.WriteFile(asked, config(o.ExtProc, first), 0o644); err != nil {
				return nil, fmt.Errorf("write configuration: %w", err)
			}
		}
		if envoyConfig, err = l.envoyConfig(s, asked); err != nil {
			return nil, err
		}
	}
	return s, s.startEnvoy(ctx, envoyConfig)
}

// sitePorts returns the first port of each of the site's runs.
func sitePorts(o SiteOptions) ([]int, error) {
	runs := o.runs()
	if o.BasePort == 0 {
		return FreeRuns(runs)
	}
	if err := CheckPorts(o.BasePort, o.Ports()); err != nil {
		return nil, err
	}
	ports := make([]int, 0, len(runs))
	next := o.BasePort
	for _, n := range runs {
		ports = append(ports, next)
		next += n
	}
	return ports, nil
}

func prefix(o SiteOptions) string {
	if o.Name == "" {
		return ""
	}
	return o.Name + "-"
}

func (l *Lab) file(o SiteOptions, name string) string {
	return filepath.Join(l.opt.Dir, prefix(o)+name)
}

// maxSocketPath is what fits into Linux's sockaddr_un with the zero byte behind it.
const maxSocketPath = 107

func (l *Lab) socket(o SiteOptions) string { return l.file(o, "extproc.sock") }

// StartRouter starts the first router, again after it was killed or stopped, and waits until it is ready.
func (s *Site) StartRouter(ctx context.Context) error {
	err := s.Routers[0].Start(ctx)
	s.Router = s.Routers[0].Process
	return err
}

// Start starts the router, again after it was killed or stopped, and waits until it is ready.
func (r *Router) Start(ctx context.Context) error {
	p, err := r.lab.start(r.name, r.lab.opt.Kvsteer, "serve", "--config", r.Config)
	if err != nil {
		return err
	}
	r.Process = p
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %s", startTimeout))
	defer cancel()
	return p.until(ctx, "ready", func() bool { return answers(ctx, r.Admin+"/readyz") })
}

// Pause stops the router's process as a hang would.
func (s *Site) Pause() error { return s.Router.Pause() }

// Resume lets a paused router go on.
func (s *Site) Resume() error { return s.Router.Resume() }
