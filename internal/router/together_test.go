package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/subscriber"
)

// crowd is a router that everybody uses at once.
type crowd struct {
	*world
	rounds int // decisions of each decider

	mu      sync.Mutex
	targets map[*target]*fleet // that there ever were
}

// decide makes decisions by tokens and by text, and has their records come once, twice, from elsewhere or for another router.
func (c *crowd) decide(seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 5))
	tokens := run(1, 10*block)
	for i := range c.rounds {
		ctx, cancel := context.WithCancel(c.t.Context())
		req := given([]string{"llama", "coder"}[rnd.IntN(2)], tokens[:1+rnd.IntN(len(tokens))])
		if rnd.IntN(2) == 0 {
			req = chats("", message("user", fmt.Sprintf("Story %d. ", rnd.IntN(20)), 1+rnd.IntN(200)))
		}
		if rnd.IntN(10) == 0 {
			cancel()
		}
		d := c.r.Decide(ctx, req)
		cancel()
		if d.Matched > 0 && d.Matched >= d.Prompt || d.Endpoint != "" && d.Endpoint == d.Second || d.Mode == ModeOff && d.Endpoint != "" {
			c.t.Errorf("decision %d: %+v", i, d)
		}
		record := answered(d, []string{d.Endpoint, d.Second, address(rnd.IntN(6)), "192.0.2.1:80", ""}[rnd.IntN(5)])
		record.Attempts, record.ConnectFailed = rnd.IntN(3), rnd.IntN(10) == 0
		switch rnd.IntN(6) {
		case 0:
			c.r.Complete(Completion{ID: d.ID, Pool: d.Pool, Undelivered: true})
		case 1:
			c.r.Complete(Completion{ID: "aaaaaaaa-1", Pool: "chat", Upstream: address(0)})
			c.r.Complete(record)
		default:
			c.r.Complete(record)
		}
		c.r.Complete(record)
	}
}

// announce is the events of one endpoint, which may not be configured at all times.
func (c *crowd) announce(ctx context.Context, i int) {
	rnd := rand.New(rand.NewPCG(uint64(i), 6))
	keys := chain(run(1, 10*block))
	for ctx.Err() == nil {
		s, err := c.r.Source("chat", address(i), 0)
		if err != nil {
			c.r.State()
			continue
		}
		s.Describe(subscriber.Description{Connected: true, BlockSize: block, ExtraKeys: true})
		for range 20 {
			n := 1 + rnd.IntN(len(keys))
			s.Store(subscriber.Any, keys[:n])
			s.Store(subscriber.Device, keys[:n])
			switch rnd.IntN(6) {
			case 0:
				s.Begin()
			case 1:
				s.End()
			}
			if rnd.IntN(4) == 0 {
				s.Reset([]subscriber.Cause{subscriber.CauseGap, subscriber.CauseCleared}[rnd.IntN(2)])
			}
		}
		s.Close()
	}
}

// share is another router, which charges, releases and dies, and a node that tells of engines.
func (c *crowd) share(ctx context.Context, origin string) {
	rnd := rand.New(rand.NewPCG(uint64(len(origin)), 8))
	for ctx.Err() == nil {
		number := 1 + rnd.Uint64N(50)
		switch rnd.IntN(8) {
		case 0:
			c.r.Gone(origin)
		case 1, 2, 3:
			c.r.Release(origin, "chat", number)
		case 4:
			c.r.Report("chat", address(rnd.IntN(6)), Load{Sleeping: rnd.IntN(3) == 0, Stale: rnd.IntN(3) == 0})
		default:
			c.r.Charge(origin, charged(rnd.IntN(6), number, 1+rnd.IntN(1000)))
		}
	}
	for number := range uint64(50) {
		c.r.Release(origin, "chat", 1+number)
	}
}

// Charged, Released and Pass make the crowd the peers of its router: they call it back at once.
func (c *crowd) Charged(charge Charge) {
	charge.Endpoint = address(int(charge.Number % 6))
	c.r.Charge("echo", charge)
}

func (c *crowd) Released(pool string, number uint64) { c.r.Release("echo", pool, number) }

func (c *crowd) Pass(_ string, record Completion) Passing {
	c.r.CompletePassed(record)
	return Passed
}

// change replaces the configuration and calls what people call.
func (c *crowd) change(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(1, 7))
	for ctx.Err() == nil {
		e := address(rnd.IntN(6))
		switch rnd.IntN(6) {
		case 0:
			_ = c.r.Reset(e)
		case 1:
			_ = c.r.Drain(e, rnd.IntN(3) == 0)
		case 2:
			_ = c.r.SetMode("chat", []Mode{ModeOn, ModeOn, ModeObserve, ModeOff}[rnd.IntN(4)], 50+rnd.IntN(51))
		default:
			chat := texted(3 + rnd.IntN(4))
			chat.CacheTokens = []int{0, 1000, 400_000}[rnd.IntN(3)]
			pools := []pool.Config{chat}
			if rnd.IntN(2) == 0 {
				other := coder()
				other.CacheTokens, other.CacheLifetime = 1000, time.Minute
				pools = append(pools, other)
			}
			c.apply(pools...)
		}
		c.mu.Lock()
		for _, f := range c.r.all() {
			for _, t := range f.all() {
				c.targets[t] = f
			}
		}
		c.mu.Unlock()
	}
}

// Everything that may be called at any time is, and once all records have come nothing is charged in any pool that was never taken away, endpoints
// that were taken from it included.
func TestEverythingTogether(t *testing.T) {
	texts, err := approx.New(approx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	c := &crowd{rounds: 400, targets: map[*target]*fleet{}}
	c.world = newWorld(t, Options{Texts: texts, Metrics: NewMetrics(reg), Now: time.Now, PrefillRate: 1000, Peers: c}, texted(6), coder())
	ctx, stop := context.WithCancel(t.Context())
	var deciders, others sync.WaitGroup
	others.Go(func() { c.change(ctx) })
	others.Go(func() { c.share(ctx, "one") })
	others.Go(func() { c.share(ctx, "other") })
	for i := range 4 {
		others.Go(func() { c.announce(ctx, 1+i) })
	}
	others.Go(func() {
		for ctx.Err() == nil {
			if _, err := reg.Gather(); err != nil {
				t.Error(err)
			}
			c.r.State()
			c.r.Sources()
			c.r.Recent(10)
		}
	})
	for i := range 4 {
		deciders.Go(func() { c.decide(uint64(i)) })
	}
	deciders.Wait()
	stop()
	others.Wait()

	c.checkRest()
	if got := c.index.Stats().Slots; got != 0 {
		t.Errorf("%d slots in use without a source", got)
	}
	if !texts.Sound() {
		t.Error("a check found a difference")
	}
}

// checkRest looks at all targets when all records have come. With a pool its ledger goes away, whatever is open there.
func (c *crowd) checkRest() {
	c.t.Helper()
	if n := len(c.targets); n < 6 {
		c.t.Errorf("only %d endpoints were ever configured", n)
	}
	for target, f := range c.targets {
		if f != c.r.fleet(f.name()) {
			continue
		}
		open, foreign, _ := f.openDecisions()
		a := &target.account
		held := a.held
		a.advance(time.Now().Add(24*time.Hour), &f.pace) // what a router that is gone has left is worked off
		if l := a.load(true); open != 0 || foreign != 0 || held != 0 || l != (load{}) || a.guessed != 0 || len(a.awaited) != 0 {
			c.t.Errorf("endpoint %s of pool %s: %+v, %d open, %d awaited", target.endpoint.Addr(), f.name(), l, open, len(a.awaited))
		}
	}
}
