package config

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics tell how the configuration in use came about.
type Metrics struct {
	applied, refused prometheus.Counter
	successful       prometheus.Gauge
	timestamp        prometheus.Gauge
}

// NewMetrics registers the metrics; a nil Registerer leaves them unregistered. They begin with a configuration that was read at now.
func NewMetrics(reg prometheus.Registerer, now time.Time) *Metrics {
	f := promauto.With(reg)
	reloads := f.NewCounterVec(prometheus.CounterOpts{
		Name: "kvsteer_config_reloads_total",
		Help: "Changed configurations found while running, by outcome: applied, or refused with the one before left in use.",
	}, []string{"outcome"})
	m := &Metrics{
		applied: reloads.WithLabelValues("applied"),
		refused: reloads.WithLabelValues("refused"),
		successful: f.NewGauge(prometheus.GaugeOpts{
			Name: "kvsteer_config_last_reload_successful",
			Help: "1 when the configuration that was last found is in use, 0 when it was refused.",
		}),
		timestamp: f.NewGauge(prometheus.GaugeOpts{
			Name: "kvsteer_config_last_reload_timestamp_seconds",
			Help: "When the configuration in use was read, in seconds since 1970.",
		}),
	}
	m.read(now)
	return m
}

func (m *Metrics) read(now time.Time) {
	m.successful.Set(1)
	m.timestamp.Set(float64(now.UnixMilli()) / 1000)
}

// Applied counts a configuration that was taken into use.
func (m *Metrics) Applied(now time.Time) {
	m.applied.Inc()
	m.read(now)
}

// Refused counts a configuration that was not.
func (m *Metrics) Refused() {
	m.refused.Inc()
	m.successful.Set(0)
}
