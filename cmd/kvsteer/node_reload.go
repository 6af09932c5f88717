package main

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/ports"
)

// nodeRestartKeys are the keys of a node's file whose change waits for a restart: listeners and how they speak, what is kept and where, how changes are
// gathered, and how engines are spoken to. All others are taken over at once.
func nodeRestartKeys() []string {
	return []string{
		"name", "listen", "tls", "token_file", "insecure", "admin.listen", "admin.token_file", "admin.tls", "state_dir", "warmup", "window", "window_keys", "max_blocks", "ports", "engines",
	}
}

// nodeReloads bring a changed configuration file into a running node.
type nodeReloads struct {
	path    string
	service *nodeService
	log     *slog.Logger
	metrics *config.Metrics

	mu      sync.Mutex
	keys    map[string]string // API keys by pool
	picked  ports.Picked      // for current
	current *config.Node      // in use; what waits for a restart has the value of before
}

// config is the configuration in use. It must not be changed.
func (r *nodeReloads) config() *config.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

func (r *nodeReloads) ports() ports.Picked {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.picked
}

// run reads the file again when it or a key file changes, and at each hangup, until ctx ends.
func (r *nodeReloads) run(ctx context.Context, hangups <-chan os.Signal) error {
	return rereads{
		process: "node", path: r.path, keys: func() []keyFile { return nodeKeyFiles(r.config()) }, apply: r.reload, hangup: r.service.reread, log: r.log, metrics: r.metrics,
	}.run(ctx, hangups)
}

// reload reads the file and takes over what has changed.
func (r *nodeReloads) reload() (report, error) {
	next, err := config.LoadNode(r.path)
	if err != nil {
		return report{}, err
	}
	return r.apply(next)
}

// apply takes over a configuration, all of it or, with an error, nothing. Only run's goroutine calls it. What can be refused comes first.
func (r *nodeReloads) apply(next *config.Node) (report, error) {
	var done report
	keys, err := readKeys(nodeKeyFiles(next))
	if err != nil {
		return done, err
	}
	was := r.config()
	r.restrain(was, next, &done)
	done.enter(config.Diff(was, next), !maps.Equal(keys, r.keys))
	if done.empty() {
		return done, nil
	}
	ours := map[string]bool{}
	for _, w := range portWants(was, func(string) bool { return false }) {
		ours[w.Engine] = w.Events
	}
	picked, err := pickPorts(next, func(engine string) bool { return !ours[engine] })
	if err != nil {
		return done, err
	}
	s := r.service
	s.announcer.hold.Lock()
	defer s.announcer.hold.Unlock()
	if err := s.pools.Apply(nodePoolConfigs(next, keys)); err != nil {
		return done, err
	}
	tellPicked(r.log, next, picked)
	if done.touches("probe") {
		s.pools.SetProbeInterval(next.Probe.Interval.Std())
	}
	r.mu.Lock()
	r.keys, r.picked, r.current = keys, picked, next
	r.mu.Unlock()
	// Nothing is refused from here on: what the parts still check, package config has checked.
	s.admin.SetWrite(next.Admin.Write)
	s.files.set(next)
	problems := s.followers.set(followedEngines(next, picked))
	s.scrapes.set(scrapedOf(next))
	s.announcer.changed()
	for _, err := range problems {
		r.log.Error("a part of the configuration could not be taken over", "error", err)
	}
	return done, nil
}

// restrain gives keys of next that wait for a restart the values that they have, and notes them.
func (r *nodeReloads) restrain(was, next *config.Node, done *report) {
	for _, c := range config.Diff(was, next) {
		if slices.ContainsFunc(nodeRestartKeys(), c.Under) {
			done.waiting = append(done.waiting, c.Key)
		}
	}
	next.Name, next.Listen, next.TLS, next.TokenFile, next.Insecure = was.Name, was.Listen, was.TLS, was.TokenFile, was.Insecure
	next.Admin.Listen, next.Admin.TokenFile, next.Admin.TLS = was.Admin.Listen, was.Admin.TokenFile, was.Admin.TLS
	next.StateDir, next.Warmup, next.Window, next.WindowKeys = was.StateDir, was.Warmup, was.Window, was.WindowKeys
	next.MaxBlocks, next.Ports, next.Engines = was.MaxBlocks, was.Ports, was.Engines
}
