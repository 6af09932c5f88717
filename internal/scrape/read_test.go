package scrape

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden returns the pages of an engine by file name.
func golden(t testing.TB, glob string) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/" + glob)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, error %v", glob, len(files), err)
	}
	pages := map[string]string{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(f)] = string(data)
	}
	return pages
}

func TestReadGolden(t *testing.T) {
	want := map[string]reading{
		"vllm-0.23.0.txt": {profile: ProfileVLLM, counts: map[string]counts{"0": {224, 2033}}},
		"vllm-0.32.0.txt": {profile: ProfileVLLM, counts: map[string]counts{"0": {1856, 4149}}},
		"sglang-written.txt": {
			profile: ProfileSGLang, running: 12, waiting: 2, usage: .375,
			counts: map[string]counts{"": {4_000_120, 8_129_902}},
		},
	}
	for name, page := range golden(t, "*.txt") {
		t.Run(name, func(t *testing.T) {
			for _, profile := range []Profile{ProfileAuto, want[name].profile} {
				got, err := read(strings.NewReader(page), profile, nil)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want[name], got, cmp.AllowUnexported(reading{}, counts{})); diff != "" {
					t.Errorf("%s (-want +got):\n%s", profile, diff)
				}
			}
		})
	}
}

// TestReadLacking takes each family out of each page.
func TestReadLacking(t *testing.T) {
	for name, whole := range golden(t, "*.txt") {
		first, err := read(strings.NewReader(whole), ProfileAuto, nil)
		if err != nil {
			t.Fatal(err)
		}
		families := first.profile.families()[0]
		for _, f := range families.all() {
			var page []string
			for line := range strings.Lines(whole) {
				if !strings.HasPrefix(line, f[0]+"{") {
					page = append(page, line)
				}
			}
			got, err := read(strings.NewReader(strings.Join(page, "")), first.profile, nil)
			if counter := strings.HasSuffix(f[0], "_total"); counter && families.lazy {
				if err != nil || got.running != first.running {
					t.Errorf("%s without %s: %+v, error %v", name, f[0], got, err)
				}
				continue
			}
			if outcomeOf(err) != OutcomeMissing || !strings.Contains(fmt.Sprint(err), f[0]) {
				t.Errorf("%s without %s: error %v", name, f[0], err)
			}
		}
	}
}

// lines of a page of vLLM with two ranks, and of its older names.
const (
	running = `vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 1
`
	waiting = `vllm:num_requests_waiting{engine="0",model_name="a"} 10.0
vllm:num_requests_waiting{engine="1",model_name="a"} 1e1
`
	usage = `vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="a"} .1
`
	hits = `vllm:prefix_cache_hits_total{engine="0",model_name="a"} 4
vllm:prefix_cache_hits_total{engine="1",model_name="a"} 5
`
	queries = `vllm:prefix_cache_queries_total{engine="0",model_name="a"} 40
vllm:prefix_cache_queries_total{engine="1",model_name="a"} 50
`
	gauges = running + waiting + usage
	page2  = gauges + hits + queries
)

