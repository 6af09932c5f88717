package e2e

import (
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestHealingThroughNode: engines run hot with a system prompt and conversations on it, and cannot replay what they published, when their node is killed and comes back
// without knowing anything. Routers send it what prompts hash to: the system prompt is matched again after one request, and what the engines have cached once each
// conversation has had one more turn. Nothing is credited that is not held.
func TestHealingThroughNode(t *testing.T) {
	const conversations, block = 12, 16
	site := startPatient(t, envoyNewest, lab.SiteOptions{Nodes: 1, Pools: []lab.PoolOptions{{
		Name: "chat", Model: "sim", Engines: 2, Args: append([]string{"--hash-algo", "sha256"}, quick...),
	}}})
	node := site.Nodes[0]
	x := newTalks(t, site, conversations)
	x.follow = node.Admin
	matchableSoon := func(want bool) { matchable(t, site.Routers[0], site.Engines, want) }
	x.round()
	x.spread() // the router may choose either engine later
	matchableSoon(true)

	node.Kill()
	if err := node.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is back and knows nothing", func() bool {
		all := view(t, site.Routers[0])
		for _, e := range site.Engines {
			if v, ok := all[e.Address]; !ok || !v.Connected || v.Blocks > 0 {
				return false
			}
		}
		return true
	})
	one := x.turn(x.all[0])
	if e := x.entries(one)[0]; e.Reason != "no_index" || one.CachedTokens < 700 {
		t.Errorf("first request: reason %s, %d tokens were cached", e.Reason, one.CachedTokens)
	}
	x.settle()
	matched, cached := x.requireHealed()
	healed := metric(t, node.Admin+"/metrics", "kvsteer_subscriber_healed_blocks_total", `means="hash"`)
	sent := metric(t, site.RouterAdmin+"/metrics", "kvsteer_feed_router_witnesses_total", `outcome="sent"`)
	t.Logf("%d of %d cached tokens matched; %v blocks healed by %v witnesses", matched, cached, healed, sent)
	if healed < 700/block || sent < conversations {
		t.Errorf("%v blocks were healed by %v witnesses", healed, sent)
	}
	for _, e := range site.Engines {
		believed, err := site.Routers[0].Blocks(t.Context(), e.Address)
		if err != nil {
			t.Fatal(err)
		}
		held, err := e.Blocks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := held.Lacks(believed); n > 0 {
			t.Errorf("%d of %d blocks are believed in and not held", n, len(believed))
		}
	}
}
