package discover

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of this package. Series of a name are removed when it is not asked for any more.
type Metrics struct {
	lookups   *prometheus.CounterVec
	failing   *prometheus.GaugeVec
	addresses *prometheus.GaugeVec
	dropped   *prometheus.GaugeVec
}

// NewMetrics registers the metrics; a nil Registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	var words []string
	for _, o := range outcomes() {
		words = append(words, string(o))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: "kvsteer_discover_" + name, Help: help}, []string{"name"})
	}
	return &Metrics{
		lookups: f.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_discover_lookups_total",
			Help: "Questions to DNS for the name, by outcome: " + strings.Join(words, ", ") + " (none: it does not exist or has no address).",
		}, []string{"name", "outcome"}),
		failing:   gauge("failing", "1 while DNS does not answer for the name, and the last answer stays in use."),
		addresses: gauge("addresses", "Addresses of the name that are in use."),
		dropped:   gauge("dropped_addresses", "Addresses, or SRV records, of the name's last answer beyond what is taken."),
	}
}

func (m *Metrics) add(n Name) {
	for _, o := range outcomes() {
		m.lookups.WithLabelValues(n.String(), string(o))
	}
	m.failing.WithLabelValues(n.String())
	m.addresses.WithLabelValues(n.String())
	m.dropped.WithLabelValues(n.String())
}

func (m *Metrics) asked(n Name, o outcome, b belief, dropped int) {
	m.lookups.WithLabelValues(n.String(), string(o)).Inc()
	m.failing.WithLabelValues(n.String()).Set(float64(min(b.failures, 1)))
	m.addresses.WithLabelValues(n.String()).Set(float64(len(b.addrs)))
	if o != outcomeFailed {
		m.dropped.WithLabelValues(n.String()).Set(float64(dropped))
	}
}

func (m *Metrics) remove(n Name) {
	m.lookups.DeletePartialMatch(prometheus.Labels{"name": n.String()})
	m.failing.DeleteLabelValues(n.String())
	m.addresses.DeleteLabelValues(n.String())
	m.dropped.DeleteLabelValues(n.String())
}
