package approx

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// cause says why keys are dropped; one of a closed set.
type cause string

const (
	causeCapacity  cause = "capacity"  // the endpoint's cache is taken to be full
	causeBound     cause = "bound"     // the endpoint has its share of all blocks
	causeLifetime  cause = "lifetime"  // not used for too long
	causeForgotten cause = "forgotten" // the endpoint went down, was drained, reset or removed
)

// Metrics of this package. What belongs to an endpoint is read when it is asked for, so its series end with the endpoint.
type Metrics struct {
	drops map[cause]prometheus.Counter
	index atomic.Pointer[Index] // whose endpoints are exported; nil before New
}

// NewMetrics registers the metrics; a nil Registerer leaves them unregistered. One Metrics serves one Index.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	drops := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "kvsteer_approx_dropped_blocks_total",
		Help: "Text blocks dropped, by cause: capacity, bound, lifetime, forgotten.",
	}, []string{"cause"})
	m := &Metrics{drops: map[cause]prometheus.Counter{}}
	for _, c := range []cause{causeCapacity, causeBound, causeLifetime, causeForgotten} {
		m.drops[c] = drops.WithLabelValues(string(c))
	}
	if reg != nil {
		reg.MustRegister(newCollector(&m.index))
	}
	return m
}

func (m *Metrics) dropped(c cause, n int) { m.drops[c].Add(float64(n)) }

// collector exports the size of an index.
type collector struct {
	index  *atomic.Pointer[Index]
	blocks *prometheus.Desc
	bytes  *prometheus.Desc
	sound  *prometheus.Desc
}

func newCollector(x *atomic.Pointer[Index]) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kvsteer_approx_"+name, help, labels, nil)
	}
	return &collector{
		index:  x,
		blocks: desc("endpoint_blocks", "Text blocks that the endpoint was sent and is taken to hold.", "pool", "endpoint"),
		bytes:  desc("index_bytes", "Memory of the index of text blocks, without the lists of what each endpoint was sent."),
		sound:  desc("index_walking", "1 when a check has found a wrong match, after which every match walks, or blocks of an endpoint that rest on nothing."),
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.blocks
	ch <- c.bytes
	ch <- c.sound
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	x := c.index.Load()
	if x == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	st := x.blocks.Stats()
	gauge(c.bytes, float64(st.Bytes))
	walking := 0.0
	if st.Walking || st.Opened > 0 {
		walking = 1
	}
	gauge(c.sound, walking)
	blocks := map[[2]string]int{} // by pool and address, at which there may be several
	for _, e := range x.all() {
		blocks[[2]string{e.pool, e.address}] += e.Blocks()
	}
	for at, n := range blocks {
		gauge(c.blocks, float64(n), at[0], at[1])
	}
}
