package subscriber

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the series of all subscribers of a process, by pool, endpoint and data-parallel rank. The series of a Subscriber appear when its Run
// begins and are deleted when it ends.
type Metrics struct {
	batches     *prometheus.CounterVec
	events      *prometheus.CounterVec // by type
	dropped     *prometheus.CounterVec // by reason
	resets      *prometheus.CounterVec // by cause
	gaps        *prometheus.CounterVec // by outcome
	replays     *prometheus.CounterVec // by outcome
	replayed    *prometheus.CounterVec
	saves       *prometheus.CounterVec // by outcome
	restores    *prometheus.CounterVec // by outcome
	connections *prometheus.CounterVec
	refused     *prometheus.CounterVec // by reason
	lag         *prometheus.HistogramVec
	connected   *prometheus.GaugeVec
	blocks      *prometheus.GaugeVec
	bytes       *prometheus.GaugeVec
	withdrawn   *prometheus.CounterVec
	orphans     *prometheus.GaugeVec
	problem     *prometheus.GaugeVec   // by problem
	healed      *prometheus.CounterVec // by means
	witnesses   *prometheus.CounterVec // by outcome
}

// NewMetrics returns Metrics registered with reg; nil registers them nowhere. It panics if they are registered already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	labels := func(more ...string) []string { return append([]string{"pool", "endpoint", "rank"}, more...) }
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "kvsteer", Subsystem: "subscriber", Name: name, Help: help,
		}, labels(more...))
	}
	gauge := func(name, help string, more ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "kvsteer", Subsystem: "subscriber", Name: name, Help: help,
		}, labels(more...))
	}
	m := &Metrics{
		batches:     counter("batches_total", "Event batches received, unreadable ones among them."),
		events:      counter("events_total", "KV-cache events received, by type.", "type"),
		dropped:     counter("dropped_blocks_total", "Blocks in events that were not mirrored, by reason.", "reason"),
		resets:      counter("resets_total", "Times that what was known of the engine's cache was forgotten, by cause.", "cause"),
		gaps:        counter("gaps_total", "Gaps in the numbers of event batches, by outcome.", "outcome"),
		replays:     counter("replays_total", "Replays of missed batches asked of the engine, by outcome; empty: there was nothing to replay.", "outcome"),
		replayed:    counter("replayed_batches_total", "Event batches applied from replays."),
		saves:       counter("saves_total", "Times that the mirror was written to its file, by outcome.", "outcome"),
		restores:    counter("restores_total", "Saved mirrors looked for when following an engine began, by outcome; damaged, foreign and version: the file is set aside.", "outcome"),
		connections: counter("connections_total", "Connections with an engine established."),
		refused:     counter("refused_connections_total", "Connections that the guard refused or ended, by reason.", "reason"),
		connected:   gauge("connected", "1 while an engine is connected and what it published before is not being replayed, else 0."),
		blocks:      gauge("blocks", "Blocks in the mirror of the engine's cache."),
		bytes:       gauge("mirror_bytes", "Memory of the mirror of the engine's cache; by blocks: what a block takes. Not in it: what is kept for healing, 9 MB at most."),
		withdrawn:   counter("withdrawn_blocks_total", "Blocks forgotten, although the engine may hold them, to make room for newer ones in a full mirror."),
		orphans:     gauge("orphan_blocks", "Blocks in the mirror that are not announced because an ancestor is unknown; in relation to blocks, how blind the mirror still is."),
		healed:      counter("healed_blocks_total", "Blocks taken for resident although no event announced them, by what shows it: hash, the engine's own hash, or content, for a limited time.", "means"),
		witnesses:   counter("witnesses_total", "Routed prompts looked at to root orphans, by outcome.", "outcome"),
		problem:     gauge("problem", "1 for the engine's current problem, by name; no series without one.", "problem"),
		lag: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "kvsteer", Subsystem: "subscriber", Name: "lag_seconds",
			Help:    "Time from the engine's making of a batch, by its clock, to the end of its application, by ours.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, labels()),
	}
	if reg != nil {
		for _, c := range m.vecs() {
			reg.MustRegister(c)
		}
	}
	return m
}

// vec is what every metric vector can do.
type vec interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}

func (m *Metrics) vecs() []vec {
	return []vec{
		m.batches, m.events, m.dropped, m.resets, m.gaps, m.replays, m.replayed, m.saves, m.restores, m.connections, m.refused, m.lag, m.connected, m.blocks, m.bytes, m.withdrawn, m.orphans, m.problem, m.healed, m.witnesses,
	}
}

// series are the Metrics of one Subscriber, looked up once. Closed label sets start at zero, so that a first increment shows
// in a rate. Methods are for Run's goroutine, except refuse.
type series struct {
	m                    *Metrics
	pool, endpoint, rank string

	batches, connections       prometheus.Counter
	replayed                   prometheus.Counter
	replays                    map[outcome]prometheus.Counter
	repaired, unrepaired       prometheus.Counter
	saves, saveFailed          prometheus.Counter
	restores                   map[restored]prometheus.Counter
	events                     [eventKinds]prometheus.Counter
	dropped                    [drops]prometheus.Counter
	refused                    map[violation]prometheus.Counter
	lag                        prometheus.Observer
	connected, blocks, orphans prometheus.Gauge
	bytes                      prometheus.Gauge
	withdrawn                  prometheus.Counter
	problem                    Problem
	healed                     [allMeans]prometheus.Counter
	witnesses                  [hearings]prometheus.Counter
}

