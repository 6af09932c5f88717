package feed

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// endReason says why a stream ended, or why there was none; one of a closed set.
type endReason string

const (
	endUnreachable endReason = "unreachable" // no connection, or no TLS
	endPlain       endReason = "plaintext"   // clear text is not allowed to that address
	endDenied      endReason = "denied"      // the node does not let this router in
	endVersion     endReason = "version"     // they have no version of the protocol in common
	endHello       endReason = "hello"       // no hello in time, or something else instead
	endInvalid     endReason = "invalid"     // a message that no node sends
	endLimit       endReason = "limit"       // a message too long, or too many streams for the node
	endSilent      endReason = "silent"      // nothing was heard for too long
	endClosed      endReason = "closed"      // by the node
	endLost        endReason = "lost"        // the connection broke
	endAgain       endReason = "again"       // by this router, which needs all blocks again
	endStopped     endReason = "stopped"     // by this router, which stops or does not watch the node any more
)

func endReasons() []endReason {
	return []endReason{
		endUnreachable, endPlain, endDenied, endVersion, endHello, endInvalid, endLimit, endSilent, endClosed, endLost, endAgain, endStopped,
	}
}

// Kinds of blocks received.
const (
	kindCopy  = "copy"
	kindDelta = "delta"
)

// What becomes of charges and of records.
const (
	chargeSent     = "sent"
	chargeReceived = "received"
	chargeDropped  = "dropped"

	recordPassed   = "passed"
	recordReceived = "received"
	recordForeign  = "foreign"
	recordDropped  = "dropped"

	witnessSent    = "sent"
	witnessDropped = "dropped"
)

// Why records of other routers' decisions are given up.
const (
	givenUpExpired = "expired"
	givenUpFull    = "full"
)

// RouterMetrics are the metrics of the router's side. Series of a node are removed when it is no node of the router any more.
type RouterMetrics struct {
	up, stale, refused                    *prometheus.GaugeVec
	streams, ended, blocks, bytes, copies *prometheus.CounterVec
	refusals, charges, records            *prometheus.CounterVec
	witnesses                             *prometheus.CounterVec
	copySeconds                           prometheus.Histogram
	kept                                  prometheus.Gauge
	givenUpRecords                        *prometheus.CounterVec
}

// NewRouterMetrics registers the metrics; a nil Registerer leaves them unregistered.
func NewRouterMetrics(reg prometheus.Registerer) *RouterMetrics {
	f := promauto.With(reg)
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: "kvsteer_feed_router_" + name, Help: help}, []string{"node"})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "kvsteer_feed_router_" + name + "_total", Help: help}, append([]string{"node"}, labels...))
	}
	var reasons, refusals []string
	for _, r := range endReasons() {
		reasons = append(reasons, string(r))
	}
	for _, r := range refusalReasons() {
		refusals = append(refusals, string(r))
	}
	m := &RouterMetrics{
		up:        gauge("node_up", "1 while the node is connected, else 0."),
		stale:     gauge("node_stale", "1 while some blocks of the node are not matched because their changes were not heard of for too long, else 0."),
		refused:   gauge("refused_endpoints", "Endpoints that the node announces and that are not accepted."),
		streams:   counter("streams", "Streams opened to the node, up to its hello."),
		ended:     counter("streams_ended", "Streams that ended or did not come about, by reason: "+strings.Join(reasons, ", ")+".", "reason"),
		blocks:    counter("blocks", "Blocks received, by kind: copy, all blocks of a source on a stream's begin, or delta, changes.", "kind"),
		bytes:     counter("received_bytes", "Bytes of messages received from the node, as they were on the wire."),
		copies:    counter("copies", "Copies of all blocks of a source that were received to their end."),
		refusals:  counter("refusals", "Endpoints refused, by reason: "+strings.Join(refusals, ", ")+".", "reason"),
		charges:   counter("charges", "Charges and releases of load, by what became of them: sent to the node for other routers, received from other routers, dropped.", "outcome"),
		records:   counter("records", "Access log records of other routers' decisions, by what became of them: passed to the node, received from it, foreign: received for another router, dropped.", "outcome"),
		witnesses: counter("witnesses", "Prompts that engines of the node can be known by, by what became of them: sent to the node as hashes, dropped because there were too many.", "outcome"),
		copySeconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "kvsteer_feed_router_copy_seconds", Help: "Time from the begin of a copy of all blocks of a source to its end.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}),
		kept: f.NewGauge(prometheus.GaugeOpts{
			Name: "kvsteer_feed_router_kept_records",
			Help: "Access log records of other routers' decisions that are kept because no node knows those routers.",
		}),
		givenUpRecords: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_feed_router_given_up_records_total",
			Help: "Kept records that were given up, by reason: expired, no node came to know the router within 1 min; full, there were too many.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{givenUpExpired, givenUpFull} {
		m.givenUpRecords.WithLabelValues(reason)
	}
	return m
}

