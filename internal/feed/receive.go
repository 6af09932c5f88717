package feed

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// ProblemOther stands for a problem that a newer node has a name for.
const ProblemOther subscriber.Problem = "other"

// causeOther stands for a cause of a reset that a newer node has a name for.
const causeOther subscriber.Cause = "other"

// errInvalid is what an error of a message that no node sends wraps.
var errInvalid = errors.New("invalid message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errInvalid, fmt.Sprintf(format, args...))
}

// sourceName names what blocks belong to. The number of ranks is part of it: an endpoint with another number of ranks is another one to the fleet.
type sourceName struct {
	pool, endpoint string
	rank, ranks    int
}

// heldSource is what one rank of an accepted replica is known to hold. It outlives streams.
type heldSource struct {
	name sourceName
	sink Sink // nil: the fleet does not want it
	ear  *ear // for the prompts that may run there

	about subscriber.Description // as the node says
	told  subscriber.Description // as the sink was told
	known bool                   // whether it was told any

	number  uint32 // on this stream, or the last one
	heard   bool   // on this stream: its state
	begun   bool   // on this stream: a copy has begun, or a reset has emptied it
	copying bool
	opened  time.Time // when the copy began

	// unfollowed is the time since which changes of the blocks that can be matched are not heard of: the stream was lost, or a copy is under way
	// that will replace them. Zero while they are followed. After some time they are stale.
	unfollowed time.Time
	stale      bool
	forgotten  bool // what was known is, and nothing has come since

	blocks int64 // that the node has, by what it says; for a while after a copy in which much changed it may be somewhat wrong
	copied int64 // in the copy
	gone   int64 // in the copy: removed from all tiers by changes
}

// inbox applies the messages of one node. Its methods are called by one goroutine at a time; it outlives streams.
type inbox struct {
	n          *watched
	fleet      Fleet
	owners     *owners
	origins    *origins
	own        string // instance of this router
	staleAfter time.Duration
	maxBlocks  int64
	metrics    *routerSeries

	// Of the stream, empty between two.
	numbers map[uint32]*heldSource // nil: of a replica that is refused
	begun   map[uint32]bool        // numbers whose blocks have begun to come
	former  map[uint32]bool        // numbers that were announced before the last time

	parted map[string]time.Time // routers that the node has lost, or that were lost with it: until when they heard what it was told

	recopy    recopy
	held      map[sourceName]*heldSource
	stales    int               // of them
	endpoints map[string]string // of accepted replicas, by their name with the node
	replicas  []Replica         // as last served
	silent    bool              // and the fleet was told that they count no more
	refused   []Refusal
	loads     []Load                // as last told
	missed    map[string]missedLoad // others that were told before, by endpoint

	keys   []uint64 // scratch
	device []uint64
}

func newInbox(n *watched) *inbox {
	r := n.r
	return &inbox{
		n: n, fleet: r.o.Fleet, owners: &r.owners, origins: &r.origins, own: r.o.Instance, staleAfter: r.o.StaleAfter, maxBlocks: int64(r.o.MaxBlocks),
		metrics: n.metrics, held: map[sourceName]*heldSource{}, parted: map[string]time.Time{}, endpoints: map[string]string{}, missed: map[string]missedLoad{},
	}
}

// begin starts a stream.
func (r *inbox) begin() {
	r.numbers, r.begun, r.former = map[uint32]*heldSource{}, map[uint32]bool{}, map[uint32]bool{}
}

// apply applies one message that came at now. After an error the stream must be ended; the message has then changed nothing.
func (r *inbox) apply(m *feedpb.NodeMessage, now time.Time) error {
	switch m := m.GetMessage().(type) {
	case *feedpb.NodeMessage_Hello:
		return malformed("a second hello")
	case *feedpb.NodeMessage_Replicas:
		return r.announce(m.Replicas, now)
	case *feedpb.NodeMessage_State:
		return r.state(m.State)
	case *feedpb.NodeMessage_Wanted:
		return r.wanted(m.Wanted)
	case *feedpb.NodeMessage_Begin:
		return r.beginCopy(m.Begin, now)
	case *feedpb.NodeMessage_Blocks:
		return r.blocks(m.Blocks)
	case *feedpb.NodeMessage_End:
		return r.endCopy(m.End, now)
	case *feedpb.NodeMessage_Delta:
		return r.delta(m.Delta)
	case *feedpb.NodeMessage_Reset_:
		return r.reset(m.Reset_)
	case *feedpb.NodeMessage_Loads:
		return r.load(m.Loads, now)
	case *feedpb.NodeMessage_Peers:
		return r.meet(m.Peers, now)
	case *feedpb.NodeMessage_Charges:
		return r.charges(m.Charges, now)
	case *feedpb.NodeMessage_Record:
		return r.record(m.Record)
	}
	return nil // Alive, and what a newer node says
}

