package envoy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// onEach runs a test on every release and layout that must behave alike, side by side: most of the time is waiting for Envoys.
func onEach(t *testing.T, f func(t *testing.T, s setup)) {
	for _, s := range setups() {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			f(t, s)
		})
	}
}

// site is two pools with two endpoints and one, and a router.
type site struct {
	chat1, chat2, embed *engine
	router              *stub
}

func newSite(t *testing.T) *site {
	return &site{
		chat1:  startEngine(t, "chat1", "tcp", "127.0.0.1:0"),
		chat2:  startEngine(t, "chat2", "tcp", "127.0.0.1:0"),
		embed:  startEngine(t, "embed", "tcp", "127.0.0.1:0"),
		router: startStub(t, "127.0.0.1:0"),
	}
}

func (s *site) options(chat, embed Match) Options {
	return Options{
		Routers:        []string{s.router.addr},
		MessageTimeout: 20 * time.Second, // a busy machine must not decide the test
		Pools: []Pool{
			{Name: "chat", Match: chat, Endpoints: []string{s.chat1.addr, s.chat2.addr}},
			{Name: "embed", Match: embed, Endpoints: []string{s.embed.addr}},
		},
	}
}

func (s *site) onePool() Options {
	o := s.options(Match{}, Match{})
	o.Pools = o.Pools[:1]
	return o
}

func (s *site) all() []seen {
	return append(append(s.chat1.requests(), s.chat2.requests()...), s.embed.requests()...)
}

func TestDecisionIsObeyed(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		p := startEnvoy(t, s, site.onePool())
		secret := http.Header{
			"Authorization": {"Bearer top-secret"}, "Cookie": {"top-secret"}, "X-Api-Key": {"top-secret"}, "Api-Key": {"top-secret"},
			"Proxy-Authorization": {"top-secret"}, "X-Goog-Api-Key": {"top-secret"}, "X-Envoy-Retry-On": {"5xx"}, "X-Envoy-Max-Retries": {"100"},
		}
		for range 4 {
			site.router.decide(site.chat2.addr, site.chat1.addr)
			p.want(t, call{header: secret}, 200, "chat2")
			site.router.decide(site.chat1.addr, "")
			p.want(t, call{header: secret, path: "/v1/chat/completions?a=b"}, 200, "chat1")
		}
		p.want(t, call{body: make([]byte, 3<<20)}, 200, "chat1")
		p.want(t, call{method: http.MethodOptions, path: "/v1/messages"}, 200, "chat1")

		for _, r := range site.all() {
			if r.header.Get(HeaderTarget)+r.header.Get(HeaderSecond)+r.header.Get("x-extra") != "" {
				t.Errorf("engine sees a header that is none of its business: %v", r.header)
			}
			if r.header.Get("x-envoy-retry-on") != "" {
				t.Errorf("client steers Envoy: %v", r.header)
			}
			if a := r.header.Get("Authorization"); a != "" && a != "Bearer top-secret" {
				t.Errorf("engine sees authorization %q", a)
			}
		}
		asked := site.router.asked()
		if len(asked) != 10 {
			t.Errorf("router was asked %d times, want 10", len(asked))
		}
		for _, h := range asked {
			if text := fmt.Sprint(h); strings.Contains(text, "top-secret") {
				t.Errorf("router sees a credential: %s", text)
			}
		}
		if last := site.chat1.requests(); last[len(last)-2].body != 3<<20 {
			t.Errorf("body of %d bytes arrived", last[len(last)-2].body)
		}
		// Neither the path list nor the model list asks the router.
		p.want(t, call{method: http.MethodGet, path: "/v1/models"}, 200, "chat")
		p.want(t, call{path: "/v1/models"}, 404, "not routed to engines")
		for _, path := range []string{"/metrics", "/tokenize", "/v1/completions/x", "/v1/load_lora_adapter", "/", "/V1/completions", "/v1/completions/../../metrics"} {
			p.want(t, call{path: path}, 404, "not routed to engines")
		}
		if n := len(site.router.asked()); n != 10 {
			t.Errorf("router was asked %d times about nothing to decide", n-10)
		}
		requireLog(t, p, site.chat2.addr)
	})
}

// requireLog looks for the first request of TestDecisionIsObeyed.
func requireLog(t *testing.T, p *proxy, endpoint string) {
	t.Helper()
	eventually(t, "access log", func() error {
		text, err := os.ReadFile(p.log)
		if err != nil || !strings.Contains(string(text), "\n") {
			return fmt.Errorf("empty: %w", err)
		}
		return nil
	})
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(strings.SplitN(string(text), "\n", 2)[0]), &line); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	want := map[string]any{
		KeyDecisionID: "r1-7", KeyPool: "chat", KeyEndpoint: endpoint, KeyReason: "matched", KeyMatched: 512.0, KeyPrompt: 640.0,
		"upstream": endpoint, "code": 200.0, "attempts": 1.0, "method": "POST", "path": "/v1/completions", "route": "chat/decided",
	}
	for k, v := range want {
		if line[k] != v {
			t.Errorf("log line: %s is %v, want %v", k, line[k], v)
		}
	}
	if strings.Contains(string(text), "top-secret") || strings.Contains(string(text), "a=b") {
		t.Errorf("access log says too much:\n%s", text)
	}
}

