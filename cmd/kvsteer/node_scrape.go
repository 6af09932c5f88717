package main

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/scrape"
)

// loadsEvery is how often routers are told of loads at most.
const loadsEvery = 50 * time.Millisecond

// scraped is an engine whose metrics are read. Two that differ in anything are not the same.
type scraped struct {
	pool, endpoint string // endpoint is where the node reaches it
	announced      string // how routers are told of it
	profile        scrape.Profile
	every          time.Duration
	labels         string // NAME=VALUE, a line each
}

// scrapedOf lists the engines of a configuration whose metrics are read.
func scrapedOf(cfg *config.Node) []scraped {
	if cfg.Scrape.Interval == 0 {
		return nil
	}
	var all []scraped
	for _, p := range cfg.Pools {
		profile := scrape.Profile(cfg.Scrape.Profile)
		if cfg.Scrape.Profile == config.Auto {
			profile = scrape.Profile(p.Engine)
		}
		for _, e := range p.Engines {
			all = append(all, scraped{p.Name, e.Local(), e.Address, profile, cfg.Scrape.Interval.Std(), strings.Join(cfg.Scrape.Labels, "\n")})
		}
	}
	return all
}

// scrapes read the metrics of engines, one scraper for each, and tell the feed.
type scrapes struct {
	feed    *feed.Node
	dialTLS dialFunc
	metrics *scrape.Metrics
	log     *slog.Logger
	changed chan struct{} // capacity 1: other engines are wanted
	told    chan struct{} // capacity 1: a load is new

	mu      sync.Mutex
	wanted  []scraped
	running map[scraped]*scrape.Scraper
}

func newScrapes(f *feed.Node, dialTLS dialFunc, metrics *scrape.Metrics, log *slog.Logger) *scrapes {
	return &scrapes{
		feed: f, dialTLS: dialTLS, metrics: metrics, log: log, changed: make(chan struct{}, 1), told: make(chan struct{}, 1), running: map[scraped]*scrape.Scraper{},
	}
}

// set replaces the engines that are scraped. Those that stay go on.
func (s *scrapes) set(wanted []scraped) {
	s.mu.Lock()
	s.wanted = wanted
	s.mu.Unlock()
	nudge(s.changed)
}

// run scrapes until ctx ends.
func (s *scrapes) run(ctx context.Context) error {
	type task struct {
		stop  context.CancelFunc
		ended chan struct{}
	}
	tasks := map[scraped]task{}
	defer func() {
		for what, t := range tasks {
			t.stop()
			<-t.ended
			s.forget(what)
		}
	}()
	pace := time.NewTimer(0)
	defer pace.Stop()
	var told <-chan struct{} // nil while the last loads are too recent
	for {
		keep := map[scraped]bool{}
		for _, what := range s.list() {
			keep[what] = true
		}
		for what, t := range tasks {
			if !keep[what] {
				t.stop()
				<-t.ended
				delete(tasks, what)
				s.forget(what)
			}
		}
		for what := range keep {
			if _, ok := tasks[what]; ok {
				continue
			}
			scraper, err := s.scraper(what)
			if err != nil {
				return err
			}
			ctx, stop := context.WithCancel(ctx)
			t := task{stop, make(chan struct{})}
			tasks[what] = t
			go func() {
				defer close(t.ended)
				_ = scraper.Run(ctx) // its errors are only those of ctx
			}()
		}
		for again := false; !again; {
			select {
			case <-s.changed:
				again = true
				nudge(s.told) // loads of engines that are gone
			case <-pace.C:
				told = s.told
			case <-told:
				s.feed.Loads(s.loads())
				told = nil
				pace.Reset(loadsEvery)
			case <-ctx.Done():
				return nil
			}
		}
	}
}

func (s *scrapes) list() []scraped {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

func (s *scrapes) scraper(what scraped) (*scrape.Scraper, error) {
	labels := map[string]string{}
	for line := range strings.SplitSeq(what.labels, "\n") {
		if name, value, ok := strings.Cut(line, "="); ok {
			labels[name] = value
		}
	}
	scraper, err := scrape.New(scrape.Options{
		Pool: what.pool, Address: what.endpoint, Profile: what.profile, Interval: what.every, Labels: labels, DialTLS: s.dialTLS,
		Told: func(scrape.Load) { nudge(s.told) }, Log: s.log, Metrics: s.metrics,
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[what] = scraper
	return scraper, nil
}

func (s *scrapes) forget(what scraped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, what)
}

// loads are those that are known, in the order of the configuration.
func (s *scrapes) loads() []feed.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	loads := []feed.Load{}
	for _, what := range s.wanted {
		if l, ok := s.load(what); ok {
			loads = append(loads, feed.Load{
				Endpoint: what.announced, Running: l.Running, Waiting: l.Waiting, KVUsage: l.KVUsage, PrefixHits: l.PrefixHits, PrefixQueries: l.PrefixQueries,
				Sleeping: l.Sleeping, Age: time.Since(l.At), Stale: l.Stale,
			})
		}
	}
	return loads
}

// load is the last one of an engine. The caller holds mu.
func (s *scrapes) load(what scraped) (scrape.Load, bool) {
	if scraper := s.running[what]; scraper != nil {
		return scraper.Load()
	}
	return scrape.Load{}, false
}

// of is the last load of an engine, by where the node reaches it.
func (s *scrapes) of(endpoint string) (scrape.Load, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, what := range s.wanted {
		if what.endpoint == endpoint {
			return s.load(what)
		}
	}
	return scrape.Load{}, false
}
