package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestNodesChargesAreReleased spreads streams and access log over two routers: records reach the router whose decision they are of, and what the
// routers have told each other ends with the requests.
func TestNodesChargesAreReleased(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		const requests, parallel = 400, 24
		site := startSite(t, release, lab.SiteOptions{
			Nodes: 2, Routers: 2, EnvoyConfig: patient,
			Pools: []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 4, Args: steady, Replay: true}},
		})
		eventually(t, "two routers that answer their health checks", func() bool { return routersSeen(t, site) == 2 })
		client := site.Client()
		defer client.Close()
		var wg sync.WaitGroup
		slots := make(chan struct{}, parallel)
		for i := range requests {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				rng := rand.New(rand.NewPCG(uint64(i), 78))
				r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", MaxTokens: 1 + i%15, Messages: []lab.Message{{Role: "user", Content: prose(rng, 400)}}})
				if !r.OK() {
					t.Errorf("status %d %s, error %v", r.Status, r.Body, r.Err)
				}
			})
		}
		wg.Wait()
		requireUncharged(t, site)
		outcomes := map[string]float64{}
		for _, outcome := range []string{"released", "passed", "kept", "moved", "late", "unknown", "foreign", "undecided"} {
			for _, r := range site.Routers {
				if n := metric(t, r.Admin+"/metrics", "kvsteer_router_records_total", fmt.Sprintf("outcome=%q", outcome)); n > 0 {
					outcomes[outcome] += n
				}
			}
		}
		entries, err := site.ReadLog(t.Context(), requests)
		if err != nil {
			t.Fatal(err)
		}
		decided := map[string]int{}
		for _, e := range entries {
			instance, _, _ := strings.Cut(e.DecisionID, "-")
			decided[instance]++
		}
		t.Logf("decisions by router %v; records by outcome %v", decided, outcomes)
		if len(decided) != 2 || decided[""] > 0 {
			t.Errorf("decisions by router: %v, want two routers", decided)
		}
		if outcomes["released"] != requests || outcomes["foreign"] != 0 || outcomes["late"] != 0 || outcomes["unknown"] != 0 {
			t.Errorf("%d requests had records with the outcomes %v", requests, outcomes)
		}
	})
}

// TestNodesShareCharges sends one hot prefix, which all engines hold, by 16 clients through one router and through two that tell each other what they
// sent: at any time the requests are spread over the engines the same way. Two routers that do not tell each other make it about 40 % more uneven.
func TestNodesShareCharges(t *testing.T) {
	const clients, requests, engines = 16, 640, 4
	spread := func(t *testing.T, routers int) float64 {
		site := startSite(t, envoyNewest, lab.SiteOptions{
			Nodes: 2, Routers: routers, EnvoyConfig: patient,
			Pools: []lab.PoolOptions{{
				Name: "chat", Model: "sim", Engines: engines, Replay: true,
				Args: []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "20000", "--decode-rate", "400", "--chunk-interval", "10ms"},
			}},
		})
		eventually(t, "routers that answer their health checks", func() bool { return routersSeen(t, site) == float64(routers) })
		client := site.Client()
		defer client.Close()
		hot := lab.Message{Role: "system", Content: prose(rand.New(rand.NewPCG(4, 4)), 800)}
		for _, e := range site.Engines { // else chance says how many engines come to hold it
			direct := lab.Client{URL: e.URL(), HTTP: client.HTTP}
			if r := direct.Chat(t.Context(), lab.ChatRequest{Model: "sim", MaxTokens: 1, Messages: []lab.Message{hot}}); !r.OK() {
				t.Fatalf("status %d %s, error %v", r.Status, r.Body, r.Err)
			}
		}
		requireSame(t, site)
		began := time.Now()
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(c), 5))
				for range requests / clients {
					r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", MaxTokens: 20 + rng.IntN(20), Messages: []lab.Message{hot, {Role: "user", Content: prose(rng, 60)}}})
					if !r.OK() {
						t.Errorf("status %d %s, error %v", r.Status, r.Body, r.Err)
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		entries, err := site.ReadLog(t.Context(), requests)
		if err != nil {
			t.Fatal(err)
		}
		count, matched, prompt := map[string]int{}, 0.0, 0.0
		for _, e := range entries {
			count[e.Upstream]++
			matched, prompt = matched+e.Matched, prompt+e.Prompt
		}
		at := together(entries)
		t.Logf("%d routers: %v requests per engine, at a time as of %.2f engines used equally; %.1f %% of the prompts matched; %v", routers, count, at, 100*matched/prompt, took.Round(time.Millisecond))
		if len(count) != engines {
			t.Errorf("%d of %d engines were used", len(count), engines)
		}
		requireUncharged(t, site)
		return at
	}
	one, two := 0.0, 0.0
	t.Run("routers=1", func(t *testing.T) { one = spread(t, 1) })
	t.Run("routers=2", func(t *testing.T) { two = spread(t, 2) })
	if !(two > 0.9*one && two < 1.1*one) {
		t.Errorf("two routers use as much as %.2f engines equally, one router %.2f: want the same within 10 %%", two, one)
	}
	if u1, u2 := uneven(one, engines), uneven(two, engines); u2 > 1.25*u1 {
		t.Errorf("the standard deviation of the requests at an engine is %.2f of their mean with two routers, %.2f with one: want no more than a quarter more", u2, u1)
	} else {
		t.Logf("the standard deviation of the requests at an engine is %.2f of their mean with one router, %.2f with two", u1, u2)
	}
}

// uneven is the standard deviation, relative to the mean, of shares as uneven as those of together.
func uneven(used float64, engines int) float64 { return math.Sqrt(max(0, float64(engines)/used-1)) }

// together is over how many engines requests were spread at a time: the mean, over the begins of all requests, of how many engines with equal shares
// are as uneven as those that have requests then. It is 1 when all are at one engine.
func together(entries []lab.LogEntry) float64 {
	sum := 0.0
	for i, at := range entries {
		count := map[string]int{}
		for j, e := range entries {
			if !e.Start.After(at.Start) && e.End().After(at.Start) || i == j {
				count[e.Upstream]++
			}
		}
		all, squares := 0.0, 0.0
		for _, n := range count {
			all += float64(n)
			squares += float64(n) * float64(n)
		}
		sum += all * all / squares
	}
	return sum / float64(len(entries))
}
