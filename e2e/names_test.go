package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// loras loads or unloads an adapter at an engine.
func loras(t *testing.T, e *lab.Engine, call, name string) {
	t.Helper()
	body := fmt.Sprintf(`{"lora_name":%q,"lora_path":"loras/%s"}`, name, name)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL()+"/v1/"+call, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: status %d", call, name, resp.StatusCode)
	}
}

// adapters are those of the only pool, as the router's state tells.
func adapters(t *testing.T, site *lab.Site) []string {
	t.Helper()
	resp, err := http.Get(site.RouterAdmin + "/api/v1/state")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var state struct {
		Pools []struct {
			Adapters []string `json:"adapters"`
		} `json:"pools"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil || len(state.Pools) != 1 {
		t.Fatalf("state with %d pools, %v", len(state.Pools), err)
	}
	return state.Pools[0].Adapters
}

// blocks is how many blocks of all endpoints the router knows.
func blocks(t *testing.T, site *lab.Site) float64 {
	return metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_endpoint_blocks", `tier="any"`)
}

// TestAdapterLoadedAtRuntime loads an adapter at one of three engines: a refresh later its requests go there and are matched, and when it is
// unloaded, its name is not known any more.
func TestAdapterLoadedAtRuntime(t *testing.T) {
	site := startSite(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{
		{Name: "chat", Model: "sim", Engines: 3, Args: quick, Config: "adapters_refresh: 1s"},
	}})
	client := site.Client()
	defer client.Close()
	conversation := []lab.Message{{Role: "user", Content: prose(rand.New(rand.NewPCG(1, 2)), 300)}}
	chat := func(model string) lab.Reply {
		return client.Chat(t.Context(), lab.ChatRequest{Model: model, Messages: conversation, MaxTokens: 1})
	}
	if r := chat("law"); r.Status != http.StatusNotFound {
		t.Fatalf("before it is loaded: status %d, error %v", r.Status, r.Err)
	}
	loras(t, site.Engines[1], "load_lora_adapter", "law")
	eventually(t, "the router knows the adapter", func() bool { return slices.Contains(adapters(t, site), "law") })
	const asked = 10
	for i := range asked {
		r := chat("law")
		if !r.OK() {
			t.Fatalf("request %d: status %d %s, error %v", i, r.Status, r.Body, r.Err)
		}
		if i == 0 {
			eventually(t, "its blocks are known", func() bool { return blocks(t, site) > 0 })
		}
	}
	entries, err := site.ReadLog(t.Context(), asked+1)
	if err != nil {
		t.Fatal(err)
	}
	if entries[0].Reason != "unknown_model" {
		t.Errorf("before it is loaded: reason %q", entries[0].Reason)
	}
	for i, e := range entries[1:] {
		if e.Endpoint != site.Engines[1].Address || e.Upstream != e.Endpoint {
			t.Errorf("request %d: chosen %s, went to %s", i, e.Endpoint, e.Upstream)
		}
		if i > 0 && e.Matched == 0 && e.Reason != "single" {
			t.Errorf("request %d: reason %q, %v tokens matched", i, e.Reason, e.Matched)
		}
	}

	// Loaded elsewhere too, it is matched exactly: the one that served it holds it.
	loras(t, site.Engines[2], "load_lora_adapter", "law")
	var last lab.LogEntry
	sent := asked + 1
	eventually(t, "the router knows it at both", func() bool {
		r := chat("law")
		if sent++; !r.OK() {
			t.Fatalf("status %d %s, error %v", r.Status, r.Body, r.Err)
		}
		entries, err := site.ReadLog(t.Context(), sent)
		if err != nil {
			t.Fatal(err)
		}
		last = entries[len(entries)-1]
		if last.Reason == "prefix" && int(last.Matched) != r.CachedTokens {
			t.Errorf("%v tokens matched, the engine says %d", last.Matched, r.CachedTokens)
		}
		return last.Reason == "prefix"
	})
	if last.Endpoint != site.Engines[1].Address || last.Matched == 0 {
		t.Errorf("at both: chosen %s with %v tokens", last.Endpoint, last.Matched)
	}

	loras(t, site.Engines[1], "unload_lora_adapter", "law")
	loras(t, site.Engines[2], "unload_lora_adapter", "law")
	eventually(t, "the router forgets the adapter", func() bool { return !slices.Contains(adapters(t, site), "law") })
	if r := chat("law"); r.Status != http.StatusNotFound {
		t.Errorf("after it is unloaded: status %d, error %v", r.Status, r.Err)
	}
	if n := metric(t, site.RouterAdmin+"/metrics", "kvsteer_pool_models_refreshes_total", `outcome="ok"`); !(n >= 3) {
		t.Errorf("%v good refreshes", n)
	}
}

// TestSaltHeader has a filter of the operator's give each tenant a salt, and tenants that try to get at another one's blocks.
func TestSaltHeader(t *testing.T) {
	text, err := os.ReadFile("testdata/salt/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startSite(t, release, lab.SiteOptions{
			Foreign: string(text),
			Pools: []lab.PoolOptions{{
				Name: "chat", Model: "sim", Engines: 2, Args: append([]string{"--salt-header", "x-cache-salt"}, quick...), Relay: true,
				Config: "salt_header: X-Cache-Salt\n  fallback: {cluster: engines}",
			}},
		})
		client := site.Client()
		defer client.Close()
		conversation := []lab.Message{{Role: "user", Content: prose(rand.New(rand.NewPCG(5, 6)), 300)}}
		key := func(tenant string) map[string]string {
			return map[string]string{"Authorization": "Bearer key-of-" + tenant}
		}
		with := func(header map[string]string, name, value string) map[string]string {
			header[name] = value
			return header
		}
		for i, c := range []struct {
			name   string
			header map[string]string
			salt   string // of the body
			cached bool
		}{
			{"a tenant's first", key("a"), "", false},
			{"its second", key("a"), "", true},
			{"another tenant", key("b"), "", false},
			{"the other's second", key("b"), "", true},
			{"the other with a's salt in the body", key("b"), "salt-of-a", true},
			{"nobody with a's salt in the header", map[string]string{"X-Cache-Salt": "salt-of-a"}, "", false},
			{"nobody without", map[string]string{}, "", true}, // the one before was this: without a salt
			{"a third with a's salt in the header", with(key("c"), "x-cache-salt", "salt-of-a"), "", false},
			{"the third's second", key("c"), "", true},
			{"a fourth with a's salt everywhere", with(key("d"), "X-CACHE-SALT", "salt-of-a"), "salt-of-a", false},
			{"a again", key("a"), "", true},
		} {
			before := blocks(t, site)
			r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", Messages: conversation, MaxTokens: 1, Salt: c.salt, Header: c.header})
			if !r.OK() {
				t.Fatalf("%s: status %d %s, error %v", c.name, r.Status, r.Body, r.Err)
			}
			entries, err := site.ReadLog(t.Context(), i+1)
			if err != nil {
				t.Fatal(err)
			}
			e := entries[i]
			if (r.CachedTokens > 0) != c.cached || int(e.Matched) != r.CachedTokens {
				t.Errorf("%s: %d tokens cached, %v matched (%s); want cached %v", c.name, r.CachedTokens, e.Matched, e.Reason, c.cached)
			}
			if !c.cached {
				eventually(t, "its blocks are known", func() bool { return blocks(t, site) > before })
			}
		}
	})
}

// TestRender has engines with and without render endpoints: with them, truncated prompts are matched too.
func TestRender(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		config string
		render string // outcome of calls of the render endpoint, "" for none
		exact  bool   // truncated prompts are matched
	}{
		{"offered", []string{"--enable-render"}, "", "ok", true},
		{"forbidden", nil, "", "not_offered", false},
		{"an older engine", []string{"--events-format", "array"}, "", "not_offered", false},
		{"switched off", []string{"--enable-render"}, "tokenize: {render: false}", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			site := startSite(t, envoyNewest, lab.SiteOptions{
				RouterConfig: c.config,
				Pools:        []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 2, Args: slices.Concat(c.args, quick)}},
			})
			text := prose(rand.New(rand.NewPCG(8, 9)), 400)
			sent := 0
			post := func(path, body string) lab.LogEntry {
				t.Helper()
				got := send(t, http.DefaultClient, site.URL, request{
					method: http.MethodPost, path: path, header: http.Header{"Content-Type": {"application/json"}}, body: strings.NewReader(body), length: int64(len(body)),
				})
				if got.status != http.StatusOK {
					t.Fatalf("%s: status %d %s", path, got.status, got.body)
				}
				sent++
				entries, err := site.ReadLog(t.Context(), sent)
				if err != nil {
					t.Fatal(err)
				}
				return entries[sent-1]
			}
			chat := fmt.Sprintf(`{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":%q}]}`, text)
			post("/v1/chat/completions", chat)
			eventually(t, "its blocks are known", func() bool { return blocks(t, site) > 0 })
			for _, effort := range []string{"low", "high"} {
				post("/v1/chat/completions", strings.Replace(chat, `"messages"`, `"reasoning_effort":"`+effort+`","messages"`, 1))
			}
			if e := post("/v1/chat/completions", chat); e.Reason != "prefix" || e.Rung != "exact" {
				t.Errorf("chat: reason %q, rung %q", e.Reason, e.Rung)
			}
			before := blocks(t, site)
			truncated := fmt.Sprintf(`{"model":"sim","max_tokens":1,"truncate_prompt_tokens":200,"prompt":%q}`, text)
			post("/v1/completions", truncated)
			eventually(t, "the truncated prompt's blocks are known", func() bool { return blocks(t, site) > before })
			e := post("/v1/completions", truncated)
			if want := map[bool]string{true: "prefix", false: "truncation"}[c.exact]; e.Reason != want || (e.Matched == 192) != c.exact {
				t.Errorf("truncated: reason %q with %v tokens, want %q", e.Reason, e.Matched, want)
			}
			calls := func(api, outcome string) float64 {
				return metric(t, site.RouterAdmin+"/metrics", "kvsteer_tokenize_calls_total", fmt.Sprintf("api=%q", api), fmt.Sprintf("outcome=%q", outcome))
			}
			if c.render != "" {
				n := calls("render", c.render)
				if c.render == "not_offered" && n > 4 || !(n > 0) { // each endpoint's two paths are remembered
					t.Errorf("%v calls of render with outcome %q", n, c.render)
				}
			}
			if c.render == "ok" {
				return
			}
			if n := calls("tokenize", "ok"); !(n >= 1) {
				t.Errorf("%v calls of /tokenize", n)
			}
		})
	}
}
