package feed

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// sent is what a router has sent after its hello.
func (l *line) sent() (all []*feedpb.RouterMessage) {
	for {
		select {
		case m := <-l.up:
			if m.GetHello() == nil {
				all = append(all, m)
			}
		default:
			return all
		}
	}
}

func charge(endpoint string, number uint64) Charge {
	return Charge{Pool: "chat", Endpoint: endpoint, Rank: -1, Number: number, Uncached: 100, Prompt: 200, Key: 77}
}

// TestCharged sends charges to the node of their endpoint, in its words, some together.
func TestCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1(), Address{Addr: "10.0.0.2:9010"})
		lines := map[string]*line{}
		for range 2 {
			l := s.answer()
			l.say(tellReplicas(tellReplica(":8000", 7)))
			name := "1"
			if len(s.fleet.endpoints("10.0.0.1:9010")) == 0 || lines["1"] != nil {
				name = "2"
			}
			lines[name] = l
		}
		began := time.Now()
		s.r.Charged(charge("10.0.0.1:8000", 1))
		c := charge("10.0.0.1:8000", 2)
		c.Rank = 3
		s.r.Charged(c)
		s.r.Charged(charge("10.0.0.2:8000", 3))
		s.r.Charged(charge("10.0.0.9:8000", 4)) // of no node
		s.r.Released("chat", 4)
		s.r.Charged(charge("10.0.0.1:8000", 5)) // ends before it is sent
		s.r.Released("chat", 5)
		synctest.Wait()
		if got := lines["1"].sent(); got != nil {
			t.Errorf("sent at once: %v", got)
		}
		time.Sleep(batchDelay)
		synctest.Wait()
		want := []*feedpb.RouterMessage{{Message: &feedpb.RouterMessage_Charges{Charges: &feedpb.Charges{Made: []*feedpb.Charge{
			{Pool: "chat", Endpoint: ":8000", Number: 1, Uncached: 100, Prompt: 200, Key: 77},
			{Pool: "chat", Endpoint: ":8000", Rank: 4, Number: 2, Uncached: 100, Prompt: 200, Key: 77},
		}}}}}
		if diff := cmp.Diff(want, lines["1"].sent(), protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		if got := lines["2"].sent(); len(got) != 1 || got[0].GetCharges().GetMade()[0].GetNumber() != 3 {
			t.Errorf("the second node was sent %v", got)
		}
		s.r.Released("chat", 2)
		s.r.Released("other", 1)
		s.r.Released("chat", 2)
		time.Sleep(batchDelay)
		synctest.Wait()
		want = []*feedpb.RouterMessage{{Message: &feedpb.RouterMessage_Charges{Charges: &feedpb.Charges{Released: []*feedpb.Release{{Pool: "chat", Number: 2}}}}}}
		if diff := cmp.Diff(want, lines["1"].sent(), protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		if got := time.Since(began); got != 2*batchDelay {
			t.Errorf("all that took %s", got)
		}

		// What ends while the node is away is said when it is back; what began and ended is not.
		lines["1"].say(context.Canceled)
		s.r.Released("chat", 1)
		s.r.Charged(charge("10.0.0.1:8000", 6))
		s.r.Charged(charge("10.0.0.1:8000", 8))
		s.r.Released("chat", 6)
		l := s.answer()
		time.Sleep(batchDelay)
		synctest.Wait()
		got := l.sent()
		if len(got) != 1 || len(got[0].GetCharges().GetMade()) != 1 || got[0].GetCharges().GetMade()[0].GetNumber() != 8 ||
			len(got[0].GetCharges().GetReleased()) != 1 || got[0].GetCharges().GetReleased()[0].GetNumber() != 1 {
			t.Errorf("after a break it sends %v", got)
		}
	})
}

// TestChargedAlone tells nothing to a node that has no other router.
func TestChargedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(tellReplicas(tellReplica(":8000", 7)), tellPeersOf("own"))
		s.r.Charged(charge("10.0.0.1:8000", 1))
		s.r.Released("chat", 1)
		l.say(tellPeersOf("own", "other"))
		s.r.Charged(charge("10.0.0.1:8000", 2))
		time.Sleep(batchDelay)
		synctest.Wait()
		if got := l.sent(); len(got) != 1 || len(got[0].GetCharges().GetMade()) != 1 || got[0].GetCharges().GetMade()[0].GetNumber() != 2 {
			t.Errorf("sent are %v", got)
		}
		l.say(tellPeersOf("own"))
		s.r.Released("chat", 2) // it was told
		time.Sleep(batchDelay)
		synctest.Wait()
		if got := l.sent(); len(got) != 1 || len(got[0].GetCharges().GetReleased()) != 1 {
			t.Errorf("sent are %v", got)
		}
	})
}

