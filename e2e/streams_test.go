package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// slow are engine arguments for answers that take as long as their tokens: 10 ms for each, and a second of prefill for 2,000.
var slow = []string{"--block-size", "16", "--blocks", "4096", "--prefill-rate", "2000", "--decode-rate", "100"}

// ongoing is a request whose answer has begun.
type ongoing struct {
	resp   *http.Response
	events *bufio.Scanner
	cancel context.CancelFunc
}

// open sends a chat request and returns when the answer's headers are there.
func open(t *testing.T, client *http.Client, site *lab.Site, body io.Reader, trace *httptrace.ClientTrace) (*ongoing, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	if trace != nil {
		ctx = httptrace.WithClientTrace(ctx, trace)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, site.URL+"/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req) //nolint:bodyclose // by close
	if err != nil {
		cancel()
		return nil, err
	}
	return &ongoing{resp: resp, events: bufio.NewScanner(resp.Body), cancel: cancel}, nil
}

// event reads one event with a token of a streamed answer; false is the end.
func (o *ongoing) event() bool {
	for o.events.Scan() {
		if strings.HasPrefix(o.events.Text(), "data: {") {
			return true
		}
	}
	return false
}

func (o *ongoing) close() {
	o.cancel()
	o.resp.Body.Close()
}

func streaming(words, tokens int) io.Reader {
	return strings.NewReader(fmt.Sprintf(`{"model":"sim","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, tokens, strings.Repeat("word ", words)))
}

// busy is how many requests the engines of a site have.
func busy(t *testing.T, site *lab.Site) float64 {
	t.Helper()
	sum := 0.0
	for _, e := range site.Engines {
		for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting"} {
			sum += metric(t, "http://"+e.Address+"/metrics", name)
		}
	}
	return sum
}

// TestAnswersComeInPieces reads a streamed answer while its engine still computes it.
func TestAnswersComeInPieces(t *testing.T) {
	t.Parallel() // mostly waiting
	onBothEnvoys(t, func(t *testing.T, release string) {
		t.Parallel()
		site := startSite(t, release, lab.SiteOptions{Pools: []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 1, Args: slow}}})
		for protocol, client := range clients(t) {
			answer, err := open(t, client, site, streaming(10, 80), nil)
			if err != nil {
				t.Fatal(err)
			}
			if !answer.event() {
				t.Fatalf("%s: the answer has no events", protocol)
			}
			if n := busy(t, site); n != 1 {
				t.Errorf("%s: at the first event the engine has %v requests under way, want 1", protocol, n)
			}
			events := 1
			for answer.event() {
				events++
			}
			// One event per 50 ms, fewer on a machine that is busy with other things.
			if events < 5 {
				t.Errorf("%s: %d events for 80 tokens", protocol, events)
			}
			if got := answer.resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
				t.Errorf("%s: content type %q", protocol, got)
			}
			answer.close()
		}
	})
}

// TestIdleConnections lets connections rest for about as long as engines keep theirs (5 s), and uses them again. A request that meets
// a connection in the moment of its closing is an error in one of thousands of cases, so it also wants to see that Envoy closes before
// an engine does.
func TestIdleConnections(t *testing.T) {
	t.Parallel() // mostly waiting
	const connections, first, last = 32, 2900 * time.Millisecond, 6 * time.Second
	onBothEnvoys(t, func(t *testing.T, release string) {
		t.Parallel()
		engine := startRecorder(t)
		site := startSite(t, release, lab.SiteOptions{Pools: []lab.PoolOptions{
			{Name: "chat", Model: "sim", Engines: 2, Args: slow, Endpoints: []string{engine.addr}},
		}})
		var wg sync.WaitGroup
		for i := range connections {
			wg.Go(func() {
				client := clients(t)["http/1.1"]
				if i%4 == 3 {
					client = clients(t)["h2c"]
				}
				gap := first + (last-first)*time.Duration(i)/(connections-1)
				for turn := range 2 {
					if turn > 0 {
						select {
						case <-time.After(gap):
						case <-t.Context().Done():
							return
						}
					}
					var reused bool
					trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }}
					// The answers take a while, so that each has a connection to an engine.
					answer, err := open(t, client, site, streaming(10, 30), trace)
					if err != nil {
						t.Errorf("after %s: %v", gap, err)
						return
					}
					status := answer.resp.StatusCode
					for answer.event() {
					}
					answer.close()
					if status != http.StatusOK || answer.events.Err() != nil {
						t.Errorf("after %s: status %d, %v", gap, status, answer.events.Err())
					}
					if reused != (turn > 0) {
						t.Errorf("after %s: connection reused: %v", gap, reused)
					}
				}
			})
		}
		wg.Wait()
		engine.mu.Lock()
		longest := engine.longest
		engine.mu.Unlock()
		if longest == 0 || longest > keepAlive-time.Second/2 {
			t.Errorf("a connection to an engine was idle for %s, want Envoy to close it well before %s", longest, keepAlive)
		}
		entries, err := site.ReadLog(t.Context(), 2*connections)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Attempts != 1 {
				t.Errorf("%d attempts, %s: %s", e.Attempts, e.Flags, e.Details)
			}
		}
	})
}

// TestAborts lets clients go away at every stage of a request, over both protocols, and looks for what they leave behind.
func TestAborts(t *testing.T) {
	t.Parallel() // mostly waiting
	const each = 8
	onBothEnvoys(t, func(t *testing.T, release string) {
		t.Parallel()
		site := startSite(t, release, lab.SiteOptions{
			EnvoyConfig: "message_timeout: 20s", RouterConfig: "budget: 10s",
			Pools: []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 2, Args: slow}},
		})
		base := settled(t, site)
		aborted := 0
		for _, client := range clients(t) {
			for _, phase := range []func(*testing.T, *http.Client, *lab.Site, int){abortUpload, abortWait, abortStream} {
				phase(t, client, site, each)
				aborted += each
			}
		}
		requireAborted(t, site, aborted)
		abortAtOnce(t, site, each)
		requireSettled(t, site, base)
		for _, client := range clients(t) {
			if got := send(t, client, site.URL, request{
				method: http.MethodPost, path: "/v1/chat/completions", header: http.Header{"Content-Type": {"application/json"}},
				body: strings.NewReader(ask), length: int64(len(ask)),
			}); got.status != http.StatusOK {
				t.Errorf("afterwards: status %d %s", got.status, got.body)
			}
		}
	})
}

// abortUpload goes away in the middle of the body.
func abortUpload(t *testing.T, client *http.Client, site *lab.Site, n int) {
	t.Helper()
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	var halves []*io.PipeReader
	for range n {
		r, w := io.Pipe()
		halves = append(halves, r)
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, site.URL+"/v1/chat/completions", r)
			if err != nil {
				t.Error(err)
				return
			}
			req.ContentLength = 200_000
			if resp, err := client.Do(req); err == nil {
				t.Errorf("half a body is answered: status %d", resp.StatusCode)
				resp.Body.Close()
			}
		})
		wg.Go(func() { _, _ = w.Write([]byte(filled("sim", 200_000)[:100_000])) })
	}
	eventually(t, "all uploads have begun", func() bool { return active(t, site) == float64(n) })
	cancel()
	for _, r := range halves {
		r.Close() // the client waits for its reading of the body to end
	}
	wg.Wait()
}

// abortWait goes away while the engine computes the prompt.
func abortWait(t *testing.T, client *http.Client, site *lab.Site, n int) {
	t.Helper()
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	for range n {
		wg.Go(func() {
			body := strings.Replace(chat(strings.Repeat("word ", 4000)), `"max_tokens":2`, `"max_tokens":500`, 1)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, site.URL+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			if resp, err := client.Do(req); err == nil {
				t.Errorf("answered before it was given up: status %d", resp.StatusCode)
				resp.Body.Close()
			}
		})
	}
	eventually(t, "all requests are with the engines", func() bool { return busy(t, site) == float64(n) })
	cancel()
	wg.Wait()
	eventually(t, "the engines have dropped them", func() bool { return busy(t, site) == 0 })
}

// abortStream goes away after the first event of the answer.
func abortStream(t *testing.T, client *http.Client, site *lab.Site, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			answer, err := open(t, client, site, streaming(10, 3000), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if !answer.event() {
				t.Error("the answer has no events")
			}
			answer.close()
		})
	}
	wg.Wait()
	eventually(t, "the engines have dropped them", func() bool { return busy(t, site) == 0 })
}

// abortAtOnce sends whole requests and closes their connections without waiting.
func abortAtOnce(t *testing.T, site *lab.Site, n int) {
	t.Helper()
	body := chat(strings.Repeat("word ", 500))
	for range n {
		conn := dial(t, site)
		_, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		if err != nil {
			t.Error(err)
		}
		conn.Close()
	}
}

// active is the number of requests that Envoy has under way.
func active(t *testing.T, site *lab.Site) float64 {
	t.Helper()
	return metric(t, site.EnvoyAdmin+"/stats/prometheus?filter=downstream_rq_active", "envoy_http_downstream_rq_active", `prefix="kvsteer"`)
}

// requireAborted wants n requests in the access log that their clients gave up.
func requireAborted(t *testing.T, site *lab.Site, n int) {
	t.Helper()
	entries, err := site.ReadLog(t.Context(), warmUp+n)
	if err != nil {
		t.Fatal(err)
	}
	gone := 0
	for _, e := range entries {
		if strings.Contains(e.Flags, "DC") || strings.Contains(e.Details, "remote_re") {
			gone++
		}
	}
	if gone != n {
		t.Errorf("Envoy logged %d requests as given up, want %d: %+v", gone, n, entries[warmUp:])
	}
}
