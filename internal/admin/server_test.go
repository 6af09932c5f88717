package admin

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServer(t *testing.T) {
	reg := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kvsteer_test_level", Help: "A gauge."})
	reg.MustRegister(gauge)
	gauge.Set(7)
	var missing atomic.Pointer[[]string]
	missing.Store(&[]string{"pool chat: no endpoint is up"})
	s, err := New(Options{Gatherer: reg, Ready: func() []string { return *missing.Load() }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx, l) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	tests := []struct {
		method, path string
		status       int
		text         string
	}{
		{"GET", "/metrics", 200, "kvsteer_test_level 7"},
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/readyz", 503, "pool chat: no endpoint is up"},
		{"GET", "/", 200, "/readyz"},
		{"GET", "/secret", 404, ""},
		{"POST", "/metrics", 405, ""},
	}
	for _, tt := range tests {
		if status, body := get(tt.method, tt.path); status != tt.status || !strings.Contains(body, tt.text) {
			t.Errorf("%s %s: %d %q, want %d with %q", tt.method, tt.path, status, body, tt.status, tt.text)
		}
	}
	missing.Store(&[]string{})
	if status, body := get("GET", "/readyz"); status != 200 || body != "ready\n" {
		t.Errorf("ready: %d %q", status, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestRunSaysWhenTheListenerDies(t *testing.T) {
	s, err := New(Options{Gatherer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := s.Run(t.Context(), l); err == nil || !strings.Contains(err.Error(), "serve admin") {
		t.Errorf("error %v", err)
	}
}

func TestNewNeedsAGatherer(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("accepted")
	}
}
