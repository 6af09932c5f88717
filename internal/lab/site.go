package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// startTimeout bounds the start of one process: long enough for a loaded machine, short enough to be told.
const startTimeout = 30 * time.Second

// SiteOptions describes one site: pools of engines, a router and an Envoy before them.
type SiteOptions struct {
	Name         string // prefix of file and process names, "" for the only site
	Pools        []PoolOptions
	BasePort     int    // first of the site's ports; 0 picks free ones
	EnvoyVersion string // passed to kvsteer envoy; "" prints the layout for unknown versions
	RouterConfig string // further top-level lines of the router's configuration
	EnvoyConfig  string // further keys of its envoy section, such as "message_timeout: 5s"
	RoundRobin   bool   // no router: Envoy alone spreads the requests round robin
	ExtProc      string // where Envoy asks instead of at the router, ip:port or unix:PATH; "" for the router itself
}

// PoolOptions describes the engines of one pool.
type PoolOptions struct {
	Name    string
	Model   string
	Match   string   // value of the pool's match key, such as {host: a.test}; "" for the only pool
	Engines int      // how many
	Args    []string // further arguments of each kvsteer engine
	Dial    bool     // the engines bind their event sockets and the router dials; default: they connect to it
	Relay   bool     // the engines connect through a Relay; not with Dial
	Silent  bool     // the engines publish no events, and the router's configuration names no source of any
	More    string   // further keys of the pool, such as "adapters: [sql]"; "" for none

	Endpoints []string // ip:port of further engines, that the lab does not start
	Events    []string // by position in Endpoints: ip:port that the engine connects to for its events; those beyond have none
}

// Site is a running site.
type Site struct {
	URL         string // where clients send their requests
	EnvoyAdmin  string // URL
	RouterAdmin string // URL, "" without a router
	RouterAddr  string // where the router serves ext_proc, unix:PATH
	AccessLog   string // path of Envoy's access log
	Config      string // path of the router's configuration
	Engines     []*Engine
	Router      *Process
	Envoy       *Process

	lab *Lab
	opt SiteOptions
}

// Engine is one simulated engine.
type Engine struct {
	*Process
	Pool    string
	Address string // ip:port of its HTTP server
	Relay   *Relay // nil unless PoolOptions.Relay

	lab  *Lab
	argv []string
}

// Ports returns how many consecutive ports a site needs from BasePort on.
func (o SiteOptions) Ports() int {
	n := 3
	for _, p := range o.Pools {
		n += p.Engines
		if !p.Silent {
			n += p.Engines
		}
	}
	return n
}

// StartSite starts engines, router and Envoy, and returns when each answers.
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
	s := &Site{
		lab: l, opt: o, AccessLog: l.file(o, "access.log"), Config: l.file(o, "kvsteer.yaml"), RouterAddr: "unix:" + l.socket(o),
	}
	envoyListen, envoyAdmin, routerAdmin := address(), address(), address()
	s.URL, s.EnvoyAdmin = "http://"+envoyListen, "http://"+envoyAdmin
	var pools strings.Builder
	for _, p := range o.Pools {
		fmt.Fprintf(&pools, "- name: %s\n  models: [%s]\n", p.Name, p.Model)
		if p.Match != "" {
			fmt.Fprintf(&pools, "  match: %s\n", p.Match)
		}
		if p.More != "" {
			fmt.Fprintf(&pools, "  %s\n", p.More)
		}
		pools.WriteString("  endpoints:\n")
		for i := range p.Engines {
			e := &Engine{Pool: p.Name, Address: address(), lab: l}
			e.argv = []string{l.opt.Kvsteer, "engine", "--listen", e.Address, "--model", p.Model}
			fmt.Fprintf(&pools, "  - address: %s\n", e.Address)
			if !p.Silent {
				events := "tcp://" + address()
				source, flag := "listen", "--events-connect"
				if p.Dial {
					source, flag = "dial", "--events-bind"
				}
				fmt.Fprintf(&pools, "    events: {%s: %q}\n", source, events)
				if p.Relay {
					if e.Relay, err = l.startRelay(strings.TrimPrefix(events, "tcp://")); err != nil {
						return nil, err
					}
					events = "tcp://" + e.Relay.Addr()
				}
				e.argv = append(e.argv, flag, events)
			}
			e.argv = append(e.argv, p.Args...)
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
	config := fmt.Sprintf("admin: {listen: %q, write: true}\n%s\nenvoy: {listen: %q, admin: %q, %s}\npools:\n%s",
		routerAdmin, o.RouterConfig, envoyListen, envoyAdmin, o.EnvoyConfig, pools.String())
	if err := os.WriteFile(s.Config, fmt.Appendf(nil, "listen: %s\n%s", s.RouterAddr, config), 0o644); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	var envoyConfig []byte
	if o.RoundRobin {
		envoyConfig = roundRobin(envoyListen, envoyAdmin, s.AccessLog, s.Engines)
	} else {
		s.RouterAdmin = "http://" + routerAdmin
		if err := s.StartRouter(ctx); err != nil {
			return nil, err
		}
		asked := s.Config
		if o.ExtProc != "" {
			asked = l.file(o, "asked.yaml")
			if err := os.WriteFile(asked, fmt.Appendf(nil, "listen: %s\n%s", o.ExtProc, config), 0o644); err != nil {
				return nil, fmt.Errorf("write configuration: %w", err)
			}
		}
		if envoyConfig, err = l.envoyConfig(s, asked); err != nil {
			return nil, err
		}
	}
	return s, s.startEnvoy(ctx, envoyConfig)
}

func sitePorts(o SiteOptions) ([]int, error) {
	if o.BasePort == 0 {
		return FreePorts(o.Ports())
	}
	if err := CheckPorts(o.BasePort, o.Ports()); err != nil {
		return nil, err
	}
	ports := make([]int, o.Ports())
	for i := range ports {
		ports[i] = o.BasePort + i
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

// StartRouter starts the router, again after it was killed or stopped, and waits until it is ready.
func (s *Site) StartRouter(ctx context.Context) error {
	p, err := s.lab.start(prefix(s.opt)+"router", s.lab.opt.Kvsteer, "serve", "--config", s.Config)
	if err != nil {
		return err
	}
	s.Router = p
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %s", startTimeout))
	defer cancel()
	return p.until(ctx, "ready", func() bool { return answers(ctx, s.RouterAdmin+"/readyz") })
}

// Pause stops the router's process as a hang would.
func (s *Site) Pause() error { return s.Router.Signal(syscall.SIGSTOP) }

// Resume lets a paused router go on.
func (s *Site) Resume() error { return s.Router.Signal(syscall.SIGCONT) }

// Restart starts an engine that was killed again, empty, at the same address.
func (e *Engine) Restart(ctx context.Context) error {
	p, err := e.lab.start(e.Name, e.argv...)
	if err != nil {
		return err
	}
	e.Process = p
	return e.untilHealthy(ctx)
}

func (e *Engine) untilHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %s", startTimeout))
	defer cancel()
	return e.until(ctx, "healthy", func() bool { return answers(ctx, "http://"+e.Address+"/health") })
}
