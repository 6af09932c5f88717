package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
)

const (
	// bodyLimit is limits.body by default.
	bodyLimit = 32 << 20
	mib       = 1 << 20
)

// bodySite has two pools told apart by host: simulated engines, which judge bodies as vLLM does, and recorders, which take
// everything and tell whether it came whole.
type bodySite struct {
	*lab.Site
	recorders []*recorder
	logged    int // requests so far
}

func startBodySite(t *testing.T, release string) *bodySite {
	t.Helper()
	s := &bodySite{recorders: []*recorder{startRecorder(t), startRecorder(t)}}
	// Nobody waits for the router's time here: with the default a busy machine would decide which requests fall back.
	s.Site = startSite(t, release, lab.SiteOptions{EnvoyConfig: "message_timeout: 20s", RouterConfig: "budget: 10s", Pools: []lab.PoolOptions{
		{Name: "chat", Model: "sim", Match: "{host: chat.test}", Engines: 2, Args: []string{
			"--block-size", "16", "--blocks", "4096", "--max-model-len", "8192", "--prefill-rate", "4000", "--decode-rate", "100",
		}},
		{Name: "raw", Model: "raw", Match: "{host: raw.test}", Config: "adapters_refresh: 0s", Endpoints: []string{s.recorders[0].addr, s.recorders[1].addr}},
	}})
	return s
}

// last is the log entry of a request that was just answered, while no other is under way.
func (s *bodySite) last(t *testing.T) lab.LogEntry {
	t.Helper()
	s.logged++
	entries, err := s.ReadLog(t.Context(), s.logged)
	if err != nil {
		t.Fatal(err)
	}
	return entries[s.logged-1]
}

// chat is a body for /v1/chat/completions with further members.
func chat(content string, members ...string) string {
	return fmt.Sprintf(`{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":%q}]%s}`, content, strings.Join(append([]string{""}, members...), ","))
}

// filled is a chat body of exactly n bytes. The filling is a member that engines do not read.
func filled(model string, n int) string {
	before, after := `{"model":"`+model+`","max_tokens":2,"messages":[{"role":"user","content":"Hello."}],"filling":"`, `"}`
	return before + strings.Repeat("x", n-len(before)-len(after)) + after
}

// nested is an array of n levels.
func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// TestBodies sends bodies of every size, form and framing: each gets the status that the engine gives it, or Envoy's where there is no
// engine to ask, and arrives whole. Afterwards nothing of them is left in the router.
func TestBodies(t *testing.T) {
	onBothEnvoys(t, func(t *testing.T, release string) {
		site := startBodySite(t, release)
		base := settled(t, site.Site)
		site.logged = warmUp
		for protocol, client := range clients(t) {
			t.Run(protocol, func(t *testing.T) {
				t.Run("status", func(t *testing.T) { testStatuses(t, site, client) })
				t.Run("whole", func(t *testing.T) { testWhole(t, site, client) })
			})
		}
		t.Run("by hand", func(t *testing.T) { testHandWritten(t, site) })
		requireSettled(t, site.Site, base)
	})
}

type statusCase struct {
	name    string
	request // with defaults filled in by run
	text    string
	chunked bool
	want    int
	in      string // what the answer must contain
	reason  string // of the decision; "-" when nobody was asked, "" when it may be any
}

