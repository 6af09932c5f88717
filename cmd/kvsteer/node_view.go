package main

import (
	"errors"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/router"
)

// nodeState is what a node knows, as its admin listener shows it.
type nodeState struct {
	Time    time.Time     `json:"time"`
	Name    string        `json:"name"`
	Version string        `json:"version"`
	Routers []routerState `json:"routers"`
	Engines []engineState `json:"engines"`
}

// routerState is a router that watches the node.
type routerState struct {
	Address  string    `json:"address"` // it comes from
	Instance string    `json:"instance"`
	Version  string    `json:"version"`
	Since    time.Time `json:"since"`
}

// engineState is one engine of a node.
type engineState struct {
	Pool     string        `json:"pool"`
	Address  string        `json:"address"`   // where the node reaches it
	Told     string        `json:"announced"` // how routers are told of it
	Engine   string        `json:"engine"`
	Version  string        `json:"version,omitempty"`
	Healthy  bool          `json:"healthy"`
	Draining bool          `json:"draining"`
	Models   []string      `json:"models"`
	Adapters []string      `json:"adapters,omitempty"`
	ModelLen int           `json:"max_model_len,omitempty"` // tokens
	Problems []string      `json:"problems,omitempty"`
	Ranks    []sourceState `json:"ranks"`
	Load     *loadState    `json:"load,omitempty"` // not there while nothing is known of it
}

// sourceState is one rank of an engine.
type sourceState struct {
	Rank      int    `json:"rank"`
	Source    uint32 `json:"source"`           // number on the wire
	Listen    string `json:"listen,omitempty"` // where it is waited for
	Dial      string `json:"dial,omitempty"`   // where it is dialled
	Replay    string `json:"replay,omitempty"`
	Connected bool   `json:"connected"`
	Complete  bool   `json:"complete"`
	Blocks    int    `json:"blocks"`
	BlockSize int    `json:"block_size"` // tokens; 0 while not known
	Problem   string `json:"problem,omitempty"`
}

// loadState is what an engine last said of itself.
type loadState struct {
	Running  int     `json:"running"`
	Waiting  int     `json:"waiting"`
	KVUsage  float64 `json:"kv_usage"`
	Sleeping bool    `json:"sleeping"`
	Stale    bool    `json:"stale"`
	Age      float64 `json:"age_seconds"`
}

// state is for people, and for nobody's decisions: its parts are of different moments.
func (n *nodeService) state() nodeState {
	cfg, picked, now := n.reloads.config(), n.portsOf(), time.Now()
	state := nodeState{Time: now, Name: cfg.Name, Version: version, Routers: []routerState{}, Engines: []engineState{}}
	for _, r := range n.feed.Routers() {
		state.Routers = append(state.Routers, routerState{r.Address, r.Instance, r.Release, r.Since})
	}
	for _, p := range n.pools.Pools() {
		var of *config.NodePool
		for i := range cfg.Pools {
			if cfg.Pools[i].Name == p.Name() {
				of = &cfg.Pools[i]
			}
		}
		for i, e := range p.Endpoints() {
			told, _ := p.Told(i)
			s := engineState{
				Pool: p.Name(), Address: e.Addr(), Version: e.Version(), Healthy: e.Healthy(), Draining: e.Draining(),
				Models: served(p.Models(), told.Models), ModelLen: told.ModelLen, Ranks: []sourceState{},
			}
			for _, a := range told.Adapters {
				s.Adapters = append(s.Adapters, a.Name)
			}
			if of != nil {
				s.Engine = of.Engine
				n.about(&s, of, eventsByAddress(of, e.Addr(), &s.Told), picked.Of[e.Addr()].Events, picked.Of[e.Addr()].Replay)
			}
			if l, ok := n.scrapes.of(e.Addr()); ok {
				s.Load = &loadState{l.Running, l.Waiting, l.KVUsage, l.Sleeping, l.Stale, now.Sub(l.At).Seconds()}
			}
			state.Engines = append(state.Engines, s)
		}
	}
	return state
}

// eventsByAddress is what a configuration says of an engine's events, and how it is announced.
func eventsByAddress(p *config.NodePool, local string, announced *string) config.EngineEvents {
	for _, e := range p.Engines {
		if e.Local() == local {
			*announced = e.Address
			return e.Events
		}
	}
	return config.EngineEvents{}
}

// about fills in what is known of an engine's events.
func (n *nodeService) about(s *engineState, p *config.NodePool, given config.EngineEvents, listen, replay uint16) {
	events := given.At(listen, replay)
	sources, offered, _ := n.home.of(engineName{p.Name, s.Address}, given.Ranks)
	var all []*nodeSource
	for rank, source := range sources {
		if source == nil {
			continue
		}
		all = append(all, source)
		about, at := source.about.Load(), events.Of(rank)
		s.Ranks = append(s.Ranks, sourceState{
			Rank: rank, Source: source.Number(), Listen: at.Listen, Dial: at.Dial, Replay: at.Replay, Connected: about.Connected, Complete: about.Complete,
			Blocks: source.Blocks(), BlockSize: about.BlockSize, Problem: string(about.Problem),
		})
	}
	_, s.Problems = abouts(all, offered)
}

// nodeViewer shows a node's engines to the admin server's commands.
type nodeViewer struct{ node *nodeService }

// State implements admin.Viewer.
func (v nodeViewer) State() router.State {
	state := v.node.state()
	at := map[string]int{}
	out := router.State{Time: state.Time}
	for _, e := range state.Engines {
		i, ok := at[e.Pool]
		if !ok {
			i = len(out.Pools)
			at[e.Pool] = i
			out.Pools = append(out.Pools, router.PoolState{Name: e.Pool})
		}
		shown := router.EndpointState{Address: e.Address, Healthy: e.Healthy, Draining: e.Draining}
		for _, r := range e.Ranks {
			shown.Blocks += r.Blocks
		}
		out.Pools[i].Endpoints = append(out.Pools[i].Endpoints, shown)
	}
	return out
}

// Recent implements admin.Viewer.
func (nodeViewer) Recent(int) []router.PastDecision { return nil }

// Blocks implements admin.Viewer. Routers tell what they believe; a node has no such call.
func (nodeViewer) Blocks(string, int) ([]router.HeldBlocks, error) {
	return nil, errors.New("a node has no list of blocks")
}

// nodeControl carries out what operators ask of a node.
type nodeControl struct{ node *nodeService }

// SetMode implements admin.Control.
func (nodeControl) SetMode(string, router.Mode, int) error {
	return errors.New("a node makes no decisions: ask a router")
}

// Drain implements admin.Control.
func (c nodeControl) Drain(engine string, on bool) error {
	for _, p := range c.node.pools.Pools() {
		for _, e := range p.Endpoints() {
			if e.Addr() == engine {
				e.Drain(on)
				c.node.announcer.changed()
				return nil
			}
		}
	}
	return errors.New("there is no such engine")
}

// Reset forgets what is known of an engine's cache, and follows its events anew.
func (c nodeControl) Reset(engine string) error {
	c.node.followers.restart(engine)
	return nil
}
