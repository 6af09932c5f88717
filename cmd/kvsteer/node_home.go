package main

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/subscriber"
)

// nodeHome has the feed of a node hold the blocks of its engines.
type nodeHome struct {
	feed    *feed.Node
	pools   *pool.Set
	changed func() // never blocks

	mu      sync.Mutex
	sources map[engineName][]*nodeSource // by rank; nil where there is none
	offered map[engineName]int           // ranks, where the engine has told
}

// engineName tells an engine of a node from others, by where the node reaches it.
type engineName struct{ pool, endpoint string }

func newNodeHome(f *feed.Node, pools *pool.Set, changed func()) *nodeHome {
	return &nodeHome{feed: f, pools: pools, changed: changed, sources: map[engineName][]*nodeSource{}, offered: map[engineName]int{}}
}

func (h *nodeHome) source(pool, endpoint string, rank int) (rankSource, error) {
	engine := h.pools.Endpoint(pool, endpoint)
	if engine == nil {
		return nil, fmt.Errorf("source of engine %s in pool %s: no such engine", endpoint, pool)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	name := engineName{pool, endpoint}
	all := h.sources[name]
	for len(all) <= rank {
		all = append(all, nil)
	}
	if all[rank] != nil {
		return nil, fmt.Errorf("source of rank %d of engine %s in pool %s: already in use", rank, endpoint, pool)
	}
	s := &nodeSource{Source: h.feed.Source(), home: h, name: name, rank: rank, engine: engine}
	s.about.Store(new(subscriber.Description))
	all[rank] = s
	h.sources[name] = all
	h.changed()
	return s, nil
}

func (h *nodeHome) offer(pool, endpoint string, ranks int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name := (engineName{pool, endpoint}); ranks > 0 {
		h.offered[name] = ranks
	} else {
		delete(h.offered, name)
	}
	h.changed()
}

// of returns the sources of an engine with so many ranks, by rank, and how many ranks it says it has, 0 while it does not say; ok is false while
// there are not all.
func (h *nodeHome) of(name engineName, ranks int) (all []*nodeSource, offered int, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all = slices.Clone(h.sources[name])
	return all, h.offered[name], len(all) == ranks && !slices.Contains(all, nil)
}

func (h *nodeHome) remove(s *nodeSource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.sources[s.name]
	if s.rank < len(all) && all[s.rank] == s {
		all[s.rank] = nil
	}
	if !slices.ContainsFunc(all, func(s *nodeSource) bool { return s != nil }) {
		delete(h.sources, s.name)
	}
	h.changed()
}

// nodeSource takes the blocks of one rank to the feed. It is a [subscriber.Sink].
type nodeSource struct {
	*feed.Source
	home   *nodeHome
	name   engineName
	rank   int
	engine *pool.Endpoint
	about  atomic.Pointer[subscriber.Description]
}

// Describe takes over what is known of the engine. One that connects or disconnects may have been started anew, so its health is looked at
// at once.
func (s *nodeSource) Describe(d subscriber.Description) {
	before := s.about.Swap(&d)
	s.Source.Describe(d)
	if before.Connected != d.Connected {
		s.engine.Recheck()
	}
	s.home.changed()
}

// Connected implements rankSource.
func (s *nodeSource) Connected() bool { return s.about.Load().Connected }

// Life implements rankSource.
func (s *nodeSource) Life() uint64 { return s.engine.Life() }

// TellPrompts implements rankSource. Prompts come to a node as what routers have hashed them to.
func (s *nodeSource) TellPrompts(to *subscriber.Subscriber) { s.TellHashes(to) }

// Close implements rankSource.
func (s *nodeSource) Close() {
	s.home.remove(s)
	s.Source.Close()
}
