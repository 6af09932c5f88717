package router

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// stage is a step of a decision, as kvsteer_router_stage_seconds labels it.
type stage int

const (
	stageParse       stage = iota // read the body
	stageTokenize                 // token ids
	stageFingerprint              // keys of all blocks
	stageMatch                    // index lookup
	stageText                     // keys of the prompt's text
	stageRecall                   // lookup by text
	stageScore                    // cost, pick, charge
	stageLearn                    // note by text what the endpoint is sent
	stageTotal                    // the whole decision
	stages
)

func (s stage) String() string {
	return [stages]string{"parse", "tokenize", "fingerprint", "match", "text", "recall", "score", "learn", "total"}[s]
}

// Metrics of this package. What belongs to an endpoint is read when it is asked for, so its series end with the endpoint.
type Metrics struct {
	decisions *prometheus.CounterVec // pool, mode, rung, reason
	matched   *prometheus.CounterVec // pool, mode, rung
	prompt    *prometheus.CounterVec // pool, mode, rung
	records   *prometheus.CounterVec // outcome
	charges   map[ChargeOutcome]prometheus.Counter
	seconds   [stages]prometheus.Observer
	router    atomic.Pointer[Router] // whose endpoints are exported; nil before New
}

// NewMetrics registers the metrics; a nil Registerer leaves them unregistered. One Metrics serves one Router.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		decisions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_router_decisions_total",
			Help: "Decisions by pool, mode, rung (what the choice rests on) and reason. The pool is empty when none could be told.",
		}, []string{"pool", "mode", "rung", "reason"}),
		matched: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_router_matched_tokens_total",
			Help: "Leading prompt tokens that the chosen endpoint held, of prompts that were looked up; in rung approximate, estimated.",
		}, []string{"pool", "mode", "rung"}),
		prompt: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_router_prompt_tokens_total",
			Help: "Prompt tokens of prompts that were looked up, estimated where that was by text; in rung load, of those of which nothing was found.",
		}, []string{"pool", "mode", "rung"}),
		records: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_router_records_total",
			Help: "Records of Envoy's access log by outcome; only those released and moved have changed anything here.",
		}, []string{"outcome"}),
	}
	for _, o := range RecordOutcomes() {
		m.records.WithLabelValues(string(o.Outcome))
	}
	charges := f.NewCounterVec(prometheus.CounterOpts{
		Name: "kvsteer_router_peer_charges_total",
		Help: "Charges of other routers by outcome; those entered and moved count as load of their endpoints.",
	}, []string{"outcome"})
	m.charges = map[ChargeOutcome]prometheus.Counter{}
	for _, o := range ChargeOutcomes() {
		m.charges[o.Outcome] = charges.WithLabelValues(string(o.Outcome))
	}
	seconds := f.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kvsteer_router_stage_seconds",
		Help:    "Time of each stage of a decision, and of the whole.",
		Buckets: prometheus.ExponentialBuckets(1e-6, 4, 11), // 1 µs to 1 s
	}, []string{"stage"})
	for s := range stages {
		m.seconds[s] = seconds.WithLabelValues(s.String())
	}
	if reg != nil {
		reg.MustRegister(newEndpointCollector(&m.router))
	}
	return m
}

func (m *Metrics) decided(d Decision) {
	m.decisions.WithLabelValues(d.Pool, d.Mode.String(), string(d.Rung), string(d.Reason)).Inc()
	if d.lookedUp() {
		m.matched.WithLabelValues(d.Pool, d.Mode.String(), string(d.Rung)).Add(float64(d.Matched))
		m.prompt.WithLabelValues(d.Pool, d.Mode.String(), string(d.Rung)).Add(float64(d.Prompt))
	}
}

func (m *Metrics) charge(o ChargeOutcome) { m.charges[o].Inc() }

func (m *Metrics) record(o RecordOutcome) { m.records.WithLabelValues(string(o)).Inc() }

// stopwatch observes the stages of one decision one after the other.
type stopwatch struct {
	m     *Metrics
	now   func() time.Time
	begin time.Time
	last  time.Time
}

func (m *Metrics) start(now func() time.Time) stopwatch {
	t := now()
	return stopwatch{m: m, now: now, begin: t, last: t}
}

// lap observes the time since the last lap as stage s.
func (w *stopwatch) lap(s stage) {
	t := w.now()
	w.m.seconds[s].Observe(t.Sub(w.last).Seconds())
	w.last = t
}

// stop observes the whole decision, and returns its time.
func (w *stopwatch) stop() time.Duration {
	took := w.now().Sub(w.begin)
	w.m.seconds[stageTotal].Observe(took.Seconds())
	return took
}

// endpointCollector exports what is known of each endpoint of a router.
type endpointCollector struct {
	router    *atomic.Pointer[Router]
	percent   *prometheus.Desc
	decisions *prometheus.Desc
	open      *prometheus.Desc
	peerOpen  *prometheus.Desc
	expired   *prometheus.Desc
	backlog   *prometheus.Desc
	running   *prometheus.Desc
	queue     *prometheus.Desc
	blocks    *prometheus.Desc
	matchable *prometheus.Desc
	problem   *prometheus.Desc

	engineRunning, engineWaiting, engineUsage, engineHits, engineQueries, engineSleeping, engineStale *prometheus.Desc
}

