package feed

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/subscriber"
)

// nodeHost is a node with its engines, which outlive it.
type nodeHost struct {
	t       *testing.T
	addr    string
	options NodeOptions
	engines []*engine
	node    *Node
	stop    func()
}

// start runs a node that learns what its engines have.
func (h *nodeHost) start() {
	n, err := NewNode(h.options)
	check(h.t, err)
	n.o.QueueBytes = 32 << 10
	h.node = n
	for _, e := range h.engines {
		e.source = n.Source()
		e.tell()
	}
	h.announce()
	var l net.Listener
	eventually(h.t, "the node's address is free", func() bool {
		l, err = net.Listen("tcp", h.addr)
		return err == nil
	})
	h.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, l) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		check(h.t, <-done)
	})
}

// announce tells of one replica with two ranks, and of one for each further engine.
func (h *nodeHost) announce() {
	all := []Replica{{Endpoint: ":8000", Pool: "chat", Sources: []uint32{h.engines[0].source.Number(), h.engines[1].source.Number()}}}
	for i, e := range h.engines[2:] {
		all = append(all, Replica{Endpoint: fmt.Sprintf(":%d", 8001+i), Pool: "chat", Sources: []uint32{e.source.Number()}})
	}
	h.node.Announce(all)
}

// tell tells a fresh source what the engine has. Parents have lower numbers than children.
func (e *engine) tell() {
	e.source.Describe(e.about)
	for _, tier := range []subscriber.Tier{subscriber.Any, subscriber.Device} {
		bit := tierAny
		if tier == subscriber.Device {
			bit = tierDevice
		}
		var keys []uint64
		for _, key := range slices.Sorted(maps.Keys(e.has)) {
			if e.has[key]&bit != 0 {
				keys = append(keys, key)
			}
		}
		e.source.Store(tier, keys)
	}
}

// stormKey is the first key of storms.
const stormKey = 1 << 20

// storm has more blocks come and go than the queue of a router that does not read has room for.
func (e *engine) storm() {
	keys := make([]uint64, 4000)
	for i := range keys {
		keys[i] = stormKey + uint64(i)
	}
	for range 4 {
		e.source.Store(subscriber.Any, keys)
		e.source.Store(subscriber.Device, keys)
		e.source.Remove(subscriber.Device, keys)
		e.source.Remove(subscriber.Any, keys)
	}
}

func (h *nodeHost) overflows() int { return int(testutil.ToFloat64(h.node.o.Metrics.overflows)) }

// want is what a sink should hold.
func (e *engine) want() blockSet {
	set := newBlockSet()
	for key, tiers := range e.has {
		if tiers&tierAny != 0 {
			set[subscriber.Any][key] = true
		}
		if tiers&tierDevice != 0 {
			set[subscriber.Device][key] = true
		}
	}
	return set
}

// TestHistories leads random histories of engines through a node, real connections and routers, while connections are cut or held up and nodes and
// routers are started anew. At rest each router has exactly what each engine has announced; on the way its sinks are prefix-closed whenever what they
// hold could be matched, which they check themselves.
func TestHistories(t *testing.T) {
	seeds := uint64(6)
	if raceEnabled {
		seeds = 3
	}
	var total struct{ copies, overflows, streams int }
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		shape := newTree(r, 100+r.IntN(200))
		parent := func(key uint64) (uint64, bool) {
			if key >= stormKey {
				return 0, false
			}
			return shape.parent[key], shape.parent[key] != 0
		}
		h := &nodeHost{t: t, addr: "127.0.0.1:0", options: NodeOptions{
			Window: time.Duration(1+r.IntN(5)) * time.Millisecond, WindowKeys: 1 + r.IntN(100), QueueBytes: 256 << 10, MaxCopies: 1 + r.IntN(2),
		}}
		for range 4 {
			h.engines = append(h.engines, &engine{tree: shape, rand: r, has: blocks{}, about: subscriber.Description{Connected: true, BlockSize: 16}})
		}
		h.start()
		w := &lab.Links{}
		type running struct {
			fleet *modelFleet
			r     *Router
			stop  func()
		}
		start := func() *running {
			x := &running{fleet: newModelFleet(t)}
			x.fleet.parent = parent
			router, err := NewRouter(RouterOptions{Instance: fmt.Sprint("r", r.Uint32()), Fleet: x.fleet, Dial: w.Dial, StaleAfter: time.Minute, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond})
			check(t, err)
			router.Set([]Address{{Addr: h.addr}})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- router.Run(ctx) }()
			x.r, x.stop = router, sync.OnceFunc(func() {
				cancel()
				check(t, <-done)
			})
			return x
		}
		routers := []*running{start(), start()}
		count := func(r *Router) {
			for _, n := range r.Nodes() {
				total.streams += int(n.Streams)
			}
		}
		equal := func() bool {
			for _, x := range routers {
				for i, e := range h.engines {
					name := fmt.Sprintf("chat 127.0.0.1:%d 0", 7999+i)
					if i < 2 {
						name = fmt.Sprintf("chat 127.0.0.1:8000 %d", i)
					}
					s := x.fleet.sink(name)
					if s == nil || !s.snapshot().equal(e.want()) {
						return false
					}
				}
			}
			return true
		}
		for range 1500 {
			switch k := r.IntN(1000); {
			case k < 970:
				h.engines[r.IntN(len(h.engines))].act()
			case k < 980:
				w.Cut()
			case k < 985:
				w.Hold(true)
				for range r.IntN(4) {
					h.engines[r.IntN(len(h.engines))].storm()
				}
			case k < 988:
				i := r.IntN(len(routers))
				count(routers[i].r)
				routers[i].stop()
				routers[i] = start()
			case k < 990:
				h.stop()
				total.overflows += h.overflows()
				h.start()
			case k < 993:
				h.engines = append(h.engines[:2:2], append(h.engines[3:], h.engines[2])...) // engines change places
				h.announce()
			case k < 995:
				eventually(t, "all is at rest in between", func() bool { w.Hold(false); return equal() })
			default:
				w.Hold(false)
				pauseFor(t, time.Duration(r.IntN(3000))*time.Microsecond)
			}
		}
		w.Hold(false)
		for _, e := range h.engines {
			e.about = subscriber.Description{Connected: true, BlockSize: 16}
			e.source.Describe(e.about)
		}
		eventually(t, fmt.Sprintf("all is at rest after history %d", seed), equal)
		for _, x := range routers {
			for _, s := range x.fleet.sinks {
				total.copies += s.copies
			}
			count(x.r)
			x.stop()
			for _, s := range x.fleet.sinks {
				if !s.closed {
					t.Errorf("%s is left open", s.name)
				}
			}
		}
		h.stop()
		total.overflows += h.overflows()
	}
	t.Logf("%+v", total)
	if total.copies < 10 || total.streams < 10 || total.overflows < 2 {
		t.Errorf("histories are too calm: %+v", total)
	}
}

// pauseFor lets a time pass in which nothing is asked of anybody.
func pauseFor(t *testing.T, d time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	<-ctx.Done()
}
