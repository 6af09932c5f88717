package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/lab"
)

const rankBlock = 16 // tokens per block of the engines here

// rankPool is a pool of two engines with two data-parallel ranks each.
func rankPool(config string) lab.PoolOptions {
	return lab.PoolOptions{
		Name: "chat", Model: "sim", Config: config, Engines: 2, Ranks: 2, Dial: true, Replay: true,
		Args: []string{"--block-size", strconv.Itoa(rankBlock), "--blocks", "8192", "--prefill-rate", "40000", "--decode-rate", "1000"},
	}
}

// held sums the blocks that the router knows of all endpoints.
func held(t *testing.T, site *lab.Site) (blocks float64) {
	t.Helper()
	for _, e := range site.Engines {
		blocks += metric(t, site.RouterAdmin+"/metrics", "kvsteer_router_endpoint_blocks", `endpoint="`+e.Address+`"`, `tier="device"`)
	}
	return blocks
}

// TestMeanOfRanks holds that what is predicted of an engine that chooses among its ranks is the mean of what they hold: with a header that names a rank
// each engine is asked what that rank holds, and between these questions it is left to choose.
func TestMeanOfRanks(t *testing.T) {
	const prompts = 6
	site := startPatient(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{rankPool("pin_rank: false")}})
	client := site.Client()
	defer client.Close()
	requests := 0
	ask := func(prompt, rank string) (lab.Reply, lab.LogEntry) {
		t.Helper()
		r := lab.ChatRequest{Model: "sim", Messages: []lab.Message{{Role: "user", Content: prompt}}, MaxTokens: 1, Header: map[string]string{}}
		if rank != "" {
			r.Header[envoy.HeaderRank] = rank
		}
		before := held(t, site)
		reply := client.Chat(t.Context(), r)
		if !reply.OK() {
			t.Fatalf("status %d %s, error %v", reply.Status, reply.Body, reply.Err)
		}
		computed := float64((reply.PromptTokens - reply.CachedTokens) / rankBlock)
		eventually(t, "the router knows what was computed", func() bool { return held(t, site) >= before+computed })
		requests++
		entries, err := site.ReadLog(t.Context(), requests)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.RequestID == reply.RequestID {
				return reply, e
			}
		}
		t.Fatalf("the access log lacks request %q", reply.RequestID)
		return lab.Reply{}, lab.LogEntry{}
	}
	near := func(a, b int) bool { return a-b <= rankBlock && b-a <= rankBlock }
	for _, rank := range []string{"0", "1"} { // before that prompts are matched by their text
		ask("A prompt of its own for rank "+rank+" of some engine, which knows no block until then. "+prose(rand.New(rand.NewPCG(8, uint64(len(rank)))), 40), rank)
	}
	for i := range prompts {
		prompt := prose(rand.New(rand.NewPCG(7, uint64(i))), 300)
		first, other := strconv.Itoa(i%2), strconv.Itoa(1-i%2)

		fresh, entry := ask(prompt, first)
		where := entry.Upstream
		whole := fresh.PromptTokens / rankBlock * rankBlock
		if fresh.CachedTokens != 0 || entry.Matched != 0 || entry.Rank != nil {
			t.Fatalf("a fresh prompt: %+v, %+v", fresh, entry)
		}
		own, entry := ask(prompt, first)
		if entry.Upstream != where || !near(int(entry.Matched), own.CachedTokens) || !near(own.CachedTokens, whole) {
			t.Errorf("rank %s, which holds %d tokens: %v predicted, %d cached", first, whole, entry.Matched, own.CachedTokens)
		}
		none, entry := ask(prompt, "")
		if entry.Upstream != where || !near(int(entry.Matched), whole/2) {
			t.Errorf("one rank of two holds %d tokens: %v predicted", whole, entry.Matched)
		}
		if none.CachedTokens != 0 && !near(none.CachedTokens, whole) {
			t.Errorf("one rank of two holds %d tokens: %d cached", whole, none.CachedTokens)
		}
		if none.CachedTokens != 0 { // it ran where the first one did: the other rank holds nothing yet
			if late, entry := ask(prompt, other); entry.Matched != 0 || late.CachedTokens != 0 {
				t.Errorf("rank %s, which holds nothing: %v predicted, %d cached", other, entry.Matched, late.CachedTokens)
			} else if entry.Upstream != where { // nobody holds it at that rank, so any engine was as good
				continue
			}
		}
		both, entry := ask(prompt, "")
		if entry.Upstream != where || !near(int(entry.Matched), whole) || !near(both.CachedTokens, whole) {
			t.Errorf("both ranks hold %d tokens: %v predicted, %d cached", whole, entry.Matched, both.CachedTokens)
		}
	}
}

