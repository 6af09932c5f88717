package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/extproc"
	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/discover"
	"github.com/kvsteer/kvsteer/internal/eventsources"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/fleet"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/internal/tokenize"
	"github.com/kvsteer/kvsteer/internal/watch"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// maxFlush bounds the time in which a router that stops tells the others what it has to; nodes that answer take some milliseconds.
const maxFlush = time.Second

// maxKey bounds an API key file.
const maxKey = 64 << 10

// service is the router with all its parts. Order of life:
//
//	start    admin, pools' probes, nodes and subscribers first; then the ext_proc listener, so that no request meets a router without them
//	stop     the ext_proc server drains while the others still feed it; then subscribers, nodes, probes, admin
//
// A part that ends by itself stops the whole service with its error.
type service struct {
	log       *slog.Logger
	pools     *pool.Set
	router    *router.Router
	keeper    *keeper
	followers *followers
	readiness *readiness
	extproc   *extproc.Server
	admin     *admin.Server
	feed      *feed.Router
	tls       secured
	engineTLS *dialTLS   // nil: clear text
	feedTLS   *dialTLS   // nil: clear text
	feedToken *tokenFile // nil: none
	reloads   *reloads
}

// newService builds every part of the router and starts none. path is the file that cfg was read from, and is read again from.
func newService(path string, cfg *config.Config, log *slog.Logger) (*service, error) {
	reg := prometheus.NewRegistry()
	s := &service{log: log}
	keys, err := s.readFiles(cfg, reg)
	if err != nil {
		return nil, err
	}
	if err := registerProcess(reg); err != nil {
		return nil, err
	}
	capacity := capacity(cfg)
	index, err := kvindex.New(kvindex.Options{MaxSlots: slots(capacity), MaxBlocks: cfg.Index.MaxBlocks, Log: log.With("component", "index")})
	if err != nil {
		return nil, err
	}
	kvindex.NewMetrics(reg, index)
	texts, err := approx.New(approx.Options{MaxSlots: slots(capacity), Log: log.With("component", "approx"), Metrics: approx.NewMetrics(reg)})
	if err != nil {
		return nil, err
	}
	dialTLS := s.engineTLS.dialer()
	s.pools, err = pool.New(pool.Options{
		Pools: poolConfigs(cfg, keys), ProbeInterval: cfg.Probe.Interval.Std(), DialTLS: dialTLS, HTTP2: cfg.Engines.HTTP2, Log: log.With("component", "pool"), Metrics: pool.NewMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	tokenizers := tokenizers{metrics: tokenize.NewMetrics(reg), dialTLS: dialTLS, http2: cfg.Engines.HTTP2}
	if err := tokenizers.replace(cfg); err != nil {
		return nil, err
	}
	settings := settings(cfg, tokenizers.current, keys)
	others := &peers{}
	s.router, err = router.New(router.Options{
		Peers: others,
		Pools: s.pools, Index: index, Texts: texts, Tokenizer: settings.Tokenizer, Render: settings.Render, APIKeys: settings.APIKeys, Tiers: settings.Tiers, Budget: settings.Budget, Limits: settings.Limits,
		Log: log.With("component", "router"), Metrics: router.NewMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	s.keeper, err = newKeeper(cfg, poolConfigs(cfg, keys), settings, s.router, fleet.Options{Capacity: capacity, Metrics: fleet.NewMetrics(reg)},
		discover.Options{Servers: cfg.DNSServers, Log: log.With("component", "discover"), Metrics: discover.NewMetrics(reg)}, log.With("component", "fleet"))
	if err != nil {
		return nil, err
	}
	if err := s.newFeed(cfg, reg, others, log.With("component", "feed")); err != nil {
		return nil, err
	}
	sources := eventsources.New(eventsources.Options{DialTLS: dialTLS, HTTP2: cfg.Engines.HTTP2})
	s.followers, err = newFollowers(followParts{
		home: routerHome{s.router}, asker: sources, metrics: subscriber.NewMetrics(reg), state: subscriber.NewStateDir(cfg.StateDir), log: log.With("component", "subscriber"),
	}, followedBy(cfg))
	if err != nil {
		return nil, err
	}
	s.readiness = &readiness{router: s.router, nodes: s.settledNodes, names: s.keeper.unresolved, pools: s.pools, warmup: cfg.Warmup.Std(), log: log, ready: make(chan struct{})}
	limits := limits(cfg)
	limits.Reflection = cfg.Reflection
	limits.TLS = tlsOf(s.tls.extproc)
	limits.Decider, limits.Completer, limits.Ready = s.router, s.router, s.readiness.ready
	limits.Log, limits.Metrics = log.With("component", "extproc"), extproc.NewMetrics(reg)
	if s.extproc, err = extproc.New(limits); err != nil {
		return nil, err
	}
	if s.admin, err = s.newAdmin(cfg, reg); err != nil {
		return nil, err
	}
	s.reloads = &reloads{
		path: path, capacity: capacity, service: s, log: log.With("component", "config"), metrics: config.NewMetrics(reg, time.Now()),
		tokenizers: tokenizers, keys: keys, current: cfg,
	}
	return s, nil
}

// readFiles reads the files that a configuration names: certificates and their keys, the admin token, and the API keys, which it returns.
// Its error joins all that is wrong with them.
func (s *service) readFiles(cfg *config.Config, reg prometheus.Registerer) (map[string]string, error) {
	var errs [6]error
	s.tls, errs[0] = newSecured(cfg, reg, s.log)
	if cfg.Admin.TokenFile != "" {
		// The admin server, which is made last, reads it for itself.
		if _, err := admin.ReadToken(cfg.Admin.TokenFile); err != nil {
			errs[1] = fmt.Errorf("admin.token_file: %w", err)
		}
	}
	alpn := "http/1.1"
	if cfg.Engines.HTTP2 {
		alpn = "h2"
	}
	log := s.log.With("component", "tls")
	s.engineTLS, errs[2] = newDialTLS("engines.tls", cfg.Engines.TLS, alpn, log)
	s.feedTLS, errs[4] = newDialTLS("feed.tls", cfg.Feed.TLS, "h2", log)
	s.feedToken, errs[5] = newTokenFile("feed.token_file", cfg.Feed.TokenFile, s.log.With("component", "feed"))
	keys, err := readKeys(keyFiles(cfg))
	errs[3] = err
	return keys, errors.Join(errs[:]...)
}

func registerProcess(reg *prometheus.Registry) error {
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kvsteer_build_info", Help: "Constant 1, labelled with the version.", ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
	return errors.Join(reg.Register(build), reg.Register(collectors.NewGoCollector()),
		reg.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
}

// How many endpoints there may be beside those of the start where the configuration does not say. Each rank counts as one.
const (
	spareEndpoints   = 64
	dynamicEndpoints = 512 // where some come from DNS or nodes
)

// capacity is how many endpoints the index is made for, each of their ranks counted.
func capacity(cfg *config.Config) int {
	if cfg.Index.MaxEndpoints > 0 {
		return cfg.Index.MaxEndpoints
	}
	spare := spareEndpoints
	for i := range cfg.Pools {
		if cfg.Dynamic(&cfg.Pools[i]) {
			spare = dynamicEndpoints
		}
	}
	return cfg.Ranks() + spare
}

// slots is how many slots sources take: a copy of all blocks of a source fills one beside the one that is matched. A set of
// holders takes a bit per slot, in words of 64. Matching does not get slower by the width of the sets, only by the slots that are asked for.
func slots(endpoints int) int { return (2*endpoints + 63) / 64 * 64 }

// settings are what the router takes of a configuration beside its pools.
func settings(cfg *config.Config, t *tokenize.Tokenizer, keys map[string]string) router.Settings {
	return router.Settings{
		Tokenizer: t, Render: cfg.Tokenize.Render, APIKeys: keys, Tiers: tierWeights(cfg), Budget: cfg.Budget.Std(),
		Limits: openai.Limits{Body: int(cfg.Limits.Body.Bytes()), PromptTokens: cfg.Limits.PromptTokens},
	}
}

// limits are what the ext_proc server takes of a configuration.
func limits(cfg *config.Config) extproc.Options {
	return extproc.Options{
		MaxBody: cfg.Limits.Body.Bytes(), MaxTotal: cfg.Limits.Bodies.Bytes(), Budget: cfg.Budget.Std(), Notice: cfg.Notice.Std(), Drain: cfg.Drain.Std(),
		Ranked: lists(cfg) && cfg.Headers == "kvsteer",
		Gateway: extproc.Gateway{
			On: cfg.Headers != "kvsteer", List: cfg.GAIE.List || lists(cfg), Pass: cfg.GAIE.Unavailable != "error", Shed: cfg.GAIE.ShedBacklog, Leave: !cfg.GAIE.Served,
		},
	}
}

// lists reports whether Envoy's clusters try a list of endpoints in turn.
func lists(cfg *config.Config) bool { return cfg.Envoy.Layout == string(envoy.LayoutOverride) }

// tokenizers make the tokenizer of a configuration. The one before goes on with the calls that are under way.
type tokenizers struct {
	metrics *tokenize.Metrics
	dialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	http2   bool
	current *tokenize.Tokenizer
}

// options are what a tokenizer takes of a configuration.
func (t *tokenizers) options(cfg *config.Config) tokenize.Options {
	cache := cfg.Tokenize.Cache.Bytes()
	if cache == 0 {
		cache = -1 // off
	}
	return tokenize.Options{
		Timeout: cfg.Tokenize.Timeout.Std(), CacheBytes: cache, Concurrency: cfg.Tokenize.Concurrency,
		MaxTokens: cfg.Limits.PromptTokens, Render: cfg.Tokenize.Render, DialTLS: t.dialTLS, HTTP2: t.http2, Metrics: t.metrics,
	}
}

func (t *tokenizers) replace(cfg *config.Config) error {
	next, err := tokenize.New(t.options(cfg))
	if err != nil {
		return err
	}
	t.current = next
	return nil
}

// keyFiles are those of the pools, in their order.
func keyFiles(cfg *config.Config) []keyFile {
	files := make([]keyFile, len(cfg.Pools))
	for i, p := range cfg.Pools {
		files[i] = keyFile{p.Name, p.APIKeyFile}
	}
	return files
}

// keyFile is a pool's api_key_file, "" for none.
type keyFile struct{ pool, path string }

// readKeys reads the keys, by pool, of all pools' files. Its error joins all that is wrong with them; what they are never shows in it.
func readKeys(files []keyFile) (map[string]string, error) {
	keys := map[string]string{}
	var errs []error
	for i, f := range files {
		if f.path == "" {
			continue
		}
		at := fmt.Sprintf("pools[%d].api_key_file", i)
		text, err := watch.ReadFile(f.path, maxKey)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
			continue
		}
		key := strings.TrimSpace(string(text))
		if key == "" || strings.ContainsAny(key, "\r\n\x00") {
			errs = append(errs, fmt.Errorf("%s: %q does not hold one line of text", at, f.path))
			continue
		}
		keys[f.pool] = key
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return keys, nil
}

func poolConfigs(cfg *config.Config, keys map[string]string) []pool.Config {
	pools := make([]pool.Config, len(cfg.Pools))
	var after time.Duration
	if len(cfg.Nodes) > 0 {
		after = cfg.Feed.StaleAfter.Std() // until then a node may be about to tell
	}
	for i, p := range cfg.Pools {
		pools[i] = pool.Config{
			Name: p.Name, Models: p.Models, Adapters: p.Adapters, MaxModelLen: p.MaxModelLen, PrefillRate: float64(p.PrefillRate),
			Mode: p.Mode, Unsteered: 100 - p.Percent, CacheTokens: p.Approximate.CacheTokens, CacheLifetime: p.Approximate.Lifetime.Std(),
			AdaptersRefresh: p.AdaptersRefresh.Std(), AdaptersAfter: after, APIKey: keys[p.Name], SaltHeader: p.SaltHeader,
			Match: pool.Match{Host: p.Match.Host, PathPrefix: p.Match.PathPrefix, HeaderName: p.Match.Header.Name, HeaderValue: p.Match.Header.Value},
		}
		pools[i].PinRank = p.PinRank
		for _, e := range p.Endpoints {
			if e.Events.Ranks > 1 {
				if pools[i].Ranks == nil {
					pools[i].Ranks = map[string]int{}
				}
				pools[i].Ranks[e.Address] = e.Events.Ranks
			}
			pools[i].Endpoints = append(pools[i].Endpoints, e.Address)
			if e.Drain {
				pools[i].Draining = append(pools[i].Draining, e.Address)
			}
		}
	}
	return pools
}

// run serves until ctx ends or a part fails.
func (s *service) run(ctx context.Context) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	cfg := s.reloads.config()
	if err := s.followers.prepare(followedBy(cfg)); err != nil {
		return err
	}
	defer s.followers.release()
	adminListener, err := net.Listen("tcp", cfg.Admin.Listen)
	if err != nil {
		return notListening("admin.listen", err)
	}
	listener, err := listen(cfg.Listen)
	if err != nil {
		adminListener.Close()
		return notListening("listen", err)
	}
	p := newParts(ctx)
	if why := connecting(cfg); why != "" {
		s.log.Warn("engines connect to this router alone", "why", why)
	}
	p.run("admin", func(ctx context.Context) error { return s.admin.Run(ctx, adminListener) })
	s.tls.run(p.run)
	p.run("pools", s.pools.Run)
	p.run("fleet", s.keeper.run)
	p.run("feed", s.feed.Run)
	if s.feedToken != nil {
		p.run("feed.token_file", s.feedToken.run)
	}
	p.run("subscriber", s.followers.run)
	p.run("readiness", s.readiness.run)
	p.run("config", func(ctx context.Context) error { return s.reloads.run(ctx, hangups) })
	s.log.Info("serving", "version", version, "listen", cfg.Listen, "admin", cfg.Admin.Listen, "pools", len(cfg.Pools), "endpoints", cfg.Endpoints(), "nodes", len(cfg.Nodes), "sources", len(followedBy(cfg)))
	err = p.last(func(serving context.Context) error {
		if err := s.extproc.Run(serving, listener); err != nil {
			return fmt.Errorf("extproc: %w", err)
		}
		// The last records were of other routers' decisions, too: without them their charges would stay until they expire.
		flushing, done := context.WithTimeout(p.ctx, maxFlush)
		defer done()
		s.feed.Flush(flushing)
		return nil
	})
	s.reloads.tokenizers.current.Close()
	if err == nil {
		s.log.Info("stopped")
	}
	return err
}
