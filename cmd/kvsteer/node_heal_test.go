package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/enginesim"
	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/router"
)

// nodeTalks are conversations of token ids on one system prompt, with engines that a node follows and a router that watches the node.
type nodeTalks struct {
	t       *testing.T
	r       *running
	node    *runningNode
	engines []*enginesim.Engine
	client  *http.Client
	rnd     *rand.Rand
	system  []uint32
	all     [][]uint32
}

func (x *nodeTalks) tokens(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = 2 + x.rnd.Uint32N(400)
	}
	return list
}

func body(tokens []uint32) string {
	return fmt.Sprintf(`{"model":"tiny","max_tokens":1,"prompt":[%s]}`, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(tokens)), ","), "[]"))
}

// ask sends a prompt straight to an engine, and returns how many of its tokens were cached.
func (x *nodeTalks) ask(engine string, tokens []uint32) (cached int) {
	x.t.Helper()
	resp, err := x.client.Post("http://"+engine+"/v1/completions", "application/json", strings.NewReader(body(tokens)))
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	var reply struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil || resp.StatusCode != http.StatusOK {
		x.t.Fatalf("status %d, error %v", resp.StatusCode, err)
	}
	return reply.Usage.Details.Cached
}

// send has the router choose an engine for a prompt, and sends it there.
func (x *nodeTalks) send(tokens []uint32) (d router.Decision, cached int) {
	x.t.Helper()
	d = x.r.router.Decide(x.t.Context(), router.Request{
		Meta: openai.Meta{Method: http.MethodPost, Path: "/v1/completions", ContentType: "application/json"}, Body: []byte(body(tokens)),
	})
	if d.Endpoint == "" {
		x.t.Fatalf("decision %+v", d)
	}
	return d, x.ask(d.Endpoint, tokens)
}

// turn is one turn of a conversation.
func (x *nodeTalks) turn(i int) (router.Decision, int) {
	x.all[i] = slices.Concat(x.all[i], x.tokens(80))
	return x.send(x.all[i])
}

// round is one turn of each. matched and cached are their tokens.
func (x *nodeTalks) round() (matched, cached int) {
	for i := range x.all {
		d, c := x.turn(i)
		if d.Matched > c && d.Rung == router.RungExact {
			x.t.Errorf("%d tokens are matched, %d were cached", d.Matched, c)
		}
		matched, cached = matched+d.Matched, cached+c
	}
	x.settle()
	return matched, cached
}

// settle waits until what the engines have told is at the router: the blocks of node and router are the same, and stay so.
func (x *nodeTalks) settle() {
	x.t.Helper()
	var last []int
	since := time.Now()
	x.r.until("node and router are at rest", func() bool {
		var have []int
		same := true
		for _, e := range x.engines {
			n := x.node.engine(e.Addr()).Ranks[0].Blocks
			same = same && n == x.r.endpoint(e.Addr()).Blocks
			have = append(have, n)
		}
		if !same || !slices.Equal(have, last) {
			last, since = have, time.Now()
		}
		return time.Since(since) > 60*time.Millisecond
	})
}

// excess is how many blocks the router believes an engine to hold that it does not hold.
func (x *nodeTalks) excess(e *enginesim.Engine) (excess, believed int) {
	x.t.Helper()
	resp, err := x.client.Get("http://" + e.Addr() + "/sim/blocks?pool=chat")
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	truth := readAll(x.t, resp)
	held, err := x.r.router.Blocks(e.Addr(), 1<<20)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, key := range held[0].Device {
		if !strings.Contains(truth, fmt.Sprintf("%016x", key)) {
			excess++
		}
	}
	return excess, len(held[0].Device)
}