func testStatuses(t *testing.T, site *bodySite, client *http.Client) {
	const path = "/v1/chat/completions"
	post := func(text string) request {
		return request{path: path, length: int64(len(text)), body: strings.NewReader(text)}
	}
	tests := []statusCase{
		{name: "0 B", want: 400, reason: "no_body"},
		{name: "0 B in chunks", chunked: true, want: 400, reason: "no_body"},
		{name: "1 B", text: "x", want: 400, reason: "not_json"},
		{name: "1 B in chunks", text: "{", chunked: true, want: 400, reason: "not_json"},
		{name: "small", text: chat("Hello."), want: 200, in: `"usage"`, reason: "no_index"},
		{name: "small in chunks", text: chat("Hello."), chunked: true, want: 200, in: `"usage"`},
		{name: "small with trailers", text: chat("Hello."), request: request{trailer: http.Header{"X-Check": {"1"}}}, want: 200, in: `"usage"`},
		{name: "1 MiB", text: filled("sim", mib), want: 200, in: `"usage"`},
		{name: "1 MiB in chunks", text: filled("sim", mib), chunked: true, want: 200, in: `"usage"`},
		{name: "1 MiB with trailers", text: filled("sim", mib), request: request{trailer: http.Header{"X-Check": {"1"}}}, want: 200, in: `"usage"`},
		{name: "longer than the model takes", text: chat(strings.Repeat("some words ", 10_000)), want: 400, in: "context length"},
		{name: "invalid JSON", text: chat("Hello.") + "}", want: 400, reason: "not_json"},
		{name: "cut off", text: chat("Hello.")[:40], want: 400, reason: "not_json"},
		{name: "not an object", text: `["model"]`, want: 400, reason: "not_json"},
		{name: "deep", text: chat("Hello.", `"deep":`+nested(1000)), want: 200, in: `"usage"`, reason: "too_deep"},
		{name: "very deep", text: chat("Hello.", `"deep":`+nested(200000)), want: 400, reason: "too_deep"},
		{name: "very deep without end", text: strings.Repeat(`{"a":`, 200000), want: 400},
		{name: "another model", text: strings.Replace(chat("Hello."), `"sim"`, `"none"`, 1), want: 404, in: "none"},
		{name: "another type", text: chat("Hello."), request: request{header: http.Header{"Content-Type": {"text/plain"}}}, want: 400, reason: "content_type"},
		{name: "compressed", text: "\x1f\x8b", request: request{header: http.Header{"Content-Encoding": {"gzip"}}}, want: 400, reason: "compressed"},
		{name: "GET of an inference path", request: request{method: http.MethodGet}, want: 405},
		{name: "models", request: request{method: http.MethodGet, path: "/v1/models"}, want: 200, in: `"sim"`, reason: "-"},
		{name: "models with a body", text: "{}", request: request{method: http.MethodGet, path: "/v1/models"}, want: 200, in: `"sim"`, reason: "-"},
		{name: "models by POST", text: "{}", request: request{path: "/v1/models"}, want: 404, in: "not routed to engines", reason: "-"},
		{name: "metrics", request: request{method: http.MethodGet, path: "/metrics"}, want: 404, in: "not routed to engines", reason: "-"},
		{name: "tokenize", text: chat("Hello."), request: request{path: "/tokenize"}, want: 404, in: "not routed to engines", reason: "-"},
		{name: "cache reset", request: request{path: "/reset_prefix_cache"}, want: 404, in: "not routed to engines", reason: "-"},
		{name: "below an inference path", text: chat("Hello."), request: request{path: path + "/x"}, want: 404, in: "not routed to engines", reason: "-"},
		{name: "past an inference path", text: chat("Hello."), request: request{path: path + "/../../../metrics"}, want: 404, in: "not routed to engines", reason: "-"},
		{name: "long to a refused path", text: filled("sim", mib), request: request{path: "/load"}, want: 404, in: "not routed to engines", reason: "-"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := post(tt.text)
			if tt.method != "" {
				r.method = tt.method
			} else {
				r.method = http.MethodPost
			}
			if tt.path != "" {
				r.path = tt.path
			}
			if tt.trailer != nil || tt.chunked {
				r.length = -1
			}
			r.host, r.trailer = "chat.test", tt.trailer
			if r.header = tt.header.Clone(); r.header == nil {
				r.header = http.Header{}
			}
			if r.header["Content-Type"] == nil {
				r.header.Set("Content-Type", "application/json")
			}
			got := send(t, client, site.URL, r)
			if got.status != tt.want || !strings.Contains(got.body, tt.in) {
				t.Errorf("status %d, want %d with %q; answer %.300s", got.status, tt.want, tt.in, got.body)
			}
			entry := site.last(t)
			switch {
			case tt.reason == "-" && entry.DecisionID != "":
				t.Errorf("the router was asked: %+v", entry)
			case tt.reason != "-" && tt.reason != "" && entry.Reason != tt.reason:
				t.Errorf("reason %q, want %q; log entry %+v", entry.Reason, tt.reason, entry)
			case tt.reason != "-" && entry.DecisionID == "":
				t.Errorf("no decision: %+v", entry)
			case entry.DecisionID != "" && entry.Upstream != entry.Endpoint:
				t.Errorf("the router chose %s, Envoy went to %s", entry.Endpoint, entry.Upstream)
			}
		})
	}
}

