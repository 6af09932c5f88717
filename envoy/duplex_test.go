package envoy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// duplexSite is a site whose filter streams.
func duplexSite(t *testing.T, s setup) (*site, *proxy) {
	t.Helper()
	site := newSite(t)
	o := site.onePool()
	o.Body = BodyFullDuplex
	return site, startEnvoy(t, s, o)
}

// TestFullDuplex sends requests of every framing and length through a filter that streams.
func TestFullDuplex(t *testing.T) {
	h2 := &http.Transport{Protocols: &http.Protocols{}}
	h2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2.CloseIdleConnections)
	onEach(t, func(t *testing.T, s setup) {
		site, p := duplexSite(t, s)
		site.router.decide(site.chat2.addr, site.chat1.addr)
		p.want(t, call{method: http.MethodOptions}, 200, "chat2")
		want := []int{0}
		for _, n := range []int{1, 100_000, 3 << 20, 20 << 20} {
			p.want(t, call{body: make([]byte, n)}, 200, "chat2")
			want = append(want, n)
		}
		// Without a length, and over HTTP/1.1 with trailers, which Envoy leaves out there.
		for name, client := range map[string]*http.Client{"http/1.1": http.DefaultClient, "h2c": {Transport: h2}} {
			for _, trailer := range []bool{false, true} {
				if trailer && name == "h2c" {
					continue // TestTrailersInFullDuplex
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/completions", io.LimitReader(zeros{}, 200_000))
				if err != nil {
					t.Fatal(err)
				}
				if trailer {
					req.Trailer = http.Header{"X-Check": {"1"}}
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatalf("%s, trailer %v: %v", name, trailer, err)
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK || string(got) != "chat2" {
					t.Errorf("%s, trailer %v: %d %q, %v", name, trailer, resp.StatusCode, got, err)
				}
				want = append(want, 200_000)
			}
		}
		for i, r := range site.chat2.requests() {
			if i >= len(want) || r.body != want[i] {
				t.Errorf("request %d: %d bytes arrived, want %v", i, r.body, want)
			}
			if r.header.Get(HeaderTarget)+r.header.Get(HeaderSecond) != "" {
				t.Errorf("engine sees %v", r.header)
			}
		}
		if n := site.router.chunks.Load(); n < 20 {
			t.Errorf("%d chunks: the bodies did not stream", n)
		}
		// Neither the model list nor what is not routed is streamed to the router.
		asked := len(site.router.asked())
		p.want(t, call{method: http.MethodGet, path: "/v1/models"}, 200, "chat")
		p.want(t, call{path: "/metrics", body: make([]byte, 1<<20)}, 404, "not routed")
		if n := len(site.router.asked()); n != asked {
			t.Errorf("router was asked %d times about nothing to decide", n-asked)
		}
		// A dead first choice moves on, and takes the body with it.
		site.chat1.stop()
		site.router.decide(site.chat1.addr, site.chat2.addr)
		for range 3 {
			p.want(t, call{body: make([]byte, 900_000)}, 200, "chat2")
		}
		if all := site.chat2.requests(); all[len(all)-1].body != 900_000 {
			t.Errorf("the second attempt had %d bytes", all[len(all)-1].body)
		}
	})
}

// TestFullDuplexRouterFails shows what fail-open is worth in full duplex: a body that is on its way to the router is lost with it, and whatever
// comes when the router is known to be gone is served.
func TestFullDuplexRouterFails(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site, p := duplexSite(t, s)
		site.router.decide(site.chat1.addr, "")
		site.router.crash.Store(true)
		p.want(t, call{}, 500, `"gateway_error"`)
		p.want(t, call{method: http.MethodOptions}, 200, "chat1") // without a body there is nothing to lose
		site.router.crash.Store(false)
		p.want(t, call{}, 200, "chat1")

		site.router.grpc.Stop()
		failed := 0
		eventually(t, "requests are served without a router", func() error {
			if got := p.do(t, call{body: make([]byte, 300_000)}); got.code != 200 {
				failed++
				return fmt.Errorf("%d %s", got.code, got.body)
			}
			return nil
		})
		t.Logf("%d requests failed before Envoy knew", failed)
		if failed > 2 {
			t.Errorf("%d requests failed before Envoy knew of the router's end", failed)
		}
		for range 20 {
			p.want(t, call{body: make([]byte, 300_000)}, 200, "chat")
		}
	})
}

// TestFullDuplexHang has a router take the body and say nothing, in a process that answers pings: only the idle timeout ends that.
func TestFullDuplexHang(t *testing.T) {
	onEachRelease(t, func(t *testing.T, s setup) {
		t.Parallel()
		site := newSite(t)
		o := s.options(site.onePool())
		o.Body, o.Listen, o.Admin = BodyFullDuplex, "127.0.0.1:0", "127.0.0.1:0"
		text, err := Render(o)
		if err != nil {
			t.Fatal(err)
		}
		const idle = "stream_idle_timeout: 600s"
		if !strings.Contains(string(text), idle) {
			t.Fatalf("no %s", idle)
		}
		p := runEnvoy(t, s, t.TempDir(), []byte(strings.Replace(string(text), idle, "stream_idle_timeout: 2s", 1)), "")
		site.router.hang.Store(true)
		start := time.Now()
		p.want(t, call{}, 504, "stream timeout")
		if d := time.Since(start); d < 1500*time.Millisecond {
			t.Errorf("ended after %v, want the idle timeout of 2s", d)
		}
		site.router.hang.Store(false)
		eventually(t, "the router is asked again", func() error {
			site.router.decide(site.chat2.addr, "")
			if got := p.do(t, call{}); got.code != 200 || got.body != "chat2" {
				return fmt.Errorf("%d %s", got.code, got.body)
			}
			return nil
		})
	})
}

