package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/extproc"
	"github.com/kvsteer/kvsteer/internal/router"
)

// The Envoy configurations of these tests are written by hand, as gateways have theirs: a listener with one ext_proc filter in the mode
// FULL_DUPLEX_STREAMED and a route or two.
const duplexConfig = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: main
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
          codec_type: AUTO
          stream_idle_timeout: IDLE
          http_protocol_options: {enable_trailers: true}
          http_filters:
FILTERS
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: picker}}
              failure_mode_allow: true
              message_timeout: 20s
              processing_mode: {request_header_mode: SEND, request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, RESPONSE}
              metadata_options:
                forwarding_namespaces: {untyped: [envoy.lb, envoy.lb.subset_hint]}
                receiving_namespaces: {untyped: [kvsteer, envoy.lb]}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: any
              domains: ["*"]
              routes:
ROUTES
  clusters:
CLUSTERS
  - name: picker
    type: STATIC
    connect_timeout: 1s
    load_assignment: {cluster_name: picker, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: PICKER}}}}]}]}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

// The choice by our header, and by a route of its own what has none.
const (
	ownRoutes = `
              - match: {prefix: "/", headers: [{name: x-target-endpoint, present_match: true}]}
                route: {cluster: pick, timeout: 0s}
              - match: {prefix: "/"}
                route: {cluster: fallback, timeout: 0s}`
	ownClusters = `
  - name: pick
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 1s
    original_dst_lb_config: {use_http_header: true, http_header_name: x-target-endpoint}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http_protocol_options: {enable_trailers: true}}
  - name: fallback
    type: STATIC
    connect_timeout: 1s
    load_assignment: {cluster_name: fallback, endpoints: [{lb_endpoints: [ENGINES]}]}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http_protocol_options: {enable_trailers: true}}`
)

// sink is an engine that answers with the digest of what it got. It answers at once where the path asks for that, and else after the body.
type sink struct {
	name, addr string

	mu       sync.Mutex
	trailers []http.Header
}

func startSink(t *testing.T, name string) *sink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &sink{name: name, addr: l.Addr().String()}
	s := &http.Server{Handler: u, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Close(); <-done })
	return u
}

func (u *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/early" {
		http.Error(w, "refused by "+u.name, http.StatusUnauthorized)
		return
	}
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	if err != nil {
		return
	}
	u.mu.Lock()
	u.trailers = append(u.trailers, r.Trailer)
	u.mu.Unlock()
	if r.URL.Path == "/stream" {
		for i := range 40 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(10 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
		return
	}
	fmt.Fprintf(w, "%s %d %x", u.name, n, h.Sum(nil))
}

// picker is a router in this process behind a relay that can be cut.
type picker struct {
	addr    string
	metrics *prometheus.Registry
	cut     func()
	decide  atomic.Pointer[func(router.Request) router.Decision]
	entered chan struct{} // one for each decision
	noted   chan router.Completion
	stop    func()
}

func (p *picker) Decide(_ context.Context, r router.Request) router.Decision {
	select {
	case p.entered <- struct{}{}:
	default:
	}
	return (*p.decide.Load())(r)
}

func (p *picker) Complete(c router.Completion) {
	select {
	case p.noted <- c:
	default:
	}
}

func startPicker(t *testing.T, o extproc.Options) *picker {
	t.Helper()
	p := &picker{metrics: prometheus.NewRegistry(), entered: make(chan struct{}, 1000), noted: make(chan router.Completion, 1000)}
	o.Decider, o.Completer, o.Metrics = p, p, extproc.NewMetrics(p.metrics)
	s, err := extproc.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var listeners [2]net.Listener
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = s.Run(ctx, listeners[0]) })
	var mu sync.Mutex
	var conns []net.Conn
	p.cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
		conns = nil
	}
	all.Go(func() {
		for {
			from, err := listeners[1].Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", listeners[0].Addr().String())
			if err != nil {
				from.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, from, to)
			mu.Unlock()
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
					pair[1].Close()
				})
			}
		}
	})
	p.addr, p.stop = listeners[1].Addr().String(), cancel
	t.Cleanup(func() {
		cancel()
		listeners[1].Close()
		p.cut()
		all.Wait()
	})
	return p
}

