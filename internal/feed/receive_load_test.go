package feed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// What a node tells no load of any more, as its engine is not scraped any more, is not known, be it that it sleeps.
func TestLoadsThatAreLeftOut(t *testing.T) {
	b := newBench(t)
	n := b.node("10.0.0.1:9010")
	b.say(n, tellReplicas(tellReplica(":8000", 1), tellReplica(":8001", 2)))
	b.say(n, tellLoads(&feedpb.Load{Endpoint: ":8000", Running: 3, Sleeping: true}, &feedpb.Load{Endpoint: ":8001", Running: 4}))
	want := func(what string, one, two Load) {
		t.Helper()
		one.Endpoint, two.Endpoint = "10.0.0.1:8000", "10.0.0.1:8001"
		if got := b.fleet.loads; got[one.Endpoint] != one || got[two.Endpoint] != two {
			t.Errorf("%s: %v", what, got)
		}
	}
	want("all", Load{Running: 3, Sleeping: true}, Load{Running: 4})
	b.say(n, tellLoads(&feedpb.Load{Endpoint: ":8001", Running: 5}))
	want("one is left out", Load{Running: 3, Sleeping: true}, Load{Running: 5})
	b.pass(n, 2*time.Second)
	want("not for long", Load{Running: 3, Sleeping: true}, Load{Running: 5})
	b.say(n, tellLoads(&feedpb.Load{Endpoint: ":8000", Running: 6, Sleeping: true}))
	b.pass(n, 2*time.Second)
	want("it is back, and the other one is left out", Load{Running: 6, Sleeping: true}, Load{Running: 5})
	b.pass(n, time.Second)
	want("that one too long", Load{Running: 6, Sleeping: true}, Load{Running: 5, Stale: true})
	b.say(n, tellLoads())
	b.say(n, tellLoads())
	b.pass(n, 3*time.Second)
	want("all are", Load{Running: 6, Sleeping: true, Stale: true}, Load{Running: 5, Stale: true})
	clear(b.fleet.loads)
	b.say(n, tellLoads())
	b.pass(n, time.Minute)
	n.rec.silence(b.now)
	if len(b.fleet.loads) > 0 {
		t.Errorf("what is not known is said again: %v", b.fleet.loads)
	}
}

// pass lets time pass.
func (b *bench) pass(n *watched, d time.Duration) {
	b.now = b.now.Add(d)
	n.rec.tick(b.now)
}

// While nothing but a sign of life comes, the router's own clock makes stale what a node left out.
func TestLoadsGrowStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(copyOf(1)...)
		l.say(tellLoads(&feedpb.Load{Endpoint: ":8000", Sleeping: true}))
		l.say(tellLoads())
		for i := range 7 {
			if stale := s.fleet.load("10.0.0.1:8000").Stale; i < 3 && stale || i == 6 && !stale {
				t.Errorf("after %d s stale is %v", i, stale)
			}
			time.Sleep(time.Second)
			l.say(tellAlive())
		}
		if !s.status().Connected {
			t.Error("the node is lost")
		}
	})
}
