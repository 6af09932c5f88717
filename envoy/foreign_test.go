package envoy

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// foreign is a configuration of somebody who has never heard of this project, but for the name of the listener.
const foreign = `
node: {id: foreign, cluster: foreign}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: kvsteer
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: foreign
          upgrade_configs: [{upgrade_type: websocket}]
          access_log: []
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: everything
              domains: ["*"]
              routes:
              - {match: {prefix: /shop}, route: {cluster: shop}}
              - {match: {prefix: /v1/}, route: {cluster: engines}}
              - {match: {prefix: /}, direct_response: {status: 418}}
  clusters:
  - name: engines
    type: STATIC
    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [ENGINES]}]}
  - name: shop
    type: STATIC
    load_assignment: {cluster_name: shop, endpoints: [{lb_endpoints: [SHOP]}]}
`

// merge adds pieces to a configuration as their comments say.
func merge(t testing.TB, config, pieces []byte) []byte {
	t.Helper()
	text, err := lab.Merge(config, pieces)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func lbEndpoint(address string) string {
	host, port, _ := strings.Cut(address, ":")
	return fmt.Sprintf("{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}", host, port)
}

// startForeign runs the foreign configuration with the pieces for o.
func startForeign(t testing.TB, s setup, o Options, engines []*engine, shop *engine) *proxy {
	t.Helper()
	pieces, err := RenderFilter(s.options(o))
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, e := range engines {
		hosts = append(hosts, lbEndpoint(e.addr))
	}
	base := strings.NewReplacer("ENGINES", strings.Join(hosts, ", "), "SHOP", lbEndpoint(shop.addr)).Replace(foreign)
	return runEnvoy(t, s, t.TempDir(), merge(t, []byte(base), pieces), "")
}

// TestPiecesInAForeignEnvoy has the pieces do in another configuration what the whole does, and leave its other routes alone.
func TestPiecesInAForeignEnvoy(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		shop := startEngine(t, "shop", "tcp", "127.0.0.1:0")
		canary := startEngine(t, "canary", "tcp", "127.0.0.1:0")
		o := site.onePool()
		o.AccessLogService, o.DecisionHeader, o.MaxBody = true, true, 2<<20
		o.Pools[0].Cluster = "engines"
		p := startForeign(t, s, o, []*engine{site.chat1, site.chat2}, shop)
		spoof := http.Header{HeaderTarget: {canary.addr}, HeaderSecond: {canary.addr}}
		streams := func(want int) {
			t.Helper()
			if n := p.stat(t, "http.foreign.ext_proc.streams_started"); n != want {
				t.Errorf("%d streams to the router, want %d", n, want)
			}
		}

		// Other routes: no stream, no limit of the body, nothing held; and the model list asks nobody.
		for _, c := range []call{{path: "/shop"}, {path: "/shop", header: spoof}, {path: "/shop/v1/completions", body: make([]byte, 4<<20)}} {
			p.want(t, c, 200, "shop")
		}
		p.want(t, call{path: "/elsewhere"}, 418, "")
		p.want(t, call{method: http.MethodGet, path: "/v1/models"}, 200, "chat")
		p.want(t, call{path: "/v1/other"}, 200, "chat") // the foreign route for what the pieces do not name
		streams(0)

		for range 4 {
			site.router.decide(site.chat2.addr, site.chat1.addr)
			p.want(t, call{}, 200, "chat2")
			site.router.decide(site.chat1.addr, "")
			p.want(t, call{header: spoof, body: make([]byte, 2<<20)}, 200, "chat1")
		}
		streams(8)
		p.want(t, call{body: make([]byte, 2<<20+1)}, 413, "")
		upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
		p.want(t, call{header: upgrade}, 403, "")
		if got := p.do(t, call{}).header.Get(HeaderDecision); !strings.Contains(got, "endpoint="+site.chat1.addr) {
			t.Errorf("decision header %q", got)
		}
		site.router.decide("", "")
		p.want(t, call{header: spoof}, 200, "chat")
		eventually(t, "records of the decided requests", func() error {
			if n := len(site.router.logged()); n != 10 {
				return fmt.Errorf("%d records, want 10", n)
			}
			return nil
		})
		for _, r := range site.router.logged() {
			m := r.GetCommonProperties().GetMetadata().GetFilterMetadata()[MetadataNamespace]
			if r.GetRequest().GetPath() != "/v1/completions" || m.GetFields()[KeyDecisionID].GetStringValue() != "r1-7" {
				t.Errorf("record of %s with %v", r.GetRequest().GetPath(), m)
			}
		}

		site.chat1.stop()
		site.router.decide(site.chat1.addr, site.chat2.addr)
		for range 10 {
			p.want(t, call{}, 200, "chat2")
		}
		site.router.grpc.Stop()
		for range 10 {
			p.want(t, call{header: spoof}, 200, "chat2")
		}
		p.want(t, call{path: "/shop"}, 200, "shop")
		if n := len(canary.requests()); n != 0 {
			t.Errorf("%d requests reached the address that clients named", n)
		}
		for _, r := range append(site.all(), shop.requests()...) {
			if r.header.Get(HeaderTarget)+r.header.Get(HeaderSecond) != "" {
				t.Errorf("%s sees %v", r.path, r.header)
			}
		}
	})
}

// TestAccessLogService has Envoy send a record of each request, decided or not.
func TestAccessLogService(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		o := site.onePool()
		o.AccessLogService = true
		p := startEnvoy(t, s, o)
		site.router.decide(site.chat1.addr, "")
		p.want(t, call{}, 200, "chat1")
		ended := time.Now()
		eventually(t, "the record", func() error {
			if len(site.router.logged()) == 0 {
				return errors.New("none")
			}
			return nil
		})
		t.Logf("record after %v", time.Since(ended))
		r := site.router.logged()[0]
		up := r.GetCommonProperties().GetUpstreamRemoteAddress().GetSocketAddress()
		if got := fmt.Sprintf("%s:%d", up.GetAddress(), up.GetPortValue()); got != site.chat1.addr {
			t.Errorf("upstream %s, want %s", got, site.chat1.addr)
		}
		p.want(t, call{path: "/metrics"}, 404, "")
		eventually(t, "the record of a request that is not routed", func() error {
			if n := len(site.router.logged()); n != 2 {
				return fmt.Errorf("%d records", n)
			}
			return nil
		})
	})
	// A router without the service costs no request.
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		o := site.onePool()
		site.router.deaf.Store(true)
		o.AccessLogService = true
		p := startEnvoy(t, s, o)
		site.router.decide(site.chat1.addr, "")
		for range 20 {
			p.want(t, call{}, 200, "chat1")
		}
	})
}

// TestPiecesAreAccepted merges every golden file of pieces into the foreign configuration, and validates it.
func TestPiecesAreAccepted(t *testing.T) {
	for _, s := range setups() {
		files, err := filepath.Glob("testdata/" + string(s.layout) + "_filter*.golden.yaml")
		if err != nil || len(files) == 0 {
			t.Fatalf("no golden files of layout %s: %v", s.layout, err)
		}
		base := strings.NewReplacer("ENGINES", lbEndpoint("10.0.0.11:8000"), "SHOP", lbEndpoint("10.0.0.12:8000")).Replace(foreign)
		for _, f := range files {
			t.Run(s.version+"/"+filepath.Base(f), func(t *testing.T) {
				t.Parallel()
				pieces, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				validate(t, s, merge(t, []byte(base), pieces))
			})
		}
	}
}
