//go:build soak

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/enginesim"
	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestSoakOverhead reports what routing a prompt of token ids adds to a request, over an external-processing server that does nothing.
// Two Envoys with the same configuration stand before the same upstreams, one asks kvsteer and the other one nothing; requests of 32 KB
// go to them in turn, one at a time. The upstreams answer at once; engines beside them only tell the router of the blocks. Times depend on
// the machine and are not judged; that each prompt was matched is.
func TestSoakOverhead(t *testing.T) {
	const rounds, warm, size, prompts, upstreams = 3000, 300, 32 << 10, 16, 2
	bodies := make([][]byte, prompts)
	rng := rand.New(rand.NewPCG(31, 1))
	for i := range bodies {
		bodies[i] = tokenBody(rng, size)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()

	ports, err := lab.FreePorts(upstreams)
	if err != nil {
		t.Fatal(err)
	}
	pool := lab.PoolOptions{Name: "chat", Model: "sim"}
	for _, port := range ports {
		pool.Endpoints = append(pool.Endpoints, startUpstream(t))
		pool.Events = append(pool.Events, fmt.Sprintf("127.0.0.1:%d", port))
	}
	site := startSite(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{pool}})
	page := site.RouterAdmin + "/metrics"
	var engines []string
	for _, events := range pool.Events {
		engines = append(engines, startEngine(t, events))
	}
	eventually(t, "the engines are connected", func() bool { return need(t, page, "kvsteer_subscriber_connected") == upstreams })
	for _, address := range engines {
		for _, body := range bodies {
			complete(t, client, "http://"+address, body)
		}
	}
	blocks := need(t, "http://"+engines[0]+"/metrics", "vllm:prompt_tokens_total") / 16 * upstreams
	eventually(t, "the router knows the blocks", func() bool {
		return need(t, page, "kvsteer_router_endpoint_blocks", `tier="device"`) >= blocks-upstreams*prompts
	})
	pool.Events = nil
	idle := startSite(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{pool}, ExtProc: "unix:" + startNothing(t)})

	arms := []struct {
		name  string
		site  *lab.Site
		times []time.Duration
	}{{name: "kvsteer", site: site}, {name: "nothing", site: idle}}
	for n := range warm + rounds {
		for k := range arms {
			arm := &arms[(n+k)%len(arms)]
			began := time.Now()
			complete(t, client, arm.site.URL, bodies[n%prompts])
			if took := time.Since(began); n >= warm {
				arm.times = append(arm.times, took)
			}
		}
	}

	// Neighbours in time see the same disturbances, so that the median of their differences is steadier than that of the medians.
	var added []time.Duration
	for i := range rounds {
		added = append(added, arms[0].times[i]-arms[1].times[i])
	}
	for _, arm := range arms {
		report(t, arm.name, arm.times)
	}
	report(t, "added by kvsteer, pair by pair", added)
	ours, theirs := arms[0].times[rounds/2], arms[1].times[rounds/2] // sorted by report
	t.Logf("body of %d bytes, %d requests each, in turn: difference of the medians %v (%.3f×)", size, rounds, ours-theirs, float64(ours)/float64(theirs))
	for _, stage := range []string{"parse", "fingerprint", "match", "score", "total"} {
		label := fmt.Sprintf("stage=%q", stage)
		mean := need(t, page, "kvsteer_router_stage_seconds_sum", label) / need(t, page, "kvsteer_router_stage_seconds_count", label)
		t.Logf("  stage %s: mean %v", stage, time.Duration(mean*float64(time.Second)))
	}

	entries, err := site.ReadLog(t.Context(), warm+rounds)
	if err != nil {
		t.Fatal(err)
	}
	matched := 0
	for _, e := range entries {
		if e.Matched > 0 {
			matched++
		}
	}
	if matched < rounds {
		t.Errorf("%d of %d requests were matched", matched, len(entries))
	}
	if n := need(t, idle.EnvoyAdmin+"/stats/prometheus", "envoy_http_ext_proc_failure_mode_allowed"); n != 0 {
		t.Errorf("%v requests went on without the server that does nothing", n)
	}
}

// report sorts times and shows where most of them lie.
func report(t *testing.T, name string, times []time.Duration) {
	t.Helper()
	slices.Sort(times)
	at := func(percent int) time.Duration { return times[len(times)*percent/100].Round(time.Microsecond) }
	t.Logf("%s: p10 %v p50 %v p90 %v", name, at(10), at(50), at(90))
}

// startUpstream starts a server that answers every request at once and returns its address.
func startUpstream(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the client sees what went wrong
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// startEngine starts an engine that tells the router of its blocks and returns its own address.
func startEngine(t *testing.T, events string) string {
	t.Helper()
	engine, err := enginesim.New(enginesim.Options{
		Models: []string{"sim"}, BlockSize: 16, Blocks: 65_536, Events: enginesim.Events{Connect: "tcp://" + events},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("engine: %v", err)
		}
	})
	select {
	case <-engine.Ready():
		return engine.Addr()
	case err := <-ended:
		ended <- nil
		t.Fatalf("engine: %v", err)
		return ""
	}
}

// startNothing starts the server that does nothing and returns its socket.
func startNothing(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary, socket := filepath.Join(dir, "nothing"), filepath.Join(dir, "socket")
	if out, err := exec.Command("go", "build", "-o", binary, "./testdata/nothing").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	cmd := exec.Command(binary, socket)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	eventually(t, "the socket is there", func() bool { _, err := os.Stat(socket); return err == nil })
	return socket
}

// tokenBody is a completion request of about size bytes whose prompt is token ids.
func tokenBody(rng *rand.Rand, size int) []byte {
	body := []byte(`{"model":"sim","max_tokens":1,"prompt":[`)
	for len(body) < size-8 {
		body = append(strconv.AppendInt(body, int64(1000+rng.IntN(9000)), 10), ',')
	}
	return append(body[:len(body)-1], "]}"...)
}

// complete sends one request and reads its answer.
func complete(t *testing.T, client *http.Client, url string, body []byte) {
	t.Helper()
	resp, err := client.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d %s, error %v", resp.StatusCode, text, err)
	}
}
