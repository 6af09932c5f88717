package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// turnResult is one turn of a conversation as its client saw it.
type turnResult struct {
	conversation, turn int
	reply              lab.Reply
}

// readingTime is what passes between two turns of a conversation: little for a person, and much beside the time that an event takes to the
// index. A follow-up that is quicker finds the turn before it still charged and not yet matched, and then another engine is as good.
const readingTime = 50 * time.Millisecond

// converse holds conversations of several turns, some at the same time, and returns every turn.
func converse(t *testing.T, site *lab.Site, conversations, turns, parallel int) []turnResult {
	t.Helper()
	client := site.Client()
	defer client.Close()
	var mu sync.Mutex
	var all []turnResult
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for c := range conversations {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			rng := rand.New(rand.NewPCG(11, uint64(c)))
			messages := []lab.Message{{Role: "system", Content: fmt.Sprintf("You serve tenant %d. ", c%5) + prose(rand.New(rand.NewPCG(3, uint64(c%5))), 300)}}
			for turn := range turns {
				messages = append(messages, lab.Message{Role: "user", Content: prose(rng, 40+rng.IntN(120))})
				reply := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", Messages: messages, MaxTokens: 20 + rng.IntN(60)})
				mu.Lock()
				all = append(all, turnResult{c, turn, reply})
				mu.Unlock()
				messages = append(messages, lab.Message{Role: "assistant", Content: reply.Text})
				lab.Wait(t.Context(), readingTime)
			}
		})
	}
	wg.Wait()
	return all
}

// prose returns n words that the generator draws.
func prose(rng *rand.Rand, n int) string {
	const letters = "etaoinshrdlucmfwypvbgkjqxz"
	words := make([]string, n)
	for i := range words {
		word := make([]byte, 2+rng.IntN(8))
		for j := range word {
			word[j] = letters[rng.IntN(rng.IntN(len(letters))+1)]
		}
		words[i] = string(word)
	}
	return strings.Join(words, " ")
}

// TestFollowUpsReachTheHolder is the main job: follow-up turns go to a replica that holds their prefix, and what the router
// predicted is what the engine then reports.
func TestFollowUpsReachTheHolder(t *testing.T) {
	const conversations, turns = 40, 5
	site := startPatient(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{
		{Name: "chat", Model: "sim", Engines: 4, Args: []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "40000", "--decode-rate", "1000"}},
	}})
	all := converse(t, site, conversations, turns, 8)
	requireFollowUps(t, site, all, conversations, turns)
}

// requireFollowUps holds of conversations on a fresh site with blocks of 16 tokens that nearly all follow-ups went to a holder of their prefix and
// that the router had predicted what was cached there, and that every endpoint was used.
func requireFollowUps(t *testing.T, site *lab.Site, all []turnResult, conversations, turns int) {
	t.Helper()
	const block = 16
	entries, err := site.ReadLog(t.Context(), len(all))
	if err != nil {
		t.Fatal(err)
	}
	byRequest := map[string]lab.LogEntry{}
	for _, e := range entries {
		byRequest[e.RequestID] = e
	}

	followUps, held, predicted := 0, 0, 0
	last := map[int]lab.Reply{} // the turn before, by conversation
	perEndpoint := map[string]int{}
	for turn := range turns {
		for _, r := range all {
			if r.turn != turn {
				continue
			}
			if !r.reply.OK() {
				t.Fatalf("conversation %d turn %d: status %d %s, error %v", r.conversation, r.turn, r.reply.Status, r.reply.Body, r.reply.Err)
			}
			entry, ok := byRequest[r.reply.RequestID]
			if !ok {
				t.Fatalf("the access log lacks request %q", r.reply.RequestID)
			}
			perEndpoint[entry.Upstream]++
			if entry.Upstream != entry.Endpoint {
				t.Errorf("the router chose %s, Envoy went to %s", entry.Endpoint, entry.Upstream)
			}
			if turn > 0 {
				followUps++
				// A replica holds the prefix when it reports the previous prompt cached, but for its last, partial block.
				if r.reply.CachedTokens >= last[r.conversation].PromptTokens-block {
					held++
				} else {
					t.Logf("conversation %d turn %d at %s: %d of %d tokens cached, %v matched, reason %s; the turn before had %d tokens",
						r.conversation, r.turn, entry.Endpoint, r.reply.CachedTokens, r.reply.PromptTokens, entry.Matched, entry.Reason, last[r.conversation].PromptTokens)
				}
				if int(entry.Prompt) != r.reply.PromptTokens {
					t.Errorf("the router counted %v prompt tokens, the engine %d", entry.Prompt, r.reply.PromptTokens)
				}
				if difference := int(entry.Matched) - r.reply.CachedTokens; difference >= -block && difference <= block {
					predicted++
				}
			}
			last[r.conversation] = r.reply
		}
	}
	t.Logf("%d follow-ups: %d reached a holder, %d predicted within one block; requests per endpoint %v", followUps, held, predicted, perEndpoint)
	if want := conversations * (turns - 1); followUps != want {
		t.Fatalf("%d follow-ups, want %d", followUps, want)
	}
	if held*100 < followUps*95 {
		t.Errorf("%d of %d follow-ups reached a holder, want at least 95 %%", held, followUps)
	}
	if predicted*100 < followUps*95 {
		t.Errorf("%d of %d follow-ups had the cached tokens that were predicted, want at least 95 %%", predicted, followUps)
	}
	if len(perEndpoint) != len(site.Engines) {
		t.Errorf("%d of %d endpoints were used: %v", len(perEndpoint), len(site.Engines), perEndpoint)
	}
}
