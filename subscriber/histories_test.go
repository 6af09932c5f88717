package subscriber_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/subscriber"
)

// TestHistories leads random histories of truthful engines all the way, in one process: events through real sockets to Subscribers with all that TestLife
// has go wrong, from there to a node, and over TCP to two routers with an index each. Connections between node and routers are cut and held up until the node drops what
// waits, routers are started anew, and so is the node, with its mirrors saved last, older, damaged or none. At rest both routers' indexes have
//
//   - no block, in either tier, that a prompt cannot hit at its engine,
//   - every block that the engine can still replay,
//
// and exactly those that the Subscribers have announced. On the way prompts are matched while changes come, and what is matched is always what a walk over all blocks
// finds: each index compares, for slots that nothing changed meanwhile. One history is repeated by its name: -run 'TestHistories/all/seed=7'.
func TestHistories(t *testing.T) {
	const seeds = 10
	var mu sync.Mutex
	all := map[string]int{}
	t.Run("all", func(t *testing.T) {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				h := newHistory(t, seed)
				for range 3 {
					h.stretch()
					h.rest()
				}
				h.end()
				mu.Lock()
				defer mu.Unlock()
				for what, n := range h.happened {
					all[what] += n
				}
			})
		}
	})
	t.Log(all)
	if t.Failed() || all["histories"] < seeds {
		return // or some were left out by name
	}
	for _, what := range []string{
		"node restarts", "router restarts", "links cut", "links held", "overflows", "withdrawals", "cuts", "engine restarts", "batches lost", "batches late or twice",
		"subscriber restarts with its mirror", "subscriber restarts with an older mirror", "subscriber restarts with a damaged mirror", "subscriber restarts without its mirror",
	} {
		if all[what] == 0 {
			t.Errorf("no %s", what)
		}
	}
	if all["checks"] < 100*seeds || all["matched"] < 50*seeds || all["events"] < 500*seeds || all["credited at rest"] < 1000*seeds || all["due at rest"] < 500*seeds {
		t.Error("nothing is tested")
	}
}

// history is a node with the lives of three engines, and two routers.
type history struct {
	t    *testing.T
	rnd  *rand.Rand
	addr string // of the node

	node    *feed.Node
	metrics *prometheus.Registry // of the node
	sources []*feed.Source       // of the lives, and one more
	endNode func()
	gone    bool // the last replica is withdrawn

	lives   []subscriber.Life
	routers [2]*historyRouter
	stale   time.Duration

	happened map[string]int
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{t: t, rnd: rand.New(rand.NewPCG(seed, 23)), addr: "127.0.0.1:0", stale: 5 * time.Second, happened: map[string]int{"histories": 1}}
	if h.rnd.IntN(3) == 0 {
		h.stale = 300 * time.Millisecond
	}
	h.makeNode()
	for i := range 3 {
		kind := (int(seed) + i*i) % subscriber.LifeKinds()
		h.lives = append(h.lives, subscriber.NewLife(t, kind, 100*seed+uint64(i), func() subscriber.Sink { return h.sources[i] }))
	}
	h.serve()
	for i := range h.routers {
		h.routers[i] = h.watch()
	}
	return h
}

// historyPlaces are where the lives' sources are: two ranks of one engine, and another engine. The last is one that holds nothing for long.
var historyPlaces = []struct {
	endpoint string
	rank     int
}{{":8000", 0}, {":8000", 1}, {":8001", 0}, {":8002", 0}}

