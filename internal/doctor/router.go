package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
)

// routerFacts is what the admin listener of the router, or of the node, says.
type routerFacts struct {
	url       string
	page      reply
	ready     reply
	metrics   *page
	needToken bool
	fleet     fleetFacts
}

// readRouter asks the router, or the node. The names of its metrics say which of them it is.
func (d *Doctor) readRouter(ctx context.Context) routerFacts {
	r := routerFacts{url: d.opt.Admin}
	if r.url == "" {
		return r
	}
	base, token := strings.TrimSuffix(r.url, "/"), d.token()
	r.page = d.clients.router.get(ctx, base+"/metrics", token, maxReply*16) // a thousand endpoints make a long page
	r.needToken = r.page.status == 401 || r.page.status == 403
	r.ready = d.clients.router.get(ctx, base+"/readyz", token, maxReply)
	r.fleet = d.readFleet(ctx, base, token)
	if r.page.ok() {
		names := "kvsteer_router_"
		if d.opt.Node != nil {
			names = "kvsteer_feed_node_"
		}
		if p := parsePage(string(r.page.body)); p.has(names) {
			r.metrics = p
		}
	}
	return r
}

// examineAdmin judges the admin listener, and what routers and nodes say in the same way. It returns whether there is more to be judged.
func (f *facts) examineAdmin(c *collector, silent, unready Code) bool {
	r, self := &f.router, f.self()
	switch {
	case r.url == "":
		c.unknown(self, "everything", "no admin listener was named")
		return false
	case r.needToken:
		c.found(silent, self, "GET %s/metrics: status %d: it wants a token (--token-file)", r.url, r.page.status)
		return false
	case r.page.status == 400 && strings.HasPrefix(r.url, "http://"): // what Go's server says to clear text when it speaks TLS
		c.found(silent, self, "GET %s/metrics: status 400: does it speak TLS? Then its URL starts with https://", r.url)
		return false
	case !r.page.ok():
		c.found(silent, self, "GET %s/metrics: %s", r.url, r.page.says())
		return false
	case r.metrics == nil:
		c.found(silent, self, "GET %s/metrics: what answers is no kvsteer %s", r.url, self)
		return false
	}
	if r.ready.asked && !r.ready.ok() {
		what := strings.ReplaceAll(strings.TrimSpace(string(r.ready.body)), "\n", "; ")
		c.found(unready, self, "GET %s/readyz: %s: %s", r.url, r.ready.says(), what)
	}
	if ok, known := r.metrics.sum("kvsteer_config_last_reload_successful"); known && ok == 0 {
		c.found(ReloadRefused, self, "the configuration that it found last was refused; its log says why")
	}
	f.examineEndpoints(c)
	f.examineDrains(c)
	return true
}

// examineRouter judges the router, events apart.
func (f *facts) examineRouter(c *collector) {
	if !f.examineAdmin(c, RouterSilent, RouterUnready) {
		return
	}
	m := f.router.metrics
	value := func(name string) float64 {
		v, _ := m.sum(name)
		return v
	}
	if n := value("kvsteer_index_differences_total"); n > 0 || value("kvsteer_index_walking") > 0 {
		c.found(IndexDiffers, "router", "%.0f checked matches were wrong", n)
	}
	if n := value("kvsteer_index_full_slots"); n > 0 {
		c.found(IndexFull, "router", "%s did not fit, with index.max_blocks %d", plural(int(n), "source"), f.cfg.Index.MaxBlocks)
	}
	for _, s := range m.named("kvsteer_router_endpoint_problem") {
		if s.value == 0 {
			continue
		}
		subject := "endpoint " + s.labels["endpoint"]
		switch problem := s.labels["problem"]; problem {
		case "index_full", "index_share":
			c.found(IndexFull, subject, "problem %s, with index.max_blocks %d", problem, f.cfg.Index.MaxBlocks)
		case "not_closed":
			c.found(BlocksUnclosed, subject, "problem %s", problem)
		}
	}
	if p, i := value("kvsteer_extproc_panics_total"), value("kvsteer_extproc_invalid_endpoints_total"); p+i > 0 {
		c.found(RouterPanics, "router", "%.0f panics and %.0f addresses that are none since its start", p, i)
	}
	f.examineRatios(c)
}

// examineEndpoints compares the endpoints that the router, or the node, knows with those of the configuration.
func (f *facts) examineEndpoints(c *collector) {
	const up = "kvsteer_pool_endpoint_up"
	configured := map[string]bool{}
	for i := range f.engines {
		e := &f.engines[i]
		of := []string{"pool", e.pool.Name, "endpoint", e.endpoint.Address}
		configured[e.pool.Name+" "+e.endpoint.Address] = true
		isUp, known := f.router.metrics.sum(up, of...)
		switch {
		case !known:
			c.found(OtherConfig, f.self(), "it does not know the endpoint %s of pool %s", e.endpoint.Address, e.pool.Name)
			continue
		case isUp == 0 && e.up():
			c.found(EndpointDown, e.subject(), "GET /health answers here, and for the %s it is down", f.self())
		}
		f.examineRefreshes(c, e)
		if _, followed := f.router.metrics.sum("kvsteer_subscriber_connected", of...); followed == e.endpoint.Events.None() {
			state := "follows no events of it"
			if followed {
				state = "follows events of it"
			}
			c.found(OtherConfig, f.self(), "it %s: %s of pool %s, unlike the configuration", state, e.endpoint.Address, e.pool.Name)
		}
	}
	for _, s := range f.router.metrics.named(up) {
		dynamic := slices.ContainsFunc(f.cfg.Pools, func(p config.Pool) bool { return p.Name == s.labels["pool"] && f.cfg.Dynamic(&p) })
		if !configured[s.labels["pool"]+" "+s.labels["endpoint"]] && !dynamic {
			c.found(OtherConfig, f.self(), "it has an endpoint %s in pool %s, which the configuration lacks", s.labels["endpoint"], s.labels["pool"])
		}
	}
}

