package router

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/pool"
)

// fleet is one pool with what the router knows and has done there. It lives as long as the pool's name is in the configuration; the pool and
// its targets are replaced as a whole by a new configuration.
type fleet struct {
	pool     atomic.Pointer[pool.Pool]
	targets  atomic.Pointer[[]*target]
	steering atomic.Pointer[steering]
	spreads  atomic.Bool  // the engine of some endpoint chooses among several ranks
	asleep   atomic.Bool  // the engine of some endpoint sleeps
	maxLen   atomic.Int64 // model length last told by an engine, 0 when not known

	texts *approx.Index // nil when prompts are not matched by their text
	peers Peers         // nil: none
	ratio ratio

	configured steering // what the configuration says; guarded by the Router's mu

	reports sync.Mutex // held while asleep is found out

	mu      sync.Mutex // held over the pricing of one request: each sees the charges of all before it
	pace    pace
	open    openings[uint64] // by number
	foreign foreign
	tally   tally
	expired uint64   // decisions whose record has not come in time
	over    []uint64 // of these, the ones that peers are to be told of
}

// target is what requests are sent to: one endpoint of a fleet, or one rank of an endpoint where decisions choose ranks.
type target struct {
	endpoint *pool.Endpoint
	of       *ranks  // all of the endpoint
	ranks    []*rank // of these, those where a request that is sent here may run
	pinned   bool    // decisions choose the rank, and ranks is that one

	sent     *approx.Endpoint // what it was sent, by text; nil when prompts are not matched by their text
	steered  atomic.Uint64    // decisions for it in ModeOn
	observed atomic.Uint64    // decisions for it in ModeObserve
	account  account          // guarded by the fleet's mu
}

func newFleet(p *pool.Pool, rate float64, texts *approx.Index, peers Peers) *fleet {
	f := &fleet{texts: texts, peers: peers}
	f.targets.Store(new([]*target))
	f.configured.percent = -1 // differs from every configuration
	f.replace(p, rate)
	return f
}

// replace takes over a pool of another configuration, and returns the targets that are not in it. A rank that stays keeps its blocks, also where
// requests are sent to another target for it; that one begins without charges. A mode that was set by a call stays unless the
// configuration says another one than before.
func (f *fleet) replace(p *pool.Pool, rate float64) (gone []*target) {
	before := map[seat]*target{}
	known := map[*pool.Endpoint]*ranks{}
	for _, t := range f.all() {
		before[t.seat()], known[t.endpoint] = t, t.of
	}
	targets := make([]*target, 0, len(p.Endpoints()))
	for i, e := range p.Endpoints() {
		of := known[e].resized(p.Ranks(i))
		for _, at := range seats(e, len(of.all), p.PinRank()) {
			t := before[at]
			if t != nil && t.of == of {
				delete(before, at)
			} else {
				t = f.newTarget(p, at, of)
			}
			targets = append(targets, t)
		}
	}
	f.mu.Lock()
	f.pace.rate = rate
	f.mu.Unlock()
	if was := f.pool.Swap(p); was != nil && !slices.Equal(was.Models(), p.Models()) {
		f.maxLen.Store(0)
	}
	f.spreads.Store(slices.ContainsFunc(targets, func(t *target) bool { return len(t.ranks) > 1 }))
	f.targets.Store(&targets)
	f.findSleepers()
	tokens, _ := p.Cache()
	for _, t := range targets {
		if tokens == 0 || t.endpoint.Draining() {
			t.forgetSent()
		}
	}
	mode, _ := ParseMode(p.Mode()) // checked by package pool
	if s := (steering{mode: mode, percent: 100 - p.Unsteered()}); s != f.configured {
		f.configured = s
		f.steering.Store(&s)
	}
	for _, t := range before {
		gone = append(gone, t)
	}
	return gone
}

// newTarget makes the target of a seat at an endpoint with these ranks, and has them charge it.
func (f *fleet) newTarget(p *pool.Pool, at seat, of *ranks) *target {
	t := &target{endpoint: at.endpoint, of: of, ranks: of.all}
	if at.rank >= 0 {
		t.ranks, t.pinned = of.all[at.rank:at.rank+1], true
	}
	t.account.ranks = len(t.ranks)
	if f.texts != nil {
		t.sent = f.texts.Endpoint(p.Name(), at.endpoint.Addr())
	}
	for _, k := range t.ranks {
		k.target.Store(t)
	}
	return t
}

