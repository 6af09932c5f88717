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

// site is the running example.
type site struct {
	lab  *lab.Lab
	opt  Options
	path string // of the configuration
	dir  string // of logs and what is written

	model, adapter string
	engines        []string // addresses, in the configuration's order
	ports          []int    // that the engines' processes and the router bind
	admin          string   // URL of the router's admin listener
	accessLog      string
	client         *lab.Client
	log            *lab.LogReader
	entries        map[string]lab.LogEntry // of the access log so far, by request id

	running map[string]*lab.Process // engines by address
}

// newSite reads the example's configuration.
func newSite(l *lab.Lab, o Options, dir string) (*site, error) {
	s := &site{
		lab: l, opt: o, path: filepath.Join(o.Example, "kvsteer.yaml"), dir: dir, accessLog: filepath.Join(dir, "access.log"),
		entries: map[string]lab.LogEntry{}, running: map[string]*lab.Process{},
	}
	cfg, err := config.Load(s.path)
	if err != nil {
		return nil, err
	}
	if len(cfg.Pools) != 1 || len(cfg.Pools[0].Adapters) == 0 || len(cfg.Pools[0].Endpoints) < 2 {
		return nil, fmt.Errorf("%s: the demo needs one pool with an adapter and two endpoints", s.path)
	}
	p := cfg.Pools[0]
	s.model, s.adapter = p.Models[0], p.Adapters[0]
	for _, e := range p.Endpoints {
		s.engines = append(s.engines, e.Address)
	}
	for _, a := range append([]string{cfg.Listen, cfg.Admin.Listen, cfg.Envoy.Listen, cfg.Envoy.Admin}, s.engines...) {
		addr, err := netip.ParseAddrPort(a)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not ip:port", s.path, a)
		}
		s.ports = append(s.ports, int(addr.Port()))
	}
	s.admin = "http://" + cfg.Admin.Listen
	s.client = &lab.Client{URL: "http://" + cfg.Envoy.Listen, HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	return s, nil
}

// start starts everything and returns when requests can be sent.
func (s *site) start(ctx context.Context, out io.Writer) error {
	for _, port := range s.ports {
		if err := lab.CheckPorts(port, 1); err != nil {
			return fmt.Errorf("%w: end what uses it (another demo?)", err)
		}
	}
	router, err := s.lab.Start("router", s.opt.Kvsteer, "serve", "--config", s.path)
	if err != nil {
		return err
	}
	if err := within(ctx, startTime, func(ctx context.Context) error {
		return router.Until(ctx, "serving", func() bool { return lab.Answers(ctx, s.admin+"/healthz") })
	}); err != nil {
		return err
	}
	if err := s.startEngines(ctx, out, s.engines); err != nil {
		return err
	}
	return s.startEnvoy(ctx)
}

// startEngines starts engines at one time, with further flags, and returns when the router hears and routes to all of them.
func (s *site) startEngines(ctx context.Context, out io.Writer, addresses []string, flags ...string) error {
	g, starting := errgroup.WithContext(ctx)
	began := time.Now()
	var mu sync.Mutex // of out
	for _, a := range addresses {
		// vLLM leaves sockets and caches in its folder for temporary files.
		argv := append([]string{"env", "TMPDIR=" + s.dir, "KVSTEER=" + s.opt.Kvsteer, "CONFIG=" + s.path, filepath.Join(s.opt.Example, "engine.sh"), a}, flags...)
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
	for _, a := range addresses {
		if err := s.until(ctx, a+" is connected for its events and up", func() bool {
			return s.metric(ctx, "kvsteer_subscriber_connected", label(a)) == 1 && s.metric(ctx, "kvsteer_pool_endpoint_up", label(a)) == 1
		}); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) startEnvoy(ctx context.Context) error {
	version, err := lab.EnvoyVersion(ctx, s.opt.Envoy)
	if err != nil {
		return err
	}
	printed, err := exec.CommandContext(ctx, s.opt.Kvsteer, "envoy", "--config", s.path, "--envoy-version", version, "--access-log", s.accessLog).Output()
	if err != nil {
		return fmt.Errorf("kvsteer envoy: %w", err)
	}
	path := filepath.Join(s.dir, "envoy.yaml")
	if err := os.WriteFile(path, printed, 0o644); err != nil {
		return fmt.Errorf("write Envoy's configuration: %w", err)
	}
	p, err := s.lab.Start("envoy", s.opt.Envoy, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--file-flush-interval-msec", "20", "-l", "warning")
	if err != nil {
		return err
	}
	s.log = (&lab.Site{AccessLog: s.accessLog}).FollowLog()
	return within(ctx, startTime, func(ctx context.Context) error {
		return p.Until(ctx, "ready", func() bool {
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

// stop ends all engines and returns when they are gone. The lab ends the others.
func (s *site) stop() {
	s.client.Close()
	var wg sync.WaitGroup
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
