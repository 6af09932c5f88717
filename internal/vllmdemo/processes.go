package vllmdemo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvsteer/kvsteer/internal/lab"
)

const (
	// Two engines start in some 40 s on two idle cores, and in minutes on busy ones.
	engineStart = 15 * time.Minute
	startTime   = 30 * time.Second // of router and Envoy
	engineStop  = 20 * time.Second // an engine stops in 2 to 5 s, and not at all while it loads
)

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
			return s.metric(ctx, "kvsteer_pool_endpoint_up", label(a)) == 1 && s.metric(ctx, "kvsteer_subscriber_connected", label(a)) == float64(s.ranks)
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
	for _, p := range []*lab.Process{s.router, s.node, s.envoy} {
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
