package feed

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// outcome is what became of something that a router sent for another one, or for an engine; a metric label.
type outcome string

const (
	relayed outcome = "relayed"
	dropped outcome = "dropped" // the other's queue is full
	unknown outcome = "unknown" // there is no such router

	taken    outcome = "taken"
	unwanted outcome = "unwanted" // nobody has asked for it, or not any more
)

// NodeMetrics are the series of one Node. Those with the label endpoint are there as long as the endpoint is announced.
type NodeMetrics struct {
	streams    prometheus.Gauge
	copies     prometheus.Counter
	copied     prometheus.Counter
	windows    prometheus.Counter
	cancelled  prometheus.Counter
	added      prometheus.Counter
	removed    prometheus.Counter
	queued     prometheus.Gauge
	sent       prometheus.Counter
	overflows  prometheus.Counter
	refused    map[refusal]prometheus.Counter
	charges    map[outcome]prometheus.Counter
	records    map[outcome]prometheus.Counter
	witnesses  map[outcome]prometheus.Counter
	fetches    prometheus.Counter
	fetchBytes prometheus.Counter

	node atomic.Pointer[Node] // what the ledgers' gauges read; nil until there is one
}

// NewNodeMetrics registers the metrics; a nil Registerer leaves them unregistered. They belong to one Node.
func NewNodeMetrics(reg prometheus.Registerer) *NodeMetrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "kvsteer", Subsystem: "feed_node", Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "kvsteer", Subsystem: "feed_node", Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "kvsteer", Subsystem: "feed_node", Name: name, Help: help})
	}
	keys := counters("delta_keys_total", "Blocks in net changes that were sent, counted for each router, by direction: added, removed.", "direction")
	m := &NodeMetrics{
		streams:    gauge("streams", "Streams of routers that watch the node."),
		copies:     counter("copies_total", "Copies of all blocks of a source that were begun: of each source for each stream, and again after an overflow."),
		copied:     counter("copied_blocks_total", "Blocks sent in copies."),
		windows:    counter("windows_total", "Windows of changes that ended."),
		cancelled:  counter("cancelled_blocks_total", "Blocks whose changes cancelled within a window, so that no router was told of them."),
		added:      keys.WithLabelValues("added"),
		removed:    keys.WithLabelValues("removed"),
		queued:     gauge("queued_bytes", "Bytes that wait for routers, each message counted for each router that it waits for."),
		sent:       counter("sent_bytes_total", "Bytes of messages sent to routers."),
		overflows:  counter("overflows_total", "Times that what waited for a router was dropped because it was too much; then all blocks are copied to it again."),
		fetches:    counter("fetches_total", "Files of tokenizers that routers began to read."),
		fetchBytes: counter("fetched_bytes_total", "Bytes of files of tokenizers that were sent."),
		refused:    make(map[refusal]prometheus.Counter),
		charges:    make(map[outcome]prometheus.Counter),
		records:    make(map[outcome]prometheus.Counter),
		witnesses:  make(map[outcome]prometheus.Counter),
	}
	streams := counters("refused_streams_total", "Streams and reads of files that were refused or ended, by reason.", "reason")
	for _, why := range streamRefusals() {
		m.refused[why] = streams.WithLabelValues(string(why))
	}
	connections := counters("refused_connections_total", "Connections that were refused, by reason.", "reason")
	for _, why := range connectionRefusals() {
		m.refused[why] = connections.WithLabelValues(string(why))
	}
	charges := counters("charges_total", "Charges and releases of a router for another one, by outcome; dropped: the other one reads too slowly.", "outcome")
	for _, o := range []outcome{relayed, dropped} {
		m.charges[o] = charges.WithLabelValues(string(o))
	}
	records := counters("records_total", "Records of the access log for another router, by outcome; unknown: no such router watches the node, dropped: it reads too slowly.", "outcome")
	for _, o := range []outcome{relayed, dropped, unknown} {
		m.records[o] = records.WithLabelValues(string(o))
	}
	witnesses := counters("witnesses_total", "Prompts that routers have hashed for engines whose blocks are not all known, by outcome; unwanted: not asked for any more, dropped: more than are looked at.", "outcome")
	for _, o := range []outcome{taken, unwanted, dropped} {
		m.witnesses[o] = witnesses.WithLabelValues(string(o))
	}
	if reg != nil {
		reg.MustRegister(&nodeCollector{m: m})
	}
	return m
}

// went counts what a message that was sent brought.
func (m *NodeMetrics) went(s message) {
	m.added.Add(float64(s.added))
	m.removed.Add(float64(s.removed))
	m.copied.Add(float64(s.copied))
	switch s.kind {
	case kindCharges:
		m.charges[relayed].Add(float64(s.charges))
	case kindRecord:
		m.records[relayed].Inc()
	}
}

// dropped counts what was dropped with a message.
func (m *NodeMetrics) dropped(s message) {
	switch s.kind {
	case kindCharges:
		m.charges[dropped].Add(float64(s.charges))
	case kindRecord:
		m.records[dropped].Inc()
	}
}

// nodeCollector reads what changes too often to be kept in gauges.
type nodeCollector struct{ m *NodeMetrics }

type nodeDescs struct{ copying, waiting, blocks, bytes *prometheus.Desc }

func descs() nodeDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kvsteer_feed_node_"+name, help, labels, nil)
	}
	return nodeDescs{
		copying: desc("copying_streams", "Streams that blocks are being copied to."),
		waiting: desc("waiting_streams", "Streams that wait for their turn to have blocks copied."),
		blocks:  desc("ledger_blocks", "Blocks of the endpoint that are kept for routers, of all ranks together.", "pool", "endpoint"),
		bytes:   desc("ledger_bytes", "Memory that these blocks take, beside the mirror of the engine's cache.", "pool", "endpoint"),
	}
}

// Describe sends the descriptions.
func (c *nodeCollector) Describe(to chan<- *prometheus.Desc) {
	d := descs()
	for _, desc := range []*prometheus.Desc{d.copying, d.waiting, d.blocks, d.bytes} {
		to <- desc
	}
}

// Collect sends the values.
func (c *nodeCollector) Collect(to chan<- prometheus.Metric) {
	n := c.m.node.Load()
	if n == nil {
		return
	}
	d := descs()
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	copying, waiting := n.turns.counts()
	gauge(d.copying, copying)
	gauge(d.waiting, waiting)
	for at, l := range n.ledgers() {
		gauge(d.blocks, l.blocks, at.pool, at.endpoint)
		gauge(d.bytes, l.bytes, at.pool, at.endpoint)
	}
}

type ledgerSize struct{ blocks, bytes int }

// ledgers are the sizes of what is kept, by endpoint; the rank of their places is 0.
func (n *Node) ledgers() map[place]ledgerSize {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[place]ledgerSize)
	for _, a := range n.announced.sources {
		at := place{pool: a.place.pool, endpoint: a.place.endpoint}
		l := all[at]
		blocks, bytes := a.source.memory()
		l.blocks += blocks
		l.bytes += bytes
		all[at] = l
	}
	return all
}
