package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestNodesUpgrade restarts all routers, then all nodes, then all engines, one process after the other and engines after a drain, under load: no
// client sees an error, and what share of the prompts was cached does not drop by more than 5 points for longer than a copy takes.
func TestNodesUpgrade(t *testing.T) {
	const (
		settle = 3 * time.Second // before, between and after
		rest   = 3 * time.Second // for what an engine's cache has lost to be computed again
	)
	site := startSite(t, envoyNewest, lab.SiteOptions{
		Nodes: 2, Routers: 2, EnvoyConfig: patient, RouterConfig: "notice: 3s",
		Pools: []lab.PoolOptions{{
			Name: "chat", Model: "sim", Engines: 6, Replay: true,
			Args: []string{"--block-size", "16", "--blocks", "16384", "--prefill-rate", "200000", "--decode-rate", "400", "--chunk-interval", "10ms"},
		}},
	})
	healthy := func() {
		t.Helper()
		eventually(t, "two routers that answer their health checks", func() bool { return routersSeen(t, site) == 2 })
	}
	all := func(ok func(viewed) bool) {
		t.Helper()
		eventually(t, "every endpoint is as it should be at both routers", func() bool {
			for _, r := range site.Routers {
				at := view(t, r)
				for _, e := range site.Engines {
					if v, known := at[e.Address]; !known || !ok(v) {
						return false
					}
				}
			}
			return true
		})
	}
	healthy()
	u := startUsers(t, site, 32)
	lab.Wait(t.Context(), settle)

	var marks []mark
	phase := func(what string, n int, restart func(i int)) {
		t.Helper()
		m := mark{what: what, from: time.Now()}
		for i := range n {
			restart(i)
		}
		m.to = time.Now()
		marks = append(marks, m)
		lab.Wait(t.Context(), settle)
	}
	phase("routers", len(site.Routers), func(i int) {
		site.Routers[i].Stop()
		if err := site.Routers[i].Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		healthy()
	})
	var copied time.Duration // the longest time from a node's start to its blocks at both routers
	phase("nodes", len(site.Nodes), func(i int) {
		site.Nodes[i].Stop()
		began := time.Now()
		if err := site.Nodes[i].Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		watched(t, site, site.Nodes[i])
		all(func(v viewed) bool { return v.Matchable })
		copied = max(copied, time.Since(began))
	})
	phase("engines", len(site.Engines), func(i int) {
		e, n := site.Engines[i], site.Nodes[i%len(site.Nodes)]
		drainAt(t, n, e, "drain")
		all(func(v viewed) bool { return v.Draining == (v.Address == e.Address) })
		u.answered() // a request that was decided before the drain may still be on its way
		eventually(t, "the engine is idle", func() bool {
			return metric(t, e.URL()+"/metrics", "vllm:num_requests_running")+metric(t, e.URL()+"/metrics", "vllm:num_requests_waiting") == 0
		})
		e.Stop()
		if err := e.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		drainAt(t, n, e, "undrain")
		all(func(v viewed) bool { return !v.Draining && v.Healthy && v.Connected })
		lab.Wait(t.Context(), rest)
	})
	turns := u.end()
	u.check(turns, marks, copied)
	requireSame(t, site)
	requireFewLeft(t, site, len(turns), len(turns)/400)
}

// watched waits until every router is connected with a node: what it knew before stays matched for a while without.
func watched(t *testing.T, site *lab.Site, n *lab.Node) {
	t.Helper()
	eventually(t, "every router is connected with the node", func() bool {
		for _, r := range site.Routers {
			if metric(t, r.Admin+"/metrics", "kvsteer_feed_router_node_up", fmt.Sprintf("node=%q", n.Addr)) != 1 {
				return false
			}
		}
		return true
	})
}

// drainAt has a node drain an engine or end that.
func drainAt(t *testing.T, n *lab.Node, e *lab.Engine, what string) {
	t.Helper()
	resp, err := http.Post(n.Admin+"/api/v1/endpoints/"+e.Address+"/"+what, "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s of %s: status %d", what, e.Address, resp.StatusCode)
	}
}

// mark is a time in which processes of a kind were restarted.
type mark struct {
	what     string
	from, to time.Time
}

// users hold conversations, one after the other, on the prompts of a few tenants.
type users struct {
	t      *testing.T
	site   *lab.Site
	ending chan struct{}
	once   sync.Once
	wg     sync.WaitGroup

	answers []atomic.Int64 // of each user

	mu   sync.Mutex
	done []served
}

