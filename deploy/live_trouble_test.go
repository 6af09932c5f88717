//go:build dashboards

package deploy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// trouble sends requests all the time, lets happen what the panels show, and gives Prometheus time to see each.
func trouble(t *testing.T, site *lab.Site, prom *prometheus) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	defer senders.Wait()
	defer cancel()
	for n := range 3 {
		senders.Go(func() { converse(ctx, site, n) })
	}
	seen := func(what, expr string) {
		t.Helper()
		eventually(t, what, func() bool { found, err := prom.instant(ctx, expr); return err == nil && found > 0 })
	}
	seen("prompts are matched", `rate(kvsteer_router_decisions_total{reason="prefix"}[10s]) > 0`)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	seen("a pool without event sources is matched by text", `rate(kvsteer_router_matched_tokens_total{pool="text", rung="approximate"}[10s]) > 0`)
	seen("what was sent longer ago than its cache holds is dropped", `rate(kvsteer_approx_dropped_blocks_total{cause="capacity"}[10s]) > 0`)
	must(site.Pause())
	seen("a hung router is waited for", `rate(envoy_http_ext_proc_message_timeouts[10s]) > 0`)
	must(site.Resume())
	for _, r := range site.Routers {
		r.Kill()
	}
	seen("requests without a router are let through", `rate(envoy_http_ext_proc_failure_mode_allowed[10s]) > 0 and on () up{job="kvsteer"} == 0`)
	must(site.StartRouter(ctx))
	must(site.Routers[1].Start(ctx))
	seen("the engines are connected to the new routers", `min(kvsteer_subscriber_connected) == 1 and on () min(kvsteer_feed_router_node_up) == 1 and on () rate(kvsteer_router_decisions_total{reason="prefix"}[10s]) > 0`)
	seen("what it missed of an engine is replayed", `kvsteer_subscriber_replayed_batches_total > 0`)
	seen("blocks that it did not see are recognised by prompts", `rate(kvsteer_subscriber_healed_blocks_total{means="hash"}[10s]) > 0`)
	seen("mirrors are saved", `rate(kvsteer_subscriber_saves_total{outcome="saved"}[10s]) > 0`)
	engine := site.Engines[0]
	engine.Kill()
	seen("a dead endpoint is taken out", `kvsteer_pool_endpoint_up == 0`)
	seen("what it says of its load is stale", `kvsteer_router_engine_stale == 1 and on (endpoint) kvsteer_scrape_stale == 1`)
	must(engine.Restart(ctx))
	seen("it comes back", `min(kvsteer_pool_endpoint_up{endpoint="`+engine.Address+`"}) == 1`)
	seen("its counters began anew", `increase(kvsteer_scrape_engine_restarts_total[30s]) > 0`)
	seen("what was known of it was forgotten", `increase(kvsteer_subscriber_resets_total{cause="disconnect"}[30s]) > 0`)
	for _, expr := range []string{`kvsteer_admin_commands_total > 0`, `increase(kvsteer_admin_commands_total[10s]) > 0`} { // a series begins with its first event
		for _, command := range []string{"drain", "undrain"} {
			must(post(ctx, site.RouterAdmin+"/api/v1/endpoints/"+engine.Address+"/"+command))
		}
		seen("commands are counted", expr)
	}
	seen("events are applied", `rate(kvsteer_subscriber_lag_seconds_count[10s]) > 0`)
	nodeTrouble(t, ctx, site, seen)
}