// announce takes over the replicas of a node: what is gone is closed before the fleet hears of it, what has come is opened after. errAgain says that
// blocks were missed that only another stream brings.
func (r *inbox) announce(m *feedpb.Replicas, now time.Time) error {
	replicas, err := readReplicas(m)
	if err != nil {
		return err
	}
	accepted, sources, announced := r.accept(replicas)
	wanted := map[sourceName]bool{}
	for _, a := range sources {
		wanted[a.name] = true
	}
	for name, s := range r.held {
		if !wanted[name] {
			r.drop(s)
		}
	}
	if r.replicas == nil || r.silent || !reflect.DeepEqual(accepted, r.replicas) {
		r.replicas, r.silent = accepted, false
		r.fleet.Serve(r.n.name, accepted)
	}
	r.owners.keep(r.n, announced) // once the sinks of what it gives up are closed
	before, missed := r.numbers, r.reconsider()
	r.numbers = map[uint32]*heldSource{}
	for _, a := range sources {
		s := r.open(a, now)
		r.numbers[a.number] = s
		old, known := before[a.number]
		missed = missed || s != nil && s.sink != nil && known && old != s && r.begun[a.number]
	}
	r.former = map[uint32]bool{}
	for number := range before {
		if _, ok := r.numbers[number]; !ok {
			r.former[number] = true
			delete(r.begun, number)
		}
	}
	if missed {
		return errAgain
	}
	return nil
}

// assigned is a source number of a replica, and the source it stands for: the zero name for one of a replica that is refused.
type assigned struct {
	number uint32
	name   sourceName
}

// readReplicas reads an announcement. Each source number may stand in it once.
func readReplicas(m *feedpb.Replicas) ([]Replica, error) {
	replicas, err := readAll("replicas", m.GetReplicas(), maxReplicas, replicaOf)
	if err != nil {
		return nil, err
	}
	numbers := map[uint32]bool{}
	for _, p := range replicas {
		if err := few("ranks", len(p.Sources), subscriber.MaxRanks); err != nil {
			return nil, malformed("%v", err)
		}
		for _, number := range p.Sources {
			if numbers[number] {
				return nil, malformed("source %d stands for two ranks", number)
			}
			numbers[number] = true
		}
	}
	return replicas, nil
}

// accept sorts the replicas into those that the node may speak for, with their endpoints as ip:port, and those that it may not.
func (r *inbox) accept(replicas []Replica) (accepted []Replica, sources []assigned, announced map[string]bool) {
	dialled, allow := r.n.rules()
	endpoints := map[string]string{}
	announced = map[string]bool{}
	accepted = []Replica{}
	var refused []Refusal
	for _, p := range replicas {
		at, reason := resolve(p.Endpoint, dialled, allow)
		endpoint, owner := at.String(), ""
		switch {
		case reason != "":
		case announced[endpoint]:
			reason = RefusedTwice
		default:
			announced[endpoint] = true
			if other := r.owners.claim(r.n, endpoint, p.Endpoint); other != nil {
				reason, owner = RefusedTaken, other.name
			}
		}
		if reason != "" {
			refused = append(refused, Refusal{p.Endpoint, p.Pool, reason, owner})
			for _, number := range p.Sources {
				sources = append(sources, assigned{number: number})
			}
			continue
		}
		endpoints[p.Endpoint] = endpoint
		for rank, number := range p.Sources {
			sources = append(sources, assigned{number, sourceName{p.Pool, endpoint, rank, len(p.Sources)}})
		}
		p.Endpoint = endpoint
		accepted = append(accepted, p)
	}
	r.n.refusals(r.refused, refused)
	r.endpoints, r.refused = endpoints, refused
	return accepted, sources, announced
}

