package kvindex

import "github.com/prometheus/client_golang/prometheus"

// Metrics exports an index's Stats. Blocks per endpoint are not among them: the index knows slots, not endpoints.
type Metrics struct {
	index  *Index
	series []series
}

type series struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(Stats) float64
}

// NewMetrics registers the metrics of x with reg. It panics when another index is registered there already.
func NewMetrics(reg prometheus.Registerer, x *Index) *Metrics {
	m := &Metrics{index: x}
	add := func(name, help string, kind prometheus.ValueType, value func(Stats) float64) {
		desc := prometheus.NewDesc("kvsteer_index_"+name, help, nil, nil)
		m.series = append(m.series, series{desc, kind, value})
	}
	add("slots", "Sources of blocks in the index.", prometheus.GaugeValue,
		func(s Stats) float64 { return float64(s.Slots) })
	add("full_slots", "Sources that are not matched because the index was full when they stored.", prometheus.GaugeValue,
		func(s Stats) float64 { return float64(s.FullSlots) })
	add("blocks", "Different blocks in the index.", prometheus.GaugeValue,
		func(s Stats) float64 { return float64(s.Blocks) })
	add("sets", "Different sets of holders in the index.", prometheus.GaugeValue,
		func(s Stats) float64 { return float64(s.Sets) })
	add("bytes", "Memory of the index.", prometheus.GaugeValue,
		func(s Stats) float64 { return float64(s.Bytes) })
	add("checks_total", "Matches that were checked by a walk over every block.", prometheus.CounterValue,
		func(s Stats) float64 { return float64(s.Checks) })
	add("open_slots_total", "Sources that checks found to hold a block without one before it; they are not matched until their blocks come anew.", prometheus.CounterValue,
		func(s Stats) float64 { return float64(s.Opened) })
	add("differences_total", "Checked matches that the walk found to be wrong, with no source's blocks to explain it.", prometheus.CounterValue,
		func(s Stats) float64 { return float64(s.Differences) })
	add("walking", "1 when a difference was found and every match walks since.", prometheus.GaugeValue,
		func(s Stats) float64 {
			if s.Walking {
				return 1
			}
			return 0
		})
	reg.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range m.series {
		ch <- s.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	stats := m.index.Stats()
	for _, s := range m.series {
		ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(stats))
	}
}
