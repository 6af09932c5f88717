package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestReload changes the configuration of a router under load, in each of the ways that files are replaced. No client sees an error, every
// request is decided, and what is known of the engines that stay is not lost.
func TestReload(t *testing.T) {
	site := startPatient(t, envoyNewest, lab.SiteOptions{
		RouterConfig: "index: {max_endpoints: 3}\nlimits: {prompt_tokens: 262144}",
		Pools:        []lab.PoolOptions{{Name: "chat", Model: "tiny", Engines: 3, Args: steady, Dial: true}},
	})
	l := startLoad(t, site, audience{"chat", 3, lab.ChatRequest{Model: "tiny", MaxTokens: 5}})
	w := startWatch(t, site)
	c := newChanger(t, site)

	// A prompt that one engine holds. It stays with that engine, and so many tokens of it are matched, whatever else changes.
	client := site.Client()
	t.Cleanup(client.Close)
	rng := rand.New(rand.NewPCG(9, 9))
	some := func(words int) lab.ChatRequest {
		return lab.ChatRequest{Model: "tiny", MaxTokens: 5, Messages: []lab.Message{{Role: "user", Content: prose(rng, words)}}}
	}
	var prompt lab.ChatRequest
	send := func(request lab.ChatRequest) lab.LogEntry {
		t.Helper()
		reply := client.Chat(t.Context(), request)
		if !reply.OK() {
			t.Fatalf("status %d %s, error %v", reply.Status, reply.Body, reply.Err)
		}
		var entry lab.LogEntry
		eventually(t, "the request in the access log", func() bool {
			for _, e := range w.since(time.Time{}) {
				if e.RequestID == reply.RequestID {
					entry = e
					return true
				}
			}
			return false
		})
		return entry
	}
	ask := func() lab.LogEntry { t.Helper(); return send(prompt) }
	var known lab.LogEntry
	eventually(t, "a prompt that is matched at the only engine that was sent it", func() bool {
		prompt = some(2000)
		first := ask()
		lab.Wait(t.Context(), readingTime)
		known = ask()
		return known.Reason == "prefix" && known.Upstream == first.Upstream
	})
	unchanged := func(what string) {
		t.Helper()
		if e := ask(); e.Upstream != known.Upstream || e.Endpoint != known.Endpoint || e.Matched != known.Matched || e.Mode != "on" {
			t.Errorf("%s: mode %s, %v tokens matched at %s, reason %s; want %v at %s", what, e.Mode, e.Matched, e.Endpoint, e.Reason, known.Matched, known.Endpoint)
		}
	}
	unchanged("at first")
	// decided waits for requests that begin from now on and are decided in some way, and returns all that did.
	decided := func(what string, n int, in func(lab.LogEntry) bool) []lab.LogEntry {
		t.Helper()
		begin := time.Now().Add(time.Millisecond) // the log's resolution
		var entries []lab.LogEntry
		eventually(t, fmt.Sprintf("%d requests %s", n, what), func() bool {
			count := 0
			entries = w.since(begin)
			for _, e := range entries {
				if in(e) {
					count++
				}
			}
			return count >= n
		})
		return entries
	}

	// An endpoint goes and comes back.
	gone := site.Engines[0].Address
	if gone == known.Endpoint {
		gone = site.Engines[1].Address
	}
	full := c.text()
	c.rename(without(t, full, gone))
	unchanged("an endpoint has gone")
	for _, e := range decided("without one endpoint", 20, func(lab.LogEntry) bool { return true }) {
		if e.Endpoint == gone {
			t.Errorf("decided for %s, which is not configured", gone)
		}
	}
	c.link(full)
	unchanged("an endpoint has come")
	decided("for the endpoint that came", 5, func(e lab.LogEntry) bool { return e.Endpoint == gone && e.Reason == "prefix" })

	// Limits.
	c.link(strings.Replace(full, "prompt_tokens: 262144", "prompt_tokens: 20", 1))
	if e := send(some(100)); e.Reason != "too_long" { // the prompt itself would be known elsewhere too
		t.Errorf("reason %q under a limit of 20 tokens", e.Reason)
	}
	c.hangup(full)
	unchanged("under the limit of before")

	// What is wrong changes nothing.
	refused := c.reloads("refused")
	c.write(strings.Replace(full, "name: chat", "name: chat\n  mode: sometimes", 1))
	eventually(t, "the configuration is refused", func() bool { return c.reloads("refused") > refused })
	unchanged("after a refusal")

	// Drained: no decision goes there. Envoy's own fallback is not asked while there are decisions.
	c.rename(strings.Replace(full, "- address: "+gone, "- address: "+gone+"\n    drain: true", 1))
	for _, e := range decided("while one endpoint drains", 20, func(lab.LogEntry) bool { return true }) {
		if e.Upstream == gone {
			t.Errorf("%s drains and was sent a request", gone)
		}
	}

	mode := func(text string) string { return strings.Replace(full, "name: chat", "name: chat\n  "+text, 1) }
	steered := func(e lab.LogEntry) bool { return e.Mode == "on" }

	// Observed: what would have been is in the log, and Envoy spreads the requests itself.
	c.rename(mode("mode: observe"))
	upstreams := map[string]bool{}
	for range 40 {
		e := ask()
		upstreams[e.Upstream] = true
		if e.Mode != "observe" || e.Endpoint == "" || e.Rung != "exact" {
			t.Errorf("observed: mode %q, endpoint %q, rung %q", e.Mode, e.Endpoint, e.Rung)
		}
	}
	if len(upstreams) < 2 {
		t.Errorf("observed: all 40 requests went to %v", upstreams)
	}

	// Off: nothing is decided.
	c.rename(mode("mode: off"))
	for _, e := range decided("while off", 20, func(lab.LogEntry) bool { return true }) {
		if e.Mode != "off" || e.Endpoint != "" || e.Reason != "off" || e.DecisionID == "" {
			t.Errorf("off: mode %q, endpoint %q, reason %q, decision %q", e.Mode, e.Endpoint, e.Reason, e.DecisionID)
		}
	}

	// Half: each request is drawn for itself.
	c.rename(mode("percent: 50"))
	share := 0
	half := decided("while half are steered", 150, func(lab.LogEntry) bool { return true })
	for _, e := range half {
		if steered(e) {
			share++
			if e.Upstream != e.Endpoint {
				t.Errorf("steered to %s, sent to %s", e.Endpoint, e.Upstream)
			}
		}
	}
	if n := float64(len(half)); math.Abs(float64(share)-n/2) > 5*math.Sqrt(n)/2 {
		t.Errorf("%d of %d requests steered at 50 percent", share, len(half))
	}

	c.rename(full)
	if e := ask(); e.Reason != "prefix" && e.Reason != "load" || e.Upstream != e.Endpoint {
		t.Errorf("on again: reason %q, decided for %s, sent to %s", e.Reason, e.Endpoint, e.Upstream)
	}

	for _, s := range l.end() {
		if !s.reply.OK() {
			t.Errorf("status %d %s, error %v", s.reply.Status, s.reply.Body, s.reply.Err)
		}
	}
	all := w.since(time.Time{})
	for _, e := range all {
		if e.DecisionID == "" || e.Attempts > 1 {
			t.Errorf("decision %q, %d attempts, code %d, flags %s", e.DecisionID, e.Attempts, e.Code, e.Flags)
		}
	}
	t.Logf("%d requests, %v reloads applied, %d of %d steered at 50 percent", len(all), c.reloads("applied"), share, len(half))
}

