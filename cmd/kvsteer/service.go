package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/kvsteer/kvsteer/extproc"
	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/internal/tokenize"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// maxKey bounds an API key file.
const maxKey = 64 << 10

// service is the router with all its parts. Order of life:
//
//	start    admin, pools' probes and subscribers first; then the ext_proc listener, so that no request meets a router without them
//	stop     the ext_proc server drains while the others still feed it; then subscribers, probes, admin
//
// A part that ends by itself stops the whole service with its error.
type service struct {
	cfg         *config.Config
	log         *slog.Logger
	pools       *pool.Set
	tokenizer   *tokenize.Tokenizer
	sources     []*router.Source
	subscribers []*subscriber.Subscriber
	extproc     *extproc.Server
	admin       *admin.Server
}

// newService builds every part of the router and starts none.
func newService(cfg *config.Config, log *slog.Logger) (*service, error) {
	keys, err := apiKeys(cfg)
	if err != nil {
		return nil, err
	}
	reg := prometheus.NewRegistry()
	s := &service{cfg: cfg, log: log}
	if err := s.registerProcess(reg); err != nil {
		return nil, err
	}
	index, err := kvindex.New(kvindex.Options{MaxSlots: slots(cfg), MaxBlocks: cfg.Index.MaxBlocks, Log: log.With("component", "index")})
	if err != nil {
		return nil, err
	}
	kvindex.NewMetrics(reg, index)
	s.pools, err = pool.New(pool.Options{
		Pools: poolConfigs(cfg), ProbeInterval: cfg.Probe.Interval.Std(), Log: log.With("component", "pool"), Metrics: pool.NewMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	s.tokenizer, err = tokenize.New(tokenize.Options{
		Timeout: cfg.Tokenize.Timeout.Std(), CacheBytes: cacheBytes(cfg), Concurrency: cfg.Tokenize.Concurrency,
		MaxTokens: cfg.Limits.PromptTokens, Metrics: tokenize.NewMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	route, err := router.New(router.Options{
		Pools: s.pools, Index: index, Tokenizer: s.tokenizer, APIKeys: keys, Budget: cfg.Budget.Std(),
		Limits: openai.Limits{Body: int(cfg.Limits.Body.Bytes()), PromptTokens: cfg.Limits.PromptTokens},
		Log:    log.With("component", "router"), Metrics: router.NewMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	if err := s.subscribe(route, subscriber.NewMetrics(reg)); err != nil {
		return nil, err
	}
	s.extproc, err = extproc.New(extproc.Options{
		Decider: route, Completer: route, MaxBody: cfg.Limits.Body.Bytes(), MaxTotal: cfg.Limits.Bodies.Bytes(), Budget: cfg.Budget.Std(),
		Drain: cfg.Drain.Std(), Log: log.With("component", "extproc"), Metrics: extproc.NewMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	s.admin, err = admin.New(admin.Options{Gatherer: reg, Ready: s.missing, Log: log.With("component", "admin")})
	return s, err
}

func (s *service) registerProcess(reg *prometheus.Registry) error {
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kvsteer_build_info", Help: "Constant 1, labelled with the version.", ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
	return errors.Join(reg.Register(build), reg.Register(collectors.NewGoCollector()),
		reg.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
}

// slots is how many sources the index must tell apart: a reset takes a fresh slot before the old one is given back. A set of
// holders takes a bit per slot, in words of 64.
func slots(cfg *config.Config) int {
	endpoints := 0
	for _, p := range cfg.Pools {
		endpoints += len(p.Endpoints)
	}
	return (2*endpoints + 63) / 64 * 64
}

// cacheBytes translates "0B switches the cache off" into the tokenizer's terms.
func cacheBytes(cfg *config.Config) int64 {
	if cfg.Tokenize.Cache == 0 {
		return -1
	}
	return cfg.Tokenize.Cache.Bytes()
}

// apiKeys reads the pools' keys. What they are never shows in an error.
func apiKeys(cfg *config.Config) (map[string]string, error) {
	keys := map[string]string{}
	for i, p := range cfg.Pools {
		if p.APIKeyFile == "" {
			continue
		}
		at := fmt.Sprintf("pools[%d].api_key_file", i)
		info, err := os.Stat(p.APIKeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if !info.Mode().IsRegular() || info.Size() > maxKey {
			return nil, fmt.Errorf("%s: %q is not a regular file of at most %d bytes", at, p.APIKeyFile, maxKey)
		}
		text, err := os.ReadFile(p.APIKeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		key := strings.TrimSpace(string(text))
		if key == "" || strings.ContainsAny(key, "\r\n\x00") {
			return nil, fmt.Errorf("%s: %q does not hold one line of text", at, p.APIKeyFile)
		}
		keys[p.Name] = key
	}
	return keys, nil
}

func poolConfigs(cfg *config.Config) []pool.Config {
	pools := make([]pool.Config, len(cfg.Pools))
	for i, p := range cfg.Pools {
		pools[i] = pool.Config{
			Name: p.Name, Models: p.Models, Adapters: p.Adapters, MaxModelLen: p.MaxModelLen, PrefillRate: float64(p.PrefillRate),
			Match: pool.Match{Host: p.Match.Host, PathPrefix: p.Match.PathPrefix, HeaderName: p.Match.Header.Name, HeaderValue: p.Match.Header.Value},
		}
		for _, e := range p.Endpoints {
			pools[i].Endpoints = append(pools[i].Endpoints, e.Address)
		}
	}
	return pools
}

// subscribe makes a subscriber for each endpoint with an event source.
func (s *service) subscribe(route *router.Router, metrics *subscriber.Metrics) error {
	for i, p := range s.cfg.Pools {
		for j, e := range p.Endpoints {
			if e.Events.None() {
				continue
			}
			source, err := route.Source(p.Name, e.Address)
			if err != nil {
				return err
			}
			sub, err := subscriber.New(subscriber.Options{
				Pool: p.Name, Endpoint: e.Address, Listen: e.Events.Listen, Dial: e.Events.Dial, Topic: e.Events.Topic,
				Sink: source, Log: s.log.With("component", "subscriber"), Metrics: metrics,
			})
			if err != nil {
				return fmt.Errorf("pools[%d].endpoints[%d].events: %w", i, j, err)
			}
			s.sources = append(s.sources, source)
			s.subscribers = append(s.subscribers, sub)
		}
	}
	return nil
}

// missing is what keeps the router from being ready: a pool without an endpoint that is up.
func (s *service) missing() []string {
	var missing []string
	for _, p := range s.pools.Pools() {
		up := 0
		for _, e := range p.Endpoints() {
			if e.Healthy() {
				up++
			}
		}
		if up == 0 {
			missing = append(missing, fmt.Sprintf("pool %s: no endpoint is up", p.Name()))
		}
	}
	return missing
}

// run serves until ctx ends or a part fails.
func (s *service) run(ctx context.Context) error {
	adminListener, err := net.Listen("tcp", s.cfg.Admin.Listen)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	listener, err := listen(s.cfg.Listen)
	if err != nil {
		adminListener.Close()
		return fmt.Errorf("listen: %w", err)
	}
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	// The parts outlive ctx by the drain of the ext_proc server.
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	var g errgroup.Group
	part := func(name string, run func(context.Context) error) {
		g.Go(func() error {
			defer stopServing()
			if err := run(parts); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	part("admin", func(ctx context.Context) error { return s.admin.Run(ctx, adminListener) })
	part("pools", s.pools.Run)
	for i, sub := range s.subscribers {
		part("subscriber", func(ctx context.Context) error {
			defer s.sources[i].Close()
			return sub.Run(ctx)
		})
	}
	s.log.Info("serving", "version", version, "listen", s.cfg.Listen, "admin", s.cfg.Admin.Listen, "pools", len(s.cfg.Pools), "sources", len(s.subscribers))
	g.Go(func() error {
		defer stopParts()
		if err := s.extproc.Run(serving, listener); err != nil {
			return fmt.Errorf("extproc: %w", err)
		}
		return nil
	})
	err = g.Wait()
	s.tokenizer.Close()
	if err == nil {
		s.log.Info("stopped")
	}
	return err
}
