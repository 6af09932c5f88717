package vllmdemo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/lab"
)

const (
	// Two engines start in some 40 s on two idle cores, and in minutes on busy ones.
	engineStart = 15 * time.Minute
	startTime   = 30 * time.Second // of router and Envoy
	engineStop  = 20 * time.Second // an engine stops in 2 to 5 s, and not at all while it loads
	// What the router is waited for: it knows of events and ends within milliseconds, and probes every 2 s.
	settleTime = 60 * time.Second
)

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
	envoyAdmin     string             // URL
	accessLog      string
	client         *lab.Client
	log            *lab.LogReader
	entries        map[string]lab.LogEntry // of the access log so far, by request id

	router, envoy *lab.Process
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
	for _, a := range bound {
		addr, err := netip.ParseAddrPort(a)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not ip:port", s.path, a)
		}
		s.ports = append(s.ports, int(addr.Port()))
	}
	s.admin, s.envoyAdmin = "http://"+cfg.Admin.Listen, "http://"+cfg.Envoy.Admin
	s.client = &lab.Client{URL: "http://" + cfg.Envoy.Listen, HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	return s, nil
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

// startRouter starts the router, or starts it again, with a configuration, and returns when it serves.
func (s *site) startRouter(ctx context.Context, path string) error {
	if s.router != nil {
		s.router.Stop()
	}
	var err error
	if s.router, err = s.lab.Start("router", s.opt.Kvsteer, "serve", "--config", path); err != nil {
		return err
	}
	return within(ctx, startTime, func(ctx context.Context) error {
		return s.router.Until(ctx, "serving", func() bool { return lab.Answers(ctx, s.admin+"/healthz") })
	})
}

// untilRouted returns when the router hears and routes to engines.
func (s *site) untilRouted(ctx context.Context, addresses []string) error {
	for _, a := range addresses {
		if err := s.until(ctx, a+" is connected for its events and up", func() bool {
			page, err := lab.ReadMetrics(ctx, s.admin+"/metrics")
			if err != nil {
				return false
			}
			up, err := page.Sum("kvsteer_pool_endpoint_up", label(a))
			connected, none := page.Sum("kvsteer_subscriber_connected", label(a))
			return err == nil && none == nil && up == 1 && connected == float64(s.ranks)
		}); err != nil {
			return err
		}
	}
	return nil
}

// untilAsked returns when Envoy has found the router serving since the call.
func (s *site) untilAsked(ctx context.Context) error {
	stats := func(name string) float64 {
		v, err := lab.Metric(ctx, s.envoyAdmin+"/stats/prometheus?filter=kvsteer_router", name, `envoy_cluster_name="kvsteer_router"`)
		if err != nil {
			return 0
		}
		return v
	}
	checks := stats("envoy_cluster_health_check_success")
	return s.until(ctx, "Envoy asks the router", func() bool {
		return stats("envoy_cluster_health_check_success") > checks && stats("envoy_cluster_membership_healthy") == 1
	})
}

// again starts the router again with a configuration, and returns when it has connected to all engines and Envoy asks it.
func (s *site) again(ctx context.Context, path string) error {
	if err := s.startRouter(ctx, path); err != nil {
		return err
	}
	if err := s.untilRouted(ctx, s.engines); err != nil {
		return err
	}
	return s.untilAsked(ctx)
}

// startEngines starts engines at one time, as a configuration says and with further flags, and returns when the router hears and routes to
// all of them.
func (s *site) startEngines(ctx context.Context, out io.Writer, path string, addresses []string, flags ...string) error {
	g, starting := errgroup.WithContext(ctx)
	began := time.Now()
	var mu sync.Mutex // of out
	for _, a := range addresses {
		// vLLM leaves sockets and caches in its folder for temporary files.
		argv := append([]string{"env", "TMPDIR=" + s.dir, "KVSTEER=" + s.opt.Kvsteer, "CONFIG=" + path}, s.how[a].env...)
		argv = append(append(argv, filepath.Join(s.opt.Example, "engine.sh"), a), append(s.how[a].flags, flags...)...)
		p, err := s.lab.Start("engine-"+strings.ReplaceAll(a, ":", "-"), argv...)
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		s.running[a] = p
		g.Go(func() error {
			err := within(starting, engineStart, func(ctx context.Context) error {
				return p.Until(ctx, "healthy", func() bool { return lab.Answers(ctx, "http://"+a+"/health") })
			})
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(out, "  vLLM at %s answers after %.0f s\n", a, time.Since(began).Seconds())
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return s.untilRouted(ctx, addresses)
}

// startEnvoy starts Envoy, or starts it again, with what kvsteer prints for a configuration.
func (s *site) startEnvoy(ctx context.Context, config string) error {
	if s.envoy != nil {
		s.envoy.Stop()
	}
	version, err := lab.EnvoyVersion(ctx, s.opt.Envoy)
	if err != nil {
		return err
	}
	printed, err := exec.CommandContext(ctx, s.opt.Kvsteer, "envoy", "--config", config, "--envoy-version", version, "--access-log", s.accessLog).Output()
	if err != nil {
		return fmt.Errorf("kvsteer envoy: %w", err)
	}
	path := filepath.Join(s.dir, s.name+"-envoy.yaml")
	if err := os.WriteFile(path, printed, 0o644); err != nil {
		return fmt.Errorf("write Envoy's configuration: %w", err)
	}
	s.envoy, err = s.lab.Start("envoy", s.opt.Envoy, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--file-flush-interval-msec", "20", "-l", "warning")
	if err != nil {
		return err
	}
	if s.log == nil {
		s.log = (&lab.Site{AccessLog: s.accessLog}).FollowLog()
	}
	return within(ctx, startTime, func(ctx context.Context) error {
		return s.envoy.Until(ctx, "ready", func() bool {
			_, err := os.Stat(s.accessLog)
			return err == nil && reachable(ctx, s.client.URL)
		})
	})
}

// reachable reports whether anything answers at url: Envoy's own 404 will do.
func reachable(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return true
}

// kill ends an engine with all its processes at once, as a crash would.
func (s *site) kill(address string) error {
	p := s.running[address]
	err := p.SignalGroup(syscall.SIGKILL)
	<-p.Ended()
	return err
}

// stop ends all processes and returns when they are gone.
func (s *site) stop() {
	s.client.Close()
	var wg sync.WaitGroup
	for _, p := range []*lab.Process{s.router, s.envoy} {
		if p != nil {
			wg.Go(p.Stop)
		}
	}
	for _, p := range s.running {
		wg.Go(func() {
			_ = p.SignalGroup(syscall.SIGTERM)
			t := time.NewTimer(engineStop)
			defer t.Stop()
			select {
			case <-p.Ended():
			case <-t.C:
			}
			_ = p.SignalGroup(syscall.SIGKILL) // what is left of the group
			<-p.Ended()
		})
	}
	wg.Wait()
}

// metric is the sum of the router's series of one name; 0 when there is none, for series begin when something has happened.
func (s *site) metric(ctx context.Context, name string, labels ...string) float64 {
	v, err := lab.Metric(ctx, s.admin+"/metrics", name, labels...)
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
