package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/lab"
)

const ask = `{"model":"sim","messages":[{"role":"user","content":"Where does this go?"}],"max_tokens":1}`

// TestClientsCannotNameEndpoints sends the router's headers as a client, in every way that a client can, and lets the address in them
// wait for a connection that must never come.
func TestClientsCannotNameEndpoints(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		decoy, engine := startDecoy(t), startRecorder(t)
		site := startSite(t, release, lab.SiteOptions{Pools: []lab.PoolOptions{
			{Name: "chat", Model: "sim", Engines: 1, Args: quick, Endpoints: []string{engine.addr}},
		}})
		known := []string{engine.addr, site.Engines[0].Address}
		sent := 0

		for _, phase := range []string{"router up", "router down"} {
			if phase == "router down" {
				site.Router.Kill()
			}
			for name, head := range spoofedHeads(decoy.addr) {
				sent++
				got := sendRaw(t, site, strings.NewReader(head))
				want := http.StatusOK
				if strings.HasPrefix(name, "bad: ") {
					want = http.StatusBadRequest
				}
				if got.status != want || strings.Contains(got.body, "decoy") {
					t.Errorf("%s, %s: status %d %q, want %d", phase, name, got.status, got.body, want)
				}
			}
			for protocol, client := range clients(t) {
				for name, r := range spoofedRequests(decoy.addr) {
					sent++
					if got := send(t, client, site.URL, r); got.status != http.StatusOK || strings.Contains(got.body, "decoy") {
						t.Errorf("%s, %s, %s: status %d %q", phase, protocol, name, got.status, got.body)
					}
				}
			}

			seen := engine.take()
			if len(seen) == 0 {
				t.Errorf("%s: the recording engine was never used", phase)
			}
			for _, r := range seen {
				for _, h := range []http.Header{r.header, r.trailer} {
					for name, values := range h {
						lower := strings.ToLower(name)
						// A trailer that was announced and did not come stands here without a value.
						if (lower == envoy.HeaderTarget || lower == envoy.HeaderSecond) && len(values) > 0 {
							t.Errorf("%s: the engine sees %s: %q", phase, name, values)
						}
					}
				}
			}
		}
		if n := decoy.connections.Load(); n != 0 {
			t.Errorf("the address that clients named got %d connections", n)
		}
		entries, err := site.ReadLog(t.Context(), sent)
		if err != nil {
			t.Fatal(err)
		}
		decided, undecided := 0, 0
		for _, e := range entries {
			switch {
			case e.Code == http.StatusBadRequest:
				continue
			case e.DecisionID != "" && e.Upstream == e.Endpoint:
				decided++
			case e.DecisionID == "":
				undecided++
			default:
				t.Errorf("the router chose %s, Envoy went to %s (%s)", e.Endpoint, e.Upstream, e.Details)
			}
			if !slices.Contains(known, e.Upstream) {
				t.Errorf("a request went to %q, which is no endpoint of the site", e.Upstream)
			}
		}
		if decided == 0 || undecided == 0 {
			t.Errorf("%d requests went by the router's decision and %d without, want some of each", decided, undecided)
		}
	})
}

// spoofedHeads are whole HTTP/1.1 requests, byte for byte, by what is special about them.
func spoofedHeads(decoy string) map[string]string {
	request := func(target string, lines ...string) string {
		lines = append([]string{"POST " + target + " HTTP/1.1", "Host: kvsteer.test", "Content-Type: application/json", "Connection: close"}, lines...)
		return strings.Join(append(lines, fmt.Sprintf("Content-Length: %d", len(ask)), "", ask), "\r\n")
	}
	const path = "/v1/chat/completions"
	heads := map[string]string{
		"lower case":      request(path, "x-target-endpoint: "+decoy),
		"upper case":      request(path, "X-TARGET-ENDPOINT: "+decoy),
		"mixed case":      request(path, "x-TaRgEt-EnDpOiNt: "+decoy),
		"second":          request(path, "X-Target-Endpoint-2: "+decoy),
		"both":            request(path, "X-Target-Endpoint: "+decoy, "x-target-endpoint-2: "+decoy),
		"repeated":        request(path, "x-target-endpoint: "+decoy, "X-Target-Endpoint: "+decoy, "X-TARGET-ENDPOINT: "+decoy),
		"both repeated":   request(path, "x-target-endpoint-2: "+decoy, "x-target-endpoint: "+decoy, "X-Target-Endpoint-2: "+decoy, "X-Target-Endpoint: "+decoy),
		"empty first":     request(path, "x-target-endpoint:", "x-target-endpoint: "+decoy),
		"list":            request(path, "x-target-endpoint: "+decoy+", "+decoy),
		"padded":          request(path, "x-target-endpoint: \t  "+decoy+" \t "),
		"no space":        request(path, "x-target-endpoint:"+decoy),
		"other separator": request(path, "x_target_endpoint: "+decoy, "x-target_endpoint: "+decoy),
		"hop by hop":      request(path, "x-target-endpoint: "+decoy, "Connection: x-target-endpoint"),
		"Envoy's own":     request(path, "x-envoy-original-dst-host: "+decoy, "x-envoy-decorator-operation: "+decoy),
		"forwarded":       request(path, "X-Forwarded-Host: "+decoy, "Forwarded: host="+decoy),
		"absolute target": request("http://"+decoy+path, "x-target-endpoint: "+decoy),
		"query":           request(path + "?x-target-endpoint=" + decoy),
		"upgrade": request(path, "x-target-endpoint: "+decoy, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c",
			"HTTP2-Settings: AAMAAABkAAQAAP__"),
		"bad: space before colon": request(path, "x-target-endpoint : "+decoy),
	}
	heads["host"] = strings.Replace(request(path), "kvsteer.test", decoy, 1)
	heads["trailer"] = strings.Join([]string{
		"POST " + path + " HTTP/1.1", "Host: kvsteer.test", "Content-Type: application/json", "Connection: close",
		"Transfer-Encoding: chunked", "Trailer: x-target-endpoint, x-target-endpoint-2", "", fmt.Sprintf("%x", len(ask)), ask, "0",
		"x-target-endpoint: " + decoy, "X-Target-Endpoint-2: " + decoy, "", "",
	}, "\r\n")
	return heads
}

