package main

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/pool"
)

// announceEvery is how often it is looked at whether engines tell something else of themselves. What the node itself learns is told at once.
const announceEvery = 250 * time.Millisecond

// announcer keeps the feed's replicas those that the configuration and the engines tell together.
type announcer struct {
	feed  *feed.Node
	pools *pool.Set
	home  *nodeHome
	files *modelFiles
	wake  chan struct{} // capacity 1

	config func() *config.Node // in use

	hold sync.Mutex     // held while a configuration is taken over: an engine whose events are then followed in another way is not to be missed in between
	last []feed.Replica // nil before the first look
}

// changed has run look. It never blocks.
func (a *announcer) changed() { nudge(a.wake) }

// run announces until ctx ends.
func (a *announcer) run(ctx context.Context) error {
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		a.look()
		select {
		case <-tick.C:
		case <-a.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// look announces what there is at this time, if that is something else than before.
func (a *announcer) look() {
	a.hold.Lock()
	defer a.hold.Unlock()
	if next := a.replicas(); a.last == nil || !reflect.DeepEqual(a.last, next) {
		a.feed.Announce(next)
		a.last = next
	}
}

// replicas are the engines of the configuration, in its order, whose events are followed.
func (a *announcer) replicas() []feed.Replica {
	told := map[engineName]tale{}
	for _, p := range a.pools.Pools() {
		for i, e := range p.Endpoints() {
			t, ok := p.Told(i)
			told[engineName{p.Name(), e.Addr()}] = tale{e, t, ok}
		}
	}
	replicas := []feed.Replica{}
	for _, p := range a.config().Pools {
		files := a.files.offered(p.Name)
		for _, e := range p.Engines {
			name := engineName{p.Name, e.Local()}
			sources, offered, ok := a.home.of(name, e.Events.Ranks)
			t, known := told[name]
			if !ok || !known {
				continue // it comes or goes
			}
			r := feed.Replica{
				Endpoint: e.Address, Pool: p.Name, Models: served(p.Models, t.told.Models), Engine: p.Engine, Version: t.engine.Version(),
				Draining: t.engine.Draining(), Files: files, MaxModelLen: t.told.ModelLen,
			}
			for _, adapter := range t.told.Adapters {
				r.Adapters = append(r.Adapters, feed.Adapter(adapter))
			}
			for _, s := range sources {
				r.Sources = append(r.Sources, s.Number())
			}
			r.Listing = listingOf(p.AdaptersRefresh != 0, t)
			r.BlockSize, r.Problems = abouts(sources, offered)
			replicas = append(replicas, r)
		}
	}
	return replicas
}

// tale is an engine with what it says that it serves.
type tale struct {
	engine *pool.Endpoint
	told   pool.Told
	known  bool // it has said it
}

// listingOf says whether routers need not ask an engine what it serves: the node asks, and has an answer or may still get one.
func listingOf(asked bool, t tale) feed.Listing {
	switch {
	case t.known:
		return feed.ListingTold
	case asked && !t.engine.Unanswered():
		return feed.ListingAwaited
	}
	return feed.ListingNone
}

// served are the names of the base weights: those of the configuration, then others that the engine tells.
func served(configured, told []string) []string {
	names := slices.Clone(configured)
	for _, n := range told {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// problemRanks says that an engine has another number of ranks than is configured, as the router calls it.
const problemRanks = "ranks_mismatch"

// abouts is the block size of an engine, 0 where its ranks do not tell one, and its problems, each once.
func abouts(sources []*nodeSource, offered int) (blockSize int, problems []string) {
	sizes, names := map[int]bool{}, map[string]bool{}
	for _, s := range sources {
		about := s.about.Load()
		if about.BlockSize > 0 {
			sizes[about.BlockSize] = true
		}
		if about.Problem != "" {
			names[string(about.Problem)] = true
		}
	}
	if offered > 0 && offered != len(sources) {
		names[problemRanks] = true
	}
	if len(sizes) == 1 {
		for size := range sizes {
			blockSize = size
		}
	}
	return blockSize, slices.Sorted(maps.Keys(names))
}
