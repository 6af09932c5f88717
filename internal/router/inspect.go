package router

import (
	"math"
	"slices"
)

// State returns what the router holds and believes at this moment. Its parts are read one after the other, while decisions go on.
func (r *Router) State() State {
	now := r.now()
	state := State{Time: now, Pools: []PoolState{}}
	for _, f := range r.all() {
		p, s, targets := f.pool.Load(), f.steering.Load(), f.all()
		ps := PoolState{
			Name: p.Name(), Models: slices.Clone(p.Models()), Adapters: slices.Clone(p.Adapters()),
			Mode: s.mode, Percent: s.percent, Endpoints: []EndpointState{},
		}
		loads := f.loads(targets, now)
		for i, t := range targets {
			es := t.state()
			es.Backlog, es.Memory = int(math.Round(loads[i].backlog)), int(math.Round(loads[i].memory))
			ps.Endpoints = append(ps.Endpoints, es)
		}
		state.Pools = append(state.Pools, ps)
	}
	return state
}

// state is what is known of a target beside its load.
func (t *target) state() EndpointState {
	e := t.endpoint
	es := EndpointState{Address: e.Addr(), Healthy: e.Healthy(), Suspect: e.Suspect(), Draining: e.Draining()}
	if t.sent != nil {
		es.ApproximateBlocks = t.sent.Blocks()
	}
	s := t.source.Load()
	if s == nil {
		return es
	}
	state := s.state.Load()
	device, any := s.index.Blocks(state.slot)
	es.Events, es.Connected, es.BlockSize = true, state.about.Connected, state.about.BlockSize
	es.Problem = s.problemName(state)
	es.Matchable = any > 0 && s.readable(state)
	es.Blocks, es.DeviceBlocks = int(any), int(device)
	return es
}

// Sources counts the event sources: all, and those of which it is known whether there is anything to wait for, because the engine is connected or
// the endpoint is down.
func (r *Router) Sources() (settled, all int) {
	for _, f := range r.all() {
		for _, t := range f.all() {
			s := t.source.Load()
			if s == nil {
				continue
			}
			all++
			if s.state.Load().about.Connected || !t.endpoint.Healthy() {
				settled++
			}
		}
	}
	return settled, all
}