// available says whether the endpoint can get requests.
func (t *target) available() bool {
	return t.endpoint.Healthy() && !t.endpoint.Draining() && !t.missing()
}

// forgetSent drops what the endpoint was sent: its cache is taken to be empty.
func (t *target) forgetSent() {
	if t.sent != nil {
		t.sent.Forget()
	}
}

func (f *fleet) name() string { return f.pool.Load().Name() }

// all are the fleet's targets at this time, in the order of the configuration.
func (f *fleet) all() []*target { return *f.targets.Load() }

// hasEvents says whether anybody subscribes to the events of any endpoint.
func (f *fleet) hasEvents() bool {
	return slices.ContainsFunc(f.all(), func(t *target) bool {
		return slices.ContainsFunc(t.ranks, func(k *rank) bool { return k.source.Load() != nil })
	})
}

// modelLen is the model's length in tokens, 0 when not known. What the configuration says goes before what an engine tells.
func (f *fleet) modelLen() int {
	p := f.pool.Load()
	if n := p.MaxModelLen(); n > 0 {
		return n
	}
	if n := int(f.maxLen.Load()); n > 0 {
		return n
	}
	return p.ToldModelLen()
}

// overModel says whether a prompt is longer than the model takes, as far as is known. The engine also wants room for one token of the answer.
func (f *fleet) overModel(tokens int) bool {
	n := f.modelLen()
	return n > 0 && tokens >= n
}

// at are the targets of an endpoint: one, or one for each rank where decisions choose ranks; none when the pool has no such endpoint (any more).
// They stand side by side.
func (f *fleet) at(addr string) []*target {
	all := f.all()
	first := slices.IndexFunc(all, func(t *target) bool { return t.endpoint.Addr() == addr })
	if first < 0 {
		return nil
	}
	last := first
	for last < len(all) && all[last].endpoint == all[first].endpoint {
		last++
	}
	return all[first:last]
}

// target is the first target of an endpoint; nil when the pool has no such endpoint (any more).
func (f *fleet) target(addr string) *target {
	if all := f.at(addr); len(all) > 0 {
		return all[0]
	}
	return nil
}

// instead is the target where a request ran that was sent to t and ran at another endpoint: what told the engine t's rank told that one's too.
func (f *fleet) instead(t *target, addr string) *target {
	for _, other := range f.at(addr) {
		if other.seat().rank == t.seat().rank {
			return other
		}
	}
	return nil
}

// loads reads the accounts of targets. Decisions beyond their lifetime expire first.
func (f *fleet) loads(targets []*target, now time.Time) []load {
	f.expireAll(now)
	f.mu.Lock()
	defer f.mu.Unlock()
	loads := make([]load, len(targets))
	exact := f.tally.exact(now)
	for i, t := range targets {
		t.account.advance(now, &f.pace)
		loads[i] = t.account.load(exact)
	}
	return loads
}

// expireAll ends all decisions that are beyond their lifetime, letting others have the lock in between.
func (f *fleet) expireAll(now time.Time) {
	var over []uint64
	for more := true; more; {
		f.mu.Lock()
		more = f.expire(now, expireStep)
		over = f.takeOver(over[:0])
		f.mu.Unlock()
		f.tellReleases(over...)
	}
}

// openDecisions counts the decisions that are open, those of other routers, and those that have expired.
func (f *fleet) openDecisions() (open, foreign int, expired uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open.len(), f.foreign.charges.len(), f.expired
}

// place picks the first and the second choice among the candidates for a prompt of so many tokens, and charges the first with what it must
// compute, of which peers are told. It returns positions in sc.candidates; second is −1 when there is only one, and both are when the request is shed.
func (f *fleet) place(sc *scratch, prompt int, b booking, w weights, now time.Time, random func(int) int) (first, second int) {
	first, second = f.choose(sc, prompt, b, w, now, random)
	if f.peers != nil && first >= 0 {
		f.tellReleases(sc.over...)
		if f.tells(b, prompt) {
			s := &sc.standings[first]
			f.tellCharge(sc.candidates[first].target, b.number, float64(prompt)-s.credit(), prompt, s.last)
		}
	}
	return first, second
}

