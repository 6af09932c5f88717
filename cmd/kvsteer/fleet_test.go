package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/subscriber"
)

// testNode is a node whose engines a test plays.
type testNode struct {
	*feed.Node
	addr string
	stop func()
}

func startNode(t testing.TB, name string) *testNode { return startNodeAt(t, name, "127.0.0.1:0") }

func startNodeAt(t testing.TB, name, addr string) *testNode {
	t.Helper()
	n, err := feed.NewNode(feed.NodeOptions{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		if err := n.Run(ctx, l); err != nil {
			t.Error(err)
		}
	}()
	stop := func() { cancel(); <-ended }
	t.Cleanup(stop)
	return &testNode{n, l.Addr().String(), stop}
}

// source is a rank of an engine that is connected with the node and holds blocks with these keys.
func (n *testNode) source(keys ...uint64) *feed.Source {
	s := n.Source()
	s.Describe(subscriber.Description{Connected: true, Complete: true, BlockSize: 16})
	s.Store(subscriber.Any, keys)
	s.Store(subscriber.Device, keys)
	return s
}

// startFleet is startRunning with the parts that concern nodes.
func startFleet(t *testing.T, text string) *running {
	t.Helper()
	r := startRunning(t, text)
	background(t, r.feed.Run)
	background(t, r.keeper.run)
	return r
}

func nodes(all ...*testNode) string {
	var b strings.Builder
	b.WriteString("nodes:\n")
	for _, n := range all {
		fmt.Fprintf(&b, "- {address: %q}\n", n.addr)
	}
	return b.String()
}

const toldPool = "pools: [{name: chat, models: [tiny], adapters_refresh: 0s}]\n"

// TestNodes has nodes announce endpoints, and follows what becomes of them.
func TestNodes(t *testing.T) {
	first, second := startNode(t, "first"), startNode(t, "second")
	const one, two = "127.0.0.1:18001", "127.0.0.1:18002"
	a, b := first.source(1, 2, 3), second.source(4, 5)
	replica := func(endpoint string, s *feed.Source) feed.Replica {
		return feed.Replica{Endpoint: endpoint, Pool: "chat", Sources: []uint32{s.Number()}}
	}
	first.Announce([]feed.Replica{replica(":18001", a)})
	second.Announce([]feed.Replica{replica(two, b), replica(one, second.source(9))})
	r := startFleet(t, nodes(first)+toldPool)
	holds := func(endpoint string, blocks int) func() bool {
		return func() bool {
			e := r.endpoint(endpoint)
			return e.Address == endpoint && e.Connected && e.Blocks == blocks && e.DeviceBlocks == blocks
		}
	}
	r.until("the first node's endpoint is known with its blocks", holds(one, 3))
	if settled, all := r.settledNodes(); settled != 1 || all != 1 {
		t.Errorf("%d of %d nodes are settled", settled, all)
	}
	a.Store(subscriber.Any, []uint64{7})
	a.Store(subscriber.Device, []uint64{7})
	r.until("a change arrives", holds(one, 4))

	r.change(nodes(first, second) + toldPool)
	r.until("the second node's endpoint is known with its blocks", holds(two, 2))
	r.until("an endpoint announced twice is refused for the second", func() bool {
		for _, n := range r.feed.Nodes() {
			if n.Address == second.addr && len(n.Refused) == 1 && n.Refused[0].Owner == first.addr {
				return true
			}
		}
		return false
	})

	draining := replica(one, a)
	draining.Draining = true
	first.Announce([]feed.Replica{draining})
	r.until("the endpoint drains as its node says", func() bool { return r.endpoint(one).Draining })
	if err := r.router.Drain(one, false); err != nil || !r.endpoint(one).Draining {
		t.Errorf("a call ends the drain of a node (%v)", err)
	}
	if err := r.router.Drain(one, true); err != nil {
		t.Error(err)
	}
	first.Announce([]feed.Replica{replica(one, a)})
	r.until("the announcement is taken", func() bool {
		endpoints, _ := r.keeper.planned()
		for _, e := range endpoints {
			if e.Address == one {
				return !e.Leaving
			}
		}
		return false
	})
	if !r.endpoint(one).Draining {
		t.Error("a node ends the drain of a call")
	}
	if err := r.router.Drain(one, false); err != nil || r.endpoint(one).Draining {
		t.Errorf("it drains still (%v)", err)
	}

	// Another pool of the name takes over nothing; back again, the blocks come anew.
	r.change(nodes(first, second) + strings.Replace(toldPool, "name: chat", "name: other", 1))
	r.until("no pool takes the endpoint", func() bool { return r.endpoint(one).Address == "" })
	r.change(nodes(first, second) + toldPool)
	r.until("its pool is back with its blocks", holds(one, 4))
	r.until("and those of the other node", holds(two, 2))

	first.stop()
	r.until("the blocks of a lost node are not matched", func() bool { e := r.endpoint(one); return e.Address == one && !e.Connected })
	if r.endpoint(one).Draining {
		t.Error("the endpoint of a lost node gets no requests")
	}
	r.change(nodes(second) + toldPool)
	r.until("who waits for the endpoint has it when its node is gone", holds(one, 1))
	second.Announce([]feed.Replica{replica(one, second.source(9))})
	r.until("what is not announced gets nothing new", func() bool { return r.endpoint(two).Draining })
}

// TestReplicasRefused holds that a replica which serves something else is refused, and taken when the pool serves it.
func TestReplicasRefused(t *testing.T) {
	n := startNode(t, "first")
	n.Announce([]feed.Replica{{Endpoint: ":18001", Pool: "chat", Models: []string{"large"}, Sources: []uint32{n.source(1).Number()}}})
	r := startFleet(t, nodes(n)+toldPool)
	r.until("it is refused", func() bool { return strings.Contains(r.log.String(), "an endpoint is refused") })
	if want := `it serves \"large\", none of the pool's models`; !strings.Contains(r.log.String(), want) {
		t.Errorf("the log lacks %q", want)
	}
	r.change(nodes(n) + strings.Replace(toldPool, "[tiny]", "[tiny, large]", 1))
	r.until("it is taken", func() bool { return r.endpoint("127.0.0.1:18001").Blocks == 1 })
}

// TestNodesOfConfigured has nodes tell of the caches of configured endpoints, but not of one that the router follows by itself.
func TestNodesOfConfigured(t *testing.T) {
	n := startNode(t, "first")
	n.Announce([]feed.Replica{
		{Endpoint: ":18001", Pool: "chat", Sources: []uint32{n.source(1).Number(), n.source(2, 3).Number()}},
		{Endpoint: ":18002", Pool: "chat", Sources: []uint32{n.source(4).Number()}},
		{Endpoint: ":18003", Pool: "chat", Sources: []uint32{n.source(5).Number()}},
	})
	r := startFleet(t, nodes(n)+`pools: [{name: chat, models: [tiny], adapters_refresh: 0s, endpoints: [
  {address: "127.0.0.1:18001"}, {address: "127.0.0.1:18002", events: {listen: "tcp://127.0.0.1:0"}}]}]
`)
	r.until("the blocks of both ranks are known", func() bool {
		e := r.endpoint("127.0.0.1:18001")
		return e.Blocks == 3 && len(e.Ranks) == 2 && e.Connected
	})
	if e := r.endpoint("127.0.0.1:18002"); e.Blocks != 0 || e.Connected {
		t.Errorf("an endpoint with an event source of its own: %+v", e)
	}
	if e := r.endpoint("127.0.0.1:18003"); e.Address != "" {
		t.Error("an endpoint that is not configured is taken")
	}
}

// TestFollowerChanges moves an engine from the router to a node that is connected already, and back, some times: each time its blocks are known again.
func TestFollowerChanges(t *testing.T) {
	e := startEngine(t)
	n := startNode(t, "first")
	n.Announce([]feed.Replica{{Endpoint: e.Addr(), Pool: "chat", Sources: []uint32{n.source(1, 2, 3).Number()}}})
	file := func(endpoint string) string { return nodes(n) + site(endpoint) }
	r := startFleet(t, file(dialled(e, "")))
	r.until("the node is connected", func() bool { all := r.feed.Nodes(); return len(all) == 1 && all[0].Connected && all[0].Unwanted == 1 })
	r.until("the router follows the engine", func() bool { return r.endpoint(e.Addr()).Connected })
	for i := range 3 {
		r.change(file(fmt.Sprintf("address: %s", e.Addr())))
		r.until("the node's blocks are known", func() bool { s := r.endpoint(e.Addr()); return s.Matchable && s.Blocks == 3 })
		r.change(file(dialled(e, "")))
		r.until("the router follows the engine again", func() bool { s := r.endpoint(e.Addr()); return s.Connected && s.Blocks != 3 })
		tell(t, "what the engine tells is known", e, func() bool { return r.endpoint(e.Addr()).Matchable }, strings.Repeat(fmt.Sprintf("one two three four %d ", i), 40))
	}
	if strings.Contains(r.log.String(), "could not be taken over") {
		t.Error("a part was refused")
	}
}

// TestPeers has two routers share what they send, and hand over records.
func TestPeers(t *testing.T) {
	n := startNode(t, "first")
	const one = "127.0.0.1:18001"
	n.Announce([]feed.Replica{{Endpoint: ":18001", Pool: "chat", Sources: []uint32{n.source(1).Number()}}})
	text := nodes(n) + toldPool
	a, b := startFleet(t, text), startFleet(t, text)
	for _, r := range []*running{a, b} {
		r.until("the endpoint is known", func() bool { return r.endpoint(one).Blocks == 1 })
		r.until("the routers know of each other", func() bool { all := r.feed.Nodes(); return len(all) == 1 && all[0].Peers == 1 })
	}
	p := &peers{}
	p.feed.Store(a.feed)
	p.Charged(router.Charge{Pool: "chat", Endpoint: one, Rank: -1, Number: 5, Uncached: 100_000, Prompt: 100_000})
	b.until("one router's charge is the other's load", func() bool { return b.endpoint(one).Backlog > 50_000 })
	p.Released("chat", 5)
	b.until("and not for longer", func() bool { return b.endpoint(one).Backlog == 0 })
	if p.Pass(b.router.Instance(), router.Completion{ID: b.router.Instance() + "-1", Pool: "chat", Code: 200}) != router.Passed {
		t.Error("no way for a record")
	}
	if p.Pass("nobody", router.Completion{ID: "nobody-1"}) != router.Kept {
		t.Error("a record of a router that may soon be there is not kept")
	}

	// An engine that sleeps, as its node says, is seen so, and not any more when no node says anything.
	n.Loads([]feed.Load{{Endpoint: ":18001", Running: 3, Sleeping: true}})
	asleep := func() bool { e := a.endpoint(one).Engine; return e != nil && e.Running == 3 && e.Sleeping && !e.Stale }
	a.until("what the engine says is known", asleep)
	n.Announce(nil)
	a.until("it is stale", func() bool { e := a.endpoint(one).Engine; return e != nil && e.Stale })
	if (&peers{}).Pass("x", router.Completion{}) != router.NoWay {
		t.Error("a way without a feed")
	}
}

// TestRecordsOutliveNodes: a record that comes to the wrong router while no node runs ends its request at the right one when a node is back.
func TestRecordsOutliveNodes(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer engine.Close()
	one := engine.Listener.Addr().String()
	n := startNode(t, "first")
	replicas := func(n *testNode) []feed.Replica {
		return []feed.Replica{{Endpoint: one, Pool: "chat", Sources: []uint32{n.source(1).Number()}}}
	}
	n.Announce(replicas(n))
	text := nodes(n) + toldPool
	a, b := startFleet(t, text), startFleet(t, text)
	for _, r := range []*running{a, b} {
		r.until("the routers know of each other", func() bool { all := r.feed.Nodes(); return len(all) == 1 && all[0].Peers == 1 })
		r.until("the endpoint is known", func() bool { e := r.endpoint(one); return e.Healthy && e.Blocks == 1 })
	}
	d := b.router.Decide(t.Context(), router.Request{
		Meta: openai.Meta{Method: "POST", Path: "/v1/completions", ContentType: "application/json"}, Body: []byte(`{"model":"tiny","prompt":[1,2,3,4,5,6,7,8]}`),
	})
	if d.Endpoint != one || !b.router.Busy("chat", one) {
		t.Fatalf("decision %+v", d)
	}
	a.until("the other router knows", func() bool { return a.router.Busy("chat", one) })
	n.stop()
	for _, r := range []*running{a, b} {
		r.until("the node is lost", func() bool { return !r.feed.Nodes()[0].Connected })
	}
	a.router.Complete(router.Completion{ID: d.ID, Pool: "chat", Upstream: one, Code: 200, Answered: true})
	if !b.router.Busy("chat", one) {
		t.Error("the request has ended without a way for its record")
	}
	again := startNodeAt(t, "first", n.addr)
	again.Announce(replicas(again))
	b.until("the request has ended", func() bool { return !b.router.Busy("chat", one) })
}