// TestRanksOfTheirOwn is the main job where engines choose among their ranks: conversations go on, and over many follow-ups the predicted tokens
// are those that the engines find.
func TestRanksOfTheirOwn(t *testing.T) {
	const conversations, turns = 30, 5
	site := startPatient(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{rankPool("pin_rank: false")}})
	all := converse(t, site, conversations, turns, 4)
	entries := byRequest(t, site, len(all))
	predicted, cached := 0.0, 0
	for _, r := range all {
		if !r.reply.OK() {
			t.Fatalf("conversation %d turn %d: status %d %s, error %v", r.conversation, r.turn, r.reply.Status, r.reply.Body, r.reply.Err)
		}
		e := entries[r.reply.RequestID]
		if e.Upstream != e.Endpoint || e.Rank != nil {
			t.Errorf("%+v", e)
		}
		predicted, cached = predicted+e.Matched, cached+r.reply.CachedTokens
	}
	t.Logf("%.0f tokens predicted, %d cached", predicted, cached)
	if ratio := predicted / float64(cached); !(ratio > 0.7 && ratio < 1.3) {
		t.Errorf("%.0f tokens predicted, %d cached", predicted, cached)
	}
}

// TestPinnedRanksReachTheHolder is the main job where decisions choose ranks too. What clients write into the header that tells the engine never
// reaches it, with a router or without.
func TestPinnedRanksReachTheHolder(t *testing.T) {
	const conversations, turns = 40, 5
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startPatient(t, release, lab.SiteOptions{Pools: []lab.PoolOptions{rankPool("pin_rank: true")}})
		all := converse(t, site, conversations, turns, 8)
		requireFollowUps(t, site, all, conversations, turns)
		seats := map[string]int{}
		for _, e := range byRequest(t, site, len(all)) {
			if e.Rank == nil {
				t.Fatalf("no rank in %+v", e)
			}
			seats[fmt.Sprintf("%s/%d", e.Endpoint, *e.Rank)]++
		}
		if len(seats) != 4 {
			t.Errorf("%d of 4 ranks were used: %v", len(seats), seats)
		}
		t.Logf("requests by rank: %v", seats)

		client := site.Client()
		defer client.Close()
		for _, phase := range []string{"router up", "router down"} {
			if phase == "router down" {
				site.Router.Kill()
			}
			for _, rank := range []string{"0", "1", "7", "-1", "99999999999999999999", "x"} { // a real engine answers 400 to most of them
				reply := client.Chat(t.Context(), lab.ChatRequest{
					Model: "sim", Messages: []lab.Message{{Role: "user", Content: "Where does this go?"}}, MaxTokens: 1, Header: map[string]string{envoy.HeaderRank: rank},
				})
				if reply.Status != http.StatusOK {
					t.Errorf("%s, rank %s: status %d %s, error %v", phase, rank, reply.Status, reply.Body, reply.Err)
				}
			}
		}
	})
}

// byRequest reads the access log once it holds so many requests.
func byRequest(t *testing.T, site *lab.Site, requests int) map[string]lab.LogEntry {
	t.Helper()
	entries, err := site.ReadLog(t.Context(), requests)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]lab.LogEntry{}
	for _, e := range entries {
		m[e.RequestID] = e
	}
	return m
}