// value is a metric of the picker.
func (p *picker) value(t *testing.T, name string, label string) float64 {
	t.Helper()
	families, err := p.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == label {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// settled waits until no stream is open and nothing is held.
func (p *picker) settled(t *testing.T) {
	t.Helper()
	eventually(t, "no stream is open and nothing is held", func() bool {
		return p.value(t, "kvsteer_extproc_open_streams", "") == 0 && p.value(t, "kvsteer_extproc_held_bytes", "") == 0
	})
}

// startProxy runs an Envoy with a configuration until the test ends, and returns where it listens.
func startProxy(t *testing.T, release, config string) string {
	t.Helper()
	dir := t.TempDir()
	file, adminFile, logFile := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin"), filepath.Join(dir, "envoy.log")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(binaries.envoy[release], "-c", file, "--disable-hot-restart", "--concurrency", "2", "--admin-address-path", adminFile, "--log-path", logFile, "-l", "warn")
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(logFile)
			t.Logf("Envoy: %s\n%s", out.String(), text[max(0, len(text)-3000):])
		}
	})
	var address string
	eventually(t, "Envoy listens", func() bool {
		admin, err := os.ReadFile(adminFile)
		if err != nil || len(admin) == 0 {
			return false
		}
		resp, err := http.Get("http://" + strings.TrimSpace(string(admin)) + "/listeners")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		_, address, _ = strings.Cut(strings.TrimSpace(string(text)), "main::")
		return address != ""
	})
	return "http://" + address
}

func lbEndpoints(addrs ...string) string {
	var all []string
	for _, a := range addrs {
		host, port, _ := net.SplitHostPort(a)
		all = append(all, fmt.Sprintf("{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}", host, port))
	}
	return strings.Join(all, ", ")
}

const noResponse = "response_header_mode: SKIP, response_body_mode: NONE, response_trailer_mode: SKIP"

// ownProxy steers by our own headers.
func ownProxy(t *testing.T, release string, p *picker, response, idle string, fallback *sink) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(p.addr)
	return startProxy(t, release, strings.NewReplacer("FILTERS\n", "", "ROUTES", ownRoutes, "CLUSTERS", strings.ReplaceAll(ownClusters, "ENGINES", lbEndpoints(fallback.addr)),
		"RESPONSE", response, "IDLE", idle, "PICKER", port).Replace(duplexConfig))
}

func steerTo(u *sink) func(router.Request) router.Decision {
	return func(r router.Request) router.Decision {
		return router.Decision{ID: "r1-7", Pool: "chat", Endpoint: u.addr, Ranked: []string{u.addr}, Prompt: len(r.Body), Rung: router.RungLoad, Reason: "no_match"}
	}
}

// slowly gives a body in pieces with a pause between them.
type slowly struct {
	pieces [][]byte
	pause  func(i int)
	i      int
}

func (s *slowly) Read(b []byte) (int, error) {
	for s.i < len(s.pieces) && len(s.pieces[s.i]) == 0 {
		s.i++
	}
	if s.i == len(s.pieces) {
		return 0, io.EOF
	}
	if s.pause != nil {
		s.pause(s.i)
	}
	n := copy(b, s.pieces[s.i])
	s.pieces[s.i] = s.pieces[s.i][n:]
	return n, nil
}

