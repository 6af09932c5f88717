package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// talk is one conversation.
type talk struct {
	rng      *rand.Rand
	messages []lab.Message
}

// talks are conversations on one system prompt, one request at a time.
type talks struct {
	t      *testing.T
	site   *lab.Site
	client *lab.Client
	system lab.Message
	all    []*talk
	sent   int
	follow string // admin listener of whoever follows the engines
}

func newTalks(t *testing.T, site *lab.Site, n int) *talks {
	x := &talks{t: t, site: site, follow: site.RouterAdmin, client: site.Client(), system: lab.Message{Role: "system", Content: prose(rand.New(rand.NewPCG(3, 3)), 700)}}
	t.Cleanup(x.client.Close)
	for i := range n {
		x.all = append(x.all, x.begin(i))
	}
	return x
}

func (x *talks) begin(i int) *talk {
	return &talk{rng: rand.New(rand.NewPCG(17, uint64(i))), messages: []lab.Message{x.system}}
}

// turn sends one turn of a conversation.
func (x *talks) turn(c *talk) lab.Reply {
	x.t.Helper()
	c.messages = append(c.messages, lab.Message{Role: "user", Content: prose(c.rng, 30+c.rng.IntN(60))})
	reply := x.client.Chat(x.t.Context(), lab.ChatRequest{Model: "sim", Messages: c.messages, MaxTokens: 30 + c.rng.IntN(40)})
	if !reply.OK() {
		x.t.Fatalf("status %d %s, error %v", reply.Status, reply.Body, reply.Err)
	}
	x.sent++
	c.messages = append(c.messages, lab.Message{Role: "assistant", Content: reply.Text})
	return reply
}

// spread has every engine compute all conversations so far.
func (x *talks) spread() {
	x.t.Helper()
	for _, e := range x.site.Engines {
		client := &lab.Client{URL: e.URL(), HTTP: x.client.HTTP}
		for _, c := range x.all {
			if r := client.Chat(x.t.Context(), lab.ChatRequest{Model: "sim", Messages: c.messages, MaxTokens: 1}); !r.OK() {
				x.t.Fatalf("straight to an engine: status %d %s, error %v", r.Status, r.Body, r.Err)
			}
		}
	}
}

// round is one turn of every conversation.
func (x *talks) round() (replies []lab.Reply) {
	x.t.Helper()
	for _, c := range x.all {
		replies = append(replies, x.turn(c))
		x.settle()
	}
	return replies
}

// settle waits until what was published is applied: until no batch has come for a while, longer than the window of a node.
func (x *talks) settle() {
	x.t.Helper()
	last, since := -1.0, time.Now()
	eventually(x.t, "the router has applied all events", func() bool {
		n := metric(x.t, x.follow+"/metrics", "kvsteer_subscriber_batches_total")
		if n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 30*time.Millisecond
	})
}

// entries are what the router said of replies' requests.
func (x *talks) entries(replies ...lab.Reply) []lab.LogEntry {
	x.t.Helper()
	all, err := x.site.ReadLog(x.t.Context(), x.sent)
	if err != nil {
		x.t.Fatal(err)
	}
	byRequest := map[string]lab.LogEntry{}
	for _, e := range all {
		byRequest[e.RequestID] = e
	}
	var entries []lab.LogEntry
	for _, r := range replies {
		e, ok := byRequest[r.RequestID]
		if !ok {
			x.t.Fatalf("the access log lacks request %q", r.RequestID)
		}
		entries = append(entries, e)
	}
	return entries
}

// requireHealed holds that another conversation's system prompt is matched, and at least 95 % of what is cached once each conversation has had one more turn, none of it
// beyond that. It returns the tokens of the turn after.
func (x *talks) requireHealed() (matched, cached int) {
	x.t.Helper()
	before := len(x.all)
	fresh := x.turn(x.begin(before))
	if e := x.entries(fresh)[0]; int(e.Matched) != fresh.CachedTokens || e.Matched < 700 {
		x.t.Errorf("after one request %v tokens of another are matched, %d were cached", e.Matched, fresh.CachedTokens)
	}
	x.settle()
	x.round()

	replies := x.round()
	for i, e := range x.entries(replies...) {
		r := replies[i]
		if int(e.Matched) > r.CachedTokens {
			x.t.Errorf("%v tokens matched, %d cached", e.Matched, r.CachedTokens)
		}
		matched, cached = matched+int(e.Matched), cached+r.CachedTokens
	}
	if matched*100 < cached*95 || cached < before*700 {
		x.t.Errorf("%d of %d cached tokens are matched, want 95 %%", matched, cached)
	}
	return matched, cached
}

// TestHealing: engines run hot with a system prompt that is never evicted and 50 conversations on it, and cannot replay what they published,
// when the router is started again. The system prompt is matched again after one request (two, where hashes cannot be computed), and what the engines have cached once each
// conversation has had one more turn.
func TestHealing(t *testing.T) {
	const conversations, block = 50, 16
	for _, tt := range []struct {
		name, means string
		args        []string
		config      string
	}{
		{name: "default algorithm", means: "hash", args: []string{"--hash-algo", "sha256"}},
		{name: "sha256_cbor with a seed", means: "hash", args: []string{"--seed", "7"}, config: "hash_seed: 7"},
		{name: "hashes that cannot be computed", means: "content", args: []string{"--seed", "7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			site := startPatient(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{{
				Name: "chat", Model: "sim", Engines: 2, Args: append(tt.args, quick...), Config: tt.config,
			}}})
			x := newTalks(t, site, conversations)
			for range 2 {
				x.round()
			}
			x.spread() // the router that comes may choose either engine

			site.Router.Stop()
			restart(t, site)
			eventually(t, "a router that answers its health checks", func() bool { return routersSeen(t, site) == 1 })
			eventually(t, "both engines are connected", func() bool {
				return metric(t, site.RouterAdmin+"/metrics", "kvsteer_subscriber_connected") == 2
			})
			one := x.turn(x.all[0])
			if e := x.entries(one)[0]; e.Reason != "no_index" || int(e.Prompt) != one.PromptTokens {
				t.Errorf("first request: reason %s, %v prompt tokens, want no_index and %d", e.Reason, e.Prompt, one.PromptTokens)
			}
			x.settle()
			if tt.means == "content" { // a second request shows that the hashes cannot be computed
				x.turn(x.all[1])
				x.settle()
			}
			matched, cached := x.requireHealed()
			page, err := lab.ReadMetrics(t.Context(), site.RouterAdmin+"/metrics")
			if err != nil {
				t.Fatal(err)
			}
			sum := func(name string, labels ...string) float64 {
				n, err := page.Sum(name, labels...)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			healed := sum("kvsteer_subscriber_healed_blocks_total", fmt.Sprintf("means=%q", tt.means))
			t.Logf("%d of %d cached tokens matched; %v blocks healed, %v of %v orphans", matched, cached, healed,
				sum("kvsteer_subscriber_orphan_blocks"), sum("kvsteer_subscriber_blocks"))
			if healed < 700/block {
				t.Errorf("%v blocks were healed", healed)
			}
		})
	}
}