func (m *RouterMetrics) givenUp(reason string, n int) {
	if n > 0 {
		m.givenUpRecords.WithLabelValues(reason).Add(float64(n))
	}
}

// routerSeries are the series of one node.
type routerSeries struct {
	m                             *RouterMetrics
	node                          string
	up, stale, refused            prometheus.Gauge
	streams, bytes, copies        prometheus.Counter
	copyBlocks, deltaBlocks       prometheus.Counter
	ended, refusal, charges, recs map[string]prometheus.Counter
	witnesses                     map[string]prometheus.Counter
}

func (m *RouterMetrics) series(node string) *routerSeries {
	s := &routerSeries{
		m: m, node: node, up: m.up.WithLabelValues(node), stale: m.stale.WithLabelValues(node), refused: m.refused.WithLabelValues(node),
		streams: m.streams.WithLabelValues(node), bytes: m.bytes.WithLabelValues(node), copies: m.copies.WithLabelValues(node),
		copyBlocks: m.blocks.WithLabelValues(node, kindCopy), deltaBlocks: m.blocks.WithLabelValues(node, kindDelta),
		ended: map[string]prometheus.Counter{}, refusal: map[string]prometheus.Counter{},
		charges: map[string]prometheus.Counter{}, recs: map[string]prometheus.Counter{}, witnesses: map[string]prometheus.Counter{},
	}
	for _, r := range endReasons() {
		s.ended[string(r)] = m.ended.WithLabelValues(node, string(r))
	}
	for _, r := range refusalReasons() {
		s.refusal[string(r)] = m.refusals.WithLabelValues(node, string(r))
	}
	for _, o := range []string{chargeSent, chargeReceived, chargeDropped} {
		s.charges[o] = m.charges.WithLabelValues(node, o)
	}
	for _, o := range []string{recordPassed, recordReceived, recordForeign, recordDropped} {
		s.recs[o] = m.records.WithLabelValues(node, o)
	}
	for _, o := range []string{witnessSent, witnessDropped} {
		s.witnesses[o] = m.witnesses.WithLabelValues(node, o)
	}
	return s
}

func (s *routerSeries) charge(outcome string, n int) { s.charges[outcome].Add(float64(n)) }
func (s *routerSeries) record(outcome string)        { s.recs[outcome].Inc() }

func (s *routerSeries) witness(outcome string, n int) { s.witnesses[outcome].Add(float64(n)) }

func (s *routerSeries) received(kind string, blocks int) {
	if kind == kindCopy {
		s.copyBlocks.Add(float64(blocks))
		return
	}
	s.deltaBlocks.Add(float64(blocks))
}

func (s *routerSeries) copied(took time.Duration) {
	s.copies.Inc()
	s.m.copySeconds.Observe(took.Seconds())
}

func (s *routerSeries) delete() {
	l := prometheus.Labels{"node": s.node}
	for _, v := range []*prometheus.GaugeVec{s.m.up, s.m.stale, s.m.refused} {
		v.DeletePartialMatch(l)
	}
	for _, v := range []*prometheus.CounterVec{s.m.streams, s.m.ended, s.m.blocks, s.m.bytes, s.m.copies, s.m.refusals, s.m.charges, s.m.records, s.m.witnesses} {
		v.DeletePartialMatch(l)
	}
}

func set(g prometheus.Gauge, on bool) {
	if on {
		g.Set(1)
		return
	}
	g.Set(0)
}