func post(t *testing.T, client *http.Client, url string, body io.Reader, length int64, trailer http.Header) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength, req.Trailer = length, trailer
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Target-Endpoint", "127.0.0.1:1") // of nobody
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// TestDuplexBodies sends bodies of all sizes and forms through a real Envoy in the mode FULL_DUPLEX_STREAMED: each is decided by the whole body,
// arrives unchanged where the decision says, and leaves nothing behind.
func TestDuplexBodies(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		chosen, fallback := startSink(t, "chosen"), startSink(t, "fallback")
		p := startPicker(t, extproc.Options{MaxBody: 4 << 20, MaxTotal: 64 << 20})
		var read atomic.Int64
		decide := func(r router.Request) router.Decision {
			read.Store(int64(len(r.Body)))
			if r.Unread {
				read.Store(-1)
			}
			return steerTo(chosen)(r)
		}
		p.decide.Store(&decide)
		url := ownProxy(t, release, p, noResponse, "600s", fallback)
		for protocol, client := range clients(t) {
			for _, size := range []int{0, 10, 64 << 10, 1_500_000, 5_000_000} {
				for _, form := range []string{"length", "chunked", "trailers", "slow"} {
					if size == 0 && form == "trailers" && protocol == "h2c" {
						continue // see TestDuplexFailures
					}
					t.Run(fmt.Sprintf("%s/%d/%s", protocol, size, form), func(t *testing.T) {
						data := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
						var body io.Reader = bytes.NewReader(data)
						length := int64(size)
						var trailer http.Header
						switch form {
						case "chunked":
							length = -1
						case "trailers":
							body, length, trailer = &slowly{pieces: [][]byte{data}}, -1, http.Header{"X-Check": {"1"}}
						case "slow":
							body, length = &slowly{pieces: [][]byte{data[:size/3], data[size/3 : size/2], data[size/2:]}, pause: func(int) { <-time.After(20 * time.Millisecond) }}, -1
						}
						code, text, err := post(t, client, url+"/v1/completions", body, length, trailer)
						want := fmt.Sprintf("chosen %d %x", size, sha256.Sum256(data))
						if code != 200 || text != want || err != nil {
							t.Fatalf("answer %d %.100q %v, want %q", code, text, err, want)
						}
						wantRead := int64(size)
						if size > 4<<20 {
							wantRead = -1
						}
						if got := read.Load(); got != wantRead {
							t.Errorf("decided by a body of %d bytes, want %d", got, wantRead)
						}
						chosen.mu.Lock()
						last := chosen.trailers[len(chosen.trailers)-1]
						chosen.mu.Unlock()
						if form == "trailers" && size > 0 && last.Get("X-Check") != "1" {
							t.Errorf("trailers %v", last)
						}
					})
				}
			}
		}
		p.settled(t)
		if n := p.value(t, "kvsteer_extproc_stream_modes_total", "buffered"); n != 0 {
			t.Errorf("%v streams of another mode", n)
		}
		if n, err := testutil.GatherAndCount(p.metrics, "kvsteer_extproc_passthrough_streams_total"); err != nil || n != 0 {
			t.Errorf("%d modes passed through, %v", n, err)
		}
	})
}

