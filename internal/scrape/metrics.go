package scrape

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Outcome says how a scrape ended; one of a closed set.
type Outcome string

// The outcomes.
const (
	OutcomeOK          Outcome = "ok"
	OutcomeUnreachable Outcome = "unreachable" // no answer
	OutcomeTimeout     Outcome = "timeout"     // none in time, or not all of it
	OutcomeBroken      Outcome = "broken"      // the answer broke off
	OutcomeRefused     Outcome = "refused"     // 4xx: metrics are not enabled, or a key is wanted
	OutcomeFailed      Outcome = "failed"      // any other status
	OutcomeTooLarge    Outcome = "too_large"   // more than is read
	OutcomeMalformed   Outcome = "malformed"   // not in Prometheus' text format
	OutcomeMissing     Outcome = "missing"     // a family is not there
	OutcomeValue       Outcome = "value"       // a value that cannot be
)

// Outcomes returns all of them.
func Outcomes() []Outcome {
	return []Outcome{
		OutcomeOK, OutcomeUnreachable, OutcomeTimeout, OutcomeBroken, OutcomeRefused, OutcomeFailed, OutcomeTooLarge, OutcomeMalformed, OutcomeMissing, OutcomeValue,
	}
}

// Metrics of this package. The series of an engine are there while its Scraper runs; those of its load while that is not stale.
type Metrics struct {
	scrapes  *prometheus.CounterVec
	restarts *prometheus.CounterVec
	stale    *prometheus.GaugeVec
	hits     *prometheus.CounterVec
	queries  *prometheus.CounterVec
	running  *prometheus.GaugeVec
	waiting  *prometheus.GaugeVec
	usage    *prometheus.GaugeVec
	sleeping *prometheus.GaugeVec
}

// NewMetrics registers the metrics; a nil Registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	labels := []string{"pool", "endpoint"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kvsteer", Subsystem: "scrape", Name: name, Help: help}, labels)
	}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "kvsteer", Subsystem: "scrape", Name: name, Help: help}, append(labels, more...))
	}
	return &Metrics{
		scrapes:  counter("scrapes_total", "Times that the engine's metrics were asked for, by outcome: "+outcomesText()+".", "outcome"),
		restarts: counter("engine_restarts_total", "Restarts of the engine, as shown by its counters."),
		stale:    gauge("stale", "1 while the engine's metrics cannot be read, after three failures in a row, else 0."),
		hits:     counter("prefix_hit_tokens_total", "Prompt tokens that the engine found in its prefix cache, over its restarts."),
		queries:  counter("prefix_query_tokens_total", "Prompt tokens that the engine looked up in its prefix cache, over its restarts."),
		running:  gauge("running_requests", "Requests that the engine is running."),
		waiting:  gauge("waiting_requests", "Requests that wait in the engine."),
		usage:    gauge("kv_usage_ratio", "Share of the engine's KV cache that running requests use, 0 to 1."),
		sleeping: gauge("sleeping", "1 while the engine sleeps, else 0."),
	}
}

func outcomesText() string {
	var names []string
	for _, o := range Outcomes() {
		names = append(names, string(o))
	}
	return strings.Join(names, ", ")
}

// series are those of one engine. Methods are for Run's goroutine.
type series struct {
	m        *Metrics
	labels   []string
	outcomes map[Outcome]prometheus.Counter
	restarts prometheus.Counter
	isStale  prometheus.Gauge
	shown    counts // what the counters show
}

func (m *Metrics) series(pool, endpoint string) *series {
	s := &series{
		m: m, labels: []string{pool, endpoint}, outcomes: map[Outcome]prometheus.Counter{},
		restarts: m.restarts.WithLabelValues(pool, endpoint),
		isStale:  m.stale.WithLabelValues(pool, endpoint),
	}
	for _, o := range Outcomes() {
		s.outcomes[o] = m.scrapes.WithLabelValues(pool, endpoint, string(o))
	}
	return s
}

// read shows a load.
func (s *series) read(l Load) {
	s.outcomes[OutcomeOK].Inc()
	s.isStale.Set(0)
	set := func(g *prometheus.GaugeVec, v float64) { g.WithLabelValues(s.labels...).Set(v) }
	set(s.m.running, float64(l.Running))
	set(s.m.waiting, float64(l.Waiting))
	set(s.m.usage, l.KVUsage)
	sleeping := 0.
	if l.Sleeping {
		sleeping = 1
	}
	set(s.m.sleeping, sleeping)
	s.m.hits.WithLabelValues(s.labels...).Add(float64(l.PrefixHits - s.shown.hits))
	s.m.queries.WithLabelValues(s.labels...).Add(float64(l.PrefixQueries - s.shown.queries))
	s.shown = counts{l.PrefixHits, l.PrefixQueries}
}

// stale takes away what is not known any more.
func (s *series) stale() {
	s.isStale.Set(1)
	for _, g := range []*prometheus.GaugeVec{s.m.running, s.m.waiting, s.m.usage, s.m.sleeping} {
		g.DeleteLabelValues(s.labels...)
	}
}

func (s *series) remove() {
	l := prometheus.Labels{"pool": s.labels[0], "endpoint": s.labels[1]}
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{s.m.scrapes, s.m.restarts, s.m.stale, s.m.hits, s.m.queries, s.m.running, s.m.waiting, s.m.usage, s.m.sleeping} {
		v.DeletePartialMatch(l)
	}
}
