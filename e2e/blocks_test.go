package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestRouterKnowsWhatEnginesHold compares, block by block, what a router that follows the engines itself believes with what they hold, after their
// caches were full.
func TestRouterKnowsWhatEnginesHold(t *testing.T) {
	site := startSite(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{{
		Name: "chat", Model: "sim", Engines: 2, Args: []string{"--block-size", "16", "--blocks", "256", "--prefill-rate", "1000000", "--decode-rate", "2000"},
	}}})
	l := startLoad(t, site, audience{"chat", 8, lab.ChatRequest{Model: "sim", MaxTokens: 30}})
	lab.Wait(t.Context(), 3*time.Second)
	for _, s := range l.end() {
		if !s.reply.OK() {
			t.Errorf("status %d %s, error %v", s.reply.Status, s.reply.Body, s.reply.Err)
		}
	}
	requireSame(t, site)
	if _, blocks := difference(t, site); blocks < 300 {
		t.Errorf("the engines hold %d blocks, want their caches to be about full", blocks)
	}
}

// difference tells how what the routers believe differs from what the engines hold, "" when it does not; blocks is how many these are.
func difference(t *testing.T, site *lab.Site) (text string, blocks int) {
	t.Helper()
	var lines []string
	for i, e := range site.Engines {
		held, err := e.Blocks(t.Context())
		if err != nil {
			lines = append(lines, err.Error())
			continue
		}
		blocks += len(held)
		for j, r := range site.Routers {
			believed, err := r.Blocks(t.Context(), e.Address)
			if err != nil {
				lines = append(lines, err.Error())
				continue
			}
			if missed, invented := believed.Lacks(held), held.Lacks(believed); missed+invented > 0 {
				lines = append(lines, fmt.Sprintf("router %d misses %d of the %d blocks of engine %d, and believes in %d that are not there", j, missed, len(held), i, invented))
			}
		}
	}
	return strings.Join(lines, "\n"), blocks
}

// requireSame waits until every router believes exactly what the engines, which are at rest, hold.
func requireSame(t *testing.T, site *lab.Site) {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		text, blocks := difference(t, site)
		if text == "" {
			t.Logf("%d routers believe exactly what the %d engines hold, %d blocks, after %v", len(site.Routers), len(site.Engines), blocks, time.Since(began).Round(time.Millisecond))
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("the routers do not come to believe what the engines hold:\n%s", text)
		case <-tick.C:
		}
	}
}
