package tlsfiles

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of all listeners with TLS.
type Metrics struct {
	expiry  *prometheus.GaugeVec
	reloads *prometheus.CounterVec
}

// NewMetrics registers the metrics with reg; nil registers them nowhere.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		expiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kvsteer_tls_certificate_expiry_timestamp_seconds",
			Help: "Unix time at which the certificate chain that a listener uses expires: the earliest end of its certificates.",
		}, []string{"listener"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_tls_reloads_total",
			Help: "Times that a listener's changed certificate, key or client authorities were read: applied, or refused with the old ones left in use.",
		}, []string{"listener", "result"}),
	}
	if reg != nil {
		reg.MustRegister(m.expiry, m.reloads)
	}
	return m
}

func (m *Metrics) expires(listener string, at time.Time) {
	m.expiry.WithLabelValues(listener).Set(float64(at.Unix()))
}

// expect shows a listener's counters before anything is counted.
func (m *Metrics) expect(listener string) {
	for _, result := range []string{"applied", "refused"} {
		m.reloads.WithLabelValues(listener, result)
	}
}

func (m *Metrics) reloaded(listener string, err error) {
	result := "applied"
	if err != nil {
		result = "refused"
	}
	m.reloads.WithLabelValues(listener, result).Inc()
}
