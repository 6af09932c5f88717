package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/kvsteer/kvsteer/internal/config"
)

// restartKeys are the keys whose change waits for a restart: listeners and how they speak, what counts at the start only, what the index
// is made for, and how engines are spoken to. restrain gives each its value of before.
func restartKeys() []string {
	return []string{"listen", "tls", "insecure", "reflection", "admin.listen", "admin.token_file", "admin.tls", "warmup", "state_dir", "index", "engines", "feed", "dns_servers"}
}

// envoyKeys are the keys that only kvsteer envoy reads. All others are taken over at once.
func envoyKeys() []string {
	return []string{
		"envoy.listen", "envoy.admin", "envoy.version", "envoy.body", "envoy.message_timeout", "envoy.all_paths", "envoy.routers", "envoy.router_tls",
		"envoy.access_log_service", "envoy.decision_header", "pools.fallback",
	}
}

// tokenizerKeys are the keys that a tokenizer is made of.
func tokenizerKeys() []string { return []string{"tokenize", "limits.prompt_tokens"} }

// maxNamed bounds the keys that a log line names.
const maxNamed = 20

// reloads bring a changed configuration file into a running service.
type reloads struct {
	path     string
	capacity int // endpoints that the index was made for, each of their ranks counted
	service  *service
	log      *slog.Logger
	metrics  *config.Metrics

	mu         sync.Mutex
	tokenizers tokenizers
	keys       map[string]string // API keys by pool
	current    *config.Config    // in use; what waits for a restart has the value of before
}

// config is the configuration in use. It must not be changed.
func (r *reloads) config() *config.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// run reads the file again when it or a key file changes, and at each hangup, until ctx ends.
func (r *reloads) run(ctx context.Context, hangups <-chan os.Signal) error {
	return rereads{
		process: "router", path: r.path, keys: func() []keyFile { return keyFiles(r.config()) }, apply: r.reload, hangup: r.service.reread, log: r.log, metrics: r.metrics,
	}.run(ctx, hangups)
}

// reload reads the file and takes over what has changed.
func (r *reloads) reload() (report, error) {
	next, err := config.Load(r.path)
	if err != nil {
		return report{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.apply(next)
}

// apply takes over a configuration, all of it or, with an error, nothing. The caller holds mu. What can be refused comes first.
func (r *reloads) apply(next *config.Config) (report, error) {
	var done report
	keys, err := readKeys(keyFiles(next))
	if err != nil {
		return done, err
	}
	if n := next.Ranks(); n > r.capacity {
		what := count(n, "endpoint")
		if n > next.Endpoints() {
			what += ", each of their ranks counted"
		}
		return done, fmt.Errorf("pools: %s, and the index was made for %d when the router started: restart it, with index.max_endpoints for more to come", what, r.capacity)
	}
	r.restrain(next, &done)
	done.enter(config.Diff(r.current, next), !maps.Equal(keys, r.keys))
	done.envoy = !reflect.DeepEqual(new(envoyCmd).options(r.current), new(envoyCmd).options(next))
	if done.empty() {
		return done, nil
	}
	tokenizers := r.tokenizers
	if done.touches(tokenizerKeys()...) {
		if err := tokenizers.replace(next); err != nil {
			return done, err
		}
	}
	s := r.service
	if err := s.keeper.set(next, poolConfigs(next, keys), settings(next, tokenizers.current, keys)); err != nil {
		if tokenizers.current != r.tokenizers.current {
			tokenizers.current.Close()
		}
		return done, err
	}
	if tokenizers.current != r.tokenizers.current {
		r.tokenizers.current.Close()
	}
	if done.touches("probe") {
		s.pools.SetProbeInterval(next.Probe.Interval.Std())
	}
	r.tokenizers, r.keys, r.current = tokenizers, keys, next
	// Nothing is refused from here on: what the parts still check, package config has checked.
	s.admin.SetWrite(next.Admin.Write)
	// Who follows an engine may change, a node or the router: each lets go before the other takes hold.
	s.feed.Look()
	problems := s.followers.set(followedBy(next))
	s.feed.Look()
	if err := s.extproc.Apply(limits(next)); err != nil {
		problems = append(problems, err)
	}
	for _, err := range problems {
		r.log.Error("a part of the configuration could not be taken over", "error", err)
	}
	return done, nil
}

// restrain gives keys of next that wait for a restart the values that they have, and notes them.
func (r *reloads) restrain(next *config.Config, done *report) {
	for _, c := range config.Diff(r.current, next) {
		if slices.ContainsFunc(restartKeys(), c.Under) {
			done.waiting = append(done.waiting, c.Key)
		}
	}
	was := r.current
	next.Listen, next.TLS, next.Insecure, next.Reflection = was.Listen, was.TLS, was.Insecure, was.Reflection
	next.Admin.Listen, next.Admin.TokenFile, next.Admin.TLS = was.Admin.Listen, was.Admin.TokenFile, was.Admin.TLS
	next.Warmup, next.StateDir, next.Index, next.Engines, next.Feed, next.DNSServers = was.Warmup, was.StateDir, was.Index, was.Engines, was.Feed, was.DNSServers
	// gRPC's bound of a message is that of the start.
	if most := config.Size(r.service.extproc.MaxBody()); next.Limits.Body > most {
		next.Limits.Body = most
		done.waiting = append(done.waiting, "limits.body")
	}
}

// report is what a reload has done.
type report struct {
	changes []config.Change
	keys    bool     // API keys have other contents
	waiting []string // keys that wait for a restart
	envoy   bool     // kvsteer envoy prints something else
}

func (r *report) enter(changes []config.Change, keys bool) { r.changes, r.keys = changes, keys }

func (r *report) empty() bool { return len(r.changes) == 0 && !r.keys && len(r.waiting) == 0 }

// touches reports whether something has changed under one of these keys.
func (r *report) touches(keys ...string) bool {
	return slices.ContainsFunc(r.changes, func(c config.Change) bool { return slices.ContainsFunc(keys, c.Under) })
}

// log writes one line that names what has changed, and one that names what waits for a restart of this process.
func (r *report) log(log *slog.Logger, process string) {
	var attrs []any
	for _, kind := range []config.Kind{config.Added, config.Removed, config.Changed} {
		var keys []string
		for _, c := range r.changes {
			if c.Kind == kind {
				keys = append(keys, c.Key)
			}
		}
		if len(keys) > 0 {
			attrs = append(attrs, string(kind), names(keys))
		}
	}
	if r.keys {
		attrs = append(attrs, "api_keys", "read again")
	}
	if len(attrs) == 0 {
		attrs = append(attrs, "changed", "nothing")
	}
	log.Info("configuration read again", attrs...)
	if r.envoy {
		log.Info("Envoy's configuration changes with it: print it again with kvsteer envoy")
	}
	if len(r.waiting) > 0 {
		log.Warn("some changed keys wait for a restart of the "+process+"; the rest is in use", "keys", names(r.waiting))
	}
}

// names joins keys, of which it leaves out what would be too many.
func names(keys []string) string {
	more := ""
	if n := len(keys) - maxNamed; n > 0 {
		keys, more = keys[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(keys, " ") + more
}