func TestClientCannotNameEndpoint(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		canary := startEngine(t, "canary", "tcp", "127.0.0.1:0")
		o := site.onePool()
		o.MessageTimeout = 500 * time.Millisecond
		p := startEnvoy(t, s, o)
		spoofs := []http.Header{
			{HeaderTarget: {canary.addr}},
			{"X-TARGET-ENDPOINT": {canary.addr}},
			{"X-Target-Endpoint": {canary.addr, canary.addr}},
			{HeaderTarget: {canary.addr}, HeaderSecond: {canary.addr}},
			{HeaderSecond: {canary.addr}},
			{HeaderTarget: {canary.addr}, "Connection": {HeaderTarget}},
			{"X-Envoy-Original-Dst-Host": {canary.addr}},
		}
		try := func(state, body string) {
			t.Helper()
			for i, h := range spoofs {
				for _, c := range []call{{header: h}, {header: h, method: http.MethodGet}, {header: h, method: http.MethodGet, path: "/v1/models"}} {
					if got := p.do(t, c); got.code != 200 || !strings.HasPrefix(got.body, body) {
						t.Errorf("%s, spoof %d, %s: got %d %q", state, i, c.method, got.code, got.body)
					}
				}
			}
		}
		site.router.decide("", "")
		try("no decision", "chat")
		site.router.decide(site.chat1.addr, "")
		try("decision", "chat")
		site.router.hang.Store(true)
		p.want(t, call{header: spoofs[0]}, 200, "chat")
		site.router.grpc.Stop()
		try("router down", "chat")
		if n := len(canary.requests()); n != 0 {
			t.Errorf("%d requests reached the address that clients named", n)
		}
		for _, r := range site.all() {
			if r.header.Get(HeaderTarget)+r.header.Get(HeaderSecond) != "" {
				t.Errorf("engine sees %v", r.header)
			}
		}
	})
}

func TestFallbackOfTheRightPool(t *testing.T) {
	keys := []struct {
		name        string
		chat, embed Match
		toChat      call
		toEmbed     call
		path        string // what the engine sees
	}{
		{"host", Match{Host: "chat.test"}, Match{Host: "embed.test"}, call{host: "CHAT.test:8080"}, call{host: "embed.test"}, "/v1/completions"},
		{
			"path",
			Match{PathPrefix: "/chat"},
			Match{PathPrefix: "/embed"},
			call{path: "/chat/v1/completions?x=/chat/y"},
			call{path: "/embed//v1/completions?x=/chat/y"},
			"/v1/completions?x=/chat/y",
		},
		{
			"header",
			Match{HeaderName: "x-pool", HeaderValue: "chat"},
			Match{HeaderName: "x-pool", HeaderValue: "embed"},
			call{header: http.Header{"X-Pool": {"chat"}}},
			call{header: http.Header{"X-Pool": {"embed"}}},
			"/v1/completions",
		},
	}
	for _, k := range keys {
		t.Run(k.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s setup) {
				site := newSite(t)
				p := startEnvoy(t, s, site.options(k.chat, k.embed))
				unkeyed := call{path: "/v1/completions"}
				nobody := "the router made no decision"
				site.router.decide(site.embed.addr, "")
				if s.layout == LayoutOverride {
					nobody = "no pool matches"
					p.want(t, k.toChat, 200, "chat") // the key's cluster does not hold the endpoint of another pool
					p.want(t, k.toEmbed, 200, "embed")
				} else {
					p.want(t, k.toChat, 200, "embed") // a decision by the model beats the key
					p.want(t, unkeyed, 200, "embed")
				}
				site.router.decide("", "")
				for range 4 {
					p.want(t, k.toChat, 200, "chat")
					p.want(t, k.toEmbed, 200, "embed")
				}
				p.want(t, unkeyed, 503, nobody)
				site.router.grpc.Stop()
				for range 4 {
					p.want(t, k.toChat, 200, "chat")
					p.want(t, k.toEmbed, 200, "embed")
				}
				big := k.toEmbed
				big.body = make([]byte, 2<<20)
				p.want(t, big, 200, "embed")
				p.want(t, unkeyed, 503, `"error"`)
				for _, r := range site.embed.requests()[1:] {
					if r.path != k.path && r.path != "/v1/completions" {
						t.Errorf("engine sees path %q, want %q", r.path, k.path)
					}
				}
			})
		})
	}
}

// A dead first choice moves on to the second choice, where the layout has one, or to an endpoint that lives.
func TestDeadChoice(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		p := startEnvoy(t, s, site.onePool())
		site.chat1.stop()
		site.router.decide(site.chat1.addr, site.chat2.addr)
		for range 30 {
			p.want(t, call{}, 200, "chat2")
		}
		site.router.decide(site.chat1.addr, "")
		for range 30 {
			p.want(t, call{}, 200, "chat2")
		}
		site.router.decide("", "")
		for range 30 {
			p.want(t, call{}, 200, "chat2")
		}
	})
}

