package pool

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of this package. Series of an endpoint are removed when its probing ends.
type Metrics struct {
	up       *prometheus.GaugeVec
	failures *prometheus.CounterVec
}

// NewMetrics registers the metrics; a nil Registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	labels := []string{"pool", "endpoint"}
	return &Metrics{
		up: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kvsteer_pool_endpoint_up",
			Help: "1 while requests may be routed to the endpoint, 0 while it is down.",
		}, labels),
		failures: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_pool_probe_failures_total",
			Help: "Failed health probes of the endpoint.",
		}, labels),
	}
}

func (m *Metrics) set(e *Endpoint, up bool) {
	v := 0.0
	if up {
		v = 1
	}
	m.up.WithLabelValues(e.pool, e.addr).Set(v)
	m.failures.WithLabelValues(e.pool, e.addr)
}

func (m *Metrics) remove(e *Endpoint) {
	m.up.DeleteLabelValues(e.pool, e.addr)
	m.failures.DeleteLabelValues(e.pool, e.addr)
}
