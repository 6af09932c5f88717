package e2e

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// warmUp is the number of requests that settled sends.
const warmUp = 40

// settled uses the site once in all its parts, waits until nothing is under way and returns the router's goroutines then: those of
// connections that stay are among them.
func settled(t *testing.T, site *lab.Site) (goroutines float64) {
	t.Helper()
	// Each of Envoy's workers has a connection of its own to the router; so many new connections reach all workers.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var wg sync.WaitGroup
	for range warmUp {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, site.URL+"/v1/completions", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
	}
	wg.Wait()
	lowest := 1e9
	same := 0
	eventually(t, "the router is at rest", func() bool {
		n := metric(t, site.RouterAdmin+"/metrics", "go_goroutines")
		if n < lowest {
			lowest, same = n, 0
		} else {
			same++
		}
		return same >= 20
	})
	return lowest
}

// requireSettled waits until nothing that the site did is left: streams, bytes, charges, requests on engines and in Envoy, goroutines.
func requireSettled(t *testing.T, site *lab.Site, most float64) {
	t.Helper()
	var left string
	defer func() {
		if left != "" {
			t.Logf("left over: %s\n%s", left, goroutines(site))
		}
	}()
	eventually(t, "nothing is left over", func() bool {
		left = leftOver(t.Context(), site, most)
		return left == ""
	})
	for _, name := range []string{"kvsteer_extproc_panics_total", "kvsteer_extproc_invalid_endpoints_total"} {
		if n := metric(t, site.RouterAdmin+"/metrics", name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
}

// goroutines tells what the router is doing, by place in the code.
func goroutines(site *lab.Site) string {
	resp, err := http.Get(site.RouterAdmin + "/api/v1/bundle")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	bundle, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err.Error()
	}
	text, err := fs.ReadFile(bundle, "goroutines.txt")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// leftOver names the first thing that is not back to where it began, "" when all is.
func leftOver(ctx context.Context, site *lab.Site, goroutines float64) string {
	type check struct {
		url, metric string
		most        float64
	}
	router := site.RouterAdmin + "/metrics"
	checks := []check{
		{site.EnvoyAdmin + "/stats/prometheus?filter=downstream_rq_active", "envoy_http_downstream_rq_active", 0},
		{router, "kvsteer_extproc_open_streams", 0},
		{router, "kvsteer_extproc_held_bytes", 0},
		{router, "kvsteer_router_endpoint_backlog_tokens", 0},
		{router, "go_goroutines", goroutines},
	}
	for _, e := range site.Engines {
		for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting"} {
			checks = append(checks, check{"http://" + e.Address + "/metrics", name, 0})
		}
	}
	for _, c := range checks {
		var labels []string
		if strings.HasPrefix(c.url, site.EnvoyAdmin) {
			labels = []string{`prefix="kvsteer"`}
		}
		v, err := lab.Metric(ctx, c.url, c.metric, labels...)
		if err != nil {
			return err.Error()
		}
		if v > c.most {
			return fmt.Sprintf("%s of %s is %v, want %v", c.metric, c.url, v, c.most)
		}
	}
	return ""
}
