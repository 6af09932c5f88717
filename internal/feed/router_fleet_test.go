package feed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/kvsteer/kvsteer/subscriber"
)

// blockSet is what a sink holds, by tier.
type blockSet [2]map[uint64]bool

func newBlockSet() blockSet { return blockSet{{}, {}} }

func (b blockSet) sorted(t subscriber.Tier) []uint64 { return slices.Sorted(maps.Keys(b[t])) }

func (b blockSet) equal(other blockSet) bool {
	return maps.Equal(b[subscriber.Any], other[subscriber.Any]) && maps.Equal(b[subscriber.Device], other[subscriber.Device])
}

// modelSink is the obvious sink: sets, and another pair of them in a copy.
type modelSink struct {
	t      testing.TB
	name   string
	parent func(key uint64) (uint64, bool) // nil: not known

	mu      sync.Mutex
	held    blockSet
	fresh   *blockSet // in a copy
	about   subscriber.Description
	copies  int
	resets  []subscriber.Cause
	history []string // of Describe, Begin, End, Reset, Close
	hearer  Hearer
	closed  bool
	dropped bool
	lost    bool
}

func newModelSink(t testing.TB, name string) *modelSink {
	return &modelSink{t: t, name: name, held: newBlockSet()}
}

func (s *modelSink) use(format string, args ...any) func() {
	s.mu.Lock()
	if s.closed {
		s.t.Errorf("%s is used after its Close: %s", s.name, fmt.Sprintf(format, args...))
	}
	if format != "" {
		s.history = append(s.history, fmt.Sprintf(format, args...))
	}
	return s.mu.Unlock
}

func (s *modelSink) set() blockSet {
	if s.fresh != nil {
		return *s.fresh
	}
	return s.held
}

func (s *modelSink) Store(tier subscriber.Tier, keys []uint64) {
	defer s.use("")()
	set := s.set()
	for _, key := range keys {
		if tier == subscriber.Device && !set[subscriber.Any][key] {
			s.t.Errorf("%s: %d comes to the device before any tier", s.name, key)
		}
		if s.fresh == nil && s.parent != nil {
			if parent, ok := s.parent(key); ok && !set[tier][parent] {
				s.t.Errorf("%s: %d comes to tier %d before its parent", s.name, key, tier)
			}
		}
		set[tier][key] = true
	}
}

func (s *modelSink) Remove(tier subscriber.Tier, keys []uint64) {
	defer s.use("")()
	set := s.set()
	for _, key := range keys {
		if tier == subscriber.Any && set[subscriber.Device][key] {
			s.t.Errorf("%s: %d leaves all tiers before the device", s.name, key)
		}
		delete(set[tier], key)
		if s.fresh == nil && s.parent != nil {
			for child := range set[tier] {
				if parent, ok := s.parent(child); ok && parent == key {
					s.t.Errorf("%s: %d leaves tier %d before its child %d", s.name, key, tier, child)
				}
			}
		}
	}
}

func (s *modelSink) Reset(c subscriber.Cause) {
	defer s.use("reset %s", c)()
	s.held, s.fresh = newBlockSet(), nil
	s.resets = append(s.resets, c)
}

func (s *modelSink) Describe(d subscriber.Description) {
	defer s.use("connected %t", d.Connected)()
	s.about = d
}

func (s *modelSink) Begin() {
	defer s.use("begin")()
	fresh := newBlockSet()
	s.fresh = &fresh
}

func (s *modelSink) End() {
	defer s.use("end")()
	if s.fresh == nil {
		s.t.Errorf("%s: the end of no copy", s.name)
		return
	}
	s.held, s.fresh = *s.fresh, nil
	s.copies++
	if s.parent != nil {
		for _, tier := range []subscriber.Tier{subscriber.Any, subscriber.Device} {
			for key := range s.held[tier] {
				if parent, ok := s.parent(key); ok && !s.held[tier][parent] {
					s.t.Errorf("%s: a copy ends with %d in tier %d and without its parent", s.name, key, tier)
				}
			}
		}
	}
}

func (s *modelSink) Close() {
	defer s.use("close")()
	s.held, s.fresh, s.closed = newBlockSet(), nil, true
}

