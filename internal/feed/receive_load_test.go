package feed

import (
	"testing"
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
	want("one is left out", Load{Running: 3, Sleeping: true, Stale: true}, Load{Running: 5})
	b.say(n, tellLoads(&feedpb.Load{Endpoint: ":8000", Running: 6}))
	want("the other one is", Load{Running: 6}, Load{Running: 5, Stale: true})
	b.say(n, tellLoads())
	want("all are", Load{Running: 6, Stale: true}, Load{Running: 5, Stale: true})
	clear(b.fleet.loads)
	b.say(n, tellLoads())
	n.rec.lost(b.now, b.now.Add(time.Minute))
	n.rec.silence()
	if len(b.fleet.loads) > 0 {
		t.Errorf("what is not known is said again: %v", b.fleet.loads)
	}
}
