package main

import (
	"fmt"
	"time"

	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/fleet"
	"github.com/kvsteer/kvsteer/internal/router"
)

// viewer tells what the router holds, and what is known of nodes.
type viewer struct{ *service }

var _ admin.Viewer = viewer{}

// State is that of the router, with where its endpoints come from.
func (v viewer) State() router.State {
	state := v.router.State()
	endpoints, refused := v.keeper.planned()
	at := make(map[string]fleet.Endpoint, len(endpoints))
	for _, e := range endpoints {
		at[e.Address] = e
	}
	for _, p := range state.Pools {
		for i := range p.Endpoints {
			if e, ok := at[p.Endpoints[i].Address]; ok && e.Pool == p.Name {
				p.Endpoints[i].Origin, p.Endpoints[i].Node = string(e.Origin), e.Node
			}
		}
	}
	for _, r := range refused {
		state.Refused = append(state.Refused, router.RefusedEndpoint{Node: r.Node, Pool: r.Pool, Endpoint: r.Address, Why: r.Why})
	}
	for _, n := range v.feed.Nodes() {
		state.Nodes = append(state.Nodes, watchedState(n, state.Time))
		for _, r := range n.Refused {
			state.Refused = append(state.Refused, router.RefusedEndpoint{Node: n.Address, Pool: r.Pool, Endpoint: r.Endpoint, Why: refusal(r)})
		}
	}
	return state
}

// Recent returns the latest decisions.
func (v viewer) Recent(n int) []router.PastDecision { return v.router.Recent(n) }

// Blocks returns what an endpoint is believed to hold.
func (v viewer) Blocks(endpoint string, limit int) ([]router.HeldBlocks, error) {
	return v.router.Blocks(endpoint, limit)
}

func watchedState(n feed.NodeStatus, now time.Time) router.NodeState {
	s := router.NodeState{
		Address: n.Address, Name: n.Name, Connected: n.Connected, Since: n.Since, Problem: n.Problem, Stale: n.Stale, Release: n.Release, Protocol: n.Protocol,
		Endpoints: len(n.Replicas), Copies: n.Copies, Blocks: n.Blocks, Bytes: n.Bytes, Peers: n.Peers,
	}
	if !n.Heard.IsZero() {
		s.Heard = max(now.Sub(n.Heard), 0).Seconds()
	}
	return s
}

// refusal is why a node may not speak for an endpoint, in a sentence.
func refusal(r feed.Refusal) string {
	switch r.Reason {
	case feed.RefusedAddress:
		return "its address is not ip:port of one host"
	case feed.RefusedForeign:
		return "it is not at the node's own address, and the configuration allows it no others (nodes[].allow)"
	case feed.RefusedTaken:
		return fmt.Sprintf("node %q announces it", r.Owner)
	case feed.RefusedTwice:
		return "the node announces it twice"
	}
	return string(r.Reason)
}
