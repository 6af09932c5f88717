package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestEngineFailures kills an engine twice. The first time, under load, the router learns of it at once: what the engine had in
// flight fails and nothing else, its blocks are forgotten, and when it is back it is used and matched again. The second time nothing
// tells the router, as when a host loses power: it goes on choosing the dead engine for what it held, and those requests are
// answered by another one.
func TestEngineFailures(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startSite(t, release, lab.SiteOptions{
			// No probe comes between the second kill and the requests that must meet it.
			RouterConfig: "probe: {interval: 10s}",
			Pools:        []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 3, Args: steady, Relay: true}},
		})
		w := startWatch(t, site)
		crashUnderLoad(t, site, w)
		if !t.Failed() {
			// The compat layout knows no second choice: a retry goes to the fallback, whose first draw may be the dead engine again.
			most := 3
			if release == envoyNewest {
				most = 2
			}
			crashUnnoticed(t, site, w, most)
		}
	})
}

func crashUnderLoad(t *testing.T, site *lab.Site, w *watch) {
	victim := site.Engines[0]
	l := startLoad(t, site, audience{"chat", 8, lab.ChatRequest{Model: "sim", MaxTokens: 30}})
	// The victim serves at least n requests after a moment, chosen for the prefix it holds and reporting as much as cached.
	matched := func(n int, begin time.Time) {
		t.Helper()
		eventually(t, "the engine is chosen for its blocks", func() bool {
			replies, count := l.replies(), 0
			for _, e := range w.since(begin) {
				if e.Endpoint == victim.Address && e.Upstream == victim.Address && e.Reason == "prefix" && replies[e.RequestID].CachedTokens > 0 {
					count++
				}
			}
			return count >= n
		})
	}
	matched(5, time.Time{})
	held := routerMetric(t, site, "kvsteer_router_endpoint_blocks", victim.Address)
	if !(held > 0) {
		t.Fatalf("the router knows of %v blocks", held)
	}

	eventually(t, "the engine has requests in flight", func() bool {
		return metric(t, "http://"+victim.Address+"/metrics", "vllm:num_requests_running") >= 1
	})
	killing := time.Now()
	victim.Kill()
	killed := time.Now()
	eventually(t, "the router forgets the blocks of the dead engine", func() bool {
		return routerMetric(t, site, "kvsteer_router_endpoint_blocks", victim.Address) == 0
	})
	forgotten := time.Since(killed)
	eventually(t, "the router takes the dead engine out", func() bool {
		return routerMetric(t, site, "kvsteer_pool_endpoint_up", victim.Address) == 0
	})
	down := time.Since(killed)
	w.untilEachPool("requests without the engine", 20, killed, func(lab.LogEntry) bool { return true })

	restarted := time.Now()
	if err := victim.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	matched(5, restarted)
	back := time.Since(restarted)
	if n := routerMetric(t, site, "kvsteer_router_endpoint_blocks", victim.Address); !(n > 0) {
		t.Errorf("the router knows of %v blocks of the engine that is back", n)
	}

	done := l.end()
	inFlight, failed, retried := 0, 0, 0
	for _, e := range w.all(len(done)) {
		ok := e.Code == 200 && e.Flags == "-"
		switch {
		case e.Upstream == victim.Address && e.Start.Before(killed) && e.End().After(killing.Add(-5*time.Millisecond)): // the log's times are cut to milliseconds
			inFlight++
			if !ok {
				failed++
			}
		case !ok:
			t.Errorf("a request that the dead engine did not have in flight failed: %+v", e)
		case e.Attempts > 1:
			retried++
		}
		if e.Upstream == victim.Address && ok && e.Start.After(killed) && e.Start.Before(restarted) {
			t.Errorf("answered by an engine that is dead: %+v", e)
		}
	}
	seen := 0
	for _, s := range done {
		if s.reply.OK() {
			continue
		}
		seen++
		if s.began.After(killed) || s.ended.Before(killing) {
			t.Errorf("a client saw a failure outside of the kill: %v after it, status %d %s, error %v", s.began.Sub(killed), s.reply.Status, s.reply.Body, s.reply.Err)
		}
	}
	if seen != failed {
		t.Errorf("clients saw %d failures, the access log %d", seen, failed)
	}
	t.Logf("%d requests, %d in flight on the engine when it was killed, %d of them failed; %d retried elsewhere; %v blocks forgotten after %v, out after %v, chosen for its blocks again %v after its start",
		len(done), inFlight, failed, retried, held, forgotten.Round(time.Millisecond), down.Round(time.Millisecond), back.Round(time.Millisecond))
}

