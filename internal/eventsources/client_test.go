package eventsources

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func serve(t *testing.T, h http.HandlerFunc) (endpoint string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestAskRecorded(t *testing.T) {
	body, err := os.ReadFile("testdata/vllm-0.32.0.json")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/kv_event_sources" {
			t.Errorf("asked %s %s", r.Method, r.URL)
		}
		w.Write(body)
	})
	got, err := New(Options{}).Ask(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Rank{{18857, 18867}, {18858, 18868}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse(t *testing.T) {
	const zmq = `"publisher":"zmq","endpoint":`
	many := func(n int) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = fmt.Sprintf(`"%d":{%s"tcp://*:%d"}`, i, zmq, 5000+i)
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	tests := []struct {
		name, body string
		want       []Rank // nil: refused
	}{
		{"one rank", `{"0":{` + zmq + `"tcp://*:5557"}}`, []Rank{{Events: 5557}}},
		{"not sorted, with replay", `{"1":{` + zmq + `"tcp://*:2"},"0":{` + zmq + `"tcp://*:1","replay_endpoint":"tcp://*:9"}}`, []Rank{{1, 9}, {2, 0}}},
		{"unknown fields", `{"0":{` + zmq + `"tcp://*:5557","topic":7,"later":{"a":[1]}}}`, []Rank{{Events: 5557}}},
		{"another host", `{"0":{` + zmq + `"tcp://169.254.169.254:80"}}`, []Rank{{Events: 80}}},
		{"IPv6", `{"0":{` + zmq + `"tcp://[::]:5557"}}`, []Rank{{Events: 5557}}},
		{"the most ranks", many(64), nil}, // filled in below
		{"switched off", `{"0":{"enable_kv_cache_events":false,` + zmq + `"tcp://*:5557"}}`, []Rank{{}}},
		{"another publisher", `{"0":{"publisher":"null","endpoint":"tcp://*:5557"}}`, []Rank{{}}},
		{"no publisher", `{"0":{}}`, []Rank{{}}},
		{"null", `{"0":null}`, []Rank{{}}},
		{"not over TCP", `{"0":{` + zmq + `"ipc:///tmp/x:5557"}}`, []Rank{{}}},
		{"no port", `{"0":{` + zmq + `"tcp://*"}}`, []Rank{{}}},
		{"port 0", `{"0":{` + zmq + `"tcp://*:0"}}`, []Rank{{}}},
		{"port too high", `{"0":{` + zmq + `"tcp://*:65536"}}`, []Rank{{}}},
		{"port with a sign", `{"0":{` + zmq + `"tcp://*:+57"}}`, []Rank{{}}},
		{"port with a zero before it", `{"0":{` + zmq + `"tcp://*:057"}}`, []Rank{{}}},

		{"no rank", `{}`, nil},
		{"a gap", `{"0":{` + zmq + `"tcp://*:1"},"2":{` + zmq + `"tcp://*:3"}}`, nil},
		{"not from 0 on", `{"8":{` + zmq + `"tcp://*:1"}}`, nil},
		{"another spelling of 0", `{"00":{` + zmq + `"tcp://*:1"}}`, nil},
		{"names for ranks", `{"detail":{}}`, nil},
		{"too many", many(65), nil},
		{"endpoint is a number", `{"0":{` + zmq + `5557}}`, nil},
		{"a list", `[{"publisher":"zmq"}]`, nil},
		{"a list of ranks", `{"0":[1]}`, nil},
		{"text behind it", `{"0":{}} x`, nil},
		{"no JSON", `<html>`, nil},
		{"empty", ``, nil},
		{"deep", `{"0":{"x":` + strings.Repeat("[", 60_000), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "the most ranks" {
				for i := range 64 {
					tt.want = append(tt.want, Rank{Events: uint16(5000 + i)})
				}
			}
			got, err := parse([]byte(tt.body))
			if (err != nil) != (tt.want == nil) {
				t.Fatalf("ranks %v, error %v", got, err)
			}
			if err != nil && strings.Contains(err.Error(), "5557") {
				t.Errorf("the error quotes the reply: %v", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever an engine answers, it costs bounded time and memory, and nobody else is asked.
func TestAskHostile(t *testing.T) {
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	tests := []struct {
		name    string
		answer  http.HandlerFunc
		offered bool // the error is not ErrNotOffered
	}{
		{"not known", http.NotFound, false},
		{"method not allowed", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMethodNotAllowed) }, false},
		{"server error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, true},
		{"refused", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, true},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+elsewhere+"/kv_event_sources", http.StatusFound)
		}, true},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for chunk := []byte(strings.Repeat(" ", 4096)); r.Context().Err() == nil; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, true},
		{"no end", func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte(`{"0":{`))
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-stop:
			}
		}, true},
		{"no answer", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-stop:
			}
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			endpoint := serve(t, tt.answer)
			ranks, err := New(Options{Timeout: 200 * time.Millisecond}).Ask(t.Context(), endpoint)
			if err == nil || errors.Is(err, ErrNotOffered) == tt.offered {
				t.Errorf("ranks %v, error %v", ranks, err)
			}
		})
	}
}

func TestAskNobody(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	endpoint := strings.TrimPrefix(s.URL, "http://")
	s.Close()
	if _, err := New(Options{}).Ask(t.Context(), endpoint); err == nil || errors.Is(err, ErrNotOffered) {
		t.Errorf("error %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"1":{"publisher":"zmq","endpoint":"tcp://*:2"},"0":{"publisher":"zmq","endpoint":"tcp://*:1"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		ranks, err := parse(body)
		if err == nil && (len(ranks) < 1 || len(ranks) > maxRanks) {
			t.Errorf("%d ranks", len(ranks))
		}
	})
}
