package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
)

// eventSource is what an engine says of one publisher of its events.
type eventSource struct {
	rank             string
	enabled          bool
	publisher        string
	endpoint, replay string // as given to the engine, such as tcp://*:5557
	topic            string
}

// sources reads /kv_event_sources (vLLM from 0.31) or the events of SGLang's server info. told is false when the engine has neither.
func (e *engineFacts) sources() (all []eventSource, told bool) {
	if e.events.ok() {
		t := e.events.tree()
		for _, rank := range t.keys() {
			s := t.at(rank)
			all = append(all, eventSource{
				rank: rank, enabled: s.flag("enable_kv_cache_events"), publisher: s.text("publisher"), endpoint: s.text("endpoint"),
				replay: s.text("replay_endpoint"), topic: s.text("topic"),
			})
		}
		slices.SortFunc(all, func(a, b eventSource) int { return strings.Compare(a.rank, b.rank) })
		return all, t.there()
	}
	return nil, false
}

// binds is the rule of vLLM's publisher: it binds an address with "*" or "::" in it and connects to every other, tcp://0.0.0.0:PORT among
// them. The simulated engine also binds others, which shows in that the router is connected.
func binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::")
}

// port is the number after the last colon.
func port(endpoint string) string { return endpoint[strings.LastIndexByte(endpoint, ':')+1:] }

// examineEvents judges what engines, the router or node, and this host say of events.
func (f *facts) examineEvents(c *collector) {
	for i := range f.engines {
		e := &f.engines[i]
		connected := f.examineConnection(c, e)
		f.examineProblems(c, e)
		f.examineSources(c, e, connected)
		f.examineOpen(c, e)
		f.examineRepair(c, e)
	}
	for i := range f.cfg.Pools {
		f.examineReplays(c, &f.cfg.Pools[i])
		f.examineSilence(c, &f.cfg.Pools[i])
	}
}

// examineConnection judges our side of one endpoint's events, and returns whether it is connected.
func (f *facts) examineConnection(c *collector, e *engineFacts) (connected bool) {
	if e.endpoint.Events.None() || f.router.metrics == nil {
		return false
	}
	of := []string{"pool", e.pool.Name, "endpoint", e.endpoint.Address}
	value, known := f.router.metrics.sum("kvsteer_subscriber_connected", of...)
	switch connected = value >= float64(max(1, e.endpoint.Events.Ranks)); {
	case !known, connected: // a source that is not known there is found with the router or node
	case !e.up(): // found with the engine
	case e.endpoint.Events.Listen != "":
		c.found(EventsUnconnected, e.subject(), "the engine does not connect to %s%s", e.endpoint.Events.Listen, ofRanks(e.endpoint.Events.Ranks, value))
	default:
		c.found(EventsUnconnected, e.subject(), "the %s cannot connect to %s%s", f.self(), e.endpoint.Events.Dial, ofRanks(e.endpoint.Events.Ranks, value))
	}
	malformed, _ := f.router.metrics.sum("kvsteer_subscriber_events_total", append(of, "type", "malformed")...)
	unreadable, _ := f.router.metrics.sum("kvsteer_subscriber_resets_total", append(of, "cause", "unreadable")...)
	if malformed+unreadable > 0 {
		c.found(EventsUnreadable, e.subject(), "%.0f events and %.0f batches since the %s's start", malformed, unreadable, f.self())
	}
	if second, _ := f.router.metrics.sum("kvsteer_subscriber_refused_connections_total", append(of, "reason", "second_peer")...); second > 0 && e.endpoint.Events.Listen != "" {
		c.found(SecondEngine, e.subject(), "%.0f connections to %s were refused while its engine was connected", second, e.endpoint.Events.Listen)
	}
	return connected
}

// examineProblems judges what the router or node calls a problem of an endpoint, whoever follows its events.
func (f *facts) examineProblems(c *collector, e *engineFacts) {
	for _, name := range []string{"kvsteer_subscriber_problem", "kvsteer_router_endpoint_problem"} {
		for _, s := range f.router.metrics.named(name, e.series()...) {
			if s.value == 0 {
				continue
			}
			switch problem := s.labels["problem"]; problem {
			case "no_token_ids":
				c.found(NoTokenIDs, e.subject(), "problem %s", problem)
			case "page_size":
				if e.pageSize() != "1" { // else found with the engine
					c.found(PageSizeOne, e.subject(), "problem %s", problem)
				}
			case "ranks_mismatch":
				if e.endpoint.Events.None() { // else found with the engine, which says how many it has
					c.found(SeveralRanks, e.subject(), "problem %s, which its node tells", problem)
				}
			case "index_full", "index_share", "not_closed": // found with the router
			case "bigram", "lookahead":
				c.found(Speculates, e.subject(), "problem %s", problem)
			case "mirror_full":
				if e.endpoint.Events.None() {
					c.found(MirrorFull, e.subject(), "problem %s, which its node tells", problem)
				} else {
					withdrawn, _ := f.router.metrics.sum("kvsteer_subscriber_withdrawn_blocks_total", e.series()...)
					c.found(MirrorFull, e.subject(), "problem %s: %.0f blocks were withdrawn since the %s's start", problem, withdrawn, f.self())
				}
			default:
				c.found(BlocksPartly, e.subject(), "problem %s", problem)
			}
		}
	}
}

