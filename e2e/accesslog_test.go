package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// records is how many records of the access log the router has taken with one outcome.
func records(t *testing.T, site *lab.Site, outcome string) float64 {
	t.Helper()
	return metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_records_total", fmt.Sprintf("outcome=%q", outcome))
}

func openDecisions(t *testing.T, site *lab.Site) float64 {
	t.Helper()
	return metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_open_decisions")
}

// runningTokens are the prompt tokens that the router takes to be running at all endpoints.
func runningTokens(t *testing.T, site *lab.Site) float64 {
	t.Helper()
	return metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_endpoint_running_tokens")
}

// untilReleased waits until no decision is open, for a time in which the guess that replaces records has hardly begun to fade: 8,000 tokens take
// more than a minute to be gone by it.
func untilReleased(t *testing.T, site *lab.Site) {
	t.Helper()
	began := time.Now()
	defer func() {
		if t.Failed() {
			t.Logf("%v decisions open, %v records undecided", openDecisions(t, site), records(t, site, "undecided"))
		}
	}()
	eventually(t, "no decision is open", func() bool { return openDecisions(t, site) == 0 })
	took := time.Since(began)
	if n := runningTokens(t, site); n != 0 {
		t.Errorf("%v prompt tokens are taken to be running, of no request", n)
	}
	if n := metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_endpoint_backlog_tokens"); n != 0 {
		t.Errorf("%v prompt tokens are taken to be waiting, of no request", n)
	}
	t.Logf("all released %v after the last answer", took.Round(time.Millisecond))
}

// TestAccessLogReleasesCharges: a charge lives exactly as long as its request, whichever way that ends.
func TestAccessLogReleasesCharges(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startSite(t, release, lab.SiteOptions{
			EnvoyConfig: patient,
			Pools:       []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 2, Args: steady}},
		})
		client := site.Client()
		defer client.Close()
		const requests = 60
		ask := func(n int) {
			t.Helper()
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(i), 77))
					r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", MaxTokens: 5 + i%20, Messages: []lab.Message{{Role: "user", Content: prose(rng, 1500)}}})
					if !r.OK() {
						t.Errorf("status %d %s, error %v", r.Status, r.Body, r.Err)
					}
				})
			}
			wg.Wait()
		}
		ask(requests)
		untilReleased(t, site)
		if n := records(t, site, "released"); n != requests {
			t.Errorf("%v records released a charge, want %d", n, requests)
		}

		// A client that leaves.
		answer, err := open(t, client.HTTP, site, streaming(8000, 3000), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !answer.event() {
			t.Error("the answer has no events")
		}
		if n := runningTokens(t, site); !(n > 8000) || openDecisions(t, site) != 1 {
			t.Errorf("%v prompt tokens running, %v decisions open during an answer", n, openDecisions(t, site))
		}
		answer.close()
		untilReleased(t, site)
		if n := records(t, site, "released"); n != requests+1 {
			t.Errorf("%v records released a charge, want %d", n, requests+1)
		}
		for _, outcome := range []string{"moved", "late", "unknown", "foreign", "partial"} {
			if n := records(t, site, outcome); n != 0 {
				t.Errorf("%v records %s", n, outcome)
			}
		}

		// The router is killed and started again while answers are under way: they go on, and their records belong to nobody.
		const cut = 5
		var answers []*ongoing
		for range cut {
			a, err := open(t, client.HTTP, site, streaming(10, 300), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer a.close()
			answers = append(answers, a)
		}
		site.Router.Kill()
		restart(t, site)
		eventually(t, "a router that answers its health checks", func() bool { return routersSeen(t, site) == 1 })
		for _, a := range answers {
			n := 0
			for a.event() {
				n++
			}
			if err := a.events.Err(); err != nil || n == 0 {
				t.Errorf("an answer was cut by the router's end: %d events, %v", n, err)
			}
		}
		eventually(t, "records of the router before", func() bool { return records(t, site, "foreign") >= 1 })
		before := records(t, site, "released")
		ask(20)
		untilReleased(t, site)
		if n := records(t, site, "released") - before; n != 20 {
			t.Errorf("%v records released a charge, want 20", n)
		}
		t.Logf("of %d answers under way the router that came after was told of %v", cut, records(t, site, "foreign"))
	})
}

