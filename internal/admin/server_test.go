package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/kvsteer/kvsteer/internal/logtest"
	"github.com/kvsteer/kvsteer/internal/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	deadline = 20 * time.Second
	secret   = "correct-horse-battery-staple"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fleet is a router that only keeps what it is told.
type fleet struct {
	mu    sync.Mutex
	state router.State
	past  []router.PastDecision
	calls []string
	fails error

	held     []router.HeldBlocks // of every endpoint
	unlisted error
}

func newFleet() *fleet {
	return &fleet{
		state: router.State{Time: time.Unix(1_800_000_000, 0).UTC(), Pools: []router.PoolState{
			{Name: "chat", Models: []string{"llama"}, Mode: router.ModeOn, Percent: 25, Endpoints: []router.EndpointState{
				{Address: "10.0.0.11:8000", Healthy: true, Blocks: 700},
				{Address: "[fd00::12]:8000", Draining: true},
			}},
			{Name: "code", Models: []string{"coder"}, Mode: router.ModeOff, Percent: 100},
		}},
		past: []router.PastDecision{
			{
				Time: time.Unix(1_800_000_000, 0).UTC(), Duration: 1500 * time.Microsecond,
				Decision: router.Decision{ID: "r-2", Pool: "chat", Endpoint: "10.0.0.11:8000", Pinned: true, Rank: 0, Rung: router.RungExact, Reason: router.ReasonPrefix, Matched: 64, Prompt: 70},
			},
			{Decision: router.Decision{ID: "r-1", Rung: router.RungNone, Reason: router.ReasonNoPool}},
		},
	}
}

func (f *fleet) State() router.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *fleet) Recent(n int) []router.PastDecision { return f.past[:min(n, len(f.past))] }

func (f *fleet) Blocks(string, int) ([]router.HeldBlocks, error) { return f.held, f.unlisted }

func (f *fleet) call(parts ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, strings.Join(parts, " "))
	return f.fails
}

func (f *fleet) SetMode(pool string, m router.Mode, percent int) error {
	return f.call("mode", pool, m.String(), string(rune('0'+percent/10))+string(rune('0'+percent%10)))
}

func (f *fleet) Drain(endpoint string, on bool) error {
	if on {
		return f.call("drain", endpoint)
	}
	return f.call("undrain", endpoint)
}

func (f *fleet) Reset(endpoint string) error { return f.call("reset", endpoint) }

type settings map[string]string

func (s settings) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]string(s)) }

// options are those of a listener with everything, and without a token.
func options(f *fleet) Options {
	reg := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kvsteer_test_level", Help: "A gauge."})
	reg.MustRegister(gauge)
	gauge.Set(7)
	return Options{
		Gatherer: reg, Viewer: f, Control: f, Write: true, Version: "1.2.3", Ready: func() []string { return []string{"pool chat: no endpoint is up"} },
		Config: func() json.Marshaler { return settings{"listen": "unix:x.sock"} },
		Now:    func() time.Time { return time.Unix(1_800_000_000, 0) },
	}
}

func withToken(t testing.TB, o Options, text string) Options {
	t.Helper()
	o.TokenFile = filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(o.TokenFile, []byte(text), 0o600))
	return o
}

// request is one request in a table.
type request struct {
	method, path string
	host         string // default 127.0.0.1:9003
	header       []string
	body         string
}

