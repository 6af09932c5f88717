package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/eventsources"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/subscriber"
)

// maxReplays bounds the replays of missed events that are under way at a time.
const maxReplays = 4

// followed is an endpoint with an event source, of one rank or of several. Two that differ in anything are not the same.
type followed struct {
	pool, endpoint string
	events         config.Events
	reading        reading
}

// followedBy lists the event sources of a configuration.
func followedBy(cfg *config.Config) []followed {
	var all []followed
	for _, p := range cfg.Pools {
		for _, e := range p.Endpoints {
			if !e.Events.None() {
				all = append(all, followed{p.Name, e.Address, e.Events, readingOf(&p)})
			}
		}
	}
	return all
}

// home is where the blocks of followed engines go: the router's index, or the feed of a node.
type home interface {
	// source takes those of one rank. There is one at a time per rank.
	source(pool, endpoint string, rank int) (rankSource, error)
	// offer takes how many ranks an engine says that it has, 0 while it does not say.
	offer(pool, endpoint string, ranks int)
}

// rankSource takes the blocks of one rank.
type rankSource interface {
	subscriber.Sink
	// Connected says whether the rank's engine is, as it was last described.
	Connected() bool
	// Life numbers the lives of the engine, as pool.Endpoint.Life does.
	Life() uint64
	// TellPrompts has a subscriber hear of prompts. It comes before the subscriber runs.
	TellPrompts(s *subscriber.Subscriber)
	// Wanted is told which prompts help that subscriber.
	Wanted(w subscriber.Want)
	// Close ends the source. No other method may be called after it.
	Close()
}

// routerHome has the router hold the blocks.
type routerHome struct{ router *router.Router }

func (h routerHome) source(pool, endpoint string, rank int) (rankSource, error) {
	s, err := h.router.Source(pool, endpoint, rank)
	if err != nil {
		return nil, err
	}
	return routerSource{s}, nil
}

// routerSource has the router tell of prompts itself.
type routerSource struct{ *router.Source }

func (s routerSource) TellPrompts(to *subscriber.Subscriber) { s.Source.TellPrompts(to) }

// Wanted does nothing: the router asks the subscriber before each prompt.
func (routerSource) Wanted(subscriber.Want) {}

func (h routerHome) offer(pool, endpoint string, ranks int) { h.router.Offer(pool, endpoint, ranks) }

// followParts are what followers are made of.
type followParts struct {
	home      home
	asker     *eventsources.Client
	metrics   *subscriber.Metrics
	state     *subscriber.StateDir
	maxBlocks int // of one rank; 0: the subscriber's default
	log       *slog.Logger
}

// followers run one subscriber for each rank of each endpoint with events. They are started and ended by run's goroutine alone, which takes orders for it.
type followers struct {
	followParts
	replays *subscriber.ReplayLimit
	first   []*follower // of the start

	mu     sync.Mutex
	deaf   map[followed]error // what cannot be listened on
	orders chan func(context.Context, *following)
	ended  chan struct{} // closed when run takes no more orders
}

// following is what run keeps.
type following struct {
	wg      sync.WaitGroup
	running map[followed]*follower
}

// newFollowers makes the subscribers of the start and starts none.
func newFollowers(parts followParts, all []followed) (*followers, error) {
	f := &followers{
		followParts: parts, replays: subscriber.NewReplayLimit(maxReplays), deaf: map[followed]error{},
		orders: make(chan func(context.Context, *following)), ended: make(chan struct{}),
	}
	return f, f.add(all)
}

// add makes more subscribers of the start. It is for before run.
func (f *followers) add(all []followed) error {
	for _, what := range all {
		one, err := f.make(what)
		if err != nil {
			return err
		}
		f.first = append(f.first, one)
	}
	return nil
}

func (f *followers) make(what followed) (*follower, error) {
	one := &follower{
		of: f, what: what, again: make(chan struct{}, 1), ended: make(chan struct{}), log: f.log.With("pool", what.pool, "endpoint", what.endpoint),
	}
	for rank := range max(1, what.events.Ranks) {
		source, err := f.home.source(what.pool, what.endpoint, rank)
		if err == nil {
			one.sources = append(one.sources, source)
			_, err = one.subscriber(rank, what.events.Of(rank))
		}
		if err != nil {
			one.close()
			return nil, fmt.Errorf("events of rank %d of endpoint %s in pool %s: %w", rank, what.endpoint, what.pool, err)
		}
	}
	return one, nil
}

// run follows all sources until ctx ends. An address of the start that cannot be listened on ends it with an error.
func (f *followers) run(ctx context.Context) error {
	defer close(f.ended)
	ctx, stop := context.WithCancel(ctx)
	state := &following{running: map[followed]*follower{}}
	defer state.wg.Wait()
	defer stop()
	failed := make(chan error, len(f.first))
	for _, one := range f.first {
		state.start(ctx, one, func(err error) { failed <- err })
	}
	for {
		select {
		case order := <-f.orders:
			order(ctx, state)
		case err := <-failed:
			if errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%w: another process has it, perhaps a node or a router that follows the same engine", err)
			}
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// order has run do something and waits for it. It does nothing once run has ended.
func (f *followers) order(do func(context.Context, *following)) {
	done := make(chan struct{})
	select {
	case f.orders <- func(ctx context.Context, s *following) { defer close(done); do(ctx, s) }:
		<-done
	case <-f.ended:
	}
}

// set ends the subscribers of sources that are not wanted any more, then starts those of sources that are new: an address may pass from one to
// another. The others go on. It returns what could not be started.
func (f *followers) set(wanted []followed) (errs []error) {
	f.order(func(ctx context.Context, s *following) {
		keep := map[followed]bool{}
		for _, what := range wanted {
			keep[what] = true
		}
		for what, one := range s.running {
			if !keep[what] {
				one.stop()
			}
		}
		for what, one := range s.running {
			if !keep[what] {
				<-one.ended
				delete(s.running, what)
			}
		}
		if err := f.retain(wanted); err != nil {
			errs = append(errs, err)
		}
		for _, what := range wanted {
			if s.running[what] != nil {
				continue
			}
			one, err := f.make(what)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			s.start(ctx, one, nil)
		}
	})
	return errs
}

// restart ends the connections with an endpoint's engine, and what is known by them, and takes new ones.
func (f *followers) restart(endpoint string) {
	f.order(func(_ context.Context, s *following) {
		for what, one := range s.running {
			if what.endpoint == endpoint {
				one.restart()
			}
		}
	})
}

// hears notes whether the addresses of an endpoint can be listened on; err says why not.
func (f *followers) hears(what followed, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.deaf[what] = err
	} else {
		delete(f.deaf, what)
	}
}

// unheard are the endpoints whose addresses cannot be listened on, a line each, sorted.
func (f *followers) unheard() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for what, err := range f.deaf {
		lines = append(lines, fmt.Sprintf("events of endpoint %s in pool %s cannot be received: %v", what.endpoint, what.pool, err))
	}
	slices.Sort(lines)
	return lines
}

// start starts a follower. failed is told when its address cannot be listened on at first; without it that is logged and tried again.
func (s *following) start(ctx context.Context, one *follower, failed func(error)) {
	ctx, stop := context.WithCancel(ctx)
	one.stop = stop
	s.running[one.what] = one
	s.wg.Go(func() {
		defer close(one.ended)
		defer stop()
		one.run(ctx, failed)
	})
}