// TestAccessLogFindsDeadEngine: nothing but the records of requests that it does not get any more tells that an engine is dead.
func TestAccessLogFindsDeadEngine(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startSite(t, release, lab.SiteOptions{
			RouterConfig: "probe: {interval: 60s}",
			EnvoyConfig:  patient,
			Pools:        []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 3, Args: quick, Relay: true}},
		})
		client := site.Client()
		defer client.Close()
		// Prompts are text, and the router knows their tokens: it asks no engine for them again.
		var prompts []lab.ChatRequest
		for i := range 12 {
			rng := rand.New(rand.NewPCG(uint64(i), 5))
			prompts = append(prompts, lab.ChatRequest{Model: "sim", MaxTokens: 2, Messages: []lab.Message{{Role: "user", Content: prose(rng, 200)}}})
		}
		ask := func() {
			t.Helper()
			var wg sync.WaitGroup
			for _, p := range prompts {
				wg.Go(func() {
					if r := client.Chat(t.Context(), p); !r.OK() {
						t.Errorf("status %d %s, error %v", r.Status, r.Body, r.Err)
					}
				})
			}
			wg.Wait()
		}
		victim := site.Engines[0]
		eventually(t, "the engine holds prompts", func() bool {
			ask()
			return routerMetric(t, site, "kvsteer_router_endpoint_blocks", victim.Address) > 20
		})
		ask() // while no block was known, no prompt was made into tokens
		victim.Relay.HideEnds()
		victim.Kill()
		killed := time.Now()
		eventually(t, "a request that ran elsewhere", func() bool {
			ask()
			return records(t, site, "moved") >= 1
		})
		eventually(t, "the dead engine is suspect and down", func() bool {
			return routerMetric(t, site, "kvsteer_pool_endpoint_suspect", victim.Address) == 1 && routerMetric(t, site, "kvsteer_pool_endpoint_up", victim.Address) == 0
		})
		t.Logf("found out after %v; %v requests had to be answered by another one", time.Since(killed).Round(time.Millisecond), records(t, site, "moved"))
		untilReleased(t, site)
		moved := records(t, site, "moved")
		ask()
		untilReleased(t, site)
		if n := records(t, site, "moved"); n != moved {
			t.Errorf("%v further requests were sent to the dead engine", n-moved)
		}

		if err := victim.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		victim.Relay.ShowEnds()
		eventually(t, "the engine is back", func() bool {
			return routerMetric(t, site, "kvsteer_pool_endpoint_suspect", victim.Address) == 0 && routerMetric(t, site, "kvsteer_pool_endpoint_up", victim.Address) == 1
		})
	})
}

// failingEngine answers its health checks, and requests with a status of its own.
type failingEngine struct {
	status atomic.Int64
	asked  atomic.Int64
}

func (f *failingEngine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/health" {
		return
	}
	_, _ = io.Copy(io.Discard, req.Body)
	f.asked.Add(1)
	w.WriteHeader(int(f.status.Load()))
}

// TestAccessLogFindsFailingEngine: an engine that fails its requests while its health is good gets none for a while, and is tried again.
func TestAccessLogFindsFailingEngine(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		failing, sound := &failingEngine{}, &failingEngine{}
		sound.status.Store(http.StatusOK)
		address := serveHTTP(t, failing, nil)
		site := startSite(t, release, lab.SiteOptions{
			EnvoyConfig: patient,
			Pools:       []lab.PoolOptions{{Name: "chat", Model: "sim", Config: "adapters_refresh: 0s", Endpoints: []string{address, serveHTTP(t, sound, nil)}}},
		})
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		ask := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), answerTime)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, site.URL+"/v1/chat/completions", streaming(20, 1))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			untilOpen := func() bool { return openDecisions(t, site) == 0 }
			eventually(t, "its record", untilOpen)
		}
		suspect := func() float64 { return routerMetric(t, site, "kvsteer_pool_endpoint_suspect", address) }

		// What is wrong with a request is not held against the engine.
		failing.status.Store(http.StatusBadRequest)
		eventually(t, "many bad requests", func() bool { ask(); return failing.asked.Load() >= 10 })
		if suspect() != 0 {
			t.Error("suspect after bad requests")
		}

		failing.status.Store(http.StatusInternalServerError)
		before := failing.asked.Load()
		eventually(t, "the failing engine is suspect", func() bool { ask(); return suspect() == 1 })
		if n := failing.asked.Load() - before; n != 5 {
			t.Errorf("suspect after %d server errors, want 5", n)
		}
		before = failing.asked.Load()
		for range 10 {
			ask()
		}
		if n := failing.asked.Load() - before; n != 0 && suspect() == 1 {
			t.Errorf("%d requests were sent to a suspect engine", n)
		}
		failing.status.Store(http.StatusOK)
		eventually(t, "the engine is tried again", func() bool { ask(); return failing.asked.Load() > before && suspect() == 0 })
	})
}

// TestAccessLogInModeObserve: where the decision is not obeyed, a request that runs elsewhere is no miss.
func TestAccessLogInModeObserve(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startSite(t, release, lab.SiteOptions{
			EnvoyConfig: patient,
			Pools:       []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 2, Args: quick, Config: "mode: observe"}},
		})
		w := startWatch(t, site)
		client := site.Client()
		defer client.Close()
		const requests = 40
		for i := range requests {
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			if r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", MaxTokens: 2, Messages: []lab.Message{{Role: "user", Content: prose(rng, 100)}}}); !r.OK() {
				t.Fatalf("status %d %s, error %v", r.Status, r.Body, r.Err)
			}
		}
		untilReleased(t, site)
		elsewhere := 0
		for _, e := range w.all(requests) {
			if e.Endpoint != e.Upstream {
				elsewhere++
			}
		}
		if elsewhere == 0 {
			t.Error("Envoy obeyed every decision of mode observe")
		}
		if n, moved := records(t, site, "released"), records(t, site, "moved"); n != requests || moved != 0 {
			t.Errorf("%v records released, %v moved, want %d and none", n, moved, requests)
		}
		if n := metric(t, site.RouterAdmin+"/metrics", "kvsteer_pool_endpoint_suspect"); n != 0 {
			t.Errorf("%v endpoints are suspect", n)
		}
	})
}
