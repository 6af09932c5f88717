package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestOverrideHost is the main job in the layout whose clusters try the router's list.
func TestOverrideHost(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		const conversations, turns = 24, 4
		site := startPatient(t, release, lab.SiteOptions{
			EnvoyConfig: "layout: override_host",
			Pools:       []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 3, Replay: true, Args: []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "40000", "--decode-rate", "1000"}}},
		})
		all := converse(t, site, conversations, turns, 6)
		requireFollowUps(t, site, all, conversations, turns)
		eventually(t, "a record of each request", func() bool {
			return metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_records_total", `outcome="released"`) == conversations*turns
		})
		pool := `envoy_cluster_name="` + envoy.PoolCluster("chat") + `"`
		if n := metric(t, site.EnvoyAdmin+"/stats/prometheus", "envoy_cluster_upstream_rq_total", pool); n != conversations*turns {
			t.Errorf("%v requests of the pool's cluster, want %d", n, conversations*turns)
		}
		status, r := diagnose(t, site.Config)
		requireFindings(t, "as printed", status, r)
	})
}

// TestOverrideHostEngineFailures kills engines, noticed and unnoticed: the list's next endpoint answers.
func TestOverrideHostEngineFailures(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startSite(t, release, lab.SiteOptions{
			EnvoyConfig:  "layout: override_host",
			RouterConfig: "probe: {interval: 10s}",
			Pools:        []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 3, Args: steady, Relay: true}},
		})
		w := startWatch(t, site)
		crashUnderLoad(t, site, w)
		if !t.Failed() {
			crashUnnoticed(t, site, w, 2)
		}
	})
}

// TestOverrideHostRouterFailures has nobody notice that the router is killed, hangs and stops.
func TestOverrideHostRouterFailures(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startSite(t, release, lab.SiteOptions{EnvoyConfig: "layout: override_host", Pools: []lab.PoolOptions{
			{Name: "one", Model: "model-one", Match: "{host: one.test}", Engines: 2, Args: steady},
			{Name: "two", Model: "model-two", Match: "{host: two.test}", Engines: 2, Args: steady},
		}})
		l := startLoad(t, site, audience{"one", 3, lab.ChatRequest{Model: "model-one", MaxTokens: 10, Host: "one.test"}},
			audience{"two", 3, lab.ChatRequest{Model: "model-two", MaxTokens: 10, Host: "two.test"}})
		w := startWatch(t, site)
		breakRouter(t, site, l, w)
		checkRouterFailures(t, l.end(), w)
	})
}

// TestPickerSites is the main job in the vocabulary of the endpoint picker protocol, in every layout and both ways to show a body.
func TestPickerSites(t *testing.T) {
	for _, way := range []string{"body: buffered, layout: auto", "body: full_duplex, layout: auto", "body: buffered, layout: override_host", "body: full_duplex, layout: override_host"} {
		t.Run(way, func(t *testing.T) {
			onBothEnvoys(t, func(t *testing.T, release string) {
				const conversations, turns = 15, 5
				site := startPatient(t, release, lab.SiteOptions{
					RouterConfig: "headers: gaie\ngaie: {served: true}",
					EnvoyConfig:  fmt.Sprintf("version: %s, %s", release, way),
					Pools:        []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 3, Replay: true, Args: []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "40000", "--decode-rate", "1000"}}},
				})
				all := converse(t, site, conversations, turns, 4)
				requireFollowUps(t, site, all, conversations, turns)
				status, r := diagnose(t, site.Config)
				requireFindings(t, "as printed", status, r)
				// Where Envoy says who gave the answer, it was the choice.
				served := 0.0
				if release == envoyNewest && strings.HasSuffix(way, "override_host") {
					served = conversations * turns
				}
				eventually(t, "the endpoints that gave the answers", func() bool {
					return metric(t, site.RouterAdmin+"/metrics", "kvsteer_extproc_served_requests_total", `by="choice"`) == served
				})
				if n := metric(t, site.RouterAdmin+"/metrics", "kvsteer_extproc_served_requests_total", `by="another"`); n != 0 {
					t.Errorf("%v requests were served by another endpoint than the choice", n)
				}
				// A dead choice moves on, in the list or to the fallback.
				site.Engines[0].Kill()
				client := site.Client()
				defer client.Close()
				for i := range 20 {
					r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", MaxTokens: 1, Messages: []lab.Message{{Role: "user", Content: fmt.Sprint("Hello ", i)}}})
					if !r.OK() {
						t.Errorf("status %d %s, error %v", r.Status, r.Body, r.Err)
					}
				}
			})
		})
	}
}