func newEndpointCollector(r *atomic.Pointer[Router]) *endpointCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kvsteer_router_"+name, help, append([]string{"pool"}, labels...), nil)
	}
	return &endpointCollector{
		router:    r,
		percent:   desc("pool_percent", "Share of the pool's requests that are decided in each mode, in percent.", "mode"),
		decisions: desc("endpoint_decisions_total", "Decisions whose first choice is the endpoint. In mode observe Envoy was not told.", "endpoint", "mode"),
		queue:     desc("prefill_queue", "Requests in prefill per data-parallel rank of the pool's endpoints that can get requests, averaged over 10 s, as the router reckons them."),
		open:      desc("open_decisions", "Decisions whose request is not known to have ended."),
		peerOpen:  desc("peer_open_charges", "Charges of other routers that count as load and whose request is not known to have ended."),
		expired:   desc("expired_decisions_total", "Decisions whose record did not come within 10 min, or that were the oldest of too many."),
		running:   desc("endpoint_running_tokens", "Prompt tokens of the requests that are reckoned to run at the endpoint, of this router and of others that tell it.", "endpoint"),
		backlog:   desc("endpoint_backlog_tokens", "Prefill tokens routed to the endpoint, by this router and by others that tell it, that are reckoned not yet computed, of all its ranks together.", "endpoint"),
		blocks:    desc("endpoint_blocks", "Blocks of the endpoint in the index, of all its ranks together.", "endpoint", "tier"),
		matchable: desc("endpoint_matchable", "1 while prompts are matched against the endpoint's blocks, or those of some of its ranks; 0 while they cannot be. Only endpoints with an event source.", "endpoint"),
		problem:   desc("endpoint_problem", "1 for the problem that keeps the endpoint's blocks from being fully known.", "endpoint", "problem"),

		engineRunning:  desc("engine_running_requests", "Requests that the engine says it runs, of all its ranks together. This and what else engines say is there where a node tells it, and not while it is stale.", "endpoint"),
		engineWaiting:  desc("engine_waiting_requests", "Requests that the engine says wait, of all its ranks together.", "endpoint"),
		engineUsage:    desc("engine_kv_usage_ratio", "Share of its KV cache that the engine says is used.", "endpoint"),
		engineHits:     desc("engine_prefix_hit_tokens_total", "Prompt tokens that the engine says it has found in its prefix cache.", "endpoint"),
		engineQueries:  desc("engine_prefix_query_tokens_total", "Prompt tokens that the engine says it has looked up in its prefix cache.", "endpoint"),
		engineSleeping: desc("engine_sleeping", "1 while the engine says that it sleeps: it gets no requests unless all of the pool's do.", "endpoint"),
		engineStale:    desc("engine_stale", "1 while a node could not read lately what the engine says of itself.", "endpoint"),
	}
}

func (c *endpointCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.percent, c.decisions, c.open, c.peerOpen, c.expired, c.queue, c.backlog, c.running, c.blocks, c.matchable, c.problem,
		c.engineRunning, c.engineWaiting, c.engineUsage, c.engineHits, c.engineQueries, c.engineSleeping, c.engineStale,
	} {
		ch <- d
	}
}

func (c *endpointCollector) Collect(ch chan<- prometheus.Metric) {
	r := c.router.Load()
	if r == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, f := range r.all() {
		name, targets := f.name(), f.all()
		for mode, share := range f.steering.Load().shares() {
			gauge(c.percent, float64(share), name, mode.String())
		}
		loads := f.loads(targets, r.now())
		var available []standing
		for len(targets) > 0 {
			n := seated(targets)
			addr := targets[0].endpoint.Addr()
			var sum load
			var steered, observed uint64
			for i, t := range targets[:n] {
				sum.add(loads[i])
				steered, observed = steered+t.steered.Load(), observed+t.observed.Load()
				if t.available() && !t.asleep() {
					available = append(available, standing{load: loads[i].mean(len(t.ranks))})
				}
			}
			counter(c.decisions, steered, name, addr, ModeOn.String())
			counter(c.decisions, observed, name, addr, ModeObserve.String())
			gauge(c.backlog, sum.backlog, name, addr)
			gauge(c.running, sum.running, name, addr)
			es := stateOf(targets[:n])
			if l := targets[0].of.reported.Load(); l != nil {
				c.engine(&l.Load, func(d *prometheus.Desc, v float64) { gauge(d, v, name, addr) }, func(d *prometheus.Desc, v uint64) { counter(d, v, name, addr) })
			}
			targets, loads = targets[n:], loads[n:]
			if es.Problem != "" {
				gauge(c.problem, 1, name, addr, es.Problem)
			}
			if !es.Events {
				continue
			}
			gauge(c.blocks, float64(es.DeviceBlocks), name, addr, "device")
			gauge(c.blocks, float64(es.Blocks), name, addr, "any")
			matchable := 0.0
			if es.Matchable {
				matchable = 1
			}
			gauge(c.matchable, matchable, name, addr)
		}
		gauge(c.queue, kappa(available), name)
		open, foreign, expired := f.openDecisions()
		gauge(c.open, float64(open), name)
		gauge(c.peerOpen, float64(foreign), name)
		counter(c.expired, expired, name)
	}
}

// engine exports what an engine says of itself.
func (c *endpointCollector) engine(l *Load, gauge func(*prometheus.Desc, float64), counter func(*prometheus.Desc, uint64)) {
	flag := func(d *prometheus.Desc, on bool) {
		v := 0.0
		if on {
			v = 1
		}
		gauge(d, v)
	}
	flag(c.engineStale, l.Stale)
	if l.Stale {
		return
	}
	flag(c.engineSleeping, l.Sleeping)
	gauge(c.engineRunning, float64(l.Running))
	gauge(c.engineWaiting, float64(l.Waiting))
	gauge(c.engineUsage, l.KVUsage)
	if l.PrefixQueries > 0 {
		counter(c.engineHits, l.PrefixHits)
		counter(c.engineQueries, l.PrefixQueries)
	}
}
