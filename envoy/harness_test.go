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
	"syscall"
	"testing"
	"time"
)

// engine is a small upstream that remembers what it was sent. Its answer is its name.
type engine struct {
	name, addr string
	server     *http.Server
	status     atomic.Int64 // of its answers, 0 stands for 200
	ill        atomic.Bool  // fails health checks and nothing else

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

// refusing returns an address that refuses connections: a socket without a listener holds it, so that nobody else gets it until the test ends.
func refusing(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		if e.ill.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
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
	if status := e.status.Load(); status != 0 {
		w.WriteHeader(int(status))
	}
	_, _ = io.WriteString(w, e.name)
}

// requests are what the engine was sent, the health checks aside.
func (e *engine) requests() []seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]seen(nil), e.seen...)
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
	o = s.options(o)
	o.Listen, o.Admin = "127.0.0.1:0", "127.0.0.1:0"
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
