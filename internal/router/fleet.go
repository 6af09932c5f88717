package router

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/internal/pool"
)

// fleet is one pool with what the router knows and has done there.
type fleet struct {
	pool    *pool.Pool
	targets []*target
	maxLen  atomic.Int64 // model length last told by an engine, 0 when not known

	mu       sync.Mutex // held over the pricing of one request: each sees the charges of all before it
	pace     pace
	accounts []account // of targets, by position
}

// target is one endpoint of a fleet.
type target struct {
	endpoint *pool.Endpoint
	source   atomic.Pointer[Source] // nil while nobody subscribes to its events
}

func newFleet(p *pool.Pool, rate float64) *fleet {
	f := &fleet{pool: p, pace: pace{rate: rate}}
	for _, e := range p.Endpoints() {
		f.targets = append(f.targets, &target{endpoint: e})
	}
	f.accounts = make([]account, len(f.targets))
	return f
}

// modelLen is the model's length in tokens, 0 when not known. What the configuration says goes before what an engine tells.
func (f *fleet) modelLen() int {
	if n := f.pool.MaxModelLen(); n > 0 {
		return n
	}
	return int(f.maxLen.Load())
}

// overModel says whether a prompt is longer than the model takes, as far as is known. The engine also wants room for one token of the answer.
func (f *fleet) overModel(tokens int) bool {
	n := f.modelLen()
	return n > 0 && tokens >= n
}

// loads reads all accounts.
func (f *fleet) loads(now time.Time) []load {
	f.mu.Lock()
	defer f.mu.Unlock()
	loads := make([]load, len(f.accounts))
	for i := range f.accounts {
		f.accounts[i].advance(now, &f.pace)
		loads[i] = f.accounts[i].load()
	}
	return loads
}

// place picks the first and the second choice among the candidates for a prompt of so many tokens, and charges the first with what it must
// compute. It returns positions in sc.candidates; second is −1 when there is only one.
func (f *fleet) place(sc *scratch, prompt int, charge bool, w weights, now time.Time, random func(int) int) (first, second int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, c := range sc.candidates {
		a := &f.accounts[c.at]
		a.advance(now, &f.pace)
		sc.standings[i].load = a.load()
	}
	sc.costs = appendCosts(sc.costs[:0], prompt, sc.standings, w)
	first = pick(sc.costs, -1, w.near, random)
	second = pick(sc.costs, first, w.near, random)
	if charge {
		s := sc.standings[first]
		f.accounts[sc.candidates[first].at].charge(float64(prompt)-s.credit(w), float64(prompt), s.last)
	}
	return first, second
}

// confirmChunk bounds the keys looked at in one go under the ledger's lock.
const confirmChunk = 1024

// confirm tells the account of a target that its engine has announced blocks.
func (f *fleet) confirm(at int, keys []uint64, now time.Time) {
	for part := range slices.Chunk(keys, confirmChunk) {
		f.mu.Lock()
		a := &f.accounts[at]
		a.advance(now, &f.pace)
		a.confirm(part)
		f.mu.Unlock()
	}
}
