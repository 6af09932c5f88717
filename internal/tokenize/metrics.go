package tokenize

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the series of one Tokenizer.
type Metrics struct {
	durations map[Outcome]prometheus.Observer // read-only
	calls     *prometheus.CounterVec
	inFlight  prometheus.Gauge
	cache     atomic.Pointer[cache] // what the cache gauges read; nil until a Tokenizer has one
}

// NewMetrics registers the series with reg. A Metrics belongs to one Tokenizer.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		durations: make(map[Outcome]prometheus.Observer),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kvsteer_tokenize_in_flight",
			Help: "Calls of an engine's /tokenize or render endpoint that are under way.",
		}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kvsteer_tokenize_calls_total",
			Help: "Calls of engines for token ids, by api (tokenize, render) and outcome; where a render endpoint is not_offered, /tokenize is asked as well.",
		}, []string{"api", "outcome"}),
	}
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kvsteer_tokenize_duration_seconds",
		Help:    "Time to get the token ids of a prompt that the request does not carry itself, by outcome.",
		Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5},
	}, []string{"outcome"})
	for _, o := range Outcomes() {
		if o != Given && o != Unkeyable {
			m.durations[o] = durations.WithLabelValues(string(o))
		}
	}
	reg.MustRegister(
		durations,
		m.calls,
		m.inFlight,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kvsteer_tokenize_cache_entries",
			Help: "Prompts whose token ids are cached.",
		}, func() float64 { return float64(m.cache.Load().entries()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kvsteer_tokenize_cache_bytes",
			Help: "Bytes of cached token ids, with the cost of an entry.",
		}, func() float64 { return float64(m.cache.Load().bytes()) }),
	)
	return m
}

func (m *Metrics) observe(o Outcome, d time.Duration) {
	if h := m.durations[o]; h != nil {
		h.Observe(d.Seconds())
	}
}

func (m *Metrics) called(api API, o Outcome) { m.calls.WithLabelValues(string(api), string(o)).Inc() }
