package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/lab"
)

const tenantKey = "tenant-1" // that the foreign configuration lets in

// foreignOptions describe a site whose Envoy belongs to somebody else: its engines speak HTTP/2 over TLS, and its own cluster of them is
// the fallback.
func foreignOptions(t *testing.T, layout string, args []string) lab.SiteOptions {
	t.Helper()
	text, err := os.ReadFile("testdata/foreign/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	a, err := lab.NewAuthority(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	return lab.SiteOptions{
		Foreign: string(text), Replace: map[string]string{"CA_FILE": a.File, "SHOP_PORT": "1"}, Bearer: tenantKey, HTTP2: true, Secure: a,
		RouterConfig: fmt.Sprintf("engines: {tls: {ca_file: %s, server_name: %s}, http2: true}\nprobe: {interval: 10s}", a.File, lab.EngineName),
		EnvoyConfig:  "layout: " + layout,
		Pools:        []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 3, Args: args, Relay: true, Replay: true, Config: "fallback: {cluster: engines}"}},
	}
}

// onForeign runs a test on both Envoys, with the foreign cluster as the fallback and with the foreign cluster as what follows the router's list.
func onForeign(t *testing.T, test func(t *testing.T, release, layout string)) {
	for _, layout := range []string{"auto", "override_host"} {
		t.Run("layout="+layout, func(t *testing.T) {
			onBothEnvoys(t, func(t *testing.T, release string) { test(t, release, layout) })
		})
	}
}

// foreignStat reads one of Envoy's statistics of the foreign configuration; one that was never used is 0.
func foreignStat(t *testing.T, site *lab.Site, name string, labels ...string) float64 {
	t.Helper()
	page, err := lab.ReadMetrics(t.Context(), site.EnvoyAdmin+"/stats/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	v, err := page.Sum(name, labels...)
	if err != nil {
		return 0
	}
	return v
}

func streamsOf(t *testing.T, site *lab.Site) float64 {
	return foreignStat(t, site, "envoy_http_ext_proc_streams_started", `envoy_http_conn_manager_prefix="public"`)
}

// TestForeignFollowUps is the main job in somebody else's Envoy.
func TestForeignFollowUps(t *testing.T) {
	onForeign(t, func(t *testing.T, release, layout string) {
		const conversations, turns = 24, 4
		site := startPatient(t, release, foreignOptions(t, layout, []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "40000", "--decode-rate", "1000"}))
		all := converse(t, site, conversations, turns, 6)
		requireFollowUps(t, site, all, conversations, turns)
		// Each request's end is told to the router, and nothing else is.
		eventually(t, "a record of each request", func() bool {
			return metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_records_total", `outcome="released"`) == conversations*turns
		})
		if n := metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_records_total"); n != conversations*turns {
			t.Errorf("%v records, want %d", n, conversations*turns)
		}
		// The clusters that dial the router's choices speak to engines as the foreign one does, where it is not the foreign one itself.
		pick := `envoy_cluster_name="` + envoy.ClusterPick + `"`
		if layout == "override_host" {
			pick = `envoy_cluster_name="engines"`
		}
		if n := foreignStat(t, site, "envoy_cluster_upstream_rq_total", pick); n != conversations*turns {
			t.Errorf("%v requests by the router's choice, want %d", n, conversations*turns)
		}
		shook, h2 := foreignStat(t, site, "envoy_cluster_ssl_handshake", pick), foreignStat(t, site, "envoy_cluster_upstream_cx_http2_total", pick)
		if shook == 0 || h2 != foreignStat(t, site, "envoy_cluster_upstream_cx_total", pick) {
			t.Errorf("%v TLS handshakes, %v connections with HTTP/2", shook, h2)
		}
	})
}

