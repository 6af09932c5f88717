package main

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Bounds of the time until an event source whose address could not be listened on is tried again.
const (
	followRetry    = time.Second
	followMaxRetry = 30 * time.Second
)

// follower follows all ranks of one endpoint.
type follower struct {
	of      *followers
	what    followed
	sources []rankSource // by rank
	log     *slog.Logger
	stop    context.CancelFunc
	again   chan struct{} // capacity 1: asks for a restart
	ended   chan struct{}

	offer offer // of the goroutine that asks the engine, one at a time
}

func (f *follower) restart() { nudge(f.again) }

// close forgets all ranks.
func (f *follower) close() {
	f.of.home.offer(f.what.pool, f.what.endpoint, 0)
	for _, s := range f.sources {
		s.Close()
	}
}

// subscriber makes the subscriber of a rank whose events come from at.
func (f *follower) subscriber(rank int, at config.Events) (*subscriber.Subscriber, error) {
	log := f.of.log
	if len(f.sources) > 1 || rank > 0 {
		log = log.With("rank", rank)
	}
	options := subscriber.Options{
		Pool: f.what.pool, Endpoint: f.what.endpoint, Rank: rank, Listen: at.Listen, Dial: at.Dial, Topic: at.Topic,
		Replay: at.Replay, Replays: f.of.replays, StateDir: f.of.state, Sink: f.sources[rank], Wanted: f.sources[rank].Wanted, Log: log, Metrics: f.of.metrics,
		MaxBlocks: f.of.maxBlocks,
	}
	if err := f.what.reading.enter(&options); err != nil {
		return nil, err
	}
	s, err := subscriber.New(options)
	if err == nil {
		f.sources[rank].TellPrompts(s)
	}
	return s, err
}

// run follows the endpoint until ctx ends, then forgets it.
func (f *follower) run(ctx context.Context, failed func(error)) {
	defer f.close()
	defer f.of.hears(f.what, nil)
	for wait := followRetry; ctx.Err() == nil; failed = nil {
		err := f.once(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil: // a restart
			f.of.forget(f.what)
			wait = followRetry
			continue
		case failed != nil:
			failed(err)
			return
		}
		f.of.hears(f.what, err)
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
	if f.what.events.Dial != "" {
		f.ask(ctx) // an engine that connects must find somebody listening at once
	}
	for ctx.Err() == nil {
		if err := f.subscribe(ctx, f.addresses()); err != nil {
			return err
		}
	}
	return nil
}

// subscribe follows all ranks at these addresses until ctx ends, one of them cannot be listened on, or the engine tells of other ones.
func (f *follower) subscribe(ctx context.Context, at []config.Events) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	subs := make([]*subscriber.Subscriber, len(at))
	for rank := range at {
		var err error
		if subs[rank], err = f.subscriber(rank, at[rank]); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, sub := range subs {
		group.Go(func() error { return sub.Run(ctx) })
	}
	group.Go(func() error {
		defer cancel()
		f.watch(ctx, at, func() bool { return f.bound(subs) })
		return nil
	})
	return group.Wait()
}

// bound says whether all addresses are listened on.
func (f *follower) bound(subs []*subscriber.Subscriber) bool {
	return f.what.events.Listen == "" || !slices.ContainsFunc(subs, func(s *subscriber.Subscriber) bool { return s.Addr() == "" })
}

// watch asks the engine about its ranks whenever that may have changed, until ctx ends or it tells of other addresses than these. bound says whether all
// addresses are listened on.
func (f *follower) watch(ctx context.Context, at []config.Events, bound func() bool) {
	tick := time.NewTicker(offerTick)
	defer tick.Stop()
	for {
		if bound() {
			f.of.hears(f.what, nil)
		}
		f.ask(ctx)
		if other := f.addresses(); !slices.Equal(at, other) {
			f.log.Info("the engine publishes its events elsewhere", "at", other[0].Dial)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// ask asks the engine about its ranks if it is time to.
func (f *follower) ask(ctx context.Context) {
	connected := !slices.ContainsFunc(f.sources, func(s rankSource) bool { return !s.Connected() })
	if !f.offer.due(time.Now(), f.sources[0].Life(), connected) {
		return
	}
	ranks, err := f.of.asker.Ask(ctx, f.what.endpoint)
	if ctx.Err() != nil {
		return
	}
	if f.offer.told(time.Now(), ranks, err) {
		f.of.home.offer(f.what.pool, f.what.endpoint, len(f.offer.ranks))
	}
}

// addresses are those of all ranks: as configured, with the ports that the engine has told. Its hosts are not taken: they are those that it binds.
func (f *follower) addresses() []config.Events {
	all := make([]config.Events, len(f.sources))
	for rank := range all {
		all[rank] = f.what.events.Of(rank)
		if rank < len(f.offer.ranks) {
			told := f.offer.ranks[rank]
			all[rank].Dial, all[rank].Replay = withPort(all[rank].Dial, told.Events), withPort(all[rank].Replay, told.Replay)
		}
	}
	return all
}

// withPort gives tcp://ip:port another port; an empty address and port 0 change nothing.
func withPort(address string, port uint16) string {
	addr, err := netip.ParseAddrPort(strings.TrimPrefix(address, "tcp://"))
	if err != nil || port == 0 {
		return address
	}
	return "tcp://" + netip.AddrPortFrom(addr.Addr(), port).String()
}
