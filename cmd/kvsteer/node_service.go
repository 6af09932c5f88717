package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/eventsources"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/ports"
	"github.com/kvsteer/kvsteer/internal/scrape"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
	"github.com/kvsteer/kvsteer/subscriber"
)

// nodeService is a node with all its parts. Order of life:
//
//	start    ports are picked, then everything at once but routers: those that come wait until engines that are up are connected and saved mirrors proven,
//	         or the warmup is over, as what they are told takes the place of what they know
//	stop     the streams of routers first, so that none hears of what a stop forgets: what they know counts until it is stale or the next process of
//	         this node says better. Then subscribers, which save their mirrors, and the rest
//
// A part that ends by itself stops the whole service with its error.
type nodeService struct {
	log       *slog.Logger
	pools     *pool.Set
	home      *nodeHome
	feed      *feed.Node
	announcer *announcer
	followers *followers
	scrapes   *scrapes
	files     *modelFiles
	admin     *admin.Server
	tls       nodeSecured
	token     *tokenFile // of the feed; nil: none
	engineTLS *dialTLS   // nil: clear text
	reloads   *nodeReloads
	serving   atomic.Bool
}

// newNodeService builds every part of a node and starts none. path is the file that cfg was read from, and is read again from.
func newNodeService(path string, cfg *config.Node, log *slog.Logger) (*nodeService, error) {
	reg := prometheus.NewRegistry()
	n := &nodeService{log: log}
	keys, err := n.readFiles(cfg, reg)
	if err != nil {
		return nil, err
	}
	if err := registerProcess(reg); err != nil {
		return nil, err
	}
	dialTLS := n.engineTLS.dialer()
	n.pools, err = pool.New(pool.Options{
		Pools: nodePoolConfigs(cfg, keys), ProbeInterval: cfg.Probe.Interval.Std(), DialTLS: dialTLS, Log: log.With("component", "pool"), Metrics: pool.NewMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	n.feed, err = feed.NewNode(feed.NodeOptions{
		Name: cfg.Name, Release: version, Window: cfg.Window.Std(), WindowKeys: cfg.WindowKeys, Files: n.files, Token: n.token.current, TLS: tlsOf(n.tls.feed),
		Insecure: cfg.Insecure, Log: log.With("component", "feed"), Metrics: feed.NewNodeMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	n.announcer = &announcer{feed: n.feed, pools: n.pools, files: n.files, wake: make(chan struct{}, 1), config: func() *config.Node { return n.reloads.config() }}
	n.home = newNodeHome(n.feed, n.pools, n.announcer.changed)
	n.announcer.home, n.files.changed = n.home, n.announcer.changed
	n.followers, err = newFollowers(followParts{
		home: n.home, asker: eventsources.New(eventsources.Options{DialTLS: dialTLS}), metrics: subscriber.NewMetrics(reg), state: subscriber.NewStateDir(cfg.StateDir),
		maxBlocks: cfg.MaxBlocks, log: log.With("component", "subscriber"),
	}, nil) // the ports are not known yet
	if err != nil {
		return nil, err
	}
	n.scrapes = newScrapes(n.feed, dialTLS, scrape.NewMetrics(reg), log.With("component", "scrape"))
	n.reloads = &nodeReloads{path: path, service: n, log: log.With("component", "config"), metrics: config.NewMetrics(reg, time.Now()), keys: keys, current: cfg}
	n.admin, err = admin.New(admin.Options{
		Gatherer: reg, Ready: n.missing, Viewer: nodeViewer{n}, Node: func() any { return n.state() }, Version: version,
		Config: func() json.Marshaler { return n.reloads.config() }, Control: nodeControl{n}, Write: cfg.Admin.Write,
		TokenFile: cfg.Admin.TokenFile, TLS: tlsOf(n.tls.admin), Metrics: admin.NewMetrics(reg), Log: log.With("component", "admin"),
	})
	return n, err
}

// nodeSecured are the TLS sides of the node's two listeners; nil: clear text.
type nodeSecured struct{ feed, admin *tlsfiles.Files }

// readFiles reads the files that a configuration names. Its error joins all that is wrong with them.
func (n *nodeService) readFiles(cfg *config.Node, reg prometheus.Registerer) (map[string]string, error) {
	var errs [7]error
	open := opener(reg, n.log)
	n.tls.feed, errs[0] = open("feed", "tls", cfg.TLS, "h2")
	n.tls.admin, errs[1] = open("admin", "admin.tls", cfg.Admin.TLS, "http/1.1")
	if cfg.Admin.TokenFile != "" {
		// The admin server, which is made last, reads it for itself.
		if _, err := admin.ReadToken(cfg.Admin.TokenFile); err != nil {
			errs[2] = fmt.Errorf("admin.token_file: %w", err)
		}
	}
	n.token, errs[3] = newTokenFile("token_file", cfg.TokenFile, n.log.With("component", "feed"))
	n.engineTLS, errs[4] = newDialTLS("engines.tls", cfg.Engines.TLS, "http/1.1", n.log.With("component", "tls"))
	keys, err := readKeys(nodeKeyFiles(cfg))
	errs[5] = err
	n.files, errs[6] = newModelFiles(cfg, n.log.With("component", "tokenizer"))
	return keys, errors.Join(errs[:]...)
}

// nodeKeyFiles are those of a node's pools, in their order.
func nodeKeyFiles(cfg *config.Node) []keyFile {
	files := make([]keyFile, len(cfg.Pools))
	for i, p := range cfg.Pools {
		files[i] = keyFile{p.Name, p.APIKeyFile}
	}
	return files
}

// nodePoolConfigs are the pools of a node as package pool knows them. An engine is named by where the node reaches it.
func nodePoolConfigs(cfg *config.Node, keys map[string]string) []pool.Config {
	pools := make([]pool.Config, len(cfg.Pools))
	for i, p := range cfg.Pools {
		pools[i] = pool.Config{Name: p.Name, Models: p.Models, AdaptersRefresh: p.AdaptersRefresh.Std(), APIKey: keys[p.Name]}
		for _, e := range p.Engines {
			pools[i].Endpoints = append(pools[i].Endpoints, e.Local())
			if e.Drain {
				pools[i].Draining = append(pools[i].Draining, e.Local())
			}
		}
	}
	return pools
}

// prepare makes ready what is kept from one process of the node to the next: saved mirrors and ports.
func (n *nodeService) prepare(cfg *config.Node) error {
	if err := n.followers.state.Prepare(); err != nil {
		return noStateDir(err)
	}
	all := func(string) bool { return true } // no other node has the folder, so who has a port is a stranger
	picked, err := pickPorts(cfg, all)
	if err == nil {
		tellPicked(n.log, cfg, picked)
		n.reloads.picked = picked
		sources := followedEngines(cfg, picked)
		err = errors.Join(n.followers.retain(sources), n.followers.add(sources))
	}
	if err != nil {
		n.followers.release()
	}
	return err
}

// run follows engines and serves routers until ctx ends or a part fails.
func (n *nodeService) run(ctx context.Context) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	cfg := n.reloads.config()
	if err := n.prepare(cfg); err != nil {
		return err
	}
	defer n.followers.release()
	adminListener, err := net.Listen("tcp", cfg.Admin.Listen)
	if err != nil {
		return notListening("admin.listen", err)
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		adminListener.Close()
		return notListening("listen", err)
	}
	p := newParts(ctx)
	p.run("admin", func(ctx context.Context) error { return n.admin.Run(ctx, adminListener) })
	for _, f := range []*tlsfiles.Files{n.tls.feed, n.tls.admin} {
		if f != nil {
			p.run("tls", f.Run)
		}
	}
	if n.token != nil {
		p.run("token", n.token.run)
	}
	p.run("pools", n.pools.Run)
	p.run("subscriber", n.followers.run)
	n.scrapes.set(scrapedOf(cfg))
	p.run("scrape", n.scrapes.run)
	p.run("announce", n.announcer.run)
	p.run("tokenizer", n.files.run)
	p.run("config", func(ctx context.Context) error { return n.reloads.run(ctx, hangups) })
	n.log.Info("serving", "version", version, "node", cfg.Name, "listen", cfg.Listen, "admin", cfg.Admin.Listen, "pools", len(cfg.Pools), "engines", cfg.EngineCount())
	err = p.last(func(serving context.Context) error { return n.serve(serving, listener, cfg.Warmup.Std()) })
	if err == nil {
		n.log.Info("stopped")
	}
	return err
}

// serve serves routers when all engines are connected, or the warmup is over, until ctx ends.
func (n *nodeService) serve(ctx context.Context, l net.Listener, warmup time.Duration) error {
	defer n.serving.Store(false)
	n.settle(ctx, warmup)
	n.announcer.look() // what routers are told takes the place of what they knew
	n.serving.Store(true)
	if err := n.feed.Run(ctx, l); err != nil {
		return fmt.Errorf("feed: %w", err)
	}
	return nil
}

// settlePoll is how often it is looked at whether engines are connected.
const settlePoll = 20 * time.Millisecond

// settle waits until all engines are connected or known to be down, at most for the warmup.
func (n *nodeService) settle(ctx context.Context, warmup time.Duration) {
	over := time.NewTimer(warmup)
	defer over.Stop()
	poll := time.NewTicker(settlePoll)
	defer poll.Stop()
	for {
		if settled, all := n.settled(); settled == all {
			return
		}
		select {
		case <-poll.C:
		case <-over.C:
			settled, all := n.settled()
			n.log.Warn("not all engines are connected; routers are served all the same", "settled", settled, "engines", all)
			return
		case <-ctx.Done():
			return
		}
	}
}

// settled counts the engines that are connected with all their ranks, or down, and all.
func (n *nodeService) settled() (settled, all int) {
	for _, p := range n.reloads.config().Pools {
		for _, e := range p.Engines {
			all++
			sources, _, ok := n.home.of(engineName{p.Name, e.Local()}, e.Events.Ranks)
			connected := ok && !slices.ContainsFunc(sources, func(s *nodeSource) bool { return !s.Connected() })
			if engine := n.pools.Endpoint(p.Name, e.Local()); connected || engine != nil && !engine.Healthy() {
				settled++
			}
		}
	}
	return settled, all
}

// reread reads certificates, keys, authorities and tokens again, and logs what becomes of them. Each of them is followed anyway; this is for
// who does not want to wait.
func (n *nodeService) reread() {
	for _, f := range []*tlsfiles.Files{n.tls.feed, n.tls.admin} {
		if f != nil {
			f.Reload()
		}
	}
	if n.engineTLS != nil {
		n.engineTLS.reload()
	}
	n.token.reload()
	n.admin.Reload()
}

// missing is what keeps the node from being ready, a line each. Engines do not: a node tells of those that are down as well.
func (n *nodeService) missing() []string {
	if !n.serving.Load() {
		return []string{"routers wait for engines to be connected"}
	}
	return n.followers.unheard()
}

// portsOf are those that were picked for the configuration in use.
func (n *nodeService) portsOf() ports.Picked { return n.reloads.ports() }