// TestForeignRoutes leaves the other routes alone: they are served as before, and the router is not asked.
func TestForeignRoutes(t *testing.T) {
	onForeign(t, func(t *testing.T, release, layout string) {
		shop := startRecorder(t)
		o := foreignOptions(t, layout, quick)
		o.Replace["SHOP_PORT"] = shop.addr[strings.LastIndexByte(shop.addr, ':')+1:]
		site := startSite(t, release, o)
		key := http.Header{"Authorization": {"Bearer " + tenantKey}, "Content-Type": {"application/json"}}
		big := strings.Repeat("x", 3<<20)
		for protocol, client := range clients(t) {
			for _, r := range []struct {
				request
				status int
				body   string
			}{
				{request{method: http.MethodGet, path: "/status", header: key}, http.StatusOK, "fine"},
				{request{method: http.MethodPost, path: "/status", header: key, body: strings.NewReader(ask), length: int64(len(ask))}, http.StatusOK, "fine"},
				{request{method: http.MethodPost, path: "/shop/v1/chat/completions", header: key, body: strings.NewReader(big), length: int64(len(big))}, http.StatusOK, ""},
				{request{method: http.MethodGet, path: "/v1/models", header: key}, http.StatusOK, `"sim"`},
				{request{method: http.MethodGet, path: "/v1/unknown", header: key}, http.StatusNotFound, ""},
				{request{method: http.MethodGet, path: "/elsewhere", header: key}, http.StatusNotFound, ""},
				// Who may not come in is not shown to the router either.
				{request{method: http.MethodPost, path: "/v1/chat/completions", header: http.Header{"Content-Type": {"application/json"}}, body: strings.NewReader(ask), length: int64(len(ask))}, http.StatusForbidden, ""},
			} {
				if got := send(t, client, site.URL, r.request); got.status != r.status || !strings.Contains(got.body, r.body) {
					t.Errorf("%s %s %s: status %d %q, want %d %q", protocol, r.method, r.path, got.status, got.body, r.status, r.body)
				}
			}
		}
		if n := streamsOf(t, site); n != 0 {
			t.Errorf("%v streams to the router for routes that are none of its business", n)
		}
		if n := metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_records_total"); n != 0 {
			t.Errorf("%v records of requests that the router did not decide", n)
		}
		if len(shop.take()) == 0 {
			t.Error("the shop was never used")
		}
		client := site.Client()
		defer client.Close()
		for range 3 {
			if r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", Messages: []lab.Message{{Role: "user", Content: "Hi"}}, MaxTokens: 1}); !r.OK() {
				t.Errorf("status %d %s, error %v", r.Status, r.Body, r.Err)
			}
		}
		if n := streamsOf(t, site); n != 3 {
			t.Errorf("%v streams to the router, want 3", n)
		}
	})
}

// TestForeignSpoofing names endpoints as a client in every way that a client can.
func TestForeignSpoofing(t *testing.T) {
	onForeign(t, func(t *testing.T, release, layout string) {
		decoy, shop := startDecoy(t), startRecorder(t)
		o := foreignOptions(t, layout, quick)
		o.Replace["SHOP_PORT"] = shop.addr[strings.LastIndexByte(shop.addr, ':')+1:]
		site := startSite(t, release, o)
		var known []string
		for _, e := range site.Engines {
			known = append(known, e.Address)
		}
		known = append(known, shop.addr)
		for _, phase := range []string{"router up", "router down"} {
			if phase == "router down" {
				site.Router.Kill()
			}
			for name, head := range spoofedHeads(decoy.addr) {
				for _, path := range []string{"/v1/chat/completions", "/shop"} {
					head := strings.Replace(head, "Content-Type:", "Authorization: Bearer "+tenantKey+"\r\nContent-Type:", 1)
					head = strings.Replace(head, "/v1/chat/completions", path, 1)
					got := sendRaw(t, site, strings.NewReader(head))
					want := http.StatusOK
					if strings.HasPrefix(name, "bad: ") {
						want = http.StatusBadRequest
					}
					if got.status != want || strings.Contains(got.body, "decoy") {
						t.Errorf("%s, %s: status %d %q, want %d", phase, name, got.status, got.body, want)
					}
				}
			}
			for protocol, client := range clients(t) {
				for name, r := range spoofedRequests(decoy.addr) {
					r.header.Set("Authorization", "Bearer "+tenantKey)
					if got := send(t, client, site.URL, r); got.status != http.StatusOK || strings.Contains(got.body, "decoy") {
						t.Errorf("%s, %s, %s: status %d %q", phase, protocol, name, got.status, got.body)
					}
				}
			}
		}
		if n := decoy.connections.Load(); n != 0 {
			t.Errorf("the address that clients named got %d connections", n)
		}
		entries, err := site.ReadLog(t.Context(), 80)
		if err != nil {
			t.Fatal(err)
		}
		decided := 0
		for _, e := range entries {
			if e.DecisionID != "" {
				decided++
			}
			if e.Code == http.StatusOK && !slices.Contains(known, e.Upstream) {
				t.Errorf("a request went to %q, which is no endpoint of the site", e.Upstream)
			}
		}
		if decided == 0 {
			t.Error("no request was decided")
		}
	})
}

// TestForeignRouterFailures kills, hangs and stops the router under load, and no client notices.
func TestForeignRouterFailures(t *testing.T) {
	onForeign(t, func(t *testing.T, release, layout string) {
		site := startSite(t, release, foreignOptions(t, layout, steady))
		l := startLoad(t, site, audience{"chat", 4, lab.ChatRequest{Model: "sim", MaxTokens: 10}})
		w := startWatch(t, site)
		breakRouter(t, site, l, w)
		checkRouterFailures(t, l.end(), w)
	})
}

// TestForeignEngineFailure kills an engine without the router's knowledge: what is sent to it is answered by the second choice or by the
// foreign cluster.
func TestForeignEngineFailure(t *testing.T) {
	onForeign(t, func(t *testing.T, release, layout string) {
		site := startSite(t, release, foreignOptions(t, layout, quick))
		w := startWatch(t, site)
		most := 3
		if release == envoyNewest || layout == "override_host" {
			most = 2
		}
		crashUnnoticed(t, site, w, most)
	})
}