func TestRouterHangs(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		o := site.onePool()
		o.MessageTimeout = 500 * time.Millisecond
		p := startEnvoy(t, s, o)
		site.router.hang.Store(true)
		start := time.Now()
		p.want(t, call{}, 200, "chat")
		if d := time.Since(start); d < 400*time.Millisecond {
			t.Errorf("fell back after %v, want 500ms", d)
		}
	})
}

func TestBodyLimit(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		o := site.onePool()
		o.MaxBody = 2 << 20
		p := startEnvoy(t, s, o)
		limited := func() {
			t.Helper()
			p.want(t, call{body: make([]byte, 2<<20)}, 200, "chat")
			p.want(t, call{body: make([]byte, 2<<20+1)}, 413, "Payload Too Large")
			p.want(t, call{body: make([]byte, 2<<20+1), path: "/metrics"}, 404, "not routed")
		}
		limited()
		// A router that decides without the body keeps nothing in Envoy from passing it on, nor does one that is not there.
		site.router.decide(site.chat2.addr, "")
		site.router.blind.Store(true)
		limited()
		site.router.grpc.Stop()
		limited()
	})
}

func TestUnixSocketAndIPv6(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		v6 := startEngine(t, "v6", "tcp6", "[::1]:0")
		v4 := startEngine(t, "v4", "tcp", "127.0.0.1:0")
		dir, err := os.MkdirTemp("", "kv") // t.TempDir may exceed the length of a socket path
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		router := startStub(t, "unix:"+dir+"/s")
		p := startEnvoy(t, s, Options{Routers: []string{router.addr}, MessageTimeout: 20 * time.Second, AllPaths: true, Pools: []Pool{{Name: "chat", Endpoints: []string{v6.addr, v4.addr}}}})
		for range 4 {
			router.decide(v6.addr, "")
			p.want(t, call{path: "/metrics"}, 200, "v6")
			router.decide(v4.addr, "")
			p.want(t, call{path: "/any"}, 200, "v4")
		}
	})
}

// Without a fallback a decision is all there is: obeyed when it is there, 503 with the reason when it is not.
func TestNoFallback(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		o := site.options(Match{}, Match{})
		for i := range o.Pools {
			o.Pools[i].Fallback = FallbackNone
		}
		if s.layout == LayoutOverride {
			if _, err := Render(s.options(o)); err == nil || !strings.Contains(err.Error(), "always draw an endpoint") {
				t.Errorf("error %v, want one that says what the layout cannot", err)
			}
			return
		}
		p := startEnvoy(t, s, o)
		site.router.decide(site.chat1.addr, "")
		p.want(t, call{}, 200, "chat1")
		p.want(t, call{method: http.MethodGet, path: "/v1/models"}, 200, "chat1")
		site.chat1.stop()
		site.router.decide(site.chat1.addr, site.embed.addr)
		if s.layout == LayoutComposite {
			p.want(t, call{}, 200, "embed")
		} else {
			p.want(t, call{}, 503, "upstream connect error")
		}
		site.router.decide("", "")
		p.want(t, call{}, 503, "the router made no decision")
		site.router.grpc.Stop()
		p.want(t, call{}, 503, "the router made no decision")
		p.want(t, call{path: "/metrics"}, 404, "not routed")
		for _, r := range site.all() {
			if r.header.Get(HeaderTarget)+r.header.Get(HeaderSecond) != "" {
				t.Errorf("engine sees %v", r.header)
			}
		}
	})
}

// Requests of every framing keep their decision and their body: chunks, trailers, HTTP/2, an upgrade.
func TestFraming(t *testing.T) {
	h2 := &http.Transport{Protocols: &http.Protocols{}}
	h2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2.CloseIdleConnections)
	clients := map[string]*http.Client{"http/1.1": http.DefaultClient, "h2c": {Transport: h2}}
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		p := startEnvoy(t, s, site.onePool())
		site.router.decide(site.chat2.addr, "")
		for name, client := range clients {
			for _, trailer := range []bool{false, true} {
				for _, header := range []http.Header{{}, {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}} {
					if name == "h2c" && len(header) > 0 {
						continue // HTTP/2 has no such header
					}
					body := io.LimitReader(zeros{}, 200_000) // of unknown length: chunked
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/completions", body)
					if err != nil {
						t.Fatal(err)
					}
					req.Header = header.Clone()
					if trailer {
						req.Trailer = http.Header{"X-Check": {"1"}}
					}
					resp, err := client.Do(req)
					if err != nil {
						t.Fatalf("%s, trailer %v, %v: %v", name, trailer, header, err)
					}
					got, err := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					if err != nil || resp.StatusCode != http.StatusOK || string(got) != "chat2" {
						t.Errorf("%s, trailer %v, %v: %d %q, %v", name, trailer, header, resp.StatusCode, got, err)
					}
				}
			}
		}
		for _, r := range site.chat2.requests() {
			if r.body != 200_000 {
				t.Errorf("body of %d bytes arrived", r.body)
			}
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