func (s *modelSink) TellPrompts(h Hearer) {
	defer s.use("")()
	if s.hearer != nil || s.history != nil {
		s.t.Errorf("%s is told late, or again, who hears of prompts", s.name)
	}
	s.hearer = h
}

func (s *modelSink) Lost() bool {
	defer s.use("")()
	return s.lost
}

func (s *modelSink) Dropped() bool {
	defer s.use("")()
	return s.dropped
}

// matched is what could be matched at this time.
func (s *modelSink) matched(tier subscriber.Tier) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.about.Connected {
		return nil
	}
	return s.held.sorted(tier)
}

func (s *modelSink) events() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history)
}

func (s *modelSink) snapshot() blockSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return blockSet{maps.Clone(s.held[0]), maps.Clone(s.held[1])}
}

// modelFleet keeps what it is told.
type modelFleet struct {
	t      testing.TB
	parent func(key uint64) (uint64, bool)

	mu       sync.Mutex
	leaving  chan struct{}   // not nil: what a Serve of nothing waits for
	unwanted map[string]bool // endpoints
	served   map[string][]Replica
	serves   int
	sinks    map[string]*modelSink // by "pool endpoint rank", of those that are open
	loads    map[string]Load
	charges  map[chargeName]Charge
	gone     []string
	silent   []string
	records  []Record
}

func newModelFleet(t testing.TB) *modelFleet {
	return &modelFleet{t: t, unwanted: map[string]bool{}, served: map[string][]Replica{}, sinks: map[string]*modelSink{}, loads: map[string]Load{}, charges: map[chargeName]Charge{}}
}

func (f *modelFleet) Serve(node string, replicas []Replica) {
	f.mu.Lock()
	if hold := f.leaving; replicas == nil && hold != nil {
		f.mu.Unlock()
		<-hold
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	f.serves++
	if replicas == nil {
		delete(f.served, node)
		return
	}
	f.served[node] = replicas
}

func (f *modelFleet) Sink(pool, endpoint string, rank int) (Sink, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unwanted[endpoint] {
		return nil, errors.New("no such endpoint")
	}
	name := fmt.Sprintf("%s %s %d", pool, endpoint, rank)
	if s := f.sinks[name]; s != nil {
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if !closed {
			f.t.Errorf("a second sink of %s", name)
		}
	}
	served := false
	for _, replicas := range f.served {
		for _, r := range replicas {
			served = served || r.Endpoint == endpoint && r.Pool == pool && rank < len(r.Sources)
		}
	}
	if !served {
		f.t.Errorf("a sink of %s, which is not served", name)
	}
	s := newModelSink(f.t, name)
	s.parent = f.parent
	f.sinks[name] = s
	return s, nil
}

func (f *modelFleet) Load(_ string, loads []Load) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range loads {
		f.loads[l.Endpoint] = l
	}
}

func (f *modelFleet) Charge(origin string, c Charge) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := chargeName{origin, c.Pool, c.Number}
	if _, ok := f.charges[name]; ok {
		f.t.Errorf("charge %v comes twice", name)
	}
	f.charges[name] = c
}

func (f *modelFleet) Release(origin, pool string, number uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.charges, chargeName{origin, pool, number})
}

func (f *modelFleet) Silent(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = append(f.silent, node)
}

func (f *modelFleet) Gone(origin string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = append(f.gone, origin)
}

func (f *modelFleet) Record(r Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.records = append(f.records, r)
}

func (f *modelFleet) want(endpoint string, yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unwanted[endpoint] = !yes
}

// sink returns an open sink, nil when there is none.
func (f *modelFleet) sink(name string) *modelSink {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sinks[name]
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	return s
}

// replicas are those that a node serves.
func (f *modelFleet) replicas(node string) []Replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.served[node]
}

// endpoints are those that a node serves.
func (f *modelFleet) endpoints(node string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, r := range f.served[node] {
		all = append(all, r.Endpoint)
	}
	return all
}

func (f *modelFleet) load(endpoint string) Load {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loads[endpoint]
}

// with lets a test read the fleet's fields.
func (f *modelFleet) with(read func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	read()
}

func contextCancel(f func(error)) context.CancelCauseFunc { return f }