// TestChargedBounds sends large numbers in several messages, and drops the oldest when a node does not read.
func TestChargedBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(tellReplicas(tellReplica(":8000", 7)))
		const n = 1000
		for i := range uint64(n) {
			s.r.Charged(charge("10.0.0.1:8000", i+1))
		}
		time.Sleep(2 * batchDelay) // the last ones wait for more
		synctest.Wait()
		var numbers []uint64
		for _, m := range l.sent() {
			if k := len(m.GetCharges().GetMade()); k > maxBatch {
				t.Errorf("%d in one message", k)
			}
			for _, c := range m.GetCharges().GetMade() {
				numbers = append(numbers, c.GetNumber())
			}
		}
		if len(numbers) != n || !slices.IsSorted(numbers) {
			t.Errorf("%d charges came, in order: %t", len(numbers), slices.IsSorted(numbers))
		}
		l.say(context.Canceled)
		s.refuse("10.0.0.1:9010", context.Canceled)
		for i := range uint64(maxOutgoing + 500) {
			s.r.Charged(charge("10.0.0.1:8000", 10_000+i))
		}
		if got := testutil.ToFloat64(s.r.o.Metrics.charges.WithLabelValues("10.0.0.1:9010", chargeDropped)); got != 500 {
			t.Errorf("%v are dropped", got)
		}
		for i := range uint64(maxOutgoing + 500) {
			s.r.Released("chat", 10_000+i)
		}
		if got, _ := s.r.nodes[0].out.waiting(); got != 0 {
			t.Errorf("%d releases wait of charges that were never sent", got)
		}
		s.refuse("10.0.0.1:9010", nil)
		l = s.answer()
		l.say(tellAlive())
		time.Sleep(time.Second)
		synctest.Wait()
		for _, m := range l.sent() {
			if made := m.GetCharges().GetMade(); made != nil {
				t.Errorf("charges of ended requests: %v", made)
			}
		}
	})
}

// TestChargesOfOthers passes on what other routers have sent, once, for endpoints of the node that says so.
func TestChargesOfOthers(t *testing.T) {
	b := newBench(t)
	first, second := b.node("10.0.0.1:9010"), b.node("10.0.0.2:9010")
	b.say(first, tellReplicas(tellReplica(":8000", 1)), tellPeersOf("a", "b", "own"))
	b.say(second, tellReplicas(tellReplica(":8000", 1)), tellPeersOf("a"))
	b.say(first,
		tellCharges(&feedpb.Charges{Instance: "a", Made: []*feedpb.Charge{tellMade(":8000", 1), tellMade(":8000", 2), tellMade("10.0.0.2:8000", 3), tellMade(":8001", 4)}}),
		tellCharges(&feedpb.Charges{Instance: "a", Made: []*feedpb.Charge{tellMade(":8000", 1)}}), // again
		tellCharges(&feedpb.Charges{Instance: "b", Made: []*feedpb.Charge{tellMade(":8000", 1)}}),
		tellCharges(&feedpb.Charges{Instance: "own", Made: []*feedpb.Charge{tellMade(":8000", 1)}}),
	)
	b.say(second, tellCharges(&feedpb.Charges{Instance: "a", Made: []*feedpb.Charge{tellMade(":8000", 1), tellMade(":8000", 5)}}))
	check := func(want map[chargeName]string) {
		t.Helper()
		got := map[chargeName]string{}
		for name, c := range b.fleet.charges {
			got[name] = fmt.Sprint(c.Endpoint, c.Rank, c.Uncached, c.Prompt)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(chargeName{})); diff != "" {
			t.Error(diff)
		}
	}
	at := func(endpoint string) string { return endpoint + "-1 100 200" }
	check(map[chargeName]string{
		{"a", "chat", 1}: at("10.0.0.1:8000"), {"a", "chat", 2}: at("10.0.0.1:8000"), {"b", "chat", 1}: at("10.0.0.1:8000"), {"a", "chat", 5}: at("10.0.0.2:8000"),
	})
	// A node ends no charge that another one told of. One that is released does not come again.
	b.say(second, tellCharges(&feedpb.Charges{Instance: "a", Released: []*feedpb.Release{{Pool: "chat", Number: 1}, {Pool: "chat", Number: 5}}}))
	b.say(first, tellCharges(&feedpb.Charges{Instance: "a", Released: []*feedpb.Release{{Pool: "chat", Number: 2}, {Pool: "chat", Number: 99}}}))
	b.say(first, tellCharges(&feedpb.Charges{Instance: "a", Made: []*feedpb.Charge{tellMade(":8000", 2)}}))
	check(map[chargeName]string{{"a", "chat", 1}: at("10.0.0.1:8000"), {"b", "chat", 1}: at("10.0.0.1:8000")})

	// A router is gone when no node has it.
	gone := func(want ...string) {
		t.Helper()
		slices.Sort(b.fleet.gone)
		if diff := cmp.Diff(want, b.fleet.gone); diff != "" {
			t.Error(diff)
		}
	}
	b.say(first, tellPeersOf("b"))
	gone()
	b.say(first, tellCharges(&feedpb.Charges{Instance: "b", Gone: true}))
	gone("b")
	second.rec.lost(b.now, b.now)
	gone("a", "b")
	b.say(first, tellPeersOf("c"))
	first.leave(true)
	gone("a", "b", "c")
}