func (r request) send(h http.Handler) (status int, body string, header http.Header) {
	req := httptest.NewRequest(r.method, r.path, strings.NewReader(r.body))
	req.Host = "127.0.0.1:9003"
	if r.host != "" {
		req.Host = r.host
	}
	for i := 0; i < len(r.header); i += 2 {
		req.Header.Set(r.header[i], r.header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Code, w.Body.String(), w.Header()
}

var asJSON = []string{"Content-Type", "application/json"}

func TestReads(t *testing.T) {
	s, err := New(options(newFleet()))
	check(t, err)
	tests := []struct {
		method, path string
		status       int
		text         string
	}{
		{"GET", "/metrics", 200, "kvsteer_test_level 7"},
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/readyz", 503, "pool chat: no endpoint is up"},
		{"GET", "/", 200, "/readyz"},
		{"GET", "/api/v1/state", 200, `"mode":"on","percent":25`},
		{"GET", "/api/v1/state", 200, `"address":"[fd00::12]:8000"`},
		{"GET", "/api/v1/decisions", 200, `{"decisions":[{"time":"2027-01-15T08:00:00Z","id":"r-2","pool":"chat","mode":"on","rung":"exact","reason":"prefix",` +
			`"endpoint":"10.0.0.11:8000","rank":0,"matched_tokens":64,"prompt_tokens":70,"seconds":0.0015},{`},
		{"GET", "/api/v1/decisions?n=1", 200, `"seconds":0.0015}]}`},
		{"GET", "/api/v1/decisions?n=0", 400, "1 to 1000"},
		{"GET", "/api/v1/decisions?n=1001", 400, "1 to 1000"},
		{"GET", "/api/v1/decisions?n=some", 400, "1 to 1000"},
		{"GET", "/api/v1/config", 200, `{"listen":"unix:x.sock"}`},
		{"GET", "/secret", 404, "there is no such path\n\nkvsteer router\n"},
		{"GET", "/api/v2/state", 404, `{"error":"there is no such path; GET / lists the paths"}`},
		{"POST", "/api/v1/pools/chat/drain", 404, `{"error":"there is no such path`},
		{"GET", "/api/", 404, `{"error":"there is no such path`},
		{"GET", "/api/v1//state", 307, ""},
		{"GET", "/api/v1/pools/chat/mode", 405, `{"error":"this path is for POST; GET / lists the paths"}`},
		{"GET", "/debug/pprof/", 404, "there is no such path"},
		{"POST", "/metrics", 405, "this path is for GET, HEAD\n"},
		{"DELETE", "/api/v1/state", 405, `{"error":"this path is for GET, HEAD; GET / lists the paths"}`},
	}
	for _, tt := range tests {
		status, body, header := request{method: tt.method, path: tt.path}.send(s.handler())
		if status != tt.status || !strings.Contains(body, tt.text) {
			t.Errorf("%s %s: %d %q, want %d with %q", tt.method, tt.path, status, body, tt.status, tt.text)
		}
		if header.Get("Cache-Control") != "no-store" || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: headers %v", tt.method, tt.path, header)
		}
		if kind := header.Get("Content-Type"); strings.HasPrefix(tt.text, "{") != (kind == "application/json") && strings.HasPrefix(tt.path, "/api/") && status >= 404 {
			t.Errorf("%s %s: Content-Type %q", tt.method, tt.path, kind)
		}
	}
}

// TestBareProcess has nothing to show but metrics.
func TestBareProcess(t *testing.T) {
	s, err := New(Options{Gatherer: prometheus.NewRegistry(), Control: newFleet(), Write: true})
	check(t, err)
	for _, r := range []request{
		{method: "GET", path: "/api/v1/state"},
		{method: "GET", path: "/api/v1/decisions"},
		{method: "GET", path: "/api/v1/config"},
		{method: "POST", path: "/api/v1/pools/chat/mode", header: asJSON, body: `{"mode":"off"}`},
		{method: "POST", path: "/api/v1/endpoints/10.0.0.11:8000/drain", header: asJSON},
	} {
		if status, body, _ := r.send(s.handler()); status != 404 || !strings.Contains(body, "this process has no ") {
			t.Errorf("%s: %d %s", r.path, status, body)
		}
	}
	if status, body, _ := (request{method: "GET", path: "/readyz"}).send(s.handler()); status != 200 || body != "ready\n" {
		t.Errorf("readyz: %d %s", status, body)
	}
	if status, _, _ := (request{method: "GET", path: "/api/v1/bundle"}).send(s.handler()); status != 200 {
		t.Errorf("bundle: %d", status)
	}
}

func TestCommands(t *testing.T) {
	tests := []struct {
		name   string
		path   string
		body   string
		fails  error
		status int
		text   string
		call   string // "": none
	}{
		{"mode", "pools/chat/mode", `{"mode":"observe"}`, nil, 200, `{"pool":"chat","mode":"observe","percent":25,"before":{"mode":"on","percent":25}}`, "mode chat observe 25"},
		{"mode and percent", "pools/code/mode", `{"mode":"on","percent":5}`, nil, 200, `{"pool":"code","mode":"on","percent":5,"before":{"mode":"off","percent":100}}`, "mode code on 05"},
		{"percent 0", "pools/chat/mode", `{"mode":"on","percent":0}`, nil, 200, `"percent":0,`, "mode chat on 00"},
		{"percent too high", "pools/chat/mode", `{"mode":"on","percent":101}`, nil, 400, "percent 101 is not in the range 0 to 100", ""},
		{"percent negative", "pools/chat/mode", `{"mode":"on","percent":-1}`, nil, 400, "percent -1", ""},
		{"percent while observed", "pools/chat/mode", `{"mode":"observe","percent":5}`, nil, 400, `{"error":"percent is the share that mode on steers: with mode observe it has no meaning"}`, ""},
		{"percent while off", "pools/chat/mode", `{"mode":"off","percent":100}`, nil, 400, "with mode off it has no meaning", ""},
		{"percent alone", "pools/chat/mode", `{"percent":5}`, nil, 400, "mode is missing", ""},
		{"no body", "pools/chat/mode", ``, nil, 400, "mode is missing", ""},
		{"unknown mode", "pools/chat/mode", `{"mode":"loud"}`, nil, 400, `mode \"loud\" is none of on, observe and off`, ""},
		{"unknown key", "pools/chat/mode", `{"mode":"on","percentage":5}`, nil, 400, `unknown field \"percentage\"`, ""},
		{"no JSON", "pools/chat/mode", `mode=off`, nil, 400, "the body: invalid character", ""},
		{"two values", "pools/chat/mode", `{"mode":"on"} {}`, nil, 400, "more than one JSON value", ""},
		{"far too long", "pools/chat/mode", `{"mode":"` + strings.Repeat("a", maxCommand) + `"}`, nil, 400, "request body too large", ""},
		{"unknown pool", "pools/chart/mode", `{"mode":"off"}`, nil, 404, `{"error":"there is no pool \"chart\"","known":["chat","code"]}`, ""},
		{"refused by the router", "pools/chat/mode", `{"mode":"off"}`, errors.New("not now"), 409, `{"error":"not now"}`, "mode chat off 25"},
		{"drain", "endpoints/10.0.0.11:8000/drain", ``, nil, 200, `{"pool":"chat","endpoint":"10.0.0.11:8000","draining":true,"blocks":700,"approximate_blocks":0,"left":1}`, "drain 10.0.0.11:8000"},
		{"drain with an empty object", "endpoints/10.0.0.11:8000/drain", `{}`, nil, 200, `"draining":true`, "drain 10.0.0.11:8000"},
		{"undrain, IPv6", "endpoints/%5Bfd00::12%5D:8000/undrain", ``, nil, 200, `"draining":false`, "undrain [fd00::12]:8000"},
		{"reset", "endpoints/10.0.0.11:8000/reset", ``, nil, 200, `"draining":false,"blocks":700,`, "reset 10.0.0.11:8000"},
		{"reset keeps the drain", "endpoints/[fd00::12]:8000/reset", ``, nil, 200, `"draining":true,"blocks":0,`, "reset [fd00::12]:8000"},
		{"unknown endpoint", "endpoints/10.0.0.1:8000/drain", ``, nil, 404, `"known":["10.0.0.11:8000","[fd00::12]:8000"]`, ""},
		{"drain with more", "endpoints/10.0.0.11:8000/drain", `{"for":"1h"}`, nil, 400, "unknown field", ""},
		{"drain refused", "endpoints/10.0.0.11:8000/drain", ``, errors.New("the last one"), 409, "the last one", "drain 10.0.0.11:8000"},
		{"reset refused", "endpoints/10.0.0.11:8000/reset", ``, errors.New("no events"), 409, "no events", "reset 10.0.0.11:8000"},
		{"unknown command", "endpoints/10.0.0.11:8000/kill", ``, nil, 404, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet()
			f.fails = tt.fails
			o, log := options(f), new(strings.Builder)
			o.Log = slog.New(slog.NewTextHandler(log, nil))
			s, err := New(o)
			check(t, err)
			status, body, _ := request{method: "POST", path: "/api/v1/" + tt.path, header: asJSON, body: tt.body}.send(s.handler())
			if status != tt.status || !strings.Contains(body, tt.text) {
				t.Errorf("%d %q, want %d with %q", status, body, tt.status, tt.text)
			}
			var want []string
			if tt.call != "" {
				want = []string{tt.call}
			}
			if diff := cmp.Diff(want, f.calls); diff != "" {
				t.Errorf("calls, -want +got:\n%s", diff)
			}
			if logged := strings.Contains(log.String(), "from=192.0.2.1:1234"); logged != (tt.call != "") {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

// TestGuards sends what must not get through, and what must.
func TestGuards(t *testing.T) {
	const drain = "/api/v1/endpoints/10.0.0.11:8000/drain"
	bearer := func(text string, more ...string) []string {
		return append([]string{"Authorization", "Bearer " + text}, more...)
	}
	command := func(more ...string) request {
		return request{method: "POST", path: drain, header: append([]string{"Content-Type", "application/json"}, more...)}
	}
	tests := []struct {
		name     string
		token    bool
		readOnly bool
		r        request
		status   int
		why      refusal // "": none
		text     string
	}{
		{name: "command from a program", r: command(), status: 200},
		{name: "content type with a charset", r: request{method: "POST", path: drain, header: []string{"Content-Type", "Application/JSON; charset=utf-8"}}, status: 200},
		{name: "no content type", r: request{method: "POST", path: drain}, status: 415, why: refusedType, text: "application/json"},
		{name: "a form", r: request{method: "POST", path: drain, header: []string{"Content-Type", "text/plain"}}, status: 415, why: refusedType},
		{name: "another site's page, by Sec-Fetch-Site", r: command("Sec-Fetch-Site", "cross-site"), status: 403, why: refusedOrigin, text: "another origin"},
		{name: "another port's page", r: command("Sec-Fetch-Site", "same-site"), status: 403, why: refusedOrigin},
		{name: "another site's page, by Origin", r: command("Origin", "https://evil.test"), status: 403, why: refusedOrigin},
		{name: "a sandboxed page", r: command("Origin", "null"), status: 403, why: refusedOrigin},
		{name: "our own page", r: command("Origin", "http://127.0.0.1:9003", "Sec-Fetch-Site", "same-origin"), status: 200},
		{name: "a name that resolves to loopback", r: request{method: "GET", path: "/api/v1/state", host: "evil.test:9003"}, status: 403, why: refusedHost, text: "Host"},
		{name: "the same for a command", r: request{method: "POST", path: drain, host: "evil.test:9003", header: asJSON}, status: 403, why: refusedHost},
		{name: "the same for metrics", r: request{method: "GET", path: "/metrics", host: "evil.test"}, status: 403, why: refusedHost},
		{name: "the same for health", r: request{method: "GET", path: "/readyz", host: "localhost.evil.test"}, status: 403, why: refusedHost},
		{name: "an address that is not loopback", r: request{method: "GET", path: "/metrics", host: "10.0.0.1:9003"}, status: 403, why: refusedHost},
		{name: "localhost", r: request{method: "GET", path: "/metrics", host: "LocalHost:9003"}, status: 200},
		{name: "IPv6 loopback", r: request{method: "GET", path: "/metrics", host: "[::1]:9003"}, status: 200},
		{name: "IPv6 loopback without a port", r: request{method: "GET", path: "/metrics", host: "[::1]"}, status: 200},
		{name: "another loopback address", r: request{method: "GET", path: "/metrics", host: "127.8.8.8"}, status: 200},

		{name: "read-only", readOnly: true, r: command(), status: 403, why: refusedReadOnly, text: "admin.write: true"},
		{name: "read-only, reading", readOnly: true, r: request{method: "GET", path: "/api/v1/state"}, status: 200},

		{name: "no token", token: true, r: request{method: "GET", path: "/metrics"}, status: 401, why: refusedToken, text: "a token is needed"},
		{name: "another token", token: true, r: request{method: "GET", path: "/metrics", header: bearer(secret + "r")}, status: 401, why: refusedToken, text: "not the one"},
		{name: "an empty token", token: true, r: request{method: "GET", path: "/metrics", header: bearer("")}, status: 401, why: refusedToken},
		{name: "another scheme", token: true, r: request{method: "GET", path: "/metrics", header: []string{"Authorization", "Basic " + secret}}, status: 401, why: refusedToken},
		{name: "the token in the query", token: true, r: request{method: "GET", path: "/metrics?token=" + secret}, status: 401, why: refusedToken},
		{name: "no token, unknown path", token: true, r: request{method: "GET", path: "/secret"}, status: 401, why: refusedToken},
		{name: "no token, index", token: true, r: request{method: "GET", path: "/"}, status: 401, why: refusedToken},
		{name: "no token, command", token: true, r: command(), status: 401, why: refusedToken},
		{name: "the token", token: true, r: request{method: "GET", path: "/metrics", header: bearer(secret)}, status: 200},
		{name: "the token, and any host", token: true, r: request{method: "GET", path: "/metrics", host: "router.test:9003", header: bearer(secret)}, status: 200},
		{name: "the scheme in lower case", token: true, r: request{method: "GET", path: "/metrics", header: []string{"Authorization", "bearer " + secret}}, status: 200},
		{name: "the token, command", token: true, r: command(bearer(secret)...), status: 200},
		{name: "the token does not make up for the origin", token: true, r: command(bearer(secret, "Origin", "https://evil.test")...), status: 403, why: refusedOrigin},
		{name: "the token, read-only", token: true, readOnly: true, r: command(bearer(secret)...), status: 403, why: refusedReadOnly},
		{name: "health without a token", token: true, r: request{method: "GET", path: "/healthz", host: "router.test"}, status: 200, text: "ok\n"},
		{name: "readiness without a token", token: true, r: request{method: "GET", path: "/readyz"}, status: 503, text: "not ready\n"},
		{name: "readiness with another token", token: true, r: request{method: "GET", path: "/readyz", header: bearer("x")}, status: 503, text: "not ready\n"},
		{name: "readiness with the token", token: true, r: request{method: "GET", path: "/readyz", header: bearer(secret)}, status: 503, text: "pool chat: no endpoint is up\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet()
			o := options(f)
			o.Metrics = NewMetrics(nil)
			if tt.token {
				o = withToken(t, o, secret+"\n")
			}
			if tt.readOnly {
				o.Control = nil
			}
			s, err := New(o)
			check(t, err)
			status, body, header := tt.r.send(s.handler())
			if status != tt.status || !strings.Contains(body, tt.text) {
				t.Errorf("%d %q, want %d with %q", status, body, tt.status, tt.text)
			}
			if tt.why != "" {
				if n := testutil.ToFloat64(o.Metrics.refused.WithLabelValues(string(tt.why))); n != 1 {
					t.Errorf("counted %v times as %s", n, tt.why)
				}
				if len(f.calls) > 0 {
					t.Errorf("calls %q", f.calls)
				}
				var p problem
				if err := json.Unmarshal([]byte(body), &p); err != nil || p.Error == "" {
					t.Errorf("body %q: %v", body, err)
				}
			}
			if (status == 401) != (header.Get("WWW-Authenticate") != "") {
				t.Errorf("status %d with WWW-Authenticate %q", status, header.Get("WWW-Authenticate"))
			}
			if tt.status == 503 && tt.text == "not ready\n" && body != tt.text {
				t.Errorf("readiness tells %q", body)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no gatherer: accepted")
	}
	for name, tt := range map[string]struct{ text, want string }{
		"empty":           {"", "fewer than 16 characters"},
		"short":           {"hunter2\n", "fewer than 16 characters"},
		"two lines":       {secret + "\n" + secret, "one word of visible ASCII"},
		"with a space":    {"correct horse battery staple", "one word of visible ASCII"},
		"not ASCII":       {"pässwörter-sind-schön", "one word of visible ASCII"},
		"a control":       {secret + "\x00" + secret, "one word of visible ASCII"},
		"a file too long": {strings.Repeat("a", maxToken+1), "longer than 4096 bytes"},
	} {
		_, err := New(withToken(t, options(newFleet()), tt.text))
		if err == nil || !strings.Contains(err.Error(), "admin.token_file: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v", name, err)
		} else if len(tt.text) > 6 && strings.Contains(err.Error(), tt.text[:6]) {
			t.Errorf("%s: the error quotes the token: %v", name, err)
		}
	}
	o := options(newFleet())
	o.TokenFile = filepath.Join(t.TempDir(), "none")
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "admin.token_file: ") {
		t.Errorf("no file: error %v", err)
	}
	o.TokenFile = t.TempDir()
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: error %v", err)
	}
}

func listener(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	return l
}

// running serves until the test ends, and returns the base of its URLs.
func running(t *testing.T, s *Server, scheme string) string {
	t.Helper()
	l := listener(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(deadline):
			t.Error("Run goes on after its context ended")
		}
	})
	return scheme + "://" + l.Addr().String()
}

func get(t testing.TB, client *http.Client, url string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	check(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	check(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp.StatusCode, string(body)
}

func oneShot() *http.Client { return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} }

// TestTokenChanges replaces the token under a running server.
func TestTokenChanges(t *testing.T) {
	o, log := withToken(t, options(newFleet()), secret), new(logtest.Buffer)
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := New(o)
	check(t, err)
	url := running(t, s, "http") + "/metrics"
	status := func(token string) int {
		status, _ := get(t, oneShot(), url, "Authorization", "Bearer "+token)
		return status
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(deadline); !is(); <-tick.C {
			if time.Now().After(end) {
				t.Fatalf("%s; log:\n%s", what, log)
			}
		}
	}
	if got := status(secret); got != 200 {
		t.Fatalf("status %d", got)
	}
	const next = "tr0ub4dor&3-tr0ub4dor&3"
	check(t, os.WriteFile(o.TokenFile, []byte(next+"\n"), 0o600))
	eventually("the new token is not taken over", func() bool { return status(next) == 200 })
	if got := status(secret); got != 401 {
		t.Errorf("the old token: status %d", got)
	}
	check(t, os.WriteFile(o.TokenFile, []byte("short"), 0o600))
	eventually("the bad token is not refused", func() bool { return strings.Contains(log.String(), "the old token stays in use") })
	if got := status(next); got != 200 {
		t.Errorf("after a bad one: status %d", got)
	}
	if got := status("short"); got != 401 {
		t.Errorf("the bad one: status %d", got)
	}
	if strings.Contains(log.String(), secret) || strings.Contains(log.String(), next) || strings.Contains(log.String(), "short") {
		t.Errorf("log tells a token:\n%s", log)
	}
}

func TestRunSaysWhenTheListenerDies(t *testing.T) {
	s, err := New(withToken(t, Options{Gatherer: prometheus.NewRegistry()}, secret))
	check(t, err)
	l := listener(t)
	l.Close()
	if err := s.Run(t.Context(), l); err == nil || !strings.Contains(err.Error(), "serve admin") {
		t.Errorf("error %v", err)
	}
}

// TestConnectionsAreBounded opens more than there may be: the surplus is closed, and room is given back.
func TestConnectionsAreBounded(t *testing.T) {
	s, err := New(options(newFleet()))
	check(t, err)
	url := running(t, s, "http")
	address := strings.TrimPrefix(url, "http://")
	closed := 0
	var open []net.Conn
	for range maxConns + 10 {
		conn, err := net.Dial("tcp", address)
		check(t, err)
		open = append(open, conn)
	}
	for _, conn := range open[maxConns:] {
		check(t, conn.SetReadDeadline(time.Now().Add(deadline)))
		if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed != 10 {
		t.Errorf("%d of 10 surplus connections are closed", closed)
	}
	for _, conn := range open {
		conn.Close()
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); ; <-tick.C {
		resp, err := oneShot().Get(url + "/healthz")
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no room is given back: %v", err)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	NewMetrics(reg).commands.WithLabelValues("mode", "done").Inc()
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
