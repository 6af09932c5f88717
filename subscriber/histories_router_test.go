package subscriber_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// historyRouter is a router that watches the node.
type historyRouter struct {
	*router.Router
	index *kvindex.Index
	links *lab.Links
	end   func()
}

// watch starts a router with an empty index.
func (h *history) watch() *historyRouter {
	pools, err := pool.New(pool.Options{Pools: []pool.Config{{
		Name: "chat", Models: []string{"llama"}, Adapters: []string{"sql"}, Endpoints: []string{"127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002"}, Ranks: map[string]int{"127.0.0.1:8000": 2},
	}}})
	if err != nil {
		h.t.Fatal(err)
	}
	index, err := kvindex.New(kvindex.Options{MaxSlots: 64, CheckEvery: 1})
	if err != nil {
		h.t.Fatal(err)
	}
	r := &historyRouter{index: index, links: &lab.Links{}}
	if r.Router, err = router.New(router.Options{Pools: pools, Index: index}); err != nil {
		h.t.Fatal(err)
	}
	f, err := feed.NewRouter(feed.RouterOptions{
		Instance: r.Instance(), Fleet: historyFleet{r.Router}, Dial: r.links.Dial, StaleAfter: h.stale,
		BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	f.Set([]feed.Address{{Addr: h.addr}})
	r.end = h.run(f.Run)
	return r
}

// historyFleet puts the blocks of all endpoints into a router's index, and nothing else.
type historyFleet struct{ router *router.Router }

type historySink struct {
	*router.Source
	router *router.Router
}

func (s historySink) TellPrompts(h feed.Hearer) { s.Source.TellPrompts(h) }

func (s historySink) Lost() bool { return !s.router.Follows(s.Source) }

func (f historyFleet) Sink(pool, endpoint string, rank int) (feed.Sink, error) {
	s, err := f.router.Source(pool, endpoint, rank)
	if err != nil {
		return nil, err
	}
	return historySink{s, f.router}, nil
}

func (historyFleet) Serve(string, []feed.Replica)   {}
func (historyFleet) Silent(string)                  {}
func (historyFleet) Load(string, []feed.Load)       {}
func (historyFleet) Charge(string, feed.Charge)     {}
func (historyFleet) Release(string, string, uint64) {}
func (historyFleet) Gone(string)                    {}
func (historyFleet) Record(feed.Record)             {}

// decide has both routers say where prompts go.
func (h *history) decide() {
	for range 5 {
		p := h.lives[h.rnd.IntN(len(h.lives))].Prompt()
		body := map[string]any{"model": "llama", "prompt": p.Tokens, "max_tokens": 1}
		if p.Adapter != "" {
			body["model"] = p.Adapter
		}
		if p.Salt != "" {
			body["cache_salt"] = p.Salt
		}
		text, err := json.Marshal(body)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, r := range h.routers {
			d := r.Decide(h.t.Context(), router.Request{
				Meta: openai.Meta{Method: "POST", Path: "/v1/completions", ContentType: "application/json"}, Body: text,
			})
			if d.Matched > 0 {
				h.happened["matched"]++
			}
		}
	}
}

// endRouter ends a router and holds its matches to what their checks found.
func (h *history) endRouter(r *historyRouter) {
	r.end()
	st := r.index.Stats()
	if st.Differences+st.Opened > 0 {
		h.t.Errorf("%d of %d matches found something else than a walk does, and %d sources were not closed under prefix", st.Differences, st.Checks, st.Opened)
	}
	h.happened["checks"] += int(st.Checks)
}

// credited is what a prompt is matched with, by tier.
func (r *historyRouter) credited(t *testing.T, endpoint string, rank int) (tiers [2]map[uint64]bool) {
	t.Helper()
	all, err := r.Blocks("127.0.0.1"+endpoint, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for tier, keys := range [2][]uint64{subscriber.Device: all[rank].Device, subscriber.Any: all[rank].Any} {
		tiers[tier] = map[uint64]bool{}
		for _, key := range keys {
			tiers[tier][key] = true
		}
	}
	return tiers
}
