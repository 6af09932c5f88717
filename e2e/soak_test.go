//go:build soak

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// The soak: so many streams at the same time for so long, then so many long answers open at once.
const (
	soakStreams = 500
	soakTime    = 60 * time.Second
	soakOpen    = 2000
	soakHold    = 10 * time.Second
)

// slowEngine are engine arguments under which thousands of answers are slow and cheap: ten tokens a second each, sent once a second. The
// cache has room for all of them.
var slowEngine = []string{
	"--block-size", "16", "--blocks", "24576", "--prefill-rate", "400000", "--step-tokens", "8192", "--decode-rate", "10", "--decode-slowdown", "0",
	"--chunk-interval", "1s", "--max-concurrency", "2000", "--max-model-len", "16384",
}

// sample is one reading of the router's process, and of the requests that Envoy has open.
type sample struct {
	at                          time.Duration
	requests                    float64
	resident, goroutines, cpu   float64
	openStreams, heldBytes      float64
	indexBlocks, tokenizeFlight float64
}

func (s sample) String() string {
	return fmt.Sprintf("%3.0f s: %.0f requests open, %.1f MiB resident, %.0f goroutines, %.1f CPU s, %.0f streams, %.0f bytes held, %.0f blocks", s.at.Seconds(), s.requests,
		s.resident/(1<<20), s.goroutines, s.cpu, s.openStreams, s.heldBytes, s.indexBlocks)
}

// soak is a site under load and what was seen of it.
type soak struct {
	t      *testing.T
	site   *lab.Site
	client *lab.Client
	began  time.Time

	samples []sample
	done    atomic.Int64

	mu       sync.Mutex
	failures []string
	ttft     []time.Duration // of the present load
}

// TestSoak holds 500 streams for a minute, then 2,000 long answers open at the same time. Nothing fails, nothing of Envoy's is
// exhausted, and the router is afterwards as it was before.
func TestSoak(t *testing.T) {
	raiseFileLimit(t)
	// The cache of token ids is small enough to fill at once, so that growth is a leak.
	s := &soak{t: t, site: startSite(t, envoyNewest, lab.SiteOptions{
		Pools:        []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 4, Args: slowEngine}},
		RouterConfig: "tokenize: {cache: 4MiB}",
	})}
	s.client = s.site.Client()
	s.client.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: soakOpen + soakStreams}}
	defer s.client.Close()

	s.began = time.Now()
	base := s.sample()
	streamed := s.streams()
	middle := s.sample()
	s.report(fmt.Sprintf("%d streams", soakStreams), base)
	opened := s.longAnswers()
	s.report(fmt.Sprintf("%d long answers", soakOpen), middle)
	eventually(t, "the router holds nothing", func() bool {
		last := s.sample()
		return last.openStreams == 0 && last.heldBytes == 0 && last.tokenizeFlight == 0 && last.goroutines <= base.goroutines+30
	})
	for i := 0; i < len(s.samples); i += max(1, len(s.samples)/12) {
		t.Log(s.samples[i])
	}

	if len(s.failures) > 0 {
		t.Errorf("%d of %d requests failed, such as\n%s", len(s.failures), s.done.Load(), strings.Join(s.failures[:min(len(s.failures), 5)], "\n"))
	}
	s.checkLog(streamed + opened)
	s.checkEnvoy()
	s.checkMemory(base)
}

// raiseFileLimit lets this process and those that it starts have all the files they may. Go raises its own limit, and hands the
// old one on to its children unless the program has set one itself.
func raiseFileLimit(t *testing.T) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	// Envoy holds two connections per open answer.
	if want := uint64(3 * soakOpen); limit.Max < want {
		t.Fatalf("the hard limit of open files is %d, the soak needs %d", limit.Max, want)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

// streams keeps 500 streams going for a minute: conversations of four turns, about five seconds an answer. It returns the number of requests.
func (s *soak) streams() int {
	var wg sync.WaitGroup
	before := s.done.Load()
	began := time.Now()
	for c := range soakStreams {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(21, uint64(c)))
			// Clients begin within five seconds, so that they do not move in step.
			if !s.wait(time.Duration(rng.IntN(5000)) * time.Millisecond) {
				return
			}
			var messages []lab.Message
			for turn := 0; time.Since(began) < soakTime; turn++ {
				if turn%4 == 0 {
					messages = []lab.Message{tenantPrompt(c % 20)}
				}
				messages = append(messages, lab.Message{Role: "user", Content: prose(rng, 40+rng.IntN(80))})
				reply := s.chat(messages, 30+rng.IntN(40))
				messages = append(messages, lab.Message{Role: "assistant", Content: reply.Text})
			}
		})
	}
	s.sampleUntil(&wg)
	return int(s.done.Load() - before)
}