func TestRead(t *testing.T) {
	both := reading{profile: ProfileVLLM, running: 4, waiting: 20, usage: .3, counts: map[string]counts{"0": {4, 40}, "1": {5, 50}}}
	asleep := both
	asleep.sleeping = true
	other := strings.NewReplacer(`model_name="a"`, `model_name="b"`, " 3.0\n", " 300\n", " 40\n", " 4000\n")
	old := strings.NewReplacer("kv_cache_usage", "gpu_cache_usage", "prefix_cache", "gpu_prefix_cache")
	sleep := func(awake, offloaded int) string {
		return fmt.Sprintf("vllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} %d\nvllm:engine_sleep_state{engine=\"1\",sleep_state=\"weights_offloaded\"} %d\n", awake, offloaded)
	}
	sg := func(lines string) string { return strings.ReplaceAll(lines, "X", "sglang:") }
	tests := []struct {
		name, page string
		profile    Profile
		labels     map[string]string
		want       reading
	}{
		{name: "two ranks", page: page2, want: both},
		{name: "no newline at the end", page: strings.TrimSuffix(page2, "\n"), want: both},
		{name: "CRLF", page: strings.ReplaceAll(page2, "\n", "\r\n"), want: both},
		{name: "OpenMetrics", page: "# TYPE vllm:prefix_cache_hits counter\n" + page2 + "# EOF\n", want: both},
		{name: "times", page: strings.ReplaceAll(page2, "\n", " 1795966233000\n"), want: both},
		{name: "old names", page: old.Replace(page2), want: both},
		{name: "old and new names: the new ones count", page: strings.ReplaceAll(old.Replace(page2), "4\n", "9\n") + page2, want: both},
		{name: "a model of several", page: page2 + other.Replace(page2), labels: map[string]string{"model_name": "a"}, want: both},
		{name: "two labels", page: page2 + other.Replace(page2), labels: map[string]string{"model_name": "a", "engine": "0"}, want: reading{
			profile: ProfileVLLM, running: 3, waiting: 10, usage: .5, counts: map[string]counts{"0": {4, 40}},
		}},
		{name: "two models together", page: page2 + other.Replace(page2), want: reading{
			profile: ProfileVLLM, running: 305, waiting: 40, usage: .3, counts: map[string]counts{"0": {8, 4040}, "1": {10, 100}},
		}},
		{name: "a series twice", page: page2 + hits, want: both},
		{name: "awake", page: page2 + sleep(1, 0), want: both},
		{name: "asleep", page: page2 + sleep(0, 1), want: asleep},
		{name: "asleep by one series", page: page2 + "vllm:engine_sleep_state{sleep_state=\"discard_all\"} 1\n", want: asleep},
		{name: "other lines are not looked at", page: "x{ 1 2 3\n}\n\xff\n# HELP\n" + strings.Repeat("y", 100_000) + "\n" + page2, want: both},
		{name: "names that only begin alike", page: page2 + "vllm:num_requests_running_max 7\n", want: both},
		{name: "usage rounded up", page: strings.ReplaceAll(page2, " 0.5", " 1.004"), want: reading{profile: ProfileVLLM, running: 4, waiting: 20, usage: .552, counts: both.counts}},
		{name: "escapes in labels", page: strings.ReplaceAll(page2, `"a"`, `"\\\"\n}"`), want: both},

		{name: "SGLang without dp", page: sg("Xnum_running_reqs{tp_rank=\"0\"} 3\nXnum_running_reqs{tp_rank=\"1\"} 3\nXnum_queue_reqs 1\nXtoken_usage 0.5\nXprompt_tokens_total 10\nXcached_tokens_total 4\n"), want: reading{
			profile: ProfileSGLang, running: 3, waiting: 1, usage: .5, counts: map[string]counts{"": {4, 10}},
		}},
		{name: "SGLang before its first token", page: sg("Xnum_running_reqs 0\nXnum_queue_reqs 0\nXtoken_usage 0\n"), want: reading{profile: ProfileSGLang, counts: map[string]counts{}}},
		{name: "SGLang before its first hit", page: sg("Xnum_running_reqs 0\nXnum_queue_reqs 0\nXtoken_usage 0\nXprompt_tokens_total 7\n"), want: reading{profile: ProfileSGLang, counts: map[string]counts{"": {0, 7}}}},
		{name: "a process of one more", page: sg("Xnum_running_reqs{pid=\"1\"} 3\nXnum_running_reqs{pid=\"2\"} 0\nXnum_queue_reqs 0\nXtoken_usage 0\n"), want: reading{profile: ProfileSGLang, running: 3, counts: map[string]counts{}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.profile == "" {
				tt.profile = ProfileAuto
			}
			got, err := read(strings.NewReader(tt.page), tt.profile, tt.labels)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(reading{}, counts{}), cmp.Comparer(near)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestReadFails(t *testing.T) {
	const secret = "s3cret"
	value := func(name, v string) string {
		return page2 + name + `{engine="0",model_name="` + secret + `"} ` + v + "\n"
	}
	sg := strings.ReplaceAll("Xnum_running_reqs 0\nXnum_queue_reqs 0\nXtoken_usage 0\n", "X", "sglang:")
	tests := []struct {
		name, page string
		profile    Profile
		labels     map[string]string
		want       Outcome
		text       string // of the error
	}{
		{name: "empty", want: OutcomeMissing, text: "vllm:num_requests_running"},
		{name: "a web page", page: "<html>\n<body> x </body></html>", want: OutcomeMissing, text: "sglang:num_running_reqs"},
		{name: "another engine's", page: "tgi_queue_size 1\n", want: OutcomeMissing, text: "sglang:num_running_reqs"},
		{name: "of the other profile", page: page2, profile: ProfileSGLang, want: OutcomeMissing, text: "sglang:num_running_reqs"},
		{name: "of both profiles", page: page2 + sg, want: OutcomeMissing, text: "profile"},
		{name: "gauges alone", page: gauges, want: OutcomeMissing, text: "vllm:prefix_cache_queries_total (or vllm:gpu_prefix_cache_queries_total)"},
		{name: "no hits", page: gauges + queries, want: OutcomeMissing, text: "vllm:prefix_cache_hits_total"},
		{name: "a comment is no series", page: running + waiting + "# TYPE vllm:kv_cache_usage_perc gauge\n" + hits + queries, want: OutcomeMissing, text: "vllm:kv_cache_usage_perc"},
		{name: "a label that no series has", page: page2, labels: map[string]string{"model_name": "b"}, want: OutcomeMissing, text: "labels"},
		{name: "a label that series lack", page: page2, labels: map[string]string{"model": ""}, want: OutcomeMissing, text: "labels"},
		{name: "a rank short", page: strings.Replace(page2, `vllm:num_requests_waiting{engine="1",model_name="a"} 1e1`, "", 1), want: OutcomeMissing, text: "vllm:num_requests_waiting"},
		{name: "a rank more", page: page2 + "vllm:kv_cache_usage_perc{engine=\"2\"} 0\n", want: OutcomeMissing, text: "vllm:kv_cache_usage_perc"},

		{name: "NaN", page: value("vllm:num_requests_running", "NaN"), want: OutcomeValue, text: "vllm:num_requests_running"},
		{name: "infinite", page: value("vllm:num_requests_waiting", "+Inf"), want: OutcomeValue, text: "vllm:num_requests_waiting"},
		{name: "below zero", page: value("vllm:num_requests_running", "-1"), want: OutcomeValue},
		{name: "too many requests", page: value("vllm:num_requests_running", "1e300"), want: OutcomeValue},
		{name: "usage in percent", page: value("vllm:kv_cache_usage_perc", "55"), want: OutcomeValue, text: "vllm:kv_cache_usage_perc"},
		{name: "a counter below zero", page: value("vllm:prefix_cache_hits_total", "-5"), want: OutcomeValue},
		{name: "a counter too high", page: value("vllm:prefix_cache_queries_total", "1e19"), want: OutcomeValue},
		{name: "half asleep", page: page2 + "vllm:engine_sleep_state{sleep_state=\"awake\"} 0.5\n", want: OutcomeValue, text: "sleep"},
		{name: "NaN in SGLang's counters", page: sg + "sglang:prompt_tokens_total NaN\n", want: OutcomeValue, text: "sglang:prompt_tokens_total"},

		{name: "no value", page: page2 + "vllm:num_requests_running{model_name=\"" + secret + "\"}\n", want: OutcomeMalformed, text: "vllm:num_requests_running"},
		{name: "no number", page: value("vllm:num_requests_waiting", secret), want: OutcomeMalformed, text: "vllm:num_requests_waiting"},
		{name: "labels without an end", page: page2 + "vllm:kv_cache_usage_perc{model_name=\"" + secret, want: OutcomeMalformed, text: "vllm:kv_cache_usage_perc"},
		{name: "a label twice", page: page2 + `vllm:num_requests_running{a="1",a="2"} 1`, want: OutcomeMalformed},
		{name: "not UTF-8", page: page2 + "vllm:num_requests_running{a=\"\xff\"} 1\n", want: OutcomeMalformed},

		{name: "a page too long", page: page2 + strings.Repeat("x 1\n", maxPage/4), want: OutcomeTooLarge},
		{name: "one line too long", page: page2 + strings.Repeat("x", maxPage), want: OutcomeTooLarge},
		{name: "a line too long of a family", page: page2 + `vllm:num_requests_running{a="` + strings.Repeat("x", maxLine) + `"} 1`, want: OutcomeTooLarge, text: "vllm:num_requests_running"},
		{name: "too many lines of a family", page: page2 + strings.Repeat("vllm:num_requests_running 1\n", maxLines), want: OutcomeTooLarge},
		{name: "too many bytes of a family", page: page2 + strings.Repeat("vllm:num_requests_running{a=\""+strings.Repeat("x", 4000)+"\"} 1\n", 300), want: OutcomeTooLarge},
		{name: "too many ranks", page: manyRanks(maxRanks + 1), want: OutcomeTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.profile == "" {
				tt.profile = ProfileAuto
			}
			_, err := read(strings.NewReader(tt.page), tt.profile, tt.labels)
			if err == nil || outcomeOf(err) != tt.want || !strings.Contains(err.Error(), tt.text) {
				t.Fatalf("error %v, outcome %s, want %s with %q", err, outcomeOf(err), tt.want, tt.text)
			}
			if strings.Contains(err.Error(), secret) || len(err.Error()) > 300 {
				t.Errorf("the error quotes the page: %v", err)
			}
		})
	}
	t.Run("breaks off", func(t *testing.T) {
		want := errors.New("broken")
		if _, err := read(io.MultiReader(strings.NewReader(page2), failing{want}), ProfileAuto, nil); !errors.Is(err, want) {
			t.Errorf("error %v", err)
		}
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func manyRanks(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(
			"vllm:num_requests_running{engine=\"R\"} 1\nvllm:num_requests_waiting{engine=\"R\"} 1\nvllm:kv_cache_usage_perc{engine=\"R\"} 1\nvllm:prefix_cache_hits_total{engine=\"R\"} 1\nvllm:prefix_cache_queries_total{engine=\"R\"} 1\n",
			"R", fmt.Sprint(i)), "\n\n", "\n"))
	}
	return b.String()
}

func TestReadMostRanks(t *testing.T) {
	got, err := read(strings.NewReader(manyRanks(maxRanks)), ProfileAuto, nil)
	if err != nil || got.running != maxRanks || got.usage != 1 || len(got.counts) != maxRanks {
		t.Errorf("running %d, usage %v, %d ranks, error %v", got.running, got.usage, len(got.counts), err)
	}
}

// TestPages wants the profiles' names to be different: which of two engines a page is of is told by them.
func TestPages(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range ProfileAuto.families() {
		for _, family := range f.all() {
			for _, name := range family {
				if seen[name] {
					t.Errorf("%s is there twice", name)
				}
				seen[name] = true
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("%d names", len(seen))
	}
}

// FuzzRead wants whatever is read to be within its bounds and not to depend on the order of lines, and errors not to quote a page.
func FuzzRead(f *testing.F) {
	for _, whole := range golden(f, "*.txt") {
		var page strings.Builder
		for line := range strings.Lines(whole) { // those that matter, as fuzzing is slow on long ones
			if strings.Contains(line, "requests_") || strings.Contains(line, "_reqs") || strings.Contains(line, "usage") || strings.Contains(line, "prefix_cache") || strings.Contains(line, "ed_tokens") {
				page.WriteString(line)
			}
		}
		f.Add([]byte(page.String()[:min(page.Len(), 4096)]), true)
	}
	f.Add([]byte(page2), false)
	f.Add([]byte("vllm:engine_sleep_state{sleep_state=\"awake\"} 0\n"+page2), true)
	f.Fuzz(func(t *testing.T, data []byte, byLabel bool) {
		var labels map[string]string
		if byLabel {
			labels = map[string]string{"model_name": "tiny"}
		}
		got, err := read(strings.NewReader(string(data)), ProfileAuto, labels)
		if err != nil {
			if !slices.Contains(Outcomes(), outcomeOf(err)) || len(err.Error()) > 300 {
				t.Fatalf("error %v", err)
			}
			return
		}
		if got.running < 0 || got.waiting < 0 || math.IsNaN(got.usage) || got.usage < 0 || got.usage > 1 || len(got.counts) > 2*maxRanks {
			t.Fatalf("%+v", got)
		}
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		slices.Reverse(lines)
		again, err := read(strings.NewReader(strings.Join(lines, "\n")), ProfileAuto, labels)
		if err != nil {
			t.Fatalf("the other way round: %v", err)
		}
		if diff := cmp.Diff(got, again, cmp.AllowUnexported(reading{}, counts{}), cmp.Comparer(near)); diff != "" {
			t.Fatalf("the other way round (-want +got):\n%s", diff)
		}
	})
}
