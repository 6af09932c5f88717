package router

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/subscriber"
	"github.com/prometheus/client_golang/prometheus"
)

// Requests are decided and metrics read while engines store, remove, reset, disconnect and fail. Matched never exceeds what the prompt has.
func TestConcurrentUse(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, Options{Now: time.Now, Metrics: NewMetrics(reg)}, chat(8))
	prompt := run(1, 40*block)
	keys := chain(prompt)
	req := given("llama", prompt)
	for i := range 8 {
		w.connect(address(i), block)
	}
	stop := make(chan struct{})
	var writers, readers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 9))
			s, held := w.sources[address(i)], 0
			for {
				select {
				case <-stop:
					return
				default:
				}
				switch n := rnd.IntN(len(keys)); {
				case rnd.IntN(50) == 0:
					s.Reset(subscriber.CauseGap)
					held = 0
				case rnd.IntN(50) == 0:
					s.Describe(subscriber.Description{Connected: rnd.IntN(2) == 0, BlockSize: block})
				case rnd.IntN(50) == 0:
					s.rank.target.Load().endpoint.ReportConnectError()
				case n >= held:
					s.Store(subscriber.Any, keys[held:n])
					s.Store(subscriber.Device, keys[held:n])
					held = n
				default:
					gone := slices.Clone(keys[n:held])
					slices.Reverse(gone)
					s.Remove(subscriber.Device, gone)
					s.Remove(subscriber.Any, gone)
					held = n
				}
			}
		})
	}
	for range 4 {
		readers.Go(func() {
			for i := range 200 {
				d := w.r.Decide(t.Context(), req)
				if d.Matched > 39*block || d.Matched%block != 0 || d.Endpoint == "" || d.Endpoint == d.Second {
					t.Errorf("decision %+v", d)
				}
				if i%3 != 0 {
					w.r.Complete(answered(d, []string{d.Endpoint, d.Second}[i%2]))
				}
				if i%50 == 0 {
					if _, err := reg.Gather(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	writers.Wait()
}

// A matched prompt costs no memory beyond buffers that are used again.
func TestMatchAllocatesNothing(t *testing.T) {
	w := newWorld(t, Options{}, chat(8))
	tokens := run(1, 65_536)
	for i := range 8 {
		w.hold(address(i), block, plain, tokens[:(i+1)*8_000])
	}
	f, sc := w.r.all()[0], &scratch{settings: w.r.settings.Load()}
	watch := w.r.m.start(w.r.now)
	one := func() {
		sc.gather(f, -1, 0)
		w.r.match(sc, blockhash.Namespace{Pool: "chat"}, tokens, &watch)
		f.place(sc, len(tokens), booking{number: 1, charge: true}, w.r.weights, epoch, w.r.random)
		w.pass(time.Second)
		f.loads(f.all(), w.clock())
	}
	one()
	// loads makes its result; the ledger's queue may grow.
	if n := testing.AllocsPerRun(5, one); n > 2 {
		t.Errorf("%v allocations for 4,096 blocks", n)
	}
}
