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
		for len(targets) > 0 {
			n := seated(targets)
			es := stateOf(targets[:n])
			es.Engine = targets[0].of.engine(now)
			var sum load
			for i, l := range loads[:n] {
				sum.add(l)
				if targets[i].pinned {
					es.Ranks[i].Backlog = round(l.backlog)
				}
			}
			es.Backlog, es.Memory = round(sum.backlog), round(sum.memory)
			ps.Endpoints = append(ps.Endpoints, es)
			targets, loads = targets[n:], loads[n:]
		}
		state.Pools = append(state.Pools, ps)
	}
	return state
}

// seated is how many targets at the begin of a list are those of the first one's endpoint.
func seated(targets []*target) int {
	n := 1
	for n < len(targets) && targets[n].endpoint == targets[0].endpoint {
		n++
	}
	return n
}

func round(v float64) int { return int(math.Round(v)) }

func (l *load) add(other load) {
	l.backlog += other.backlog
	l.queue += other.queue
	l.memory += other.memory
	l.running += other.running
}

// stateOf is what is known of an endpoint by its targets, beside their loads.
func stateOf(targets []*target) EndpointState {
	e, of := targets[0].endpoint, targets[0].of
	es := EndpointState{Address: e.Addr(), Healthy: e.Healthy(), Suspect: e.Suspect(), Draining: e.Draining(), Leaving: e.Leaving()}
	for _, t := range targets {
		if t.sent != nil {
			es.ApproximateBlocks += t.sent.Blocks()
		}
		if es.Problem == "" {
			es.Problem = t.problem()
		}
	}
	es.Connected = true
	for _, k := range of.all {
		rs := k.state()
		if s := k.source.Load(); s != nil {
			es.Events = true
		}
		es.Copying = es.Copying || rs.Copying
		rs.Matchable = rs.Matchable && !of.mismatched()
		es.Connected = es.Connected && rs.Connected
		es.Matchable = es.Matchable || rs.Matchable
		es.Blocks, es.DeviceBlocks = es.Blocks+rs.Blocks, es.DeviceBlocks+rs.DeviceBlocks
		es.BlockSize = max(es.BlockSize, rs.BlockSize)
		if len(of.all) > 1 {
			es.Ranks = append(es.Ranks, rs)
		}
	}
	return es
}

// state is what is known of a rank beside its load.
func (k *rank) state() RankState {
	rs := RankState{Rank: k.number}
	s := k.source.Load()
	if s == nil {
		return rs
	}
	state := s.state.Load()
	device, any := s.index.Blocks(state.slot)
	rs.Connected, rs.Copying, rs.BlockSize = state.about.Connected, state.copying, state.about.BlockSize
	rs.Problem = s.problemName(state)
	rs.Matchable = any > 0 && s.readable(state)
	rs.Blocks, rs.DeviceBlocks = int(any), int(device)
	return rs
}

// Sources counts the endpoints with event sources: all, and those of which it is known whether there is anything to wait for, because the engine is
// connected with all its ranks and no first copy of its blocks is under way, or the endpoint is down.
func (r *Router) Sources() (settled, all int) {
	for _, f := range r.all() {
		for targets := f.all(); len(targets) > 0; targets = targets[seated(targets):] {
			t := targets[0]
			sources, connected := 0, 0
			for _, k := range t.of.all {
				s := k.source.Load()
				if s == nil {
					continue
				}
				sources++
				if s.settled() {
					connected++
				}
			}
			if sources == 0 {
				continue
			}
			all++
			if connected == sources || !t.endpoint.Healthy() {
				settled++
			}
		}
	}
	return settled, all
}
