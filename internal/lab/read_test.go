package lab

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLogReaderFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	log := (&Site{AccessLog: path}).FollowLog()
	if _, err := log.Next(); err == nil {
		t.Error("a log that is not there gives no error")
	}
	write(`{"time":"2026-01-02T03:04:05.678Z","duration_ms":322,"code":200,"decision_id":null,"matched_tokens":48}` + "\n" + `{"code":5`)
	first, err := log.Next()
	if err != nil || len(first) != 1 {
		t.Fatalf("%d entries, %v; want the one whole line", len(first), err)
	}
	e, end := first[0], time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)
	if e.Code != 200 || e.DecisionID != "" || e.Matched != 48 || !e.End().Equal(end) {
		t.Errorf("entry %+v, end %v; want the end %v", e, e.End(), end)
	}
	write("03}\n")
	if second, err := log.Next(); err != nil || len(second) != 1 || second[0].Code != 503 {
		t.Errorf("then %+v, %v; want the line that was not whole before", second, err)
	}
	if more, err := log.Next(); err != nil || len(more) != 0 {
		t.Errorf("then %+v, %v; want nothing", more, err)
	}
	write("not JSON\n")
	if _, err := log.Next(); err == nil {
		t.Error("a line that is not JSON gives no error")
	}
}

func TestReadLogWaits(t *testing.T) {
	site := &Site{AccessLog: filepath.Join(t.TempDir(), "access.log")}
	if err := os.WriteFile(site.AccessLog, []byte("{\"code\":200}\n{\"code\":503}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := site.ReadLog(t.Context(), 2); err != nil || len(got) != 2 {
		t.Errorf("%d entries, %v; want both", len(got), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got, err := site.ReadLog(ctx, 3); len(got) != 2 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d entries, %v; want both and that the third did not come", len(got), err)
	}
}

func TestMetric(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`# HELP blocks Blocks.
blocks{endpoint="a",tier="device"} 2
blocks{endpoint="a",tier="any"} 3
blocks{endpoint="b",tier="x y"} 1e+01
blocks_total 7
broken{endpoint="a"} many
`))
	}))
	defer server.Close()
	for name, tt := range map[string]struct {
		path, metric string
		labels       []string
		want         float64
		bad          bool
	}{
		"sum":            {"/metrics", "blocks", nil, 15, false},
		"one label":      {"/metrics", "blocks", []string{`endpoint="a"`}, 5, false},
		"space in label": {"/metrics", "blocks", []string{`endpoint="b"`}, 10, false},
		"two labels":     {"/metrics", "blocks", []string{`tier="any"`, `endpoint="a"`}, 3, false},
		"no labels":      {"/metrics", "blocks_total", nil, 7, false},
		"other label":    {"/metrics", "blocks", []string{`endpoint="c"`}, 0, true},
		"other name":     {"/metrics", "block", nil, 0, true},
		"not a number":   {"/metrics", "broken", nil, 0, true},
		"not found":      {"/other", "blocks", nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Metric(t.Context(), server.URL+tt.path, tt.metric, tt.labels...)
			if got != tt.want || (err != nil) != tt.bad {
				t.Errorf("got %v, %v; want %v, error %v", got, err, tt.want, tt.bad)
			}
		})
	}
}