// open returns the source that a number stands for from here on, nil for one of a replica that is refused.
func (r *inbox) open(a assigned, now time.Time) *heldSource {
	if a.name == (sourceName{}) {
		return nil
	}
	s := r.held[a.name]
	switch {
	case s == nil:
		s = &heldSource{name: a.name, number: a.number, ear: r.n.ears.open(a.name.pool, a.number)}
		r.held[a.name] = s
		r.ask(s)
	case s.number != a.number:
		s.number = a.number
		s.ear.number.Store(a.number)
		s.cut(now)
	}
	return s
}

// ask asks the fleet for the sink of a source. It reports whether there is one.
func (r *inbox) ask(s *heldSource) bool {
	sink, err := r.fleet.Sink(s.name.pool, s.name.endpoint, s.name.rank)
	if err != nil {
		r.n.log.Debug("the blocks of a replica are not wanted", "pool", s.name.pool, "endpoint", s.name.endpoint, "rank", s.name.rank, "why", err)
		return false
	}
	s.sink, s.known, s.told = sink, false, subscriber.Description{}
	sink.TellPrompts(s.ear)
	return true
}

// reconsider asks the fleet again for the sinks that it did not want, and for others in place of lost ones. It reports whether some source needs its
// blocks from the beginning.
func (r *inbox) reconsider() bool {
	missed := false
	for _, s := range r.held {
		if s.sink != nil && s.sink.Lost() {
			s.close()
		}
		if s.sink != nil || !r.ask(s) {
			continue
		}
		switch {
		case s.begun:
			missed = true
		case s.heard:
			s.describe()
		}
	}
	return missed
}

// followed says that the blocks of the source are what the node has.
func (r *inbox) followed(s *heldSource) {
	s.unfollowed, s.forgotten = time.Time{}, false
	if s.stale {
		s.stale = false
		r.stales--
	}
	s.describe()
}

// drop closes a source.
func (r *inbox) drop(s *heldSource) {
	delete(r.held, s.name)
	s.ear.Set(subscriber.Want{})
	if s.stale {
		r.stales--
	}
	s.close()
}

// describe tells the sink what the node says, if that is news. Nothing of a stale source may be matched.
func (s *heldSource) describe() {
	d := s.about
	d.Connected = d.Connected && !s.stale
	if s.sink == nil || s.known && d == s.told || !s.known && d == (subscriber.Description{}) {
		return
	}
	s.told, s.known = d, true
	s.sink.Describe(d)
}

// cut says that no more changes come of what is known since a time.
func (s *heldSource) cut(since time.Time) {
	s.heard, s.begun, s.copying = false, false, false
	s.ear.Set(subscriber.Want{}) // until the node says more
	if s.unfollowed.IsZero() {
		s.unfollowed = since
	}
}

func (s *heldSource) close() {
	if s.sink != nil {
		s.sink.Close()
		s.sink = nil
	}
}

// lost ends a stream whose last message came at heard: what is known stays, until it is stale.
func (r *inbox) lost(heard, now time.Time) {
	r.numbers, r.begun, r.former = nil, nil, nil
	for _, s := range r.held {
		s.cut(heard)
	}
	unsure := heard.Add(-partSlack)
	gone := r.part(nil, unsure)
	r.origins.set(r.n, nil)
	r.n.r.mail.parted(r.n.out, gone, unsure, now)
	r.n.alone.Store(false)
	r.tick(now)
}

// tick makes stale what was not followed, or not told, for too long. What a lost node had is forgotten then, since only a copy can make it count again.
func (r *inbox) tick(now time.Time) {
	r.staleLoads(now.Add(-r.staleAfter))
	for _, s := range r.held {
		if !s.stale && !s.unfollowed.IsZero() && now.Sub(s.unfollowed) >= r.staleAfter {
			s.stale = true
			r.stales++
			s.describe()
		}
		if s.stale && !s.copying && !s.forgotten {
			s.forgotten, s.blocks = true, 0
			if s.sink != nil {
				s.sink.Reset(subscriber.CauseDisconnect)
			}
		}
	}
}

// due is when the next source becomes stale, zero when none will.
func (r *inbox) due() time.Time {
	var first time.Time
	for _, s := range r.held {
		if at := s.unfollowed.Add(r.staleAfter); !s.unfollowed.IsZero() && !s.stale && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// leave closes everything. With gone the fleet is told that the node is none any more.
func (r *inbox) leave(gone bool) {
	for _, s := range r.held {
		r.drop(s)
	}
	r.origins.set(r.n, nil)
	if gone {
		r.fleet.Serve(r.n.name, nil)
	}
	r.owners.keep(r.n, nil)
}