// testWhole looks at what arrives at the engine.
func testWhole(t *testing.T, site *bodySite, client *http.Client) {
	forms := []string{"length", "chunks", "trailers"}
	tests := []struct {
		size  int
		forms []string
	}{{0, forms}, {1, forms}, {64 << 10, forms}, {mib, forms}, {30 * mib, forms[:1]}, {bodyLimit, forms[2:]}}
	for _, tt := range tests {
		text := filled("raw", max(tt.size, 200))[:tt.size]
		for _, form := range tt.forms {
			r := request{
				method: http.MethodPost, path: "/v1/chat/completions?a=b", host: "raw.test", header: http.Header{"Content-Type": {"application/json"}},
				body: struct{ io.Reader }{strings.NewReader(text)}, length: int64(tt.size),
			}
			if form != "length" {
				r.length = -1
			}
			if form == "trailers" {
				r.trailer = http.Header{"X-Check": {"1"}}
			}
			got := send(t, client, site.URL, r)
			entry := site.last(t)
			seen := append(site.recorders[0].take(), site.recorders[1].take()...)
			switch {
			case got.status != http.StatusOK:
				t.Errorf("%d bytes by %s: status %d %.300s", tt.size, form, got.status, got.body)
			case len(seen) != 1:
				t.Errorf("%d bytes by %s: %d requests at the engines", tt.size, form, len(seen))
			case seen[0].sum != sha256.Sum256([]byte(text)):
				t.Errorf("%d bytes by %s: %d bytes arrived, or others", tt.size, form, seen[0].length)
			case seen[0].path != r.path:
				t.Errorf("path %s arrived", seen[0].path)
			case tt.size == 0 && form == "trailers": // HTTP/2: Envoy has neither a body nor an end of headers to ask about
			case entry.Endpoint == "" || entry.Endpoint != entry.Upstream:
				t.Errorf("%d bytes by %s: the router chose %q, Envoy went to %s", tt.size, form, entry.Endpoint, entry.Upstream)
			}
		}
	}
}

// testHandWritten sends what HTTP clients do not.
func testHandWritten(t *testing.T, site *bodySite) {
	head := func(lines ...string) io.Reader {
		lines = append([]string{"POST /v1/chat/completions HTTP/1.1", "Host: chat.test", "Content-Type: application/json", "Connection: close"}, lines...)
		return strings.NewReader(strings.Join(append(lines, "", ""), "\r\n"))
	}
	filling := func(n int64) io.Reader { return io.LimitReader(endless('x'), n) }
	length := func(n int64) string { return fmt.Sprintf("Content-Length: %d", n) }
	small := chat("Hello.")
	chunk := func(body io.Reader, n int64) io.Reader {
		return io.MultiReader(strings.NewReader(fmt.Sprintf("%x\r\n", n)), body, strings.NewReader("\r\n"))
	}
	var spelled []io.Reader // a byte per chunk
	for i := range len(small) {
		spelled = append(spelled, chunk(strings.NewReader(small[i:i+1]), 1))
	}
	tests := []struct {
		name  string
		parts []io.Reader
		want  int
		in    string
	}{
		{"above the limit", []io.Reader{head(length(bodyLimit + 1)), filling(bodyLimit + 1)}, 413, `"error"`},
		{"above the limit in chunks", []io.Reader{head("Transfer-Encoding: chunked"), chunk(filling(bodyLimit+1), bodyLimit+1), strings.NewReader("0\r\n\r\n")}, 413, `"error"`},
		{"far above the limit", []io.Reader{head(length(1 << 40)), filling(64 * mib)}, 413, `"error"`},
		{"neither length nor chunks", []io.Reader{head()}, 400, ""},
		{"a byte per chunk", append(append([]io.Reader{head("Transfer-Encoding: chunked")}, spelled...), strings.NewReader("0\r\n\r\n")), 200, `"usage"`},
		{"trailers", []io.Reader{
			head("Transfer-Encoding: chunked", "Trailer: X-Check"), chunk(strings.NewReader(small), int64(len(small))), strings.NewReader("0\r\nX-Check: 1\r\n\r\n"),
		}, 200, `"usage"`},
		{"trailers without a body", []io.Reader{head("Transfer-Encoding: chunked"), strings.NewReader("0\r\nX-Check: 1\r\n\r\n")}, 400, ""},
		{"expects 100", []io.Reader{head(length(int64(len(small))), "Expect: 100-continue"), strings.NewReader(small)}, 200, `"usage"`},
		{"upgrade", []io.Reader{head(length(int64(len(small))), "Connection: Upgrade", "Upgrade: websocket"), strings.NewReader(small)}, 200, `"usage"`},
		{"bad chunk", []io.Reader{head("Transfer-Encoding: chunked"), strings.NewReader("zz\r\n\r\n")}, 400, ""},
		{"bad length", []io.Reader{head("Content-Length: -1")}, 400, ""},
		{"two lengths", []io.Reader{head("Content-Length: 1", "Content-Length: 2"), strings.NewReader("{}")}, 400, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := sendRaw(t, site.Site, tt.parts...)
			if got.status != tt.want || !strings.Contains(got.body, tt.in) {
				t.Errorf("status %d, want %d with %q; answer %.300s", got.status, tt.want, tt.in, got.body)
			}
		})
	}
}

// endless reads as one byte for ever.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}
