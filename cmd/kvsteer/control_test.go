package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/router"
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

// A node that announces blocks without their ancestors loses its own endpoint's matches, until it tells better, and nobody else's.
func TestNodeWithUnclosedBlocks(t *testing.T) {
	good, bad := startNode(t, "good"), startNode(t, "bad")
	engine := func() string { // that is healthy
		e := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		t.Cleanup(e.Close)
		return e.Listener.Addr().String()
	}
	one, two := engine(), engine()
	tokens := make([]uint32, 20*16+1)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	keys := blockhash.AppendKeys(nil, blockhash.Namespace{Pool: "chat", BlockSize: 16}.Root(), tokens[:20*16], 16)
	announce := func(n *testNode, endpoint string, s *feed.Source) {
		n.Announce([]feed.Replica{{Endpoint: endpoint, Pool: "chat", Models: []string{"tiny"}, Sources: []uint32{s.Number()}}})
	}
	announce(good, one, good.source(keys[:8]...))
	announce(bad, two, bad.source(keys[10:]...))
	r := startFleet(t, nodes(good, bad)+"probe: {interval: 1h}\n"+toldPool)
	r.until("both are known", func() bool { return r.endpoint(one).Matchable && r.endpoint(two).Matchable })
	prompt, err := json.Marshal(map[string]any{"model": "tiny", "prompt": tokens, "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	r.until("it is found", func() bool {
		for range 100 {
			r.router.Decide(t.Context(), router.Request{
				Meta: openai.Meta{Method: "POST", Path: "/v1/completions", ContentType: "application/json"}, Body: prompt,
			})
		}
		return r.endpoint(two).Problem == "not_closed"
	})
	if e := r.endpoint(one); !e.Matchable || e.Problem != "" || e.Blocks != 8 {
		t.Errorf("the other endpoint: %+v", e)
	}
	if e := r.endpoint(two); e.Matchable {
		t.Errorf("its endpoint: %+v", e)
	}
	streams := func(n *testNode) uint64 {
		for _, s := range r.feed.Nodes() {
			if s.Address == n.addr {
				return s.Streams
			}
		}
		return 0
	}
	if g, b := streams(good), streams(bad); g != 1 || b != 1 {
		t.Errorf("%d and %d streams", g, b)
	}
}