func crashUnnoticed(t *testing.T, site *lab.Site, w *watch, mostAttempts int) {
	const prompts = 12
	victim := site.Engines[0]
	client := site.Client()
	defer client.Close()
	eventually(t, "every engine is up", func() bool {
		return metric(t, site.RouterAdmin+"/metrics", "kvsteer_pool_endpoint_up") == float64(len(site.Engines))
	})
	seed := uint64(0)
	prompt := func() lab.ChatRequest {
		seed++
		return lab.ChatRequest{Model: "sim", MaxTokens: 5, Messages: []lab.Message{{Role: "user", Content: prose(rand.New(rand.NewPCG(9, seed)), 300)}}}
	}
	// ask sends requests at the same time and returns what the access log says of each.
	ask := func(requests []lab.ChatRequest) []lab.LogEntry {
		t.Helper()
		replies := make([]lab.Reply, len(requests))
		var wg sync.WaitGroup
		for i, r := range requests {
			wg.Go(func() { replies[i] = client.Chat(t.Context(), r) })
		}
		wg.Wait()
		log := map[string]lab.LogEntry{}
		for _, e := range w.all(len(w.entries) + len(requests)) {
			log[e.RequestID] = e
		}
		entries := make([]lab.LogEntry, len(requests))
		for i, reply := range replies {
			if !reply.OK() {
				t.Fatalf("status %d %s, error %v", reply.Status, reply.Body, reply.Err)
			}
			entries[i] = log[reply.RequestID]
		}
		return entries
	}

	// Find prompts that the victim holds, and have the router know their tokens: it need not ask an engine for them again, so
	// the requests after the kill are the first to meet it.
	var held []lab.ChatRequest
	eventually(t, "the engine holds prompts", func() bool {
		var fresh []lab.ChatRequest
		for range prompts {
			fresh = append(fresh, prompt())
		}
		ask(fresh)
		for i, e := range ask(fresh) {
			if e.Endpoint == victim.Address && e.Reason == "prefix" {
				held = append(held, fresh[i])
			}
		}
		return len(held) >= 4
	})

	victim.Relay.HideEnds()
	victim.Kill()
	chosen := 0
	by := map[string]int{}
	for _, e := range ask(held) {
		by[fmt.Sprintf("%s, %d attempts", e.Cluster, e.Attempts)]++
		if e.Endpoint != victim.Address {
			continue
		}
		if e.Reason == "prefix" {
			chosen++
		}
		if e.Code != 200 || e.Attempts < 2 || e.Attempts > mostAttempts || e.Upstream == victim.Address {
			t.Errorf("a request for the dead engine: %+v", e)
		}
	}
	if chosen == 0 {
		t.Errorf("none of %d requests was sent to the dead engine for the blocks it held", len(held))
	}
	t.Logf("%d of %d requests were sent to the dead engine and answered by another one: %v", chosen, len(held), by)

	// Sooner or later an engine is asked for tokens, and the dead one is found out.
	eventually(t, "the router takes the dead engine out", func() bool {
		ask([]lab.ChatRequest{prompt()})
		return routerMetric(t, site, "kvsteer_pool_endpoint_up", victim.Address) == 0
	})
	for _, e := range ask(held) {
		if e.Endpoint == victim.Address || e.Endpoint != "" && e.Attempts != 1 {
			t.Errorf("after the router knows: %+v", e)
		}
	}
	victim.Relay.ShowEnds()
	// Where the engine has a replay socket, its blocks are kept until the process that answers there turns out to be another one.
	if err := victim.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the router forgets the blocks of the dead engine", func() bool {
		return routerMetric(t, site, "kvsteer_router_endpoint_blocks", victim.Address) == 0
	})
}
