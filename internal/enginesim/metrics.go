package enginesim

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the families of vLLM's /metrics that routers and dashboards read, by vLLM's names.
type metrics struct {
	registry   *prometheus.Registry
	firstToken *prometheus.HistogramVec
	latency    *prometheus.HistogramVec
	model      string
}

// latencies are what one rank observes.
type latencies struct {
	firstToken, latency prometheus.Observer
}

// newMetrics registers the histograms in a registry of its own.
func newMetrics(o *Options) *metrics {
	histogram := func(name, help string, buckets ...float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"model_name", "engine"})
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		model:    o.Models[0],
		firstToken: histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.",
			.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
		latency: histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.",
			.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
	}
	m.registry.MustRegister(m.firstToken, m.latency)
	return m
}

// rank returns the observers of a rank.
func (m *metrics) rank(rank int) latencies {
	engine := strconv.Itoa(rank)
	return latencies{m.firstToken.WithLabelValues(m.model, engine), m.latency.WithLabelValues(m.model, engine)}
}

// register adds the other series of a rank. load is called at each scrape.
func (m *metrics) register(o *Options, rank int, load func() load) {
	engine := strconv.Itoa(rank)
	config := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "vllm:cache_config_info", Help: "Information of the LLMEngine CacheConfig",
		ConstLabels: prometheus.Labels{
			"engine": engine, "block_size": strconv.Itoa(o.BlockSize), "num_gpu_blocks": strconv.Itoa(o.Blocks),
			"num_gpu_blocks_override": strconv.Itoa(o.Blocks), "enable_prefix_caching": "True",
			"prefix_caching_hash_algo": string(o.HashAlgo), "hash_block_size": "None", "cache_dtype": "auto",
		},
	}, func() float64 { return 1 })
	m.registry.MustRegister(config, newLoadCollector(load, prometheus.Labels{"model_name": m.model, "engine": engine}))
}

// loadCollector turns a load into series at each scrape, so that they are of one moment.
type loadCollector struct {
	load   func() load
	series []loadSeries
}

type loadSeries struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	value  func(l *load) float64
	labels []string // values of the variable labels
}

func newLoadCollector(read func() load, labels prometheus.Labels) *loadCollector {
	c := &loadCollector{load: read}
	add := func(kind prometheus.ValueType, name, help string, value func(l *load) float64) {
		c.series = append(c.series, loadSeries{desc: prometheus.NewDesc(name, help, nil, labels), kind: kind, value: value})
	}
	addBy := func(name, help, label string, values map[string]func(l *load) float64) {
		desc := prometheus.NewDesc(name, help, []string{label}, labels)
		for v, f := range values {
			c.series = append(c.series, loadSeries{desc: desc, kind: prometheus.CounterValue, value: f, labels: []string{v}})
		}
	}
	none := func(*load) float64 { return 0 }
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "vllm:num_requests_running", "Number of requests in model execution batches.",
		func(l *load) float64 { return float64(l.running) })
	add(gauge, "vllm:num_requests_waiting", "Number of requests waiting to be processed.",
		func(l *load) float64 { return float64(l.waiting) })
	add(gauge, "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
		func(l *load) float64 { return l.usage })
	add(counter, "vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.",
		func(l *load) float64 { return float64(l.queries) })
	add(counter, "vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.",
		func(l *load) float64 { return float64(l.hits) })
	add(counter, "vllm:num_preemptions_total", "Cumulative number of preemption from the engine.",
		func(l *load) float64 { return float64(l.preempted) })
	add(counter, "vllm:prompt_tokens_total", "Number of prefill tokens processed.",
		func(l *load) float64 { return float64(l.prompt) })
	add(counter, "vllm:prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).",
		func(l *load) float64 { return float64(l.cached) })
	add(counter, "vllm:generation_tokens_total", "Number of generation tokens processed.",
		func(l *load) float64 { return float64(l.generated) })
	addBy("vllm:prompt_tokens_by_source_total", "Number of prompt tokens by source.", "source", map[string]func(l *load) float64{
		"local_compute":        func(l *load) float64 { return float64(l.prompt - l.cached) },
		"local_cache_hit":      func(l *load) float64 { return float64(l.cached) },
		"external_kv_transfer": none,
	})
	addBy("vllm:request_success_total", "Count of successfully processed requests.", "finished_reason", map[string]func(l *load) float64{
		"stop":   func(l *load) float64 { return float64(l.stop) },
		"length": func(l *load) float64 { return float64(l.length) },
		"abort":  func(l *load) float64 { return float64(l.gone) },
		"error":  none,
	})
	return c
}

func (c *loadCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range c.series {
		ch <- s.desc
	}
}

func (c *loadCollector) Collect(ch chan<- prometheus.Metric) {
	l := c.load()
	for _, s := range c.series {
		ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(&l), s.labels...)
	}
}