// longAnswers opens 2,000 answers within 20 s, each of 45 s, and holds them open together for some time. It returns the number of requests.
func (s *soak) longAnswers() int {
	var wg sync.WaitGroup
	before := s.done.Load()
	for c := range soakOpen {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(22, uint64(c)))
			if !s.wait(time.Duration(c) * 10 * time.Millisecond) {
				return
			}
			s.chat([]lab.Message{tenantPrompt(c % 20), {Role: "user", Content: prose(rng, 40)}}, 450)
		})
	}
	var held []sample
	s.sampleUntil(&wg, func(last sample) {
		if last.requests >= soakOpen {
			held = append(held, last)
		}
	})
	if len(held) == 0 {
		s.t.Errorf("%d answers were never open at the same time", soakOpen)
		return soakOpen
	}
	s.t.Logf("%d answers open together for %.0f s; the router meanwhile: %v", soakOpen, (held[len(held)-1].at - held[0].at).Seconds(), held[len(held)-1])
	if d := held[len(held)-1].at - held[0].at; d < soakHold {
		s.t.Errorf("all answers were open for %s, want %s", d, soakHold)
	}
	// A stream of the router's ends with its decision, whatever the answer does.
	if n := held[len(held)-1].openStreams; n > 100 {
		s.t.Errorf("%v ext_proc streams open beside %d answers", n, soakOpen)
	}
	return int(s.done.Load() - before)
}

func tenantPrompt(tenant int) lab.Message {
	return lab.Message{Role: "system", Content: prose(rand.New(rand.NewPCG(20, uint64(tenant))), 250)}
}

// chat sends one turn and notes what is wrong with its answer.
func (s *soak) chat(messages []lab.Message, tokens int) lab.Reply {
	r := s.client.Chat(s.t.Context(), lab.ChatRequest{Model: "sim", Messages: messages, MaxTokens: tokens})
	s.done.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttft = append(s.ttft, r.TTFT)
	if !r.OK() {
		s.failures = append(s.failures, fmt.Sprintf("status %d %s, error %v", r.Status, r.Body, r.Err))
	}
	return r
}

// wait returns false when the test ends first.
func (s *soak) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.t.Context().Done():
		return false
	}
}

// sampleUntil takes a sample each second until wg is done, and shows it to each.
func (s *soak) sampleUntil(wg *sync.WaitGroup, each ...func(sample)) {
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			last := s.sample()
			for _, f := range each {
				f(last)
			}
		}
	}
}

// sample takes a sample.
func (s *soak) sample() sample {
	page, err := lab.ReadMetrics(s.t.Context(), s.site.RouterAdmin+"/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	read := func(name string) float64 {
		v, err := page.Sum(name)
		if err != nil {
			s.t.Fatal(err)
		}
		return v
	}
	v := sample{
		at:       time.Since(s.began),
		requests: need(s.t, s.site.EnvoyAdmin+"/stats/prometheus?filter=downstream_rq_active", "envoy_http_downstream_rq_active", `envoy_http_conn_manager_prefix="kvsteer"`),
		resident: read("process_resident_memory_bytes"), goroutines: read("go_goroutines"),
		cpu: read("process_cpu_seconds_total"), openStreams: read("kvsteer_extproc_open_streams"), heldBytes: read("kvsteer_extproc_held_bytes"),
		indexBlocks: read("kvsteer_index_blocks"), tokenizeFlight: read("kvsteer_tokenize_in_flight"),
	}
	s.samples = append(s.samples, v)
	return v
}

