package e2e

import (
	"math/rand/v2"
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// silentPool are engines as an operator has them before anything about kvsteer is known to them: they publish no events.
func silentPool(engines int) lab.PoolOptions {
	return lab.PoolOptions{
		Name: "chat", Model: "sim", Engines: engines, Silent: true, Config: "adapters: [sql]\n  prefill_rate: 40000",
		Args: []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "40000", "--decode-rate", "1000", "--adapter", "sql"},
	}
}

// TestFollowUpsWithoutEvents is the first path: engines that nobody has changed. Follow-up turns go to the replica that served the conversation,
// nobody is asked for tokens, and what is predicted is not more than what the engine then reports.
func TestFollowUpsWithoutEvents(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		const conversations, turns, block = 24, 5, 16
		site := startSite(t, release, lab.SiteOptions{Pools: []lab.PoolOptions{silentPool(4)}})
		all := converse(t, site, conversations, turns, 8)
		entries, err := site.ReadLog(t.Context(), len(all))
		if err != nil {
			t.Fatal(err)
		}
		byRequest := map[string]lab.LogEntry{}
		for _, e := range entries {
			byRequest[e.RequestID] = e
		}

		followUps, held, sound := 0, 0, 0
		predicted, cached := 0.0, 0.0 // shares of prompts
		last := map[int]lab.Reply{}   // the turn before, by conversation
		perEndpoint := map[string]int{}
		for turn := range turns {
			for _, r := range all {
				if r.turn != turn {
					continue
				}
				if !r.reply.OK() {
					t.Fatalf("conversation %d turn %d: status %d %s, error %v", r.conversation, r.turn, r.reply.Status, r.reply.Body, r.reply.Err)
				}
				entry := byRequest[r.reply.RequestID]
				perEndpoint[entry.Upstream]++
				if entry.Upstream != entry.Endpoint || entry.Reason != "no_events" {
					t.Errorf("the router chose %s for reason %q, Envoy went to %s", entry.Endpoint, entry.Reason, entry.Upstream)
				}
				if turn > 0 {
					followUps++
					if r.reply.CachedTokens >= last[r.conversation].PromptTokens-block {
						held++
					}
					// The bytes of a token are not known here, so shares of the prompt are compared, not tokens.
					share, real := entry.Matched/entry.Prompt, float64(r.reply.CachedTokens)/float64(r.reply.PromptTokens)
					if entry.Rung == "approximate" && share <= real+0.03 {
						sound++
					}
					predicted += share
					cached += real
				}
				last[r.conversation] = r.reply
			}
		}
		t.Logf("%d follow-ups: %d reached a holder, %d predicted no more than there was; %.1f %% of a prompt predicted, %.1f %% cached; requests per endpoint %v",
			followUps, held, sound, 100*predicted/float64(followUps), 100*cached/float64(followUps), perEndpoint)
		if want := conversations * (turns - 1); followUps != want {
			t.Fatalf("%d follow-ups, want %d", followUps, want)
		}
		if held*100 < followUps*90 || sound*100 < followUps*95 {
			t.Errorf("of %d follow-ups %d reached a holder, want 90 %%; %d were predicted soundly, want 95 %%", followUps, held, sound)
		}
		if predicted < 0.7*cached {
			t.Errorf("%.2f of what was cached was predicted, want at least 0.7", predicted/cached)
		}
		if len(perEndpoint) != 4 {
			t.Errorf("%d of 4 endpoints were used: %v", len(perEndpoint), perEndpoint)
		}
		if n := metric(t, site.RouterAdmin+"/metrics", "kvsteer_tokenize_duration_seconds_count"); n != 0 {
			t.Errorf("engines were asked for tokens %v times", n)
		}
		for _, e := range site.Engines {
			if n := routerMetric(t, site, "kvsteer_approx_endpoint_blocks", e.Address); !(n > 0) {
				t.Errorf("the router remembers %v blocks of %s", n, e.Address)
			}
		}
	})
}

// TestApproximateKeepsApart sends one prompt under several salts and adapters: each is matched only where it was sent itself. Then its engine is
// started anew, and what it was sent is forgotten.
func TestApproximateKeepsApart(t *testing.T) {
	site := startSite(t, envoyNewest, lab.SiteOptions{RouterConfig: "probe: {interval: 100ms}", Pools: []lab.PoolOptions{silentPool(3)}})
	client := site.Client()
	defer client.Close()
	messages := []lab.Message{{Role: "system", Content: prose(rand.New(rand.NewPCG(5, 6)), 400)}, {Role: "user", Content: "And now?"}}
	sent := 0
	send := func(model, salt string) (lab.LogEntry, lab.Reply) {
		t.Helper()
		reply := client.Chat(t.Context(), lab.ChatRequest{Model: model, Salt: salt, Messages: messages, MaxTokens: 5})
		if !reply.OK() {
			t.Fatalf("status %d %s, error %v", reply.Status, reply.Body, reply.Err)
		}
		sent++
		entries, err := site.ReadLog(t.Context(), sent)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.RequestID == reply.RequestID {
				return e, reply
			}
		}
		t.Fatalf("the access log lacks request %q", reply.RequestID)
		return lab.LogEntry{}, reply
	}

	first := map[[2]string]string{} // endpoint by model and salt
	kinds := [][2]string{{"sim", ""}, {"sim", "red"}, {"sim", "blue"}, {"sql", ""}, {"sql", "red"}}
	for _, k := range kinds {
		entry, reply := send(k[0], k[1])
		if entry.Rung != "load" || entry.Matched != 0 || reply.CachedTokens != 0 {
			t.Errorf("%v for the first time: rung %s, %v tokens matched, %d cached", k, entry.Rung, entry.Matched, reply.CachedTokens)
		}
		first[k] = entry.Upstream
	}
	for _, k := range kinds {
		entry, reply := send(k[0], k[1])
		if entry.Rung != "approximate" || entry.Matched == 0 || entry.Upstream != first[k] || reply.CachedTokens == 0 {
			t.Errorf("%v again: rung %s, %v tokens matched at %s, %d cached at %s", k, entry.Rung, entry.Matched, first[k], reply.CachedTokens, entry.Upstream)
		}
	}

	var victim *lab.Engine
	for _, e := range site.Engines {
		if e.Address == first[kinds[0]] {
			victim = e
		}
	}
	up := func(want float64) {
		t.Helper()
		eventually(t, "the engine's state is seen", func() bool { return routerMetric(t, site, "kvsteer_pool_endpoint_up", victim.Address) == want })
	}
	victim.Kill()
	up(0)
	if err := victim.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	up(1)
	if entry, reply := send("sim", ""); entry.Rung != "load" || entry.Matched != 0 || reply.CachedTokens != 0 {
		t.Errorf("after a new start: rung %s, %v tokens matched, %d cached", entry.Rung, entry.Matched, reply.CachedTokens)
	}
	if entry, reply := send("sim", ""); entry.Rung != "approximate" || reply.CachedTokens == 0 {
		t.Errorf("and again: rung %s, %v tokens matched, %d cached", entry.Rung, entry.Matched, reply.CachedTokens)
	}
}