func (m *Metrics) series(pool, endpoint string, number int) *series {
	rank := strconv.Itoa(number)
	s := &series{
		m: m, pool: pool, endpoint: endpoint, rank: rank,
		batches:     m.batches.WithLabelValues(pool, endpoint, rank),
		connections: m.connections.WithLabelValues(pool, endpoint, rank),
		replayed:    m.replayed.WithLabelValues(pool, endpoint, rank),
		replays:     make(map[outcome]prometheus.Counter),
		repaired:    m.gaps.WithLabelValues(pool, endpoint, rank, "repaired"),
		unrepaired:  m.gaps.WithLabelValues(pool, endpoint, rank, "reset"),
		saves:       m.saves.WithLabelValues(pool, endpoint, rank, "saved"),
		saveFailed:  m.saves.WithLabelValues(pool, endpoint, rank, "failed"),
		restores:    make(map[restored]prometheus.Counter),
		refused:     make(map[violation]prometheus.Counter),
		lag:         m.lag.WithLabelValues(pool, endpoint, rank),
		connected:   m.connected.WithLabelValues(pool, endpoint, rank),
		blocks:      m.blocks.WithLabelValues(pool, endpoint, rank),
		bytes:       m.bytes.WithLabelValues(pool, endpoint, rank),
		withdrawn:   m.withdrawn.WithLabelValues(pool, endpoint, rank),
		orphans:     m.orphans.WithLabelValues(pool, endpoint, rank),
	}
	for k := range s.events {
		s.events[k] = m.events.WithLabelValues(pool, endpoint, rank, eventKind(k).String())
	}
	for d := range s.dropped {
		if drop(d) != dropNone {
			s.dropped[d] = m.dropped.WithLabelValues(pool, endpoint, rank, drop(d).String())
		}
	}
	for _, c := range []Cause{CauseDisconnect, CauseGap, CauseLost, CauseBackwards, CauseCleared, CauseUnreadable, CauseBlockSize} {
		m.resets.WithLabelValues(pool, endpoint, rank, string(c))
	}
	for w := range s.healed {
		s.healed[w] = m.healed.WithLabelValues(pool, endpoint, rank, means(w).String())
	}
	for h := range s.witnesses {
		s.witnesses[h] = m.witnesses.WithLabelValues(pool, endpoint, rank, hearing(h).String())
	}
	for _, o := range outcomes() {
		s.replays[o] = m.replays.WithLabelValues(pool, endpoint, rank, string(o))
	}
	for _, o := range restores() {
		s.restores[o] = m.restores.WithLabelValues(pool, endpoint, rank, string(o))
	}
	for _, v := range violations() {
		s.refused[v] = m.refused.WithLabelValues(pool, endpoint, rank, string(v))
	}
	return s
}

// batch records one batch that was folded by now. Of a replayed one the lag says nothing.
func (s *series) batch(st foldStats, now time.Time, replayed bool) {
	for k, n := range st.events {
		if n > 0 {
			s.events[k].Add(float64(n))
		}
	}
	for d, n := range st.dropped {
		if n > 0 && s.dropped[d] != nil {
			s.dropped[d].Add(float64(n))
		}
	}
	if !st.published.IsZero() && !replayed {
		s.lag.Observe(max(0, now.Sub(st.published).Seconds())) // clocks of two hosts differ
	}
	s.healing(st)
}

// healing records what a batch, a prompt or time has done to the mirror.
func (s *series) healing(st foldStats) {
	for w, n := range st.healed {
		if n > 0 {
			s.healed[w].Add(float64(n))
		}
	}
	for h, n := range st.witnesses {
		if n > 0 {
			s.witnesses[h].Add(float64(n))
		}
	}
	if st.withdrawn > 0 {
		s.withdrawn.Add(float64(st.withdrawn))
	}
	s.blocks.Set(float64(st.blocks))
	s.bytes.Set(float64(st.bytes))
	s.orphans.Set(float64(st.orphans))
}

func (s *series) reset(c Cause) {
	s.m.resets.WithLabelValues(s.pool, s.endpoint, s.rank, string(c)).Inc()
	s.blocks.Set(0)
	s.orphans.Set(0)
}

func (s *series) describe(d Description) {
	connected := 0.0
	if d.Connected {
		connected = 1
	}
	s.connected.Set(connected)
	if d.Problem == s.problem {
		return
	}
	if s.problem != ProblemNone {
		s.m.problem.DeleteLabelValues(s.pool, s.endpoint, s.rank, string(s.problem))
	}
	if s.problem = d.Problem; d.Problem != ProblemNone {
		s.m.problem.WithLabelValues(s.pool, s.endpoint, s.rank, string(d.Problem)).Set(1)
	}
}

// refuse counts a connection that the guard ended. It is safe for concurrent use.
func (s *series) refuse(v violation) { s.refused[v].Inc() }

// delete removes the series from the Metrics.
func (s *series) delete() {
	for _, v := range s.m.vecs() {
		v.DeletePartialMatch(prometheus.Labels{"pool": s.pool, "endpoint": s.endpoint, "rank": s.rank})
	}
}