// TestPeersBound takes no more routers than a node may have.
func TestPeersBound(t *testing.T) {
	b := newBench(t)
	n := b.node("10.0.0.1:9010")
	b.say(n, tellReplicas(tellReplica(":8000", 1)))
	for i := range maxPeers + 10 {
		b.say(n, tellCharges(&feedpb.Charges{Instance: fmt.Sprint("r", i), Made: []*feedpb.Charge{tellMade(":8000", 1)}}))
	}
	if got := n.status().Peers; got != maxPeers || len(b.fleet.charges) != maxPeers {
		t.Errorf("%d peers, %d charges", got, len(b.fleet.charges))
	}
	n.rec.lost(b.now, b.now)
	if len(b.fleet.gone) != maxPeers || n.status().Peers != 0 {
		t.Errorf("%d are gone", len(b.fleet.gone))
	}
}

// TestSeenBound forgets the oldest charges.
func TestSeenBound(t *testing.T) {
	var s seenCharges
	n := &watched{}
	for i := range uint64(5 * maxSeen) {
		if !s.add(n, chargeName{"a", "chat", i}) {
			t.Fatalf("charge %d is taken for a known one", i)
		}
	}
	if len(s.young)+len(s.old) > 2*maxSeen {
		t.Errorf("%d are kept", len(s.young)+len(s.old))
	}
	if s.add(n, chargeName{"a", "chat", 5*maxSeen - maxSeen}) {
		t.Error("one of the last is taken for a new one")
	}
}

// TestOutboxTogether charges and releases from many goroutines while one sends.
func TestOutboxTogether(t *testing.T) {
	b := newBench(t)
	n := b.node("10.0.0.1:9010")
	b.say(n, tellReplicas(tellReplica(":8000", 1)))
	var wg sync.WaitGroup
	const each = 2000
	for w := range uint64(8) {
		wg.Go(func() {
			for i := range uint64(each) {
				b.r.Charged(charge("10.0.0.1:8000", w*each+i+1))
			}
			for i := range uint64(each) {
				b.r.Released("chat", w*each+i+1)
			}
		})
	}
	open := map[uint64]bool{}
	take := func() {
		for c := n.out.batch(); c != nil; c = n.out.batch() {
			for _, m := range c.GetMade() {
				open[m.GetNumber()] = true
			}
			for _, r := range c.GetReleased() {
				delete(open, r.GetNumber())
			}
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		take()
	}
	if len(open) != 0 {
		t.Errorf("%d charges are never released", len(open))
	}
	if len(n.out.made) != 0 || len(n.out.released) != 0 || len(b.r.open.young)+len(b.r.open.old) != 0 {
		t.Errorf("left are %d, %d, %d", len(n.out.made), len(n.out.released), len(b.r.open.young))
	}
}