// spoofedRequests are what HTTP clients of both protocols can send.
func spoofedRequests(decoy string) map[string]request {
	post := func(header, trailer http.Header) request {
		r := request{
			method: http.MethodPost, path: "/v1/chat/completions", header: http.Header{"Content-Type": {"application/json"}}, trailer: trailer,
			body: strings.NewReader(ask), length: int64(len(ask)),
		}
		if trailer != nil {
			r.length = -1
		}
		maps.Copy(r.header, header)
		return r
	}
	both := http.Header{"x-target-endpoint": {decoy, decoy}, "x-target-endpoint-2": {decoy, decoy}}
	return map[string]request{
		"first":    post(http.Header{"X-Target-Endpoint": {decoy}}, nil),
		"second":   post(http.Header{"X-Target-Endpoint-2": {decoy}}, nil),
		"both":     post(both, nil),
		"trailers": post(nil, http.Header{"X-Target-Endpoint": {decoy}, "X-Target-Endpoint-2": {decoy}}),
		"no body":  {method: http.MethodGet, path: "/v1/models", header: both},
	}
}

// TestRouterSeesNoCredentials reads every byte that Envoy sends to the router.
func TestRouterSeesNoCredentials(t *testing.T) {
	const secret, prompt = "top-secret", "Where does this go?"
	onBothEnvoys(t, func(t *testing.T, release string) {
		tee, engine := startTee(t), startRecorder(t)
		site := startSite(t, release, lab.SiteOptions{ExtProc: tee.addr, Pools: []lab.PoolOptions{
			{Name: "chat", Model: "sim", Config: "adapters_refresh: 0s", Engines: 1, Args: quick, Endpoints: []string{engine.addr}},
		}})
		tee.connect(t, site.RouterAddr)
		eventually(t, "decisions reach Envoy", func() bool {
			send(t, http.DefaultClient, site.URL, request{method: http.MethodPost, path: "/v1/completions"})
			return metric(t, site.RouterAdmin+"/metrics", "kvsteer_extproc_streams_total", `outcome="routed"`) > 0
		})
		engine.take()

		secrets := http.Header{
			"Content-Type": {"application/json"}, "X-Visible": {"seen-by-the-router"}, "Authorization": {"Bearer " + secret, "Basic " + secret},
			"Cookie": {"a=" + secret, "b=" + secret + "; c=" + secret}, "Proxy-Authorization": {"Bearer " + secret}, "X-Api-Key": {secret},
			"Api-Key": {secret}, "X-Goog-Api-Key": {secret},
		}
		for _, client := range clients(t) {
			for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/embeddings"} {
				for _, trailer := range []http.Header{nil, {"Authorization": {secret}, "Cookie": {secret}}} {
					r := request{method: http.MethodPost, path: path, header: secrets, body: strings.NewReader(ask), length: int64(len(ask)), trailer: trailer}
					if trailer != nil {
						r.length = -1
					}
					send(t, client, site.URL, r)
				}
				send(t, client, site.URL, request{method: http.MethodPost, path: path, header: secrets})
			}
		}

		if tee.contains(secret) {
			t.Error("the router is sent a credential")
		}
		if !tee.contains("seen-by-the-router") || !tee.contains(prompt) {
			t.Errorf("the recording holds neither headers nor bodies: %d messages", len(tee.messages()))
		}
		seen := engine.take()
		if len(seen) == 0 {
			t.Error("the recording engine was never used")
		}
		for _, r := range seen {
			if r.path == "/tokenize" || strings.HasSuffix(r.path, "/render") { // the router asks: it has nobody's credentials
				if r.header.Get("Authorization") != "" || r.header.Get("X-Api-Key") != "" {
					t.Errorf("%s %s: the router sends a credential: %v", r.method, r.path, r.header)
				}
				continue
			}
			if got := r.header.Get("Authorization"); !strings.HasPrefix(got, "Bearer "+secret) { // Envoy joins repeated ones
				t.Errorf("%s %s: the engine gets authorization %q", r.method, r.path, got)
			}
			if got := r.header.Get("X-Api-Key"); got != secret {
				t.Errorf("%s %s: the engine gets x-api-key %q", r.method, r.path, got)
			}
		}
		for _, path := range []string{site.Router.Log, site.Envoy.Log, site.AccessLog} {
			text := readFile(t, path)
			if strings.Contains(text, secret) || strings.Contains(text, prompt) {
				t.Errorf("%s holds a credential or a prompt", path)
			}
		}
	})
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
