package pool

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of this package. Series of an endpoint are removed when its probing ends.
type Metrics struct {
	up        *prometheus.GaugeVec
	suspect   *prometheus.GaugeVec
	draining  *prometheus.GaugeVec
	failures  *prometheus.CounterVec
	refreshes *prometheus.CounterVec
	adapters  *prometheus.GaugeVec

	mu    sync.Mutex
	shown bool // whether pools have series: while endpoints are probed
}

// NewMetrics registers the metrics; a nil Registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	labels := []string{"pool", "endpoint"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: "kvsteer_pool_endpoint_" + name, Help: help}, labels)
	}
	return &Metrics{
		up:       gauge("up", "1 while requests may be routed to the endpoint, 0 while it is down."),
		suspect:  gauge("suspect", "1 while the endpoint is no first choice: a request that was sent to it ran elsewhere, or its answers failed, and it has not been found well since."),
		draining: gauge("draining", "1 while the endpoint is to get no more requests, else 0."),
		failures: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_pool_probe_failures_total",
			Help: "Failed health probes of the endpoint.",
		}, labels),
		refreshes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_pool_models_refreshes_total",
			Help: "Questions to the endpoint for the models and adapters that it serves, by outcome: " + outcomesText() + ".",
		}, append(labels, "outcome")),
		adapters: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kvsteer_pool_adapters",
			Help: "Adapters under whose names requests find the pool: those configured and those that its engines tell of.",
		}, []string{"pool"}),
	}
}

func outcomesText() string {
	var names []string
	for _, o := range refreshOutcomes() {
		names = append(names, string(o))
	}
	return strings.Join(names, ", ")
}

// refreshed counts a question for models.
func (m *Metrics) refreshed(e *Endpoint, o refreshOutcome) {
	m.refreshes.WithLabelValues(e.pool, e.addr, string(o)).Inc()
}

// setAdapters sets the series of a pool, if pools have any.
func (m *Metrics) setAdapters(p *Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shown {
		m.adapters.WithLabelValues(p.Name()).Set(float64(len(p.Adapters())))
	}
}

// showAdapters gives exactly these pools series.
func (m *Metrics) showAdapters(pools []*Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shown = true
	m.adapters.Reset()
	for _, p := range pools {
		m.adapters.WithLabelValues(p.Name()).Set(float64(len(p.Adapters())))
	}
}

// removeAdapters takes the series of all pools away.
func (m *Metrics) removeAdapters() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shown = false
	m.adapters.Reset()
}

func (m *Metrics) set(e *Endpoint) {
	for vec, on := range map[*prometheus.GaugeVec]bool{m.up: e.Healthy(), m.suspect: e.Suspect(), m.draining: e.Draining()} {
		v := 0.0
		if on {
			v = 1
		}
		vec.WithLabelValues(e.pool, e.addr).Set(v)
	}
	m.failures.WithLabelValues(e.pool, e.addr)
	for _, o := range refreshOutcomes() { // from zero, so that a first one shows in a rate
		m.refreshes.WithLabelValues(e.pool, e.addr, string(o))
	}
}

func (m *Metrics) remove(e *Endpoint) {
	for _, vec := range []*prometheus.GaugeVec{m.up, m.suspect, m.draining} {
		vec.DeleteLabelValues(e.pool, e.addr)
	}
	m.failures.DeleteLabelValues(e.pool, e.addr)
	m.refreshes.DeletePartialMatch(prometheus.Labels{"pool": e.pool, "endpoint": e.addr})
}
