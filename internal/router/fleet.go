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
	maxLen   atomic.Int64 // model length last told by an engine, 0 when not known

	texts *approx.Index // nil when prompts are not matched by their text
	ratio ratio

	configured steering // what the configuration says; guarded by the Router's mu

	mu      sync.Mutex // held over the pricing of one request: each sees the charges of all before it
	pace    pace
	open    openings
	tally   tally
	expired uint64 // decisions whose record has not come in time
}

// target is one endpoint of a fleet.
type target struct {
	endpoint *pool.Endpoint
	source   atomic.Pointer[Source] // nil while nobody subscribes to its events
	sent     *approx.Endpoint       // what it was sent, by text; nil when prompts are not matched by their text
	steered  atomic.Uint64          // decisions for it in ModeOn
	observed atomic.Uint64          // decisions for it in ModeObserve
	account  account                // guarded by the fleet's mu
}

func newFleet(p *pool.Pool, rate float64, texts *approx.Index) *fleet {
	f := &fleet{texts: texts}
	f.targets.Store(new([]*target))
	f.configured.percent = -1 // differs from every configuration
	f.replace(p, rate)
	return f
}

// replace takes over a pool of another configuration, and returns the targets that are not in it. A mode that was set by a call stays unless the
// configuration says another one than before.
func (f *fleet) replace(p *pool.Pool, rate float64) (gone []*target) {
	before := map[*pool.Endpoint]*target{}
	for _, t := range f.all() {
		before[t.endpoint] = t
	}
	targets := make([]*target, 0, len(p.Endpoints()))
	for _, e := range p.Endpoints() {
		t := before[e]
		if t == nil {
			t = &target{endpoint: e}
			if f.texts != nil {
				t.sent = f.texts.Endpoint(p.Name(), e.Addr())
			}
		}
		delete(before, e)
		targets = append(targets, t)
	}
	f.mu.Lock()
	f.pace.rate = rate
	f.mu.Unlock()
	if was := f.pool.Swap(p); was != nil && !slices.Equal(was.Models(), p.Models()) {
		f.maxLen.Store(0)
	}
	f.targets.Store(&targets)
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

// available says whether the endpoint can get requests.
func (t *target) available() bool { return t.endpoint.Healthy() && !t.endpoint.Draining() }

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
	return slices.ContainsFunc(f.all(), func(t *target) bool { return t.source.Load() != nil })
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

// target finds an endpoint by its address; nil when the pool has no such one (any more).
func (f *fleet) target(addr string) *target {
	for _, t := range f.all() {
		if t.endpoint.Addr() == addr {
			return t
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
	for more := true; more; {
		f.mu.Lock()
		more = f.expire(now, expireStep)
		f.mu.Unlock()
	}
}

// openDecisions counts the decisions that are open, and those that have expired.
func (f *fleet) openDecisions() (open int, expired uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open.len(), f.expired
}

// place picks the first and the second choice among the candidates for a prompt of so many tokens, and charges the first with what it must
// compute. It returns positions in sc.candidates; second is −1 when there is only one.
func (f *fleet) place(sc *scratch, prompt int, b booking, w weights, now time.Time, random func(int) int) (first, second int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	exact := f.tally.exact(now)
	for i, c := range sc.candidates {
		c.target.account.advance(now, &f.pace)
		sc.standings[i].load = c.target.account.load(exact)
		sc.standings[i].suspect = c.endpoint.Suspect() || !c.target.available() // a tokenizer call may lie between
	}
	sc.costs = appendCosts(sc.costs[:0], prompt, sc.standings, w)
	first = pick(sc.costs, -1, w.near, random)
	second = pick(sc.costs, first, w.near, random)
	if b.number != 0 {
		s := sc.standings[first]
		f.enter(sc.candidates[first].target, b, float64(prompt)-s.credit(w), prompt, s.last, now)
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
	if t := f.target(e.tried); e.moved && e.trial != trialUnreached && t != nil {
		t.account.advance(now, &f.pace)
		t.account.computed(o.uncached, age)
	}
	return o, e, true
}

// undeliver takes a decision back as if it had not been made.
func (f *fleet) undeliver(number uint64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o, ok := f.open.take(number); ok {
		f.release(o, now)
		o.target.account.forget(o.uncached, now.Sub(o.since))
	}
}

// foreign takes note of a record that should have come to another router.
func (f *fleet) foreign() {
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