// TestDuplexFailures holds what docs/envoy.md says of each way to fail.
func TestDuplexFailures(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		chosen, fallback := startSink(t, "chosen"), startSink(t, "fallback")
		p := startPicker(t, extproc.Options{BodyWait: 300 * time.Millisecond})
		steer := steerTo(chosen)
		p.decide.Store(&steer)
		url := ownProxy(t, release, p, noResponse, "2s", fallback)
		plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		half := []byte(strings.Repeat("x", 70_000))

		t.Run("a slow upload is decided without its body", func(t *testing.T) {
			<-drained(p.entered)
			body := &slowly{pieces: [][]byte{half, []byte("end")}, pause: func(i int) {
				if i == 1 {
					<-p.entered // decided
				}
			}}
			code, text, err := post(t, plain, url+"/", body, -1, nil)
			if code != 200 || !strings.HasPrefix(text, "chosen 70003 ") || err != nil {
				t.Errorf("answer %d %q %v", code, text, err)
			}
		})
		t.Run("trailers without a body, which Envoy holds back until it has a reply", func(t *testing.T) {
			code, text, err := post(t, clients(t)["h2c"], url+"/", &slowly{}, -1, http.Header{"X-Check": {"1"}})
			if code != 200 || !strings.HasPrefix(text, "chosen 0 ") || err != nil {
				t.Errorf("answer %d %q %v", code, text, err)
			}
		})
		t.Run("the engine answers before the body is there", func(t *testing.T) {
			code, text, err := post(t, plain, url+"/early", bytes.NewReader(bytes.Repeat(half, 30)), -1, nil)
			if err == nil && (code != 401 || !strings.HasPrefix(text, "refused by chosen")) {
				t.Errorf("answer %d %q", code, text)
			}
		})
		t.Run("the client leaves within the body", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			pause := func(i int) {
				if i == 1 {
					cancel()
				}
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/", &slowly{pieces: [][]byte{half, half}, pause: pause})
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := plain.Do(req); err == nil {
				resp.Body.Close()
				t.Error("an answer to half a request")
			}
			p.settled(t)
		})
		t.Run("the decider panics", func(t *testing.T) {
			panics := func(router.Request) router.Decision { panic("decider") }
			p.decide.Store(&panics)
			defer p.decide.Store(&steer)
			code, text, err := post(t, plain, url+"/", bytes.NewReader(half), 70_000, nil)
			if code != 200 || !strings.HasPrefix(text, "fallback 70000 ") || err != nil {
				t.Errorf("answer %d %q %v", code, text, err)
			}
		})
		t.Run("the router is killed while it has the body", func(t *testing.T) {
			kill := func(router.Request) router.Decision {
				p.cut()
				return router.Decision{}
			}
			p.decide.Store(&kill)
			defer p.decide.Store(&steer)
			if code, text, err := post(t, plain, url+"/", bytes.NewReader(half), 70_000, nil); code != 500 || err != nil {
				t.Errorf("answer %d %q %v, want 500", code, text, err)
			}
			p.settled(t)
		})
		t.Run("the router is killed while the engine answers", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), answerTime)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/stream", bytes.NewReader(half))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := plain.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			p.cut()
			if text, err := io.ReadAll(resp.Body); err != nil || !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")) {
				t.Errorf("answer cut at %d bytes: %v", len(text), err)
			}
		})
		t.Run("the router hangs", func(t *testing.T) {
			release := make(chan struct{})
			hang := func(router.Request) router.Decision {
				<-release
				return router.Decision{}
			}
			p.decide.Store(&hang)
			defer p.decide.Store(&steer)
			start := time.Now()
			code, text, err := post(t, plain, url+"/", bytes.NewReader(half), 70_000, nil)
			if code != 504 && code != 408 || err != nil {
				t.Errorf("answer %d %q %v after %v", code, text, err, time.Since(start))
			}
			close(release)
			p.settled(t)
		})
	})
}

// drained empties a channel and returns one that is closed.
func drained(ch chan struct{}) <-chan struct{} {
	for {
		select {
		case <-ch:
		default:
			done := make(chan struct{})
			close(done)
			return done
		}
	}
}

// TestDuplexStops drains the router while requests are under way: what it has it gives back, and answers that it sends back end between two pieces.
func TestDuplexStops(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		for name, response := range map[string]string{"answers go past it": noResponse, "answers go through it": "response_header_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND"} {
			t.Run(name, func(t *testing.T) {
				chosen, fallback := startSink(t, "chosen"), startSink(t, "fallback")
				p := startPicker(t, extproc.Options{Drain: 100 * time.Millisecond})
				steer := steerTo(chosen)
				p.decide.Store(&steer)
				url := ownProxy(t, release, p, response, "60s", fallback)
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/stream", strings.NewReader("{}"))
						if err != nil {
							t.Error(err)
							return
						}
						resp, err := client.Do(req)
						if err != nil {
							t.Error(err)
							return
						}
						defer resp.Body.Close()
						if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")) {
							t.Errorf("answer %d, %d bytes: %v", resp.StatusCode, len(text), err)
						}
					})
				}
				for range 8 {
					<-p.entered
				}
				p.stop()
				all.Wait()
				p.settled(t)
			})
		}
	})
}

// A gateway of the inference extension, as far as Envoy is one: the subset goes in by metadata, the list comes back in it, a cluster with the
// override_host policy tries it in turn, and its choice goes in with the response.
const (
	gatewayRoutes = `
              - match: {prefix: "/"}
                route:
                  cluster: engines
                  timeout: 0s
                  retry_policy: {retry_on: "connect-failure,refused-stream", num_retries: 3, retry_back_off: {base_interval: 0.005s}}`
	gatewayClusters = `
  - name: engines
    type: STATIC
    connect_timeout: 1s
    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [ENGINES]}]}
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [{metadata: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}}]
            selected_host_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint-served}]}
            fallback_policy: {policies: [{typed_extension_config: {name: rr, typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}}}]}`
	gatewayFilters = `
          - name: envoy.filters.http.set_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata:
              - metadata_namespace: envoy.lb.subset_hint
                allow_overwrite: true
                value: {x-gateway-destination-endpoint-subset: [SUBSET]}`
)