// TestNodeHeals: engines run hot with a system prompt and conversations on it, and cannot replay what they published, when their node is started anew and knows
// nothing. Their router sends what prompts hash to. The system prompt is matched again after one request (some more where hashes cannot be computed), and what the
// engines have cached once each conversation has had one more turn. With hashes nothing is credited that is not held.
func TestNodeHeals(t *testing.T) {
	const conversations, system, prefix = 20, 700, 700 / 16 * 16
	for _, tt := range []struct {
		name, seed string
		algorithm  enginesim.HashAlgo
		more       int // requests at most
	}{
		{name: "sha256", seed: "0", algorithm: enginesim.SHA256},
		{name: "sha256_cbor", seed: "0", algorithm: enginesim.SHA256CBOR},
		{name: "hashes that cannot be computed", seed: "7", algorithm: enginesim.SHA256, more: 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			free, err := lab.FreePorts(2)
			if err != nil {
				t.Fatal(err)
			}
			site := newNodeSite(t)
			var addresses, lines []string
			for _, port := range free {
				addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", port))
				lines = append(lines, fmt.Sprintf("{address: %q, events: {replay: none}}", addresses[len(addresses)-1]))
			}
			site.write(lines...)
			x := &nodeTalks{t: t, node: site.start(), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, rnd: rand.New(rand.NewPCG(1, 2))}
			for _, address := range addresses {
				e, err := enginesim.New(enginesim.Options{
					Listen: address, Blocks: 4096, Seed: tt.seed, HashAlgo: tt.algorithm, Events: enginesim.Events{Connect: x.node.at(address).Connect},
				})
				if err != nil {
					t.Fatal(err)
				}
				background(t, e.Run)
				ready(t, e)
				x.engines = append(x.engines, e)
			}
			x.r = startFleet(t, fmt.Sprintf("nodes: [{address: %q}]\n%s", site.listen, toldPool))
			connected := func() bool {
				return !slices.ContainsFunc(addresses, func(a string) bool { return !x.r.endpoint(a).Connected || !x.node.engine(a).Ranks[0].Connected })
			}
			x.r.until("the engines are connected", connected)
			x.system = x.tokens(system)
			for range conversations {
				x.all = append(x.all, x.system)
			}
			x.round()
			for _, address := range addresses { // the router may choose either later
				for _, c := range x.all {
					x.ask(address, c)
				}
			}
			x.settle()

			x.node.stop()
			x.node = site.start()
			x.r.until("the node knows nothing", func() bool {
				return connected() && !slices.ContainsFunc(addresses, func(a string) bool { return x.r.endpoint(a).Blocks > 0 })
			})
			d, cached := x.turn(0)
			if d.Reason != router.ReasonNoIndex || cached < prefix {
				t.Errorf("first request: reason %s, %d tokens were cached", d.Reason, cached)
			}
			known := func() bool {
				return slices.ContainsFunc(addresses, func(a string) bool { return x.r.endpoint(a).Blocks >= prefix/16 })
			}
			for i := 1; i <= tt.more && !known(); i++ {
				x.settle()
				x.turn(i)
			}
			x.r.until("the system prompt is known", known)
			x.settle()
			fresh, cached := x.send(slices.Concat(x.system, x.tokens(20)))
			if fresh.Matched < prefix || cached < fresh.Matched || fresh.Rung != router.RungExact {
				t.Errorf("after one request %d tokens of another one are matched, %d were cached; rung %s", fresh.Matched, cached, fresh.Rung)
			}
			x.settle()
			x.round()
			matched, cached := x.round()
			t.Logf("%d of %d cached tokens are matched", matched, cached)
			if matched*100 < cached*95 || cached < conversations*prefix {
				t.Errorf("%d of %d cached tokens are matched, want 95 %%", matched, cached)
			}
			all := 0
			for _, e := range x.engines {
				excess, believed := x.excess(e)
				if excess > 0 {
					t.Errorf("%d of %d blocks are believed in and not held", excess, believed)
				}
				all += believed
			}
			if all < conversations {
				t.Errorf("%d blocks are believed in", all)
			}
		})
	}
}