// TestTrailersInFullDuplex pins down a fault of these releases of Envoy: a request that ends with trailers reaches the engine with its body
// twice, where the route may retry. Without a retry policy it arrives as it is.
func TestTrailersInFullDuplex(t *testing.T) {
	h2 := &http.Transport{Protocols: &http.Protocols{}}
	h2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2.CloseIdleConnections)
	onEachRelease(t, func(t *testing.T, s setup) {
		for retryOn, want := range map[string]int{retryOn: 2 * 1000, "": 1000} {
			site := newSite(t)
			o := s.options(site.onePool())
			o.Body, o.Listen, o.Admin = BodyFullDuplex, "127.0.0.1:0", "127.0.0.1:0"
			text, err := Render(o)
			if err != nil {
				t.Fatal(err)
			}
			p := runEnvoy(t, s, t.TempDir(), []byte(strings.ReplaceAll(string(text), "connect-failure,refused-stream,reset-before-request", retryOn)), "")
			site.router.decide(site.chat2.addr, "")
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/completions", io.LimitReader(zeros{}, 1000))
			if err != nil {
				t.Fatal(err)
			}
			req.Trailer = http.Header{"X-Check": {"1"}}
			resp, err := (&http.Client{Transport: h2}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if r := site.chat2.requests(); resp.StatusCode != http.StatusOK || len(r) != 1 || r[0].body != want {
				t.Errorf("retry on %q: status %d, engine saw %+v, want %d bytes", retryOn, resp.StatusCode, r, want)
			}
		}
	})
}

// TestServedEndpoint has the router told by the headers of the answer who gave it, also when the first choice did not.
func TestServedEndpoint(t *testing.T) {
	for _, body := range []Body{BodyBuffered, BodyFullDuplex} {
		t.Run(string(body), func(t *testing.T) {
			site := newSite(t)
			o := site.onePool()
			o.Headers, o.Body, o.Served = HeadersGAIE, body, true
			o.Layout, o.Version, o.Listen, o.Admin = LayoutOverride, "1.40.0", "127.0.0.1:0", "127.0.0.1:0"
			text, err := Render(o)
			if err != nil {
				t.Fatal(err)
			}
			p := runEnvoy(t, setup{"1.40.0", LayoutOverride}, t.TempDir(), text, "")
			site.router.reads.Store(true)
			site.router.decide(site.chat2.addr, site.chat1.addr)
			p.want(t, call{}, 200, "chat2")
			site.chat2.stop()
			p.want(t, call{body: make([]byte, 500_000)}, 200, "chat1")
			site.router.decide("", "")
			p.want(t, call{method: http.MethodOptions}, 200, "chat1")
			site.router.mu.Lock()
			defer site.router.mu.Unlock()
			if diff := gocmp.Diff([]string{site.chat2.addr, site.chat1.addr, site.chat1.addr}, site.router.served); diff != "" {
				t.Errorf("served (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEndpointPicker speaks the endpoint picker protocol in every layout: a choice in the header alone, as the composite layouts need it, and
// in metadata for the other.
func TestEndpointPicker(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		for _, body := range []Body{BodyBuffered, BodyFullDuplex} {
			site := newSite(t)
			canary := startEngine(t, "canary", "tcp", "127.0.0.1:0")
			o := site.onePool()
			o.Headers, o.Body, o.AccessLogService = HeadersGAIE, body, true
			p := startEnvoy(t, s, o)
			spoof := http.Header{GatewayEndpoint: {canary.addr}, GatewaySubset: {canary.addr}, GatewayServed: {canary.addr}, HeaderTarget: {canary.addr}}
			for range 4 {
				site.router.decide(site.chat2.addr, "")
				p.want(t, call{header: spoof}, 200, "chat2")
				site.router.decide(site.chat1.addr, "")
				p.want(t, call{header: spoof, body: make([]byte, 200_000)}, 200, "chat1")
			}
			site.router.decide("", "")
			p.want(t, call{header: spoof}, 200, "chat")
			for _, r := range site.all() {
				if r.header.Get(GatewayEndpoint)+r.header.Get(GatewaySubset)+r.header.Get(GatewayServed) != "" {
					t.Errorf("engine sees %v", r.header)
				}
			}
			for _, h := range site.router.asked() {
				if h[GatewayEndpoint]+h[GatewaySubset]+h[GatewayServed] != "" {
					t.Errorf("router is shown what a client sent: %v", h)
				}
			}
			site.chat1.stop()
			site.router.decide(site.chat1.addr, "")
			for range 5 {
				p.want(t, call{header: spoof}, 200, "chat2")
			}
			if body == BodyBuffered {
				site.router.grpc.Stop()
				p.want(t, call{header: spoof}, 200, "chat2")
			}
			if n := len(canary.requests()); n != 0 {
				t.Errorf("%d requests reached the address that clients named", n)
			}
		}
	})
}
