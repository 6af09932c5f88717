package e2e

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// warmUp is the number of requests that settled sends.
const warmUp = 40

// rest is what the router has while nothing is under way, by one profile of its goroutines. The metric go_goroutines counts those that gather
// metrics too, a different number each time.
type rest struct {
	goroutines  int
	connections int // of Envoy
}

// settled uses the site once in all its parts, waits until nothing is under way and returns what the router has then: the goroutines of
// connections that stay are among it.
func settled(t *testing.T, site *lab.Site) rest {
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
	lowest := rest{goroutines: 1 << 30}
	for range 10 {
		if at := atRest(goroutines(site)); at.goroutines > 0 && at.goroutines < lowest.goroutines {
			lowest = at
		}
	}
	if lowest.goroutines < 10 || lowest.connections == 0 {
		t.Fatalf("the profile of the router's goroutines tells %+v", lowest)
	}
	return lowest
}

// perConnection is how many goroutines gRPC has for one connection.
const perConnection = 3

// atRest reads a profile of the router's goroutines.
func atRest(profile string) (r rest) {
	_, _ = fmt.Sscanf(profile, "goroutine profile: total %d", &r.goroutines) // 0 is told by settled
	for stack := range strings.SplitSeq(profile, "\n\n") {
		if n := 0; strings.Contains(stack, "(*http2Server).HandleStreams") {
			if _, err := fmt.Sscanf(strings.TrimSpace(stack), "%d @", &n); err == nil {
				r.connections += n
			}
		}
	}
	return r
}

// requireSettled waits until nothing that the site did is left: streams, bytes, charges, requests on engines and in Envoy, goroutines.
func requireSettled(t *testing.T, site *lab.Site, before rest) {
	t.Helper()
	var left string
	defer func() {
		if left != "" {
			t.Logf("left over: %s\n%s", left, goroutines(site))
		}
	}()
	eventually(t, "nothing is left over", func() bool {
		left = leftOver(t.Context(), site, before)
		return left == ""
	})
	for _, name := range []string{"kvsteer_extproc_panics_total", "kvsteer_extproc_invalid_endpoints_total"} {
		if n := metric(t, site.RouterAdmin+"/metrics", name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
}

// goroutines tells what the router is doing, by place in the code: its bundle has a profile.
func goroutines(site *lab.Site) string {
	resp, err := http.Get(site.RouterAdmin + "/api/v1/bundle")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	unpacked, err := gzip.NewReader(resp.Body)
	if err != nil {
		return err.Error()
	}
	files := tar.NewReader(unpacked)
	for {
		header, err := files.Next()
		if err != nil {
			return err.Error()
		}
		if path.Base(header.Name) == "goroutines.txt" {
			break
		}
	}
	text, err := io.ReadAll(files)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// leftOver names the first thing that is not back to where it began, "" when all is.
func leftOver(ctx context.Context, site *lab.Site, before rest) string {
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
	now := atRest(goroutines(site))
	most := before.goroutines
	// Envoy's health check has a connection of its own. It comes anew after a check that took too long, as happens to a loaded machine.
	if now.connections == before.connections+1 {
		most += perConnection
	}
	if now.goroutines == 0 || now.goroutines > most {
		return fmt.Sprintf("%d goroutines and %d connections, want %d and %d", now.goroutines, now.connections, before.goroutines, before.connections)
	}
	return ""
}