func startUsers(t *testing.T, site *lab.Site, n int) *users {
	u := &users{t: t, site: site, ending: make(chan struct{}), answers: make([]atomic.Int64, n)}
	client := site.Client()
	for c := range n {
		u.wg.Go(func() { u.converse(t.Context(), client, rand.New(rand.NewPCG(31, uint64(c))), &u.answers[c]) })
	}
	t.Cleanup(func() {
		u.end()
		client.Close()
	})
	return u
}

func (u *users) converse(ctx context.Context, client *lab.Client, rng *rand.Rand, answers *atomic.Int64) {
	const turns = 10
	for {
		messages := []lab.Message{tenant(rng.IntN(6))}
		for range turns {
			select {
			case <-u.ending:
				return
			default:
			}
			messages = append(messages, lab.Message{Role: "user", Content: prose(rng, 30)})
			s := served{began: time.Now()}
			s.reply = client.Chat(ctx, lab.ChatRequest{Model: "sim", Messages: messages, MaxTokens: 20 + rng.IntN(20)})
			s.ended = time.Now()
			answers.Add(1)
			u.mu.Lock()
			u.done = append(u.done, s)
			u.mu.Unlock()
			if !s.reply.OK() || !lab.Wait(ctx, time.Duration(100+rng.IntN(200))*time.Millisecond) {
				break
			}
			messages = append(messages, lab.Message{Role: "assistant", Content: s.reply.Text})
		}
	}
}

// answered waits until every user has had another answer: all requests that were under way have ended then.
func (u *users) answered() {
	u.t.Helper()
	before := make([]int64, len(u.answers))
	for i := range before {
		before[i] = u.answers[i].Load()
	}
	eventually(u.t, "every user has had another answer", func() bool {
		for i := range before {
			if u.answers[i].Load() == before[i] {
				return false
			}
		}
		return true
	})
}

func tenant(n int) lab.Message {
	return lab.Message{Role: "system", Content: prose(rand.New(rand.NewPCG(30, uint64(n))), 200)}
}

// end lets every user finish a turn and returns all turns.
func (u *users) end() []served {
	u.once.Do(func() { close(u.ending) })
	u.wg.Wait()
	return u.done
}

// check wants no error, and of each restart that the cached share of the turns that were routed is soon what it was before.
func (u *users) check(turns []served, marks []mark, copied time.Duration) {
	t := u.t
	t.Helper()
	const window = 2 * time.Second
	entries, err := u.site.ReadLog(t.Context(), len(turns))
	if err != nil {
		t.Fatal(err)
	}
	routed := map[string]bool{}
	undecided := 0
	for _, e := range entries {
		routed[e.RequestID] = e.DecisionID != ""
		if e.DecisionID == "" {
			undecided++
		}
	}
	failed := 0
	for _, s := range turns {
		if !s.reply.OK() {
			failed++
			t.Errorf("status %d %s, error %v", s.reply.Status, s.reply.Body, s.reply.Err)
		}
	}
	share := func(from, to time.Time) (percent float64, n int) {
		prompt, cached := 0, 0
		for _, s := range turns {
			if s.began.Before(from) || !s.began.Before(to) || !routed[s.reply.RequestID] {
				continue
			}
			n++
			prompt, cached = prompt+s.reply.PromptTokens, cached+s.reply.CachedTokens
		}
		return 100 * float64(cached) / float64(max(1, prompt)), n
	}
	var text strings.Builder
	for _, m := range marks {
		before, n := share(m.from.Add(-window), m.from)
		lowest, low, longest := before, time.Duration(0), time.Duration(0)
		for at := m.from; at.Before(m.to.Add(time.Second)); at = at.Add(window / 4) {
			now, k := share(at, at.Add(window))
			if k == 0 {
				continue
			}
			lowest = min(lowest, now)
			if now < before-5 {
				low += window / 4
			} else {
				low = 0
			}
			longest = max(longest, low)
		}
		fmt.Fprintf(&text, "\n%s in %v: %.1f %% of %d turns' prompts were cached before, at the lowest %.1f %% in %v; below by more than 5 points for %v", m.what,
			m.to.Sub(m.from).Round(time.Millisecond), before, n, lowest, window, longest)
		if longest > copied+window {
			t.Errorf("the restart of %s has cost more than 5 points for %v, want at most the %v of a copy", m.what, longest, copied)
		}
	}
	t.Logf("%d turns, %d failed, %d without a decision; copies took at most %v from a node's start%s", len(turns), failed, undecided, copied.Round(time.Millisecond), text.String())
	if undecided > 0 {
		t.Errorf("%d turns had no decision", undecided)
	}
}
