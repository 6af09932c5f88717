package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// small are engine arguments for caches that fill within seconds, so that blocks go as well as come, and for answers that take long enough to be cut.
// The engines repeat all that they ever published.
var small = []string{
	"--block-size", "16", "--blocks", "2048", "--prefill-rate", "200000", "--decode-rate", "200", "--chunk-interval", "10ms", "--buffer-steps", "200000",
}

// breakages are what is done to a site under load.
type breakages struct {
	t      *testing.T
	site   *lab.Site
	hang   time.Duration // how long a process that is stopped as by a hang stays so
	ending chan struct{}

	mu    sync.Mutex
	ends  []engineEnd
	count map[string]int
}

// engineEnd is one end of an engine's process.
type engineEnd struct {
	address  string
	from, to time.Time
}

// TestNodesBroken breaks everything but Envoy under load, in an order that is drawn: processes are killed, hang, and are stopped and started. Make
// soak does the same for three minutes.
func TestNodesBroken(t *testing.T) { breakNodes(t, 30*time.Second, 5*time.Second, 1) }

// breakNodes wants of three nodes, two routers behind one Envoy and six engines: no client sees an error beyond requests that an engine had in flight
// at its end; and at rest all routers believe exactly what the engines hold.
func breakNodes(t *testing.T, length, hang time.Duration, seed uint64) {
	site := startSite(t, envoyNewest, lab.SiteOptions{
		Nodes: 3, Routers: 2, EnvoyConfig: patient,
		Pools: []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 6, Args: small, Replay: true}},
	})
	w := startWatch(t, site)
	l := startLoad(t, site, audience{"chat", 12, lab.ChatRequest{Model: "sim", MaxTokens: 30}})
	b := &breakages{t: t, site: site, hang: hang, ending: make(chan struct{}), count: map[string]int{}}
	began := time.Now()
	var wg sync.WaitGroup
	for i, kind := range []func(*rand.Rand, string) error{b.engine, b.node, b.router} {
		wg.Go(func() { b.run(rand.New(rand.NewPCG(seed, uint64(i))), kind) })
	}
	lab.Wait(t.Context(), length)
	close(b.ending)
	wg.Wait()
	for _, r := range site.Routers {
		matchable(t, r, site.Engines, true)
	}
	eventually(t, "two routers that answer their health checks", func() bool { return routersSeen(t, site) == 2 })
	done := l.end()
	t.Logf("in %v: %v", time.Since(began).Round(time.Second), b.count)
	b.check(done, w)
	requireSame(t, site)
	requireFewLeft(t, site, len(done), len(done)/250)
}

// requireFewLeft wants next to nothing charged at rest, of so many requests. A record that was on its way from Envoy to a router that
// ended is lost, and what it should have ended lives until it expires, at other routers too.
func requireFewLeft(t *testing.T, site *lab.Site, requests, most int) {
	t.Helper()
	var open, foreign, tokens float64
	defer func() {
		t.Logf("of %d requests %v are left open, %v charges of other routers count, and %.0f tokens are charged", requests, open, foreign, tokens)
		if t.Failed() {
			t.Log(told(t, site))
		}
	}()
	eventually(t, "few decisions are open", func() bool {
		open, foreign, tokens = 0, 0, 0
		for _, r := range site.Routers {
			open += metric(t, r.Admin+"/metrics", "kvsteer_router_open_decisions")
			foreign += metric(t, r.Admin+"/metrics", "kvsteer_router_peer_open_charges")
			tokens += metric(t, r.Admin+"/metrics", "kvsteer_router_endpoint_running_tokens")
		}
		return open <= float64(most) && foreign <= float64(most)
	})
}

// told is what routers have told each other, for a test that failed.
func told(t *testing.T, site *lab.Site) string {
	t.Helper()
	var all []string
	for _, r := range site.Routers {
		all = append(all, series(t, r.Admin, "kvsteer_router_records_total", "kvsteer_router_peer_", "kvsteer_feed_router_records", "kvsteer_feed_router_kept", "kvsteer_feed_router_given_up", "kvsteer_feed_router_charges", "kvsteer_feed_router_node_up"))
	}
	for _, n := range site.Nodes {
		all = append(all, series(t, n.Admin, "kvsteer_feed_node_records", "kvsteer_feed_node_charges"))
	}
	return strings.Join(all, "\n")
}

// run breaks one kind of processes, one process at a time, each way once before any a second time.
func (b *breakages) run(rng *rand.Rand, kind func(*rand.Rand, string) error) {
	for {
		ways := []string{"kill", "hang", "restart"}
		rng.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
		for _, how := range ways {
			if !b.rest(time.Duration(500+rng.IntN(1500)) * time.Millisecond) {
				return
			}
			if err := kind(rng, how); err != nil {
				b.t.Error(err)
				return
			}
		}
	}
}

