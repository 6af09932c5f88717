package fleet

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of this package.
type Metrics struct {
	endpoints *prometheus.GaugeVec
	leaving   *prometheus.GaugeVec
	refused   prometheus.Gauge
}

// NewMetrics registers the metrics; a nil Registerer leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		endpoints: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kvsteer_fleet_endpoints",
			Help: "Endpoints of the pool, by where they come from: configured, dns, node (announced by one), gone (given by nothing any more, until their requests have ended).",
		}, []string{"pool", "origin"}),
		leaving: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kvsteer_fleet_leaving_endpoints",
			Help: "Of these, endpoints that get nothing new because DNS does not give them, or their node says so.",
		}, []string{"pool"}),
		refused: f.NewGauge(prometheus.GaugeOpts{
			Name: "kvsteer_fleet_refused_endpoints",
			Help: "Endpoints that DNS gives or nodes announce, and that are not taken: see /api/v1/state for why.",
		}),
	}
}

func (m *Metrics) set(p Plan) {
	m.endpoints.Reset()
	m.leaving.Reset()
	for _, name := range p.Pools {
		m.leaving.WithLabelValues(name)
		for _, o := range origins() {
			m.endpoints.WithLabelValues(name, string(o))
		}
	}
	for _, e := range p.Endpoints {
		m.endpoints.WithLabelValues(e.Pool, string(e.Origin)).Inc()
		if e.Leaving {
			m.leaving.WithLabelValues(e.Pool).Inc()
		}
	}
	m.refused.Set(float64(len(p.Refused)))
}
