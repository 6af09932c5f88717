package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestRouterFailures kills, hangs and stops the router under load. No client sees an error: requests go on to engines of their own
// pool, where the other pool's model is a 404. When the router is back, prompts are matched again as events arrive.
func TestRouterFailures(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		// One release tells the pools apart by host, the other by header.
		one := lab.ChatRequest{Model: "model-one", MaxTokens: 10, Host: "one.test"}
		two := lab.ChatRequest{Model: "model-two", MaxTokens: 10, Host: "two.test"}
		matches := []string{"{host: one.test}", "{host: two.test}"}
		if release == envoyOldest {
			one.Host, one.Header = "", map[string]string{"x-pool": "one"}
			two.Host, two.Header = "", map[string]string{"x-pool": "two"}
			matches = []string{"{header: {name: x-pool, value: one}}", "{header: {name: x-pool, value: two}}"}
		}
		site := startSite(t, release, lab.SiteOptions{Pools: []lab.PoolOptions{
			{Name: "one", Model: "model-one", Match: matches[0], Engines: 2, Args: steady},
			{Name: "two", Model: "model-two", Match: matches[1], Engines: 2, Args: steady},
		}})
		l := startLoad(t, site, audience{"one", 3, one}, audience{"two", 3, two})
		w := startWatch(t, site)
		breakRouter(t, site, l, w)
		done := l.end()
		checkRouterFailures(t, done, w)
	})
}

// breakRouter kills, hangs and stops the router under load, and has it come back each time.
func breakRouter(t *testing.T, site *lab.Site, l *load, w *watch) {
	t.Helper()
	matched := func(what string) {
		t.Helper()
		var replies map[string]lab.Reply
		begin := time.Now()
		eventually(t, "a router that answers its health checks", func() bool { return routersSeen(t, site) == 1 })
		w.untilEachPool("requests matched "+what, 4, begin, func(e lab.LogEntry) bool {
			if e.Reason != "prefix" {
				return false
			}
			if _, ok := replies[e.RequestID]; !ok {
				replies = l.replies()
			}
			return replies[e.RequestID].CachedTokens > 0
		})
	}
	undecided := func(e lab.LogEntry) bool { return e.DecisionID == "" }

	matched("at first")

	begin := time.Now()
	site.Router.Kill()
	w.untilEachPool("requests without a killed router", 10, begin, undecided)
	restart(t, site)
	matched("after a kill")

	begin = time.Now()
	if err := site.Pause(); err != nil {
		t.Fatal(err)
	}
	w.untilEachPool("requests with a hung router", 2, begin, undecided)
	eventually(t, "Envoy takes a hung router out", func() bool { return routersSeen(t, site) == 0 })
	w.untilEachPool("requests without a hung router", 10, time.Now(), undecided)
	if err := site.Resume(); err != nil {
		t.Fatal(err)
	}
	matched("after a hang")

	begin = time.Now()
	site.Router.Stop()
	w.untilEachPool("requests without a stopped router", 10, begin, undecided)
	restart(t, site)
	matched("after a stop")
}

func restart(t *testing.T, site *lab.Site) {
	t.Helper()
	if err := site.StartRouter(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// routersSeen is the number of routers that Envoy takes for healthy.
func routersSeen(t *testing.T, site *lab.Site) float64 {
	t.Helper()
	return metric(t, site.EnvoyAdmin+"/stats/prometheus?filter=membership_healthy", "envoy_cluster_membership_healthy", `envoy_cluster_name="kvsteer_router"`)
}

// checkRouterFailures checks every request of the test.
func checkRouterFailures(t *testing.T, done []served, w *watch) {
	t.Helper()
	byID := map[string]lab.LogEntry{}
	for _, e := range w.all(len(done)) {
		byID[e.RequestID] = e
	}
	bad, undecided, prefix, over := 0, 0, 0, 0
	routers := map[string]bool{}
	var slowest time.Duration
	for _, s := range done {
		entry := byID[s.reply.RequestID]
		slowest = max(slowest, s.ended.Sub(s.began))
		switch {
		case !s.reply.OK():
			t.Errorf("pool %s: status %d %s, error %v", s.pool, s.reply.Status, s.reply.Body, s.reply.Err)
			bad++
		case w.pools[entry.Upstream] != s.pool:
			t.Errorf("pool %s: answered by %q of pool %q", s.pool, entry.Upstream, w.pools[entry.Upstream])
			bad++
		case entry.DecisionID == "":
			undecided++
		case entry.Endpoint != entry.Upstream:
			t.Errorf("pool %s: the router chose %s, Envoy went to %s after %d attempts", s.pool, entry.Endpoint, entry.Upstream, entry.Attempts)
			bad++
		case entry.Reason == "prefix":
			prefix++
			instance, _, _ := strings.Cut(entry.DecisionID, "-")
			routers[instance] = true
			// What a router has missed it may not match, but what it matches is there.
			if int(entry.Matched) > s.reply.CachedTokens+blockSize {
				t.Errorf("%v tokens matched, %d cached", entry.Matched, s.reply.CachedTokens)
				over++
			}
		}
		if bad+over > 10 {
			t.Fatal("and perhaps more")
		}
	}
	t.Logf("%d requests, %d undecided, %d matched by %d routers one after the other, slowest %v", len(done), undecided, prefix, len(routers), slowest.Round(time.Millisecond))
	if len(routers) != 3 {
		t.Errorf("prompts matched by %d routers, want 3: before the kill, after it, and after the stop", len(routers))
	}
}