// rest returns false when the breaking is to end.
func (b *breakages) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.ending:
		return false
	}
}

func (b *breakages) note(what, how string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count[what+" "+how]++
}

// process breaks one process; start starts it again.
func (b *breakages) process(rng *rand.Rand, p *lab.Process, how string, start func(context.Context) error) error {
	switch how {
	case "hang":
		if err := p.Pause(); err != nil {
			return err
		}
		b.rest(b.hang)
		return p.Resume()
	case "kill":
		p.Kill()
		b.rest(time.Duration(rng.IntN(3000)) * time.Millisecond)
	default:
		p.Stop()
	}
	return start(b.t.Context())
}

func (b *breakages) node(rng *rand.Rand, how string) error {
	b.note("node", how)
	n := b.site.Nodes[rng.IntN(len(b.site.Nodes))]
	return b.process(rng, n.Process, how, n.Start)
}

func (b *breakages) router(rng *rand.Rand, how string) error {
	b.note("router", how)
	r := b.site.Routers[rng.IntN(len(b.site.Routers))]
	return b.process(rng, r.Process, how, r.Start)
}

func (b *breakages) engine(rng *rand.Rand, how string) error {
	b.note("engine", how)
	e := b.site.Engines[rng.IntN(len(b.site.Engines))]
	if how != "hang" {
		from := time.Now()
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.ends = append(b.ends, engineEnd{e.Address, from, time.Now()})
		}()
	}
	return b.process(rng, e.Process, how, e.Restart)
}

// check looks at every request as its client and as Envoy saw it.
func (b *breakages) check(done []served, w *watch) {
	t := b.t
	t.Helper()
	failed, retried, undecided, matched := 0, 0, 0, 0
	for _, e := range w.all(len(done)) {
		switch {
		case e.Code != http.StatusOK || e.Flags != "-":
			failed++
			if !b.excused(e.Upstream, e.Start, e.End()) {
				t.Errorf("a request failed that no engine had in flight at its end: %+v", e)
			}
		case e.DecisionID == "":
			undecided++
		case e.Matched > 0:
			matched++
		}
		if e.Attempts > 1 {
			retried++
		}
	}
	seen, slowest := 0, time.Duration(0)
	for _, s := range done {
		slowest = max(slowest, s.ended.Sub(s.began))
		if s.reply.OK() {
			continue
		}
		seen++
		if !b.excused("", s.began, s.ended) {
			t.Errorf("a client saw a failure outside of every engine's end: status %d %s, error %v", s.reply.Status, s.reply.Body, s.reply.Err)
		}
	}
	if seen > failed {
		t.Errorf("clients saw %d failures, the access log %d", seen, failed)
	}
	t.Logf("%d requests, slowest %v: %d matched, %d undecided, %d retried; %d failed, all in flight on one of %d engines that ended", len(done),
		slowest.Round(time.Millisecond), matched, undecided, retried, seen, len(b.ends))
	if matched*5 < 2*len(done) { // a third begins a conversation
		t.Errorf("%d of %d requests were matched, want at least 40 %%", matched, len(done))
	}
}

// excused says whether an engine, this one unless it is "", ended during a request. The access log's times are cut to milliseconds.
func (b *breakages) excused(address string, began, ended time.Time) bool {
	for _, end := range b.ends {
		if (address == "" || end.address == address) && began.Before(end.to) && ended.Add(5*time.Millisecond).After(end.from) {
			return true
		}
	}
	return false
}

// requireUncharged waits until nothing is charged at any router.
func requireUncharged(t *testing.T, site *lab.Site) {
	t.Helper()
	began := time.Now()
	var charged []string
	defer func() {
		if t.Failed() {
			t.Logf("charged: %s\n%s", strings.Join(charged, ", "), told(t, site))
		}
	}()
	eventually(t, "nothing is charged", func() bool {
		charged = nil
		for i, r := range site.Routers {
			for _, name := range []string{"kvsteer_router_open_decisions", "kvsteer_router_endpoint_running_tokens", "kvsteer_router_endpoint_backlog_tokens"} {
				if n := metric(t, r.Admin+"/metrics", name); n != 0 {
					charged = append(charged, fmt.Sprintf("router %d %s %v", i, name, n))
				}
			}
		}
		return len(charged) == 0
	})
	t.Logf("nothing was charged at %d routers %v later", len(site.Routers), time.Since(began).Round(time.Millisecond))
}

// series are the lines of a process's metrics that begin with one of these names, for a test that failed.
func series(t *testing.T, admin string, names ...string) string {
	t.Helper()
	resp, err := http.Get(admin + "/metrics")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	found := []string{admin}
	for line := range strings.Lines(string(text)) {
		for _, name := range names {
			if strings.HasPrefix(line, name) && !strings.HasSuffix(line, " 0\n") {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	return strings.Join(found, "\n")
}