// examineRefreshes judges whether the engine tells what it serves. A question that found nobody, as at a start, is asked again.
func (f *facts) examineRefreshes(c *collector, e *engineFacts) {
	const refreshes = "kvsteer_pool_models_refreshes_total"
	asked, _ := f.router.metrics.sum(refreshes, e.series()...)
	good, _ := f.router.metrics.sum(refreshes, e.series("outcome", "ok")...)
	if bad := asked - good; e.up() && bad >= 3 && bad > good {
		c.found(RefreshFailing, e.subject(), "%.0f of the %s's %.0f questions since its start failed", bad, f.self(), asked)
	}
}

// shares are what becomes of a pool's requests, in percent. What is neither steered nor left undecided is observed.
type shares struct{ on, off float64 }

func (s shares) String() string {
	switch {
	case s.off > 0:
		return "mode off"
	case s.on > 0:
		return fmt.Sprintf("mode on with %.0f %%", s.on)
	}
	return "mode observe"
}

// examineMode judges how much of a pool's requests is steered: by its configuration, and by an admin call, which nobody sees in that.
func (f *facts) examineMode(c *collector, p *config.Pool) {
	var configured, running shares
	switch p.Mode {
	case "on":
		configured.on = float64(p.Percent)
	case "off":
		configured.off = 100
	}
	known := false
	if m := f.router.metrics; m != nil {
		const percent = "kvsteer_router_pool_percent"
		running.on, known = m.sum(percent, "pool", p.Name, "mode", "on")
		running.off, _ = m.sum(percent, "pool", p.Name, "mode", "off")
	}
	switch {
	case known && running != configured:
		c.found(NotSteering, "pool "+p.Name, "the configuration says %s, and the router is in %s by an admin call, until it restarts", configured, running)
	case p.Mode != "on":
		c.found(NotSteering, "pool "+p.Name, "its mode is %s", p.Mode)
	case p.Percent < 100:
		c.found(NotSteering, "pool "+p.Name, "%d %% of its requests are steered", p.Percent)
	}
}

// examineDrains finds what admin calls have drained, and nobody sees in the configuration.
func (f *facts) examineDrains(c *collector) {
	for _, e := range f.engines {
		drained, _ := f.router.metrics.sum("kvsteer_pool_endpoint_draining", "pool", e.pool.Name, "endpoint", e.endpoint.Address)
		_, leaving := f.teller(e.pool, e.endpoint.Address)
		if drained > 0 && !e.endpoint.Drain && !leaving {
			c.found(Draining, e.subject(), "by an admin call")
		}
	}
}

// Shares that are a finding, once there are enough of the whole to tell.
const (
	enough      = 20
	tooMany     = 0.05
	percentForm = "%.0f of %.0f"
)

func (f *facts) examineRatios(c *collector) {
	share := func(name, label string, bad ...string) (n, of float64, much bool) {
		of, _ = f.router.metrics.sum(name)
		for _, v := range bad {
			part, _ := f.router.metrics.sum(name, label, v)
			n += part
		}
		return n, of, of >= enough && n > of*tooMany
	}
	if n, of, much := share("kvsteer_tokenize_duration_seconds_count", "outcome", "failed", "timeout", "refused", "unreachable", "bad_reply"); much {
		c.found(TokenizeFailing, "router", percentForm+" prompts got no token ids since its start (see kvsteer_tokenize_duration_seconds by outcome)", n, of)
	}
	moved, _ := f.router.metrics.sum("kvsteer_router_records_total", "outcome", "moved")
	released, _ := f.router.metrics.sum("kvsteer_router_records_total", "outcome", "released")
	if of := moved + released; of >= enough && moved > of*tooMany {
		c.found(ChoiceNotObeyed, "router", percentForm+" requests since its start", moved, of)
	}
	if n, of, much := share("kvsteer_router_decisions_total", "reason", "unknown_model"); much {
		c.found(ModelsUnknown, "router", percentForm+" decisions since its start; the pools list %s", n, of, some(f.modelNames()))
	}
}

func (f *facts) modelNames() []string {
	var names []string
	for _, p := range f.cfg.Pools {
		names = append(append(names, p.Models...), p.Adapters...)
	}
	return names
}

// location is a path below the URL of an admin listener.
func location(url, path string) string {
	return fmt.Sprintf("%s/%s", strings.TrimSuffix(url, "/"), path)
}