// nodeTrouble lets happen what the panels of nodes show.
func nodeTrouble(t *testing.T, ctx context.Context, site *lab.Site, seen func(what, expr string)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	seen("engines say what they find in their caches", `rate(kvsteer_scrape_prefix_hit_tokens_total[10s]) > 0 and on () rate(kvsteer_router_engine_prefix_hit_tokens_total[10s]) > 0`)
	seen("routers tell each other what they sent", `rate(kvsteer_feed_node_charges_total[10s]) > 0 and on () rate(kvsteer_router_peer_charges_total{outcome="entered"}[10s]) > 0`)
	seen("and what ended", `rate(kvsteer_feed_node_records_total[10s]) > 0 and on () rate(kvsteer_feed_router_records_total{outcome="received"}[10s]) > 0`)
	seen("changes of blocks go out", `rate(kvsteer_feed_node_delta_keys_total{direction="added"}[10s]) > 0 and on () rate(kvsteer_feed_router_blocks_total{kind="delta"}[10s]) > 0`)
	seen("full mirrors leave blocks out", `increase(kvsteer_subscriber_withdrawn_blocks_total[10s]) > 0 and on () kvsteer_router_endpoint_problem{problem="mirror_full"} == 1`)
	seen("DNS gives an engine", `kvsteer_discover_addresses > 0 and on () kvsteer_fleet_endpoints{origin="dns"} > 0`)
	node := site.Nodes[0]
	node.Kill()
	seen("a node is lost", `kvsteer_feed_router_node_up == 0 and kvsteer_feed_router_node_stale == 1`)
	must(node.Start(ctx))
	seen("it is back, and its blocks are copied", `min(kvsteer_feed_router_node_up) == 1 and on () increase(kvsteer_feed_router_copies_total[10s]) > 0 and on () rate(kvsteer_feed_router_copy_seconds_count[10s]) > 0`)
	drained := node.Engines[0].Address
	must(post(ctx, node.Admin+"/api/v1/endpoints/"+drained+"/drain"))
	seen("a node drains an engine", `kvsteer_fleet_leaving_endpoints{pool="chat"} == 1`)
	must(post(ctx, node.Admin+"/api/v1/endpoints/"+drained+"/undrain"))
	file, err := os.ReadFile(node.Config)
	must(err)
	stranger := "  - {address: \"10.254.0.1:8000\", events: {dial: \"tcp://127.0.0.1:1\"}}\n"
	must(os.WriteFile(node.Config, append(file, stranger...), 0o644))
	seen("an engine of another host is refused", `kvsteer_feed_router_refused_endpoints == 1 and on () increase(kvsteer_feed_router_refusals_total[10s]) > 0`)
	must(os.WriteFile(node.Config, file, 0o644))
	seen("and forgotten", `max(kvsteer_feed_router_refused_endpoints) == 0`)
}

// post sends an admin command.
func post(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("POST %s: status %d: %s", url, resp.StatusCode, text)
	}
	return err
}

// converse sends conversations to all pools, and now and then what cannot be steered.
func converse(ctx context.Context, site *lab.Site, seed int) {
	client := site.Client()
	defer client.Close()
	words := strings.Repeat("each of these words is a token or two of the prompt ", 8)
	for n := 0; ctx.Err() == nil; n++ {
		messages := []lab.Message{{Role: "system", Content: fmt.Sprint("tenant ", seed, " ", words)}}
		for turn := range 4 {
			messages = append(messages, lab.Message{Role: "user", Content: fmt.Sprint("conversation ", n, " turn ", turn, " ", words)})
			reply := client.Chat(ctx, lab.ChatRequest{Model: "sim", Host: "chat.test", Messages: messages, MaxTokens: 24})
			messages = append(messages, lab.Message{Role: "assistant", Content: reply.Text})
		}
		for turns := 2; turns <= len(messages); turns += 2 {
			client.Chat(ctx, lab.ChatRequest{Model: "text", Host: "text.test", Messages: messages[:turns], MaxTokens: 24})
		}
		for turns := 2; turns <= len(messages); turns += 2 {
			client.Chat(ctx, lab.ChatRequest{Model: "own", Host: "own.test", Messages: messages[:turns], MaxTokens: 24})
		}
		client.Chat(ctx, lab.ChatRequest{Model: "named", Host: "named.test", Messages: messages[:1], MaxTokens: 1})
		client.Chat(ctx, lab.ChatRequest{Model: "old", Host: "old.test", Messages: messages[:2], MaxTokens: 24})
		client.Chat(ctx, lab.ChatRequest{Model: "sim", Host: "chat.test", Messages: messages[1:2], MaxTokens: 1})
		client.Chat(ctx, lab.ChatRequest{Model: "nobody's", Host: "chat.test", MaxTokens: 1})
		if req, err := http.NewRequestWithContext(ctx, http.MethodPost, site.URL+"/v1/completions", strings.NewReader("no JSON")); err == nil {
			req.Host = "chat.test"
			if resp, err := client.HTTP.Do(req); err == nil {
				resp.Body.Close()
			}
		}
	}
}
