package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// engine is a small upstream that remembers what it was sent. Its answer is its name.
type engine struct {
	name, addr string
	server     *http.Server

	mu   sync.Mutex
	seen []seen
}

type seen struct {
	method, path string
	header       http.Header
	body         int
	protocol     string // as HTTP/1.1
	server       string // SNI, "" without TLS or without a name
}

func startEngine(t testing.TB, name, network, address string) *engine {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return serveEngine(t, name, l, new(http.Protocols))
}

// serveEngine speaks the protocols; none set stands for the default, HTTP/1.1 and, over TLS, HTTP/2.
func serveEngine(t testing.TB, name string, l net.Listener, p *http.Protocols) *engine {
	t.Helper()
	e := &engine{name: name, addr: l.Addr().String()}
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: 10 * time.Second}
	if *p != (http.Protocols{}) {
		e.server.Protocols = p
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.server.Serve(l)
	}()
	t.Cleanup(func() { e.stop(); <-done })
	return e
}

func (e *engine) stop() { _ = e.server.Close() }

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		return
	}
	n, _ := io.Copy(io.Discard, r.Body)
	s := seen{method: r.Method, path: r.URL.RequestURI(), header: r.Header.Clone(), body: int(n), protocol: r.Proto}
	if r.TLS != nil {
		s.server = r.TLS.ServerName
	}
	e.mu.Lock()
	e.seen = append(e.seen, s)
	e.mu.Unlock()
	_, _ = io.WriteString(w, e.name)
}

// requests are what the engine was sent, the health checks aside.
func (e *engine) requests() []seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]seen(nil), e.seen...)
}

// stub is an external-processing server that gives one decision to everybody.
type stub struct {
	addr  string
	grpc  *grpc.Server
	hang  atomic.Bool
	deaf  atomic.Bool // takes no records
	blind atomic.Bool // decides by the headers and ends the stream

	health *health.Server

	mu      sync.Mutex
	records []*datav3.HTTPAccessLogEntry
	target  string
	second  string
	headers []map[string]string
}

func startStub(t testing.TB, address string, options ...grpc.ServerOption) *stub {
	t.Helper()
	network := "tcp"
	if file, unix := unixPath(address); unix {
		network, address = "unix", file
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := &stub{addr: l.Addr().String(), health: health.NewServer()}
	s.grpc = grpc.NewServer(append(options, grpc.MaxRecvMsgSize(64<<20), grpc.UnaryInterceptor(s.healthCheck))...)
	if network == "unix" {
		s.addr = "unix:" + address
	}
	extprocv3.RegisterExternalProcessorServer(s.grpc, s)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	accesslogv3.RegisterAccessLogServiceServer(s.grpc, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.grpc.Serve(l)
	}()
	t.Cleanup(func() { s.grpc.Stop(); <-done })
	return s
}

// healthCheck hangs as the rest does.
func (s *stub) healthCheck(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if s.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return next(ctx, req)
}

func (s *stub) decide(target, second string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target, s.second = target, second
}

// asked are the headers of the requests so far.
func (s *stub) asked() []map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]string(nil), s.headers...)
}

// Process answers as the router does: nothing until the body is there, then headers and metadata, then the end of the stream.
func (s *stub) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		if s.hang.Load() {
			<-stream.Context().Done()
			return nil
		}
		switch v := m.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			all := map[string]string{}
			for _, h := range v.RequestHeaders.Headers.Headers {
				all[h.Key] += string(h.RawValue) + h.Value
			}
			s.mu.Lock()
			s.headers = append(s.headers, all)
			s.mu.Unlock()
			reply := &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
			if v.RequestHeaders.EndOfStream || s.blind.Load() {
				reply.RequestHeaders.Response = s.response()
				return stream.Send(s.decorate(&extprocv3.ProcessingResponse{Response: reply}))
			}
			if err := stream.Send(&extprocv3.ProcessingResponse{Response: reply}); err != nil {
				return err
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			return stream.Send(s.decorate(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
				RequestBody: &extprocv3.BodyResponse{Response: s.response()},
			}}))
		default:
			return fmt.Errorf("unexpected message %T", v)
		}
	}
}

// StreamAccessLogs keeps the records of Envoy's access log.
func (s *stub) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	if s.deaf.Load() {
		return status.Error(codes.Unimplemented, "unknown service")
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		s.mu.Lock()
		s.records = append(s.records, m.GetHttpLogs().GetLogEntry()...)
		s.mu.Unlock()
	}
}

// logged are the records so far.
func (s *stub) logged() []*datav3.HTTPAccessLogEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*datav3.HTTPAccessLogEntry(nil), s.records...)
}

