package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestTwoRouters kills and restarts routers of a pair under load. Envoy asks the other one, so that requests go without a decision only
// until its health check has found out: no client sees an error, and none goes unrouted beyond that.
func TestTwoRouters(t *testing.T) {
	// Envoy asks each router a second after the last answer and gives a check one second; two failures take a router out, and one success
	// takes it back. The rest is for a slow machine.
	const found = 2*(time.Second+time.Second) + time.Second/2

	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startSite(t, release, lab.SiteOptions{
			Routers: 2, RouterConfig: "notice: 3s",
			Pools: []lab.PoolOptions{{Name: "chat", Model: "tiny", Engines: 2, Args: steady, Dial: true}},
		})
		l := startLoad(t, site, audience{"chat", 4, lab.ChatRequest{Model: "tiny", MaxTokens: 10}})
		w := startWatch(t, site)
		healthy := func(n float64) {
			t.Helper()
			eventually(t, fmt.Sprintf("%v routers that answer their health checks", n), func() bool { return routersSeen(t, site) == n })
		}
		deciding := func(what string, routers int, begin time.Time) {
			t.Helper()
			eventually(t, fmt.Sprintf("prompts matched by %d routers %s", routers, what), func() bool {
				seen := map[string]int{}
				for _, e := range w.since(begin) {
					if e.Reason == "prefix" {
						instance, _, _ := strings.Cut(e.DecisionID, "-")
						seen[instance]++
					}
				}
				enough := 0
				for _, n := range seen {
					if n >= 5 {
						enough++
					}
				}
				return enough >= routers
			})
		}
		// unrouted looks at the requests since begin, up to well after the window in which some may go without a decision.
		unrouted := func(what string, begin time.Time, window time.Duration) {
			t.Helper()
			eventually(t, "20 requests after the window", func() bool { return len(w.since(begin.Add(window))) >= 20 })
			all, undecided, last := 0, 0, time.Duration(0)
			for _, e := range w.since(begin) {
				all++
				if e.DecisionID == "" {
					undecided++
					last = max(last, e.Start.Sub(begin))
				}
			}
			t.Logf("%s: %d of %d requests without a decision, the last one began %v after", what, undecided, all, last.Round(time.Millisecond))
			if last > window {
				t.Errorf("%s: a request without a decision %v after, want none beyond %v", what, last, window)
			}
		}

		healthy(2)
		deciding("at first", 2, time.Now())

		begin := time.Now()
		site.Routers[1].Kill()
		healthy(1)
		deciding("with one killed", 1, time.Now())
		unrouted("killed", begin, found)

		begin = time.Now()
		if err := site.Routers[1].Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		healthy(2)
		deciding("after the start", 2, time.Now())
		unrouted("started", begin, 0)

		begin = time.Now()
		if err := site.Routers[1].Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		healthy(1)
		unrouted("hung", begin, found)
		if err := site.Routers[1].Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		healthy(2)
		deciding("after a hang", 2, time.Now())

		// A stop tells health checks first: nothing is lost at all.
		begin = time.Now()
		site.Routers[0].Stop()
		if err := site.Routers[0].Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		healthy(2)
		deciding("after a restart", 2, time.Now())
		unrouted("restarted", begin, 0)

		for _, s := range l.end() {
			if !s.reply.OK() {
				t.Errorf("status %d %s, error %v", s.reply.Status, s.reply.Body, s.reply.Err)
			}
		}
	})
}
