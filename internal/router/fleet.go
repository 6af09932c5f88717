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
	pool    atomic.Pointer[pool.Pool]
	targets atomic.Pointer[[]*target]
	maxLen  atomic.Int64 // model length last told by an engine, 0 when not known

	mu   sync.Mutex // held over the pricing of one request: each sees the charges of all before it
	pace pace

	ratio ratio
}

// target is one endpoint of a fleet.
type target struct {
	endpoint *pool.Endpoint
	source   atomic.Pointer[Source] // nil while nobody subscribes to its events
	sent     *approx.Endpoint       // what it was sent, by text; nil when no router matches by text
	account  account                // guarded by the fleet's mu
}

func newFleet(p *pool.Pool, rate float64, texts *approx.Index) *fleet {
	f := &fleet{pace: pace{rate: rate}}
	var targets []*target
	for _, e := range p.Endpoints() {
		t := &target{endpoint: e}
		if texts != nil {
			t.sent = texts.Endpoint(p.Name(), e.Addr())
		}
		targets = append(targets, t)
	}
	f.pool.Store(p)
	f.targets.Store(&targets)
	return f
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
	if n := f.pool.Load().MaxModelLen(); n > 0 {
		return n
	}
	return int(f.maxLen.Load())
}

// overModel says whether a prompt is longer than the model takes, as far as is known. The engine also wants room for one token of the answer.
func (f *fleet) overModel(tokens int) bool {
	n := f.modelLen()
	return n > 0 && tokens >= n
}

// loads reads the accounts of targets.
func (f *fleet) loads(targets []*target, now time.Time) []load {
	f.mu.Lock()
	defer f.mu.Unlock()
	loads := make([]load, len(targets))
	for i, t := range targets {
		t.account.advance(now, &f.pace)
		loads[i] = t.account.load()
	}
	return loads
}

// place picks the first and the second choice among the candidates for a prompt of so many tokens, and charges the first with what it must
// compute. It returns positions in sc.candidates; second is −1 when there is only one.
func (f *fleet) place(sc *scratch, prompt int, charge bool, w weights, now time.Time, random func(int) int) (first, second int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, c := range sc.candidates {
		c.target.account.advance(now, &f.pace)
		sc.standings[i].load = c.target.account.load()
	}
	sc.costs = appendCosts(sc.costs[:0], prompt, sc.standings, w)
	first = pick(sc.costs, -1, w.near, random)
	second = pick(sc.costs, first, w.near, random)
	if charge {
		s := sc.standings[first]
		sc.candidates[first].target.account.charge(float64(prompt)-s.credit(w), float64(prompt), s.last)
	}
	return first, second
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