func (s *stub) response() *extprocv3.CommonResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: &extprocv3.HeaderMutation{}}
	// authorization and x-extra break the filter's mutation rules.
	set := map[string]string{HeaderTarget: s.target, HeaderSecond: s.second, "x-extra": "1", "authorization": "forged"}
	for name, value := range set {
		if value == "" {
			r.HeaderMutation.RemoveHeaders = append(r.HeaderMutation.RemoveHeaders, name)
			continue
		}
		r.HeaderMutation.SetHeaders = append(r.HeaderMutation.SetHeaders, &corev3.HeaderValueOption{
			Header: &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		})
	}
	return r
}

func (s *stub) decorate(r *extprocv3.ProcessingResponse) *extprocv3.ProcessingResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := structpb.NewStruct(map[string]any{MetadataNamespace: map[string]any{
		KeyDecisionID: "r1-7", KeyPool: "chat", KeyEndpoint: s.target, KeyReason: "matched", KeyMatched: 512, KeyPrompt: 640, KeyMode: "on", KeyRung: "exact",
	}})
	if err == nil {
		r.DynamicMetadata = m
	}
	return r
}

// proxy is a running Envoy.
type proxy struct {
	url, admin string
	log        string // access log
}

// startEnvoy renders o, runs it and waits for its listener.
func startEnvoy(t testing.TB, s setup, o Options) *proxy {
	t.Helper()
	dir := t.TempDir()
	o.Listen, o.Admin, o.Version = "127.0.0.1:0", "127.0.0.1:0", s.known()
	o.AccessLog = filepath.Join(dir, "access.log")
	text, err := Render(o)
	if err != nil {
		t.Fatal(err)
	}
	return runEnvoy(t, s, dir, text, o.AccessLog)
}

// runEnvoy runs a configuration whose listener is called as ours and writes the access log.
func runEnvoy(t testing.TB, s setup, dir string, text []byte, log string) *proxy {
	t.Helper()
	config, adminFile := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(config, text, 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(binary(t, s.version), "-c", config, "--disable-hot-restart", "--concurrency", "1",
		"--file-flush-interval-msec", "20", "--admin-address-path", adminFile, "-l", "warn")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("envoy said:\n%s", &out)
		}
	})
	p := &proxy{log: log}
	eventually(t, "Envoy is live", func() error {
		select {
		case <-exited:
			return fmt.Errorf("envoy ended: %s", &out)
		default:
		}
		admin, err := os.ReadFile(adminFile)
		if err != nil {
			return err
		}
		p.admin = "http://" + strings.TrimSpace(string(admin))
		if body, err := get(p.admin + "/ready"); err != nil || !strings.Contains(body, "LIVE") {
			return fmt.Errorf("not ready: %q, %w", body, err)
		}
		body, err := get(p.admin + "/listeners?format=json")
		if err != nil {
			return err
		}
		p.url, err = listenerURL(body)
		return err
	})
	return p
}

func listenerURL(body string) (string, error) {
	var l struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &l); err != nil {
		return "", err
	}
	for _, s := range l.Statuses {
		if s.Name == ListenerName && s.Address.Socket.Port != 0 {
			return fmt.Sprintf("http://%s:%d", s.Address.Socket.Address, s.Address.Socket.Port), nil
		}
	}
	return "", fmt.Errorf("no listener yet: %s", body)
}

func get(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// call is one request through the proxy.
type call struct {
	method, path, host string
	header             http.Header
	body               []byte
}

type answer struct {
	code   int
	body   string
	header http.Header
}

// stat is the value of one of Envoy's counters or gauges by its full name, 0 when it was never used.
func (p *proxy) stat(t testing.TB, name string) int {
	t.Helper()
	text, err := get(p.admin + "/stats?filter=^" + regexp.QuoteMeta(name) + "$")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, value, ok := strings.Cut(strings.TrimSpace(text), ": "); ok {
		if n, err = strconv.Atoi(value); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (p *proxy) do(t testing.TB, c call) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if c.method == "" {
		c.method = http.MethodPost
	}
	if c.path == "" {
		c.path = "/v1/completions"
	}
	if c.body == nil && c.method == http.MethodPost {
		c.body = []byte(`{"model":"m","prompt":"p"}`)
	}
	req, err := http.NewRequestWithContext(ctx, c.method, p.url+c.path, bytes.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range c.header {
		req.Header[name] = values // not canonical: the spelling goes out as it is
	}
	req.Host = c.host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, string(b), resp.Header}
}

// want fails unless the proxy answers as said.
func (p *proxy) want(t testing.TB, c call, code int, body string) {
	t.Helper()
	if got := p.do(t, c); got.code != code || !strings.Contains(got.body, body) {
		t.Errorf("%s %s%s: got %d %q, want %d %q", c.method, c.host, c.path, got.code, got.body, code, body)
	}
}

// eventually polls until f gives nil.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("not in 30 s: %s: %v", what, err)
		case <-tick.C:
		}
	}
}
