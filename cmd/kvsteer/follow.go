package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Bounds of the time until an event source whose address could not be listened on is tried again.
const (
	followRetry    = time.Second
	followMaxRetry = 30 * time.Second
)

// maxReplays bounds the replays of missed events that are under way at a time.
const maxReplays = 4

// followed is an endpoint with an event source. Two that differ in anything are not the same.
type followed struct {
	pool, endpoint string
	events         config.Events
}

// followedBy lists the event sources of a configuration.
func followedBy(cfg *config.Config) []followed {
	var all []followed
	for _, p := range cfg.Pools {
		for _, e := range p.Endpoints {
			if !e.Events.None() {
				all = append(all, followed{p.Name, e.Address, e.Events})
			}
		}
	}
	return all
}

// followers run one subscriber per event source. They are started and ended by run's goroutine alone, which takes orders for it.
type followers struct {
	router  *router.Router
	metrics *subscriber.Metrics
	replays *subscriber.ReplayLimit
	state   subscriber.StateDir
	log     *slog.Logger
	first   []*follower // of the start
	orders  chan func(context.Context, *following)
	ended   chan struct{} // closed when run takes no more orders
}

// following is what run keeps.
type following struct {
	wg      sync.WaitGroup
	running map[followed]*follower
}

// newFollowers makes the subscribers of the start and starts none.
func newFollowers(r *router.Router, m *subscriber.Metrics, state subscriber.StateDir, log *slog.Logger, all []followed) (*followers, error) {
	f := &followers{router: r, metrics: m, state: state, replays: subscriber.NewReplayLimit(maxReplays), log: log, orders: make(chan func(context.Context, *following)), ended: make(chan struct{})}
	for _, what := range all {
		one, err := f.make(what)
		if err != nil {
			return nil, err
		}
		f.first = append(f.first, one)
	}
	return f, nil
}

func (f *followers) make(what followed) (*follower, error) {
	source, err := f.router.Source(what.pool, what.endpoint, 0)
	if err != nil {
		return nil, err
	}
	sub, err := subscriber.New(subscriber.Options{
		Pool: what.pool, Endpoint: what.endpoint, Listen: what.events.Listen, Dial: what.events.Dial, Topic: what.events.Topic,
		Replay: what.events.Replay, Replays: f.replays, StateDir: f.state, Sink: source, Log: f.log, Metrics: f.metrics,
	})
	if err != nil {
		source.Close()
		return nil, fmt.Errorf("events of endpoint %s in pool %s: %w", what.endpoint, what.pool, err)
	}
	return &follower{
		what: what, source: source, subscriber: sub, again: make(chan struct{}, 1), ended: make(chan struct{}),
		forget: func() error { return f.state.Forget(what.pool, what.endpoint, 0) },
		log:    f.log.With("pool", what.pool, "endpoint", what.endpoint),
	}, nil
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

// prepare makes ready what is saved. It is to be called before run.
func (f *followers) prepare(all []followed) error {
	if err := f.state.Prepare(); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	return f.retain(all)
}

// retain removes what is saved of endpoints that are not followed.
func (f *followers) retain(all []followed) error {
	var sources []subscriber.Source
	for _, what := range all {
		for rank := range max(what.events.Ranks, 1) {
			sources = append(sources, subscriber.Source{Pool: what.pool, Endpoint: what.endpoint, Rank: rank})
		}
	}
	if err := f.state.Retain(sources); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	return nil
}

// restart ends the connection with an endpoint's engine, and what is known by it, and takes a new one.
func (f *followers) restart(endpoint string) {
	f.order(func(_ context.Context, s *following) {
		for what, one := range s.running {
			if what.endpoint == endpoint {
				one.restart()
			}
		}
	})
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

// follower is the subscriber of one endpoint.
type follower struct {
	what       followed
	source     *router.Source
	subscriber *subscriber.Subscriber
	forget     func() error // removes what is saved
	log        *slog.Logger
	stop       context.CancelFunc
	again      chan struct{} // capacity 1: asks for a restart
	ended      chan struct{}
}

func (f *follower) restart() {
	select {
	case f.again <- struct{}{}:
	default: // already asked
	}
}

// run follows the endpoint until ctx ends, then forgets it.
func (f *follower) run(ctx context.Context, failed func(error)) {
	defer f.source.Close()
	for wait := followRetry; ctx.Err() == nil; failed = nil {
		err := f.once(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil: // a restart
			if err := f.forget(); err != nil {
				f.log.Warn("a saved mirror cannot be removed", "error", err)
			}
			wait = followRetry
			continue
		case failed != nil:
			failed(err)
			return
		}
		f.log.Warn("events cannot be received; the endpoint is routed by load", "error", err, "again_in", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-f.again:
		case <-ctx.Done():
		}
		timer.Stop()
		wait = min(2*wait, followMaxRetry)
	}
}

// once follows the endpoint until ctx ends or a restart is asked for.
func (f *follower) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-f.again:
			cancel()
		case <-ctx.Done():
		}
	})
	defer wg.Wait()
	defer cancel()
	return f.subscriber.Run(ctx)
}