// report shows one load, from the sample before it to the last one.
func (s *soak) report(what string, before sample) {
	now := s.samples[len(s.samples)-1]
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.ttft)
	n := len(s.ttft)
	seconds, cpu := (now.at - before.at).Seconds(), now.cpu-before.cpu
	s.t.Logf("%s: %d requests in %.0f s (%.0f/s); TTFT p50 %v p99 %v; router %.1f CPU s (%.2f ms per request); %d failures so far", what, n, seconds,
		float64(n)/seconds, s.ttft[n/2].Round(time.Millisecond), s.ttft[n*99/100].Round(time.Millisecond), cpu, 1000*cpu/float64(n), len(s.failures))
	s.ttft = nil
}

// checkLog looks at each request as Envoy saw it.
func (s *soak) checkLog(want int) {
	entries, err := s.site.ReadLog(s.t.Context(), want)
	if err != nil {
		s.t.Fatal(err)
	}
	reasons, bad := map[string]int{}, 0
	for _, e := range entries {
		reasons[e.Reason]++
		if e.Code == http.StatusOK && e.Attempts == 1 && e.DecisionID != "" && e.Upstream == e.Endpoint {
			continue
		}
		if bad++; bad <= 5 {
			s.t.Errorf("access log: %+v", e)
		}
	}
	s.t.Logf("%d requests in the access log, %d of them not answered 200 by the endpoint that was chosen; reasons %v", len(entries), bad, reasons)
}

// checkEnvoy reads the counters of what Envoy could not do.
func (s *soak) checkEnvoy() {
	page := s.site.EnvoyAdmin + "/stats/prometheus"
	for _, name := range []string{
		"envoy_cluster_upstream_cx_overflow", "envoy_cluster_upstream_rq_pending_overflow", "envoy_cluster_upstream_rq_active_overflow",
		"envoy_cluster_upstream_rq_retry_overflow", "envoy_cluster_upstream_cx_none_healthy", "envoy_cluster_upstream_cx_connect_fail",
		"envoy_http_ext_proc_failure_mode_allowed", "envoy_http_ext_proc_message_timeouts", "envoy_http_ext_proc_streams_failed",
		"envoy_http_ext_proc_spurious_msgs_received", "envoy_http_ext_proc_rejected_header_mutations",
	} {
		if v := need(s.t, page, name); v != 0 {
			s.t.Errorf("%s = %v, want 0", name, v)
		}
	}
	s.t.Logf("Envoy: %v ext_proc streams", need(s.t, page, "envoy_http_ext_proc_streams_started"))
	preempted := 0.0
	for _, e := range s.site.Engines {
		preempted += need(s.t, "http://"+e.Address+"/metrics", "vllm:num_preemptions_total")
	}
	s.t.Logf("engines: %v answers gave up their blocks for others", preempted)
}

// checkMemory compares the router's memory, from a third into the first load on, with what it was then. Beyond what blocks take that were
// learned since, it may not grow.
func (s *soak) checkMemory(base sample) {
	const (
		perBlock = 1 << 10  // index, mirror, and as much again that the collector has not got round to
		slack    = 16 << 20 // between two readings
	)
	warm, peak := base, base
	for _, v := range s.samples {
		if v.resident > peak.resident {
			peak = v
		}
		if v.at < soakTime/3 {
			warm = v
		} else if room := warm.resident + slack + perBlock*max(0, v.indexBlocks-warm.indexBlocks); v.resident > room {
			s.t.Errorf("the router's memory grew to %.1f MiB from\n  %v to\n  %v", v.resident/(1<<20), warm, v)
			break
		}
	}
	end := s.samples[len(s.samples)-1]
	s.t.Logf("router memory: %.1f MiB at first, %.1f warm, %.1f at most, %.1f at the end; goroutines %.0f at first, %.0f at the end", base.resident/(1<<20),
		warm.resident/(1<<20), peak.resident/(1<<20), end.resident/(1<<20), base.goroutines, end.goroutines)
}

// need reads a metric that must be there.
func need(t *testing.T, page, name string, labels ...string) float64 {
	t.Helper()
	v, err := lab.Metric(t.Context(), page, name, labels...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
