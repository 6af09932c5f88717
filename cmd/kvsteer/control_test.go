package main

import (
	"testing"

	"github.com/kvsteer/kvsteer/internal/feed"
)

// A reset of an endpoint whose blocks a node tells brings them all again.
func TestResetOfANodesEndpoint(t *testing.T) {
	n := startNode(t, "first")
	const one, other = "127.0.0.1:18001", "127.0.0.1:18002"
	s := n.source(1, 2, 3)
	n.Announce([]feed.Replica{{Endpoint: one, Pool: "chat", Sources: []uint32{s.Number()}}})
	r := startFleet(t, nodes(n)+toldPool)
	known := func() bool {
		e := r.endpoint(one)
		return e.Matchable && e.Blocks == 3 && e.Problem == "" && !e.Copying
	}
	r.until("the endpoint's blocks are known", known)
	ctl := control{r.router, r.followers, r.feed}
	if err := ctl.Reset(other); err == nil {
		t.Error("an endpoint that is not there is reset")
	}
	if streams := r.feed.Nodes()[0].Streams; streams != 1 {
		t.Errorf("%d streams before the reset", streams)
	}
	if err := ctl.Reset(one); err != nil {
		t.Fatal(err)
	}
	r.until("they have come again", func() bool { return r.feed.Nodes()[0].Streams == 2 && known() })
	if r.feed.Again(other) {
		t.Error("somebody speaks for an endpoint that nobody announces")
	}
}