// duplexOptions are those of a site whose Envoy streams bodies to the router.
func duplexOptions(layout string) lab.SiteOptions {
	return lab.SiteOptions{
		EnvoyConfig: "body: full_duplex, layout: " + layout,
		Pools:       []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 3, Replay: true, Args: []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "40000", "--decode-rate", "1000"}}},
	}
}

// onDuplex runs a test on both Envoys in both kinds of layout.
func onDuplex(t *testing.T, test func(t *testing.T, release, layout string)) {
	for _, layout := range []string{"auto", "override_host"} {
		t.Run("layout="+layout, func(t *testing.T) {
			onBothEnvoys(t, func(t *testing.T, release string) { test(t, release, layout) })
		})
	}
}

// TestFullDuplex is the main job with bodies that stream, big ones among them.
func TestFullDuplex(t *testing.T) {
	onDuplex(t, func(t *testing.T, release, layout string) {
		const conversations, turns = 20, 5
		site := startPatient(t, release, duplexOptions(layout))
		all := converse(t, site, conversations, turns, 6)
		requireFollowUps(t, site, all, conversations, turns)
		status, r := diagnose(t, site.Config)
		requireFindings(t, "as printed", status, r)

		// Bodies beyond what the router reads pass too, and engines see them whole.
		big := fmt.Sprintf(`{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":"Hi"}],"padding":%q}`, strings.Repeat("x", 5<<20))
		for protocol, client := range clients(t) {
			for _, length := range []int64{int64(len(big)), -1} {
				got := send(t, client, site.URL, request{
					method: http.MethodPost, path: "/v1/chat/completions", header: http.Header{"Content-Type": {"application/json"}}, body: io.LimitReader(strings.NewReader(big), int64(len(big))), length: length,
				})
				if got.status != http.StatusOK {
					t.Errorf("%s, length %d: status %d %.200s", protocol, length, got.status, got.body)
				}
			}
		}
	})
}

// TestFullDuplexRouterFailures kills and hangs the router: what it was handed fails, and everything after Envoy has noticed is served.
func TestFullDuplexRouterFailures(t *testing.T) {
	onDuplex(t, func(t *testing.T, release, layout string) {
		site := startSite(t, release, duplexOptions(layout))
		client := site.Client()
		defer client.Close()
		seed := uint64(0)
		ask := func() lab.Reply {
			seed++
			return client.Chat(t.Context(), lab.ChatRequest{Model: "sim", MaxTokens: 2, Messages: []lab.Message{{Role: "user", Content: prose(rand.New(rand.NewPCG(3, seed)), 100)}}})
		}
		served := func(what string, most int) {
			t.Helper()
			failed := 0
			eventually(t, what, func() bool {
				r := ask()
				if !r.OK() {
					failed++
				}
				return r.OK()
			})
			for range 10 {
				if r := ask(); !r.OK() {
					t.Errorf("%s: status %d %s, error %v", what, r.Status, r.Body, r.Err)
				}
			}
			t.Logf("%s: %d requests failed first", what, failed)
			if failed > most {
				t.Errorf("%s: %d requests failed first, want at most %d", what, failed, most)
			}
		}
		served("requests at first", 0)
		site.Router.Kill()
		served("requests without a killed router", 2)
		restart(t, site)
		eventually(t, "a router that answers its health checks", func() bool { return routersSeen(t, site) == 1 })
		served("requests with a router that is back", 0)

		eventually(t, "a request that a hung router has", func() bool {
			if err := site.Pause(); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			r := ask()
			took := time.Since(begin)
			if r.OK() && routersSeen(t, site) == 0 { // Envoy has noticed before the request came
				if err := site.Resume(); err != nil {
					t.Fatal(err)
				}
				eventually(t, "a router that goes on", func() bool { return routersSeen(t, site) == 1 })
				return false
			}
			if r.Status != http.StatusInternalServerError {
				t.Errorf("a hung router: status %d %s, error %v", r.Status, r.Body, r.Err)
			}
			t.Logf("a request that a hung router has fails after %v", took.Round(time.Millisecond))
			if took > 15*time.Second {
				t.Errorf("a hung router holds a request for %v", took)
			}
			return true
		})
		eventually(t, "Envoy takes a hung router out", func() bool { return routersSeen(t, site) == 0 })
		served("requests without a hung router", 0)
		if err := site.Resume(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a router that goes on", func() bool { return routersSeen(t, site) == 1 })
		served("requests with a router that goes on", 0)
		entries, err := site.ReadLog(t.Context(), int(seed))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(entries, func(e lab.LogEntry) bool { return e.DecisionID != "" }) {
			t.Error("no request was decided")
		}
	})
}
