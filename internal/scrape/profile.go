package scrape

// Profile says how an engine names what is scraped.
type Profile string

// The profiles.
const (
	ProfileAuto   Profile = "auto"   // by which families are there
	ProfileVLLM   Profile = "vllm"   // vLLM, from 0.9 on
	ProfileSGLang Profile = "sglang" // SGLang, with --enable-metrics
)

// Profiles returns all of them.
func Profiles() []Profile { return []Profile{ProfileAuto, ProfileVLLM, ProfileSGLang} }

// family is one value by its names, the newest first.
type family []string

// families are the names of one profile.
type families struct {
	running, waiting family
	usage            family // 0 to 1
	hits, queries    family // counters, in tokens
	sleep            string // a gauge by sleep_state; "" for none
	rank             string // label of the data-parallel rank
	lazy             bool   // counters are not there before they count
}

// profiles returns the families of a profile; of ProfileAuto those of all.
func (p Profile) families() []*families {
	// vLLM's loggers.py. Names with gpu_ are those before 0.10; releases between had both.
	vllm := &families{
		running: family{"vllm:num_requests_running"},
		waiting: family{"vllm:num_requests_waiting"},
		usage:   family{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
		hits:    family{"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"},
		queries: family{"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"},
		sleep:   "vllm:engine_sleep_state",
		rank:    "engine",
	}
	// SGLang's metrics_collector.py. Of a hybrid model token_usage is that of the fullest pool. A request's cached tokens are counted by cache_source,
	// each of them once, and its prompt by is_streaming.
	sglang := &families{
		running: family{"sglang:num_running_reqs"},
		waiting: family{"sglang:num_queue_reqs"},
		usage:   family{"sglang:token_usage"},
		hits:    family{"sglang:cached_tokens_total"},
		queries: family{"sglang:prompt_tokens_total"},
		rank:    "dp_rank",
		lazy:    true,
	}
	switch p {
	case ProfileVLLM:
		return []*families{vllm}
	case ProfileSGLang:
		return []*families{sglang}
	}
	return []*families{vllm, sglang}
}

// all returns the families by value, sleep left out.
func (f *families) all() []family { return []family{f.running, f.waiting, f.usage, f.hits, f.queries} }