// without is a configuration without one endpoint.
func without(t *testing.T, text, endpoint string) string {
	t.Helper()
	before, rest, ok := strings.Cut(text, "  - address: "+endpoint+"\n")
	if _, after, found := strings.Cut(rest, "\n"); ok && found {
		return before + after // its events stood on the line of their own
	}
	t.Fatalf("no endpoint %s in the configuration", endpoint)
	return ""
}

// changer replaces a site's configuration file and waits until the router has taken it over.
type changer struct {
	t    *testing.T
	site *lab.Site
	n    int // of the last folder of link
}

func newChanger(t *testing.T, site *lab.Site) *changer { return &changer{t: t, site: site} }

func (c *changer) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *changer) text() string {
	c.t.Helper()
	text, err := os.ReadFile(c.site.Config)
	c.must(err)
	return string(text)
}

// reloads is how many configurations had this outcome.
func (c *changer) reloads(outcome string) float64 {
	c.t.Helper()
	return metric(c.t, c.site.RouterAdmin+"/metrics", "kvsteer_config_reloads_total", fmt.Sprintf("outcome=%q", outcome))
}

// applied makes a change and waits until it is in use.
func (c *changer) applied(change func()) {
	c.t.Helper()
	before := c.reloads("applied")
	change()
	eventually(c.t, "the configuration is applied", func() bool { return c.reloads("applied") > before })
}

// write puts a whole file into the place of the other one.
func (c *changer) write(text string) {
	c.t.Helper()
	c.must(os.WriteFile(c.site.Config+".new", []byte(text), 0o644))
	c.must(os.Rename(c.site.Config+".new", c.site.Config))
}

func (c *changer) rename(text string) {
	c.t.Helper()
	c.applied(func() { c.write(text) })
}

// link does what a ConfigMap volume does: the file is a link into the folder ..data, which is a link to a folder that is never changed and is
// replaced by one to another folder.
func (c *changer) link(text string) {
	c.t.Helper()
	c.applied(func() {
		dir, name := filepath.Split(c.site.Config)
		c.n++
		folder := fmt.Sprintf("..data-%d", c.n)
		c.must(os.Mkdir(filepath.Join(dir, folder), 0o755))
		c.must(os.WriteFile(filepath.Join(dir, folder, name), []byte(text), 0o644))
		swap := func(target, path string) {
			c.must(os.Symlink(target, path+".new"))
			c.must(os.Rename(path+".new", path))
		}
		swap(folder, filepath.Join(dir, "..data"))
		if c.n == 1 {
			swap(filepath.Join("..data", name), c.site.Config)
		}
	})
}

// hangup writes the file in place and sends SIGHUP.
func (c *changer) hangup(text string) {
	c.t.Helper()
	c.applied(func() {
		c.must(os.WriteFile(c.site.Config, []byte(text), 0o644))
		c.must(c.site.Router.Signal(syscall.SIGHUP))
	})
}