// ofRanks adds how many of an endpoint's ranks are connected, where it has several.
func ofRanks(ranks int, connected float64) string {
	if ranks < 2 {
		return ""
	}
	return fmt.Sprintf(" and the ports behind it: %.0f of %d ranks are connected", connected, ranks)
}

// examineSources compares the configuration with what the engine says of its publisher.
func (f *facts) examineSources(c *collector, e *engineFacts, connected bool) {
	all, told := e.sources()
	if !told {
		if e.up() && !e.endpoint.Events.None() {
			c.unknown(e.subject(), "its event settings", "the engine does not tell them (vLLM does from 0.31 on)")
		}
		return
	}
	on := slices.DeleteFunc(slices.Clone(all), func(s eventSource) bool { return !s.enabled || s.publisher != "zmq" })
	events := e.endpoint.Events
	switch {
	case events.None():
		return
	case len(on) == 0:
		c.found(EventsOff, e.subject(), "GET /kv_event_sources names no ZMQ publisher that is enabled")
		return
	case len(all) != max(1, events.Ranks):
		c.found(SeveralRanks, e.subject(), "the engine has %d data-parallel ranks, and events.ranks is %d", len(all), max(1, events.Ranks))
	}
	first := on[0]
	if !strings.HasPrefix(first.topic, events.Topic) {
		c.found(EventsElsewhere, e.subject(), "its topic is %q, and events.topic is %q", first.topic, events.Topic)
	}
	if connected || f.router.metrics == nil || events.Listen == config.Auto { // ports and directions may differ on the way, as between containers
		return
	}
	switch want := events.Listen + events.Dial; {
	case events.Listen != "" && binds(first.endpoint):
		c.found(EventsElsewhere, e.subject(), "it binds %s, and the %s waits for it at %s", first.endpoint, f.self(), events.Listen)
	case events.Dial != "" && !binds(first.endpoint):
		c.found(EventsElsewhere, e.subject(), "it connects to %s (only an address with * is bound), and the %s dials %s", first.endpoint, f.self(), events.Dial)
	case port(first.endpoint) != port(want):
		c.found(EventsElsewhere, e.subject(), "its events are at port %s, and the %s looks at %s", port(first.endpoint), f.self(), want)
	}
}

// examineOpen looks for event ports that others reach than who follows the engine.
func (f *facts) examineOpen(c *collector, e *engineFacts) {
	var why []string
	if dial := strings.TrimPrefix(e.endpoint.Events.Dial, "tcp://"); dial != "" {
		if beyondLoopback(dial) {
			why = append(why, "the "+f.self()+" dials "+dial+", which other hosts may reach too")
		}
		if at, err := netip.ParseAddrPort(dial); err == nil {
			for _, l := range f.ports.exposed(at) {
				why = append(why, fmt.Sprintf("this host listens on %s", l))
			}
		}
	}
	all, _ := e.sources()
	for _, s := range all {
		if !s.enabled {
			continue
		}
		if binds(s.endpoint) {
			why = append(why, "the engine binds "+s.endpoint)
		}
		// The replay socket is bound in every case.
		if host, _, err := net.SplitHostPort(strings.TrimPrefix(s.replay, "tcp://")); err == nil {
			if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
				why = append(why, "the engine binds "+s.replay+" for replays")
			}
		}
	}
	if len(why) > 0 {
		c.found(EventsOpen, e.subject(), "%s", strings.Join(why, "; "))
	}
}

// Numbers of decisions, and of prompt tokens that engines looked up, that do not come without one prompt that fills a block.
const (
	manyDecisions = 20
	manyTokens    = 10_000
)

// examineSilence finds a pool whose engines compute prompts and publish nothing of them.
func (f *facts) examineSilence(c *collector, p *config.Pool) {
	m := f.router.metrics
	if m == nil || sources(p) == 0 {
		return
	}
	batches, known := m.sum("kvsteer_subscriber_batches_total", "pool", p.Name)
	if !known || batches > 0 {
		return
	}
	if queried, _ := m.sum("kvsteer_scrape_prefix_query_tokens_total", "pool", p.Name); queried >= manyTokens {
		c.found(EventsAbsent, "pool "+p.Name, "its engines looked up %.0f tokens of prompts, and not one batch of events came", queried)
	}
	decisions, _ := m.sum("kvsteer_router_decisions_total", "pool", p.Name)
	for _, without := range []string{"short", "off"} { // such requests give no event, or are not known
		n, _ := m.sum("kvsteer_router_decisions_total", "pool", p.Name, "reason", without)
		decisions -= n
	}
	if decisions >= manyDecisions {
		c.found(EventsAbsent, "pool "+p.Name, "%.0f decisions, and not one batch of events", decisions)
	}
}