// TestEndpointPicker speaks the endpoint-picker protocol with a real Envoy, as gateways configure it.
func TestEndpointPicker(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		first, second, outside := startSink(t, "first"), startSink(t, "second"), startSink(t, "outside")
		dead, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		dead.Close()
		gone := dead.Addr().String()
		p := startPicker(t, extproc.Options{Gateway: extproc.Gateway{On: true, List: true}})
		_, port, _ := net.SplitHostPort(p.addr)
		clusters, choice, another := gatewayClusters, "choice", "another"
		if release == envoyOldest { // does not tell whom it chose
			clusters = strings.ReplaceAll(clusters, "            selected_host_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint-served}]}\n", "")
			choice, another = "unknown", "unknown"
		}
		url := startProxy(t, release, strings.NewReplacer(
			"FILTERS\n", strings.ReplaceAll(gatewayFilters[1:], "SUBSET", fmt.Sprintf("%q, %q, %q", first.addr, second.addr, gone))+"\n", "ROUTES", gatewayRoutes,
			"CLUSTERS", strings.ReplaceAll(clusters, "ENGINES", lbEndpoints(outside.addr, first.addr, second.addr, gone)),
			"RESPONSE", "response_header_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND", "IDLE", "60s", "PICKER", port).Replace(duplexConfig))
		// ranked decides for the first of its endpoints that the gateway allows.
		ranked := func(addrs ...string) {
			decide := func(r router.Request) router.Decision {
				d := router.Decision{ID: "r1-7", Pool: "chat", Rung: router.RungLoad, Reason: "no_match"}
				for _, a := range addrs {
					if r.Subset == nil || r.Subset(a) {
						d.Ranked = append(d.Ranked, a)
					}
				}
				if len(d.Ranked) > 0 {
					d.Endpoint = d.Ranked[0]
				}
				return d
			}
			p.decide.Store(&decide)
		}
		tests := []struct {
			name   string
			ranked []string
			code   int
			text   string
			served string
			told   string // endpoint that the request has moved to
		}{
			{"picked", []string{second.addr, first.addr}, 200, "second", choice, ""},
			{"outside of the subset is not picked", []string{outside.addr, first.addr}, 200, "first", choice, ""},
			{"the list is walked", []string{gone, second.addr, first.addr}, 200, "second", another, second.addr},
			{"nothing in the subset", []string{outside.addr}, 503, `"service_unavailable"`, "", ""},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				ranked(tt.ranked...)
				before := p.value(t, "kvsteer_extproc_served_requests_total", tt.served)
				code, text, err := post(t, http.DefaultClient, url+"/v1/completions", strings.NewReader("{}"), 2, nil)
				if code != tt.code || !strings.Contains(text, tt.text) || err != nil {
					t.Errorf("answer %d %q %v", code, text, err)
				}
				if tt.served == "" {
					return
				}
				if got := p.value(t, "kvsteer_extproc_served_requests_total", tt.served); got != before+1 {
					t.Errorf("served by %s: %v, want %v", tt.served, got, before+1)
				}
				if tt.told != "" && another == "another" {
					select {
					case c := <-p.noted:
						if !c.Serving || c.Upstream != tt.told || c.ID != "r1-7" {
							t.Errorf("told %+v", c)
						}
					case <-time.After(answerTime):
						t.Error("not told")
					}
				}
			})
		}
		t.Run("an answer goes through the router as it comes", func(t *testing.T) {
			ranked(first.addr)
			code, text, err := post(t, http.DefaultClient, url+"/stream", strings.NewReader("{}"), 2, nil)
			if code != 200 || err != nil || !strings.HasSuffix(text, "data: 39\n\ndata: [DONE]\n\n") {
				t.Errorf("answer %d of %d bytes: %v", code, len(text), err)
			}
		})
		p.settled(t)
	})
}