// makeNode makes a node that knows nothing.
func (h *history) makeNode() {
	h.metrics = prometheus.NewRegistry()
	n, err := feed.NewNode(feed.NodeOptions{
		Window: time.Duration(1+h.rnd.IntN(5)) * time.Millisecond, WindowKeys: 50 + h.rnd.IntN(200), QueueBytes: 256 << 10, MaxCopies: 1 + h.rnd.IntN(2),
		Alive: 20 * time.Millisecond, Metrics: feed.NewNodeMetrics(h.metrics),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.node, h.sources = n, nil
	for range historyPlaces {
		h.sources = append(h.sources, n.Source())
	}
	h.sources[3].Describe(subscriber.Description{Connected: true, BlockSize: 4})
}

// serve lets routers in.
func (h *history) serve() {
	h.announce()
	var l net.Listener
	h.until("the node's address is free", func() (why string) {
		var err error
		if l, err = net.Listen("tcp", h.addr); err != nil {
			return err.Error()
		}
		return ""
	})
	h.addr = l.Addr().String()
	h.endNode = h.run(func(ctx context.Context) error { return h.node.Run(ctx, l) })
}

// run runs something until the function that it returns is called.
func (h *history) run(what func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- what(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(end)
	return end
}

// announce tells routers which engines there are.
func (h *history) announce() {
	var all []feed.Replica
	for i, place := range historyPlaces {
		if place.rank > 0 {
			all[len(all)-1].Sources = append(all[len(all)-1].Sources, h.sources[i].Number())
			continue
		}
		if place.endpoint == ":8001" && h.gone {
			continue
		}
		all = append(all, feed.Replica{Endpoint: place.endpoint, Pool: "chat", Models: []string{"llama"}, Sources: []uint32{h.sources[i].Number()}})
	}
	h.node.Announce(all)
}

// restartNode ends the node before its Subscribers, as the program does, and has others take its place.
func (h *history) restartNode() {
	h.countOverflows()
	h.endNode()
	h.makeNode()
	for _, l := range h.lives {
		l.Renew()
	}
	h.pause()
	h.serve()
}

func (h *history) countOverflows() {
	families, err := h.metrics.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "kvsteer_feed_node_overflows_total" {
			h.happened["overflows"] += int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
}

// stretch lets engines live and things go wrong.
func (h *history) stretch() {
	for _, l := range h.lives {
		l.Weather()
	}
	for range 6 + h.rnd.IntN(10) {
		h.lives[h.rnd.IntN(len(h.lives))].Act()
		h.decide()
		h.happen()
	}
}

// happen draws what goes wrong between the node and the routers.
func (h *history) happen() {
	i := h.rnd.IntN(len(h.routers))
	r := h.routers[i]
	switch k := h.rnd.IntN(100); {
	case k < 12:
		r.links.Cut()
		h.happened["links cut"]++
	case k < 22:
		r.links.Hold(true)
		h.happened["links held"]++
		if h.rnd.IntN(3) == 0 {
			h.storm()
		}
	case k < 28:
		h.endRouter(r)
		h.pause()
		h.routers[i] = h.watch()
		h.happened["router restarts"]++
	case k < 33:
		h.restartNode()
		h.happened["node restarts"]++
	case k < 36:
		h.gone = !h.gone
		h.announce()
		h.happened["withdrawals"]++
	case k < 60:
		r.links.Hold(false)
		h.pause()
	}
}

// storm has more blocks come and go than the queue of a router that does not read has room for.
func (h *history) storm() {
	keys := make([]uint64, 1000)
	for i := range keys {
		keys[i] = uint64(i + 1)
	}
	for range 15 {
		h.sources[3].Store(subscriber.Any, keys)
		h.sources[3].Store(subscriber.Device, keys)
		h.sources[3].Remove(subscriber.Device, keys)
		h.sources[3].Remove(subscriber.Any, keys)
	}
}

// pause lets a few milliseconds pass.
func (h *history) pause() {
	select {
	case <-time.After(time.Duration(h.rnd.IntN(8000)) * time.Microsecond):
	case <-h.t.Context().Done():
	}
}

// rest ends all that goes wrong, and holds the indexes of both routers to what the engines have.
func (h *history) rest() {
	h.gone = false
	h.announce()
	for _, r := range h.routers {
		r.links.Hold(false)
	}
	type truth struct{ held, due [2]map[uint64]bool }
	truths := make([]truth, len(historyPlaces)) // the last one is empty
	for i, l := range h.lives {
		truths[i].held, truths[i].due = l.Rest()
	}
	for n, r := range h.routers {
		h.until(fmt.Sprintf("router %d knows what is announced", n), func() (why string) {
			credited, due := 0, 0
			for i, place := range historyPlaces {
				var announced [2]map[uint64]bool
				if i < len(h.lives) {
					announced = h.lives[i].Announced()
				}
				for tier, keys := range r.credited(h.t, place.endpoint, place.rank) {
					where := fmt.Sprintf("%s rank %d tier %d", place.endpoint, place.rank, tier)
					if lacks, exceeds := lacking(announced[tier], keys), lacking(keys, announced[tier]); lacks+exceeds > 0 {
						return fmt.Sprintf("%s: lacks %d of %d and has %d more", where, lacks, len(announced[tier]), exceeds)
					}
					if wrong := lacking(keys, truths[i].held[tier]); wrong > 0 {
						h.t.Fatalf("router %d, %s: %d of %d credited blocks are not held", n, where, wrong, len(keys))
					}
					if lacks := lacking(truths[i].due[tier], keys); lacks > 0 {
						return fmt.Sprintf("%s: lacks %d blocks that a replay can restore", where, lacks)
					}
					credited, due = credited+len(keys), due+len(truths[i].due[tier])
				}
			}
			h.happened["credited at rest"] += credited
			h.happened["due at rest"] += due
			return ""
		})
	}
}

// lacking is how many of some blocks a set has not.
func lacking(some, set map[uint64]bool) (n int) {
	for key := range some {
		if !set[key] {
			n++
		}
	}
	return n
}

// until waits until there is nothing more to say.
func (h *history) until(what string, why func() string) {
	h.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(30 * time.Second)
	for text := why(); text != ""; text = why() {
		select {
		case <-tick.C:
		case <-late:
			h.t.Fatalf("not so: %s: %s; %v", what, text, h.happened)
		}
	}
}

// end ends everything and adds up what happened.
func (h *history) end() {
	h.countOverflows()
	for _, r := range h.routers {
		h.endRouter(r)
	}
	h.endNode()
	for _, l := range h.lives {
		l.End()
		for what, n := range maps.All(l.Happened()) {
			h.happened[what] += n
		}
		h.happened["events"] += l.Events()
	}
}
