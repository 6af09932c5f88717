package e2e

import (
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestNodesFollowUps is the main job with nodes between engines and router: follow-up turns go to a replica that holds their prefix. It stays so when
// a node or the router ends and comes back.
func TestNodesFollowUps(t *testing.T) {
	const conversations, turns = 40, 5
	site := startPatient(t, envoyNewest, lab.SiteOptions{
		Nodes: 2,
		Pools: []lab.PoolOptions{{
			Name: "chat", Model: "sim", Engines: 4, Replay: true,
			Args: []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "40000", "--decode-rate", "1000"},
		}},
	})
	all := converse(t, site, conversations, turns, 8)
	requireFollowUps(t, site, all, conversations, turns)
	requireSame(t, site)

	router, lost, other := site.Routers[0], site.Nodes[0], site.Nodes[1]
	killed := time.Now()
	lost.Kill()
	matchable(t, router, lost.Engines, false)
	stale, silent := time.Since(killed), heardAgo(t, router, lost)
	matchable(t, router, other.Engines, true)
	if silent < 3*time.Second {
		t.Errorf("the blocks of a node that is lost are forgotten %v after its last message, want them to stay for 3 s", silent)
	}
	started := time.Now()
	if err := lost.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	matchable(t, router, lost.Engines, true)
	back := time.Since(started)
	requireSame(t, site)

	router.Kill()
	restarted := time.Now()
	if err := site.StartRouter(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready := time.Since(restarted)
	requireSame(t, site)
	t.Logf("a node's endpoints were stale %v after its end, matched %v after its start began; a router was ready %v after its start began and knew all blocks after %v",
		stale.Round(time.Millisecond), back.Round(time.Millisecond), ready.Round(time.Millisecond), time.Since(restarted).Round(time.Millisecond))

	eventually(t, "a router that answers its health checks", func() bool { return routersSeen(t, site) == 1 })
	again := converse(t, site, conversations, turns, 8)
	if _, err := site.ReadLog(t.Context(), len(all)+len(again)); err != nil {
		t.Fatal(err)
	}
	requireFollowUps(t, site, again, conversations, turns)
	requireSame(t, site)
}
