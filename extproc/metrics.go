package extproc

import "github.com/prometheus/client_golang/prometheus"

// outcome says how a stream ended; one of a closed set.
type outcome string

const (
	outcomeRouted      outcome = "routed"      // reply with an endpoint
	outcomeUnrouted    outcome = "unrouted"    // reply without one: Envoy's fallback decides
	outcomeRefused     outcome = "refused"     // the client was answered 503 or 429
	outcomePassthrough outcome = "passthrough" // a mode that does not route
	outcomeObserved    outcome = "observed"    // observability mode, nothing replied
	outcomeUnexpected  outcome = "unexpected"  // a message that does not belong to the conversation
	outcomeAborted     outcome = "aborted"     // ended by the other side before the decision was sent
	outcomeTooLarge    outcome = "too_large"   // gRPC refused a message above its cap
	outcomeExpired     outcome = "expired"     // the body did not come within BodyWait
	outcomeDrained     outcome = "drained"     // shutdown while waiting for the body
	outcomePanic       outcome = "panic"
)

// kind says what a decision was made from; one of a closed set.
type kind string

const (
	kindNoBody   kind = "no_body"   // the request has none
	kindBody     kind = "body"      // the whole body
	kindTooLarge kind = "too_large" // body above MaxBody, not read
	kindNoRoom   kind = "no_room"   // body beyond MaxTotal, not read
	kindPassed   kind = "passed"    // nothing is decided for it: body not read

	kindUnreadable kind = "unreadable" // body of a type or an encoding that is not read
	kindLate       kind = "late"       // the rest of the body was not waited for

	kindNone kind = "" // no decision is asked for any more
)

func kinds() []kind {
	return []kind{kindNoBody, kindBody, kindTooLarge, kindNoRoom, kindPassed, kindUnreadable, kindLate}
}

// server says who served a request, as far as a gateway tells; one of a closed set.
type server string

const (
	servedByChoice  server = "choice"
	servedByAnother server = "another"
	servedByUnknown server = "unknown"
)

// Metrics are the server's series.
type Metrics struct {
	open        prometheus.Gauge
	held        prometheus.Gauge
	streams     *prometheus.CounterVec // outcome
	decisions   *prometheus.CounterVec // kind
	passthrough *prometheus.CounterVec // mode
	modes       *prometheus.CounterVec // mode
	served      *prometheus.CounterVec // by
	panics      prometheus.Counter
	invalid     prometheus.Counter
	refused     prometheus.Counter
	seconds     prometheus.Histogram
	openLogs    prometheus.Gauge
	logStreams  *prometheus.CounterVec // outcome
}

// NewMetrics registers the series with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const namespace, subsystem = "kvsteer", "extproc"
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{label})
	}
	m := &Metrics{
		open:        prometheus.NewGauge(prometheus.GaugeOpts(opts("open_streams", "External-processing streams that are open."))),
		held:        prometheus.NewGauge(prometheus.GaugeOpts(opts("held_bytes", "Bytes of request headers and bodies held or reserved by open streams."))),
		streams:     counter("streams_total", "External-processing streams ended, by outcome.", "outcome"),
		decisions:   counter("decisions_total", "Decisions asked for, by what of the request was at hand.", "kind"),
		passthrough: counter("passthrough_streams_total", "Streams of a processing mode that does not route, by mode.", "mode"),
		modes:       counter("stream_modes_total", "Streams begun, by the request body mode of the filter.", "mode"),
		served:      counter("served_requests_total", "Routed requests whose response began, by the endpoint that the gateway says served it: the choice, another, or unknown where it does not say. With headers: gaie.", "by"),
		panics:      prometheus.NewCounter(prometheus.CounterOpts(opts("panics_total", "Panics recovered in streams, those of access logs included."))),
		invalid:     prometheus.NewCounter(prometheus.CounterOpts(opts("invalid_endpoints_total", "Decisions with an address that is not ip:port, which was not sent to Envoy."))),
		refused:     prometheus.NewCounter(prometheus.CounterOpts(opts("refused_connections_total", "Connections whose TLS handshake failed."))),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "decision_seconds",
			Help:    "Time from the receipt of the message that completes a request to its reply handed to gRPC.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
	}
	m.openLogs = prometheus.NewGauge(prometheus.GaugeOpts(opts("open_access_log_streams", "Access log streams that are open: one for each worker of each Envoy that has sent a record.")))
	m.logStreams = counter("access_log_streams_total", "Access log streams ended, by outcome.", "outcome")
	for _, o := range logOutcomes() {
		m.logStreams.WithLabelValues(string(o))
	}
	for _, o := range []outcome{
		outcomeRouted, outcomeUnrouted, outcomeRefused, outcomePassthrough, outcomeObserved, outcomeUnexpected,
		outcomeAborted, outcomeTooLarge, outcomeExpired, outcomeDrained, outcomePanic,
	} {
		m.streams.WithLabelValues(string(o))
	}
	for _, k := range kinds() {
		m.decisions.WithLabelValues(string(k))
	}
	for _, mode := range []bodyMode{buffered, fullDuplex} {
		m.modes.WithLabelValues(modeLabel(mode))
	}
	for _, by := range []server{servedByChoice, servedByAnother, servedByUnknown} {
		m.served.WithLabelValues(string(by))
	}
	reg.MustRegister(m.open, m.held, m.streams, m.decisions, m.passthrough, m.modes, m.served, m.panics, m.invalid, m.refused, m.seconds, m.openLogs, m.logStreams)
	return m
}