// choose is place without telling.
func (f *fleet) choose(sc *scratch, prompt int, b booking, w weights, now time.Time, random func(int) int) (first, second int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sc.over = sc.over[:0]
	exact, asleep := f.tally.exact(now), f.asleep.Load()
	for i := range sc.candidates {
		c := &sc.candidates[i]
		c.target.account.advance(now, &f.pace)
		sc.standings[i].load = c.target.account.load(exact).mean(len(c.target.ranks))
		sc.standings[i].suspect = c.endpoint.Suspect() || !c.target.available() || asleep && c.target.asleep() // a tokenizer call may lie between
	}
	if b.shed > 0 && !slices.ContainsFunc(sc.standings, func(s standing) bool { return s.load.backlog <= b.shed }) {
		return -1, -1
	}
	sc.costs = appendCosts(sc.costs[:0], prompt, sc.standings, w)
	first = pick(sc.costs, -1, w.near, random)
	second = sc.second(first, w, random)
	if b.number != 0 {
		s := sc.standings[first]
		f.enter(sc.candidates[first].target, b, float64(prompt)-s.credit(), prompt, s.last, now)
		sc.over = f.takeOver(sc.over)
	}
	return first, second
}

// count enters a decision for the target.
func (t *target) count(m Mode) {
	if m == ModeOn {
		t.steered.Add(1)
	} else {
		t.observed.Add(1)
	}
}

// complete ends a decision by its record. ok is false when it is not open.
func (f *fleet) complete(number uint64, c Completion, now time.Time) (o opening, e ending, ok bool) {
	o, e, ok = f.end(number, c, now)
	if o.told {
		f.tellReleases(number)
	}
	return o, e, ok
}

// end is complete without telling.
func (f *fleet) end(number uint64, c Completion, now time.Time) (o opening, e ending, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o, ok = f.open.take(number); !ok {
		return o, e, false
	}
	f.tally.record(now)
	f.release(o, now)
	e = judge(c, o.target.endpoint.Addr(), o.steered)
	if e.computed {
		return o, e, true
	}
	age := now.Sub(o.since)
	o.target.account.forget(o.uncached, age)
	if t := f.instead(o.target, e.tried); e.moved && e.trial != trialUnreached && t != nil {
		t.account.advance(now, &f.pace)
		t.account.computed(o.uncached, age)
	}
	return o, e, true
}

// move enters an open decision at the endpoint that serves its request, where that is another one than was chosen, and returns the choice then;
// nil otherwise. The decision of a request that is served by none of the fleet's endpoints is not open any more.
func (f *fleet) move(number uint64, addr string, now time.Time) (choice *target) {
	choice, moved := f.relocate(number, addr, now)
	if choice == nil || !moved.told {
		return choice
	}
	f.tellReleases(number)
	if moved.target != nil {
		f.tellCharge(moved.target, number, moved.uncached, moved.prompt, 0)
		if !f.isOpen(number) { // its record came meanwhile, and its release may have been told before the charge
			f.tellReleases(number)
		}
	}
	return choice
}

// relocate is move without telling. moved is what the decision has become, without a target when it is not open any more.
func (f *fleet) relocate(number uint64, addr string, now time.Time) (choice *target, moved opening) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.open.get(number)
	if o == nil || !o.steered || o.target.endpoint.Addr() == addr {
		return nil, moved
	}
	choice = o.target
	f.release(*o, now)
	choice.account.forget(o.uncached, now.Sub(o.since))
	t := f.instead(o.target, addr)
	if t == nil {
		moved, _ = f.open.take(number)
		moved.target = nil
		return choice, moved
	}
	t.account.advance(now, &f.pace)
	o.target, o.charge = t, t.account.charge(o.uncached, o.prompt, 0)
	return choice, *o
}

func (f *fleet) isOpen(number uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open.get(number) != nil
}

// undeliver takes a decision back as if it had not been made.
func (f *fleet) undeliver(number uint64, now time.Time) {
	f.mu.Lock()
	o, ok := f.open.take(number)
	if ok {
		f.release(o, now)
		o.target.account.forget(o.uncached, now.Sub(o.since))
	}
	f.mu.Unlock()
	if o.told {
		f.tellReleases(number)
	}
}

// strayed takes note of a record that should have come to another router and cannot be passed to it.
func (f *fleet) strayed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tally.stray()
}

// confirmChunk bounds the keys looked at in one go under the ledger's lock.
const confirmChunk = 1024

// confirm tells the account of a target that its engine has announced blocks.
func (f *fleet) confirm(t *target, keys []uint64, now time.Time) {
	for part := range slices.Chunk(keys, confirmChunk) {
		f.mu.Lock()
		t.account.advance(now, &f.pace)
		t.account.confirm(part)
		f.mu.Unlock()
	}
}
