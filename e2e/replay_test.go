package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestReplay cuts the event connections of engines with replay sockets under load, and restarts the router: nothing is forgotten, no match is
// longer than what the engine has, and the router knows every block again at once.
func TestReplay(t *testing.T) {
	const engines, cuts = 3, 5
	site := startPatient(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{
		{Name: "chat", Model: "sim", Engines: engines, Args: steady, Relay: true, Replay: true},
	}})
	sum := func(name string, labels ...string) float64 {
		return metric(t, site.RouterAdmin+"/metrics", "kvsteer_subscriber_"+name, labels...)
	}
	connected := func() bool { return sum("connected") == engines }
	eventually(t, "all engines connected", connected)
	l := startLoad(t, site, audience{"chat", 4, lab.ChatRequest{Model: "sim", MaxTokens: 10}})
	w := startWatch(t, site)
	for n := range cuts {
		w.untilEachPool("requests", 20, time.Now(), func(lab.LogEntry) bool { return true })
		for _, e := range site.Engines {
			e.Relay.Cut()
		}
		eventually(t, "cut connections are back", func() bool { return sum("connections_total") >= float64(engines*(n+2)) && connected() })
	}
	done := l.end()
	replies := map[string]lab.Reply{}
	for _, s := range done {
		if !s.reply.OK() {
			t.Fatalf("status %d %s, error %v", s.reply.Status, s.reply.Body, s.reply.Err)
		}
		replies[s.reply.RequestID] = s.reply
	}
	matched := 0
	for _, e := range w.all(len(done)) {
		reply := replies[e.RequestID]
		if e.Reason == "prefix" {
			matched++
		}
		if int(e.Matched) > reply.CachedTokens+blockSize {
			t.Errorf("%v tokens matched, %d cached", e.Matched, reply.CachedTokens)
		}
	}
	if n := sum("resets_total"); n != 0 {
		t.Errorf("%v resets", n)
	}
	if n := sum("gaps_total", `outcome="reset"`); n != 0 {
		t.Errorf("%v gaps cost a reset", n)
	}
	t.Logf("%d requests, %d matched, %v batches replayed after %d cuts", len(done), matched, sum("replayed_batches_total"), cuts*engines)
	if matched < len(done)/3 {
		t.Errorf("%d of %d requests matched", matched, len(done))
	}

	client := site.Client()
	defer client.Close()
	messages := []lab.Message{{Role: "user", Content: prose(rand.New(rand.NewPCG(1, 2)), 400)}}
	first := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", Messages: messages, MaxTokens: 10})
	blocks := func() map[string]float64 {
		all := map[string]float64{}
		for _, e := range site.Engines {
			all[e.Address] = routerMetric(t, site, "kvsteer_subscriber_blocks", e.Address)
		}
		return all
	}
	held := map[string]float64{}
	eventually(t, "no event on its way", func() bool {
		before := held
		held = blocks()
		for e, n := range held {
			if n != before[e] {
				return false
			}
		}
		return true
	})
	site.Router.Kill()
	restart(t, site)
	eventually(t, "all blocks are known again", func() bool {
		for e, n := range blocks() {
			if n < held[e] {
				return false
			}
		}
		return connected()
	})
	if n := sum("orphan_blocks"); n != 0 {
		t.Errorf("%v orphans", n)
	}
	eventually(t, "Envoy asks the router", func() bool { return routersSeen(t, site) == 1 })
	messages = append(messages, lab.Message{Role: "assistant", Content: first.Text}, lab.Message{Role: "user", Content: "go on"})
	second := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", Messages: messages, MaxTokens: 10})
	for _, e := range w.all(len(done) + 2) {
		if e.RequestID == second.RequestID && (e.Reason != "prefix" || int(e.Matched) < first.PromptTokens-blockSize || second.CachedTokens < first.PromptTokens-blockSize) {
			t.Errorf("after the restart: reason %s, %v matched and %d cached of %d tokens", e.Reason, e.Matched, second.CachedTokens, first.PromptTokens)
		}
	}
}
