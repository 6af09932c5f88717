package demo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/lab"
)

func TestLatency(t *testing.T) {
	run := func(n int) []time.Duration { // n ms down to 1 ms
		var all []time.Duration
		for i := n; i > 0; i-- {
			all = append(all, time.Duration(i)*time.Millisecond)
		}
		return all
	}
	for _, tt := range []struct {
		name string
		all  []time.Duration
		want Latency
	}{
		{"none", nil, Latency{}},
		{"one", []time.Duration{1500 * time.Microsecond}, Latency{1.5, 1.5, 1.5}},
		{"two", run(2), Latency{1.5, 1, 2}},
		{"three", run(3), Latency{2, 2, 3}},
		{"ten", run(10), Latency{5.5, 5, 9}},
		{"eleven", run(11), Latency{6, 6, 10}},
		{"hundred", run(100), Latency{50.5, 50, 90}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := latency(tt.all); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func good(ttft time.Duration, prompt, cached int) played {
	return played{reply: lab.Reply{Status: 200, TTFT: ttft, PromptTokens: prompt, CachedTokens: cached}}
}

func TestSummarise(t *testing.T) {
	endpoints := []*lab.Engine{{Address: "127.0.0.1:1"}, {Address: "127.0.0.1:2"}}
	counts := map[string]int{"127.0.0.1:1": 3, "127.0.0.1:9": 4}
	refused := played{reply: lab.Reply{Status: 503, TTFT: time.Hour, PromptTokens: 1000, CachedTokens: 1000}}
	cut := played{reply: lab.Reply{Status: 200, Err: errors.New("cut"), TTFT: time.Hour, PromptTokens: 1000}}
	per := map[string]int{"127.0.0.1:1": 3, "127.0.0.1:2": 0}
	for _, tt := range []struct {
		name string
		all  []played
		want Arm
	}{
		{"nothing was sent", nil, Arm{Name: "a", PerEndpoint: per}},
		{
			"what failed counts as error and nowhere else",
			[]played{good(10*time.Millisecond, 100, 50), refused, cut, good(30*time.Millisecond, 300, 50)},
			Arm{Name: "a", Requests: 4, Errors: 2, CachedShare: 0.25, TTFT: Latency{20, 10, 30}, PerEndpoint: per},
		},
		{"all failed", []played{refused}, Arm{Name: "a", Requests: 1, Errors: 1, PerEndpoint: per}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, summarise("a", tt.all, endpoints, counts)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPerEndpoint(t *testing.T) {
	got := perEndpoint([]lab.LogEntry{{Upstream: "a"}, {Upstream: "b"}, {Upstream: "a"}})
	if diff := cmp.Diff(map[string]int{"a": 2, "b": 1}, got); diff != "" {
		t.Error(diff)
	}
}

func bothArms() []Arm {
	return []Arm{
		{
			Name: "kvsteer", Requests: 252, CachedShare: 0.9123, TTFT: Latency{81.4, 60.125, 144.5},
			PerEndpoint: map[string]int{"127.0.0.1:18006": 70, "127.0.0.1:18004": 61, "127.0.0.1:18010": 59, "127.0.0.1:18008": 62},
		},
		{
			Name: "round-robin", Requests: 252, Errors: 1, CachedShare: 0.401, TTFT: Latency{1312, 1200, 2500.6},
			PerEndpoint: map[string]int{"127.0.0.1:18015": 63, "127.0.0.1:18017": 63, "127.0.0.1:18019": 63, "127.0.0.1:18021": 63},
		},
	}
}

func TestTable(t *testing.T) {
	const want = `
                                        kvsteer         round-robin
                   requests                 252                 252
                     errors                   0                   1
   prompt tokens from cache              91.2 %              40.1 %
                  TTFT mean               81 ms             1312 ms
                   TTFT p50               60 ms             1200 ms
                   TTFT p90              144 ms             2501 ms
       requests per replica   61 / 70 / 62 / 59   63 / 63 / 63 / 63
`
	var out strings.Builder
	if err := table(&out, bothArms()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := table(failingWriter{}, bothArms()); err == nil {
		t.Error("a write that failed gives no error")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// Programs read this file: names and nesting stay.
func TestWriteJSON(t *testing.T) {
	const want = `{
  "arms": [
    {
      "name": "kvsteer",
      "requests": 252,
      "errors": 0,
      "cached_share": 0.9123,
      "ttft_ms": {
        "mean": 81.4,
        "p50": 60.125,
        "p90": 144.5
      },
      "per_endpoint": {
        "127.0.0.1:18004": 61,
        "127.0.0.1:18006": 70,
        "127.0.0.1:18008": 62,
        "127.0.0.1:18010": 59
      }
    },
    {
      "name": "round-robin",
      "requests": 252,
      "errors": 1,
      "cached_share": 0.401,
      "ttft_ms": {
        "mean": 1312,
        "p50": 1200,
        "p90": 2500.6
      },
      "per_endpoint": {
        "127.0.0.1:18015": 63,
        "127.0.0.1:18017": 63,
        "127.0.0.1:18019": 63,
        "127.0.0.1:18021": 63
      }
    }
  ]
}
`
	path := filepath.Join(t.TempDir(), "report.json")
	if err := writeJSON(path, bothArms()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := writeJSON(filepath.Join(path, "none"), nil); err == nil {
		t.Error("a path that cannot be written gives no error")
	}
}

func TestFailed(t *testing.T) {
	for _, tt := range []struct {
		name string
		arms []Arm
		want string
	}{
		{"all answered", []Arm{{Name: "a", Requests: 3}, {Name: "b", Requests: 3}}, ""},
		{"an error", []Arm{{Name: "a", Requests: 3}, {Name: "b", Requests: 3, Errors: 1}}, "arm b: 1 of 3 requests failed and 0 were not sent"},
		{"not all sent", []Arm{{Name: "a", Requests: 2}}, "arm a: 0 of 3 requests failed and 1 were not sent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := failed(tt.arms, 3); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
