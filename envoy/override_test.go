package envoy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// onOverride runs a test on every release in the override_host layout.
func onOverride(t *testing.T, f func(t *testing.T, s setup)) {
	for _, s := range setups() {
		if s.layout == LayoutOverride {
			t.Run(s.version, func(t *testing.T) {
				t.Parallel()
				f(t, s)
			})
		}
	}
}

// logged reads what the access log says of the n-th request, counted from 0.
func (p *proxy) logged(t testing.TB, n int) (line struct {
	Code     int    `json:"code"`
	Attempts int    `json:"attempts"`
	Upstream string `json:"upstream"`
	Cluster  string `json:"cluster"`
},
) {
	t.Helper()
	eventually(t, fmt.Sprintf("line %d of the access log", n), func() error {
		text, err := os.ReadFile(p.log)
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		if len(lines) < n+2 {
			return fmt.Errorf("%d lines", len(lines)-1)
		}
		return json.Unmarshal([]byte(lines[n]), &line)
	})
	return line
}

// TestListIsWalked has the list say what every attempt tries, whatever Envoy thinks of the endpoints.
func TestListIsWalked(t *testing.T) {
	onOverride(t, func(t *testing.T, s setup) {
		router := startStub(t, "127.0.0.1:0")
		var live, dead []string
		for i := range 3 {
			live = append(live, startEngine(t, fmt.Sprint("live", i), "tcp", "127.0.0.1:0").addr)
			dead = append(dead, refusing(t))
		}
		const unknown = "127.0.0.1:1"
		p := startEnvoy(t, s, Options{Routers: []string{router.addr}, Pools: []Pool{{Name: "chat", Endpoints: append(append([]string(nil), live...), dead...)}}})
		for i, tt := range []struct {
			name     string
			list     []string
			upstream string // "" for any that lives
			attempts int    // 0 for any number
		}{
			{"first", []string{live[1], live[0]}, live[1], 1},
			{"alone", []string{live[2]}, live[2], 1},
			{"second", []string{dead[0], live[2], live[1]}, live[2], 2},
			{"third", []string{dead[0], dead[1], live[0]}, live[0], 3},
			{"fourth", []string{dead[0], dead[1], dead[2], live[1]}, live[1], 4},
			{"end of the list", []string{dead[0]}, "", 0},
			{"unknown first", []string{unknown, live[1]}, live[1], 1},
			{"unknown within", []string{dead[0], unknown, live[1]}, live[1], 2},
			{"unknown alone", []string{unknown}, "", 0},
			{"no address", []string{"gpu1:8000", "", live[0]}, live[0], 1},
			{"spaces", []string{" " + dead[1], " " + live[0] + " "}, live[0], 2},
			{"garbage", []string{"nonsense"}, "", 0},
			{"twice the same", []string{dead[0], dead[0], live[0]}, live[0], 3},
		} {
			router.rank(tt.list...)
			p.want(t, call{body: make([]byte, 300_000)}, 200, "live")
			got := p.logged(t, i)
			if tt.upstream != "" && got.Upstream != tt.upstream || tt.attempts != 0 && got.Attempts != tt.attempts {
				t.Errorf("%s: attempt %d at %s, want %d at %s", tt.name, got.Attempts, got.Upstream, tt.attempts, tt.upstream)
			}
			if got.Cluster != PoolCluster("chat") {
				t.Errorf("%s: cluster %q", tt.name, got.Cluster)
			}
		}
	})
}

// TestAnswersAreNotRetried lets an engine's own 503 through: whether it has computed something nobody knows.
func TestAnswersAreNotRetried(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		site.chat1.status.Store(http.StatusServiceUnavailable)
		p := startEnvoy(t, s, site.onePool())
		site.router.decide(site.chat1.addr, site.chat2.addr)
		p.want(t, call{}, 503, "chat1")
		if got := p.logged(t, 0); got.Attempts != 1 || got.Upstream != site.chat1.addr {
			t.Errorf("%d attempts, the last at %s", got.Attempts, got.Upstream)
		}
		if n := len(site.chat2.requests()); n != 0 {
			t.Errorf("%d requests were sent again", n)
		}
	})
}

// TestListBeatsHealth has Envoy fail an endpoint: what the router ranks first is picked nevertheless, and what Envoy draws by itself is not.
func TestListBeatsHealth(t *testing.T) {
	onOverride(t, func(t *testing.T, s setup) {
		site := newSite(t)
		site.chat1.ill.Store(true)
		p := startEnvoy(t, s, site.onePool())
		eventually(t, "Envoy finds the endpoint unhealthy", func() error {
			if n := p.stat(t, "cluster."+PoolCluster("chat")+".membership_healthy"); n != 1 {
				return fmt.Errorf("%d are healthy", n)
			}
			return nil
		})
		site.router.decide("", "")
		for range 20 {
			p.want(t, call{}, 200, "chat2")
		}
		site.router.decide(site.chat1.addr, site.chat2.addr)
		for range 5 {
			p.want(t, call{}, 200, "chat1")
		}
		site.router.decide(site.chat2.addr, site.chat1.addr)
		p.want(t, call{}, 200, "chat2")
	})
}

// discoveries are ways in which somebody's own cluster may come by its hosts.
func discoveries() map[string]string {
	return map[string]string{
		"STATIC":     "type: STATIC\n    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [ENGINES]}]}",
		"STRICT_DNS": "type: STRICT_DNS\n    dns_lookup_family: V4_ONLY\n    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [NAMES]}]}",
		"EDS":        "type: EDS\n    eds_cluster_config: {eds_config: {resource_api_version: V3, path_config_source: {path: EDS_FILE}}}",
	}
}

// TestOwnClusters adds the pieces to somebody's clusters of every kind, which keep their discovery and health checks.
func TestOwnClusters(t *testing.T) {
	for kind, discovery := range discoveries() {
		t.Run(kind, func(t *testing.T) {
			onOverride(t, func(t *testing.T, s setup) { ownCluster(t, s, discovery) })
		})
	}
}

func ownCluster(t *testing.T, s setup, discovery string) {
	site := newSite(t)
	shop := startEngine(t, "shop", "tcp", "127.0.0.1:0")
	canary := startEngine(t, "canary", "tcp", "127.0.0.1:0")
	o := site.onePool()
	o.Pools[0].Cluster = "engines"
	o.AccessLogService, o.StripHeaders, o.RankHeader = true, []string{"X-Cache-Salt"}, true
	pieces, err := RenderFilter(s.options(o))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var hosts, names []string
	for _, e := range []*engine{site.chat1, site.chat2} {
		hosts = append(hosts, lbEndpoint(e.addr))
		names = append(names, lbEndpoint(strings.Replace(e.addr, "127.0.0.1", "localhost", 1)))
	}
	eds := filepath.Join(dir, "eds.yaml")
	text := `{version_info: "1", resources: [{"@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, cluster_name: engines, endpoints: [{lb_endpoints: [` +
		strings.Join(hosts, ", ") + `]}]}]}`
	if err := os.WriteFile(eds, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	const static = "type: STATIC\n    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [ENGINES]}]}"
	if !strings.Contains(foreign, static) {
		t.Fatal("the foreign configuration has another cluster")
	}
	base := strings.Replace(foreign, static, discovery, 1)
	base = strings.NewReplacer("ENGINES", strings.Join(hosts, ", "), "NAMES", strings.Join(names, ", "), "SHOP", lbEndpoint(shop.addr),
		"EDS_FILE", eds).Replace(base)
	p := runEnvoy(t, s, dir, merge(t, []byte(base), pieces), "")

	spoof := http.Header{
		HeaderTarget: {canary.addr}, HeaderSecond: {canary.addr}, GatewayEndpoint: {canary.addr}, "X-Cache-Salt": {"client"}, "X-Data-Parallel-Rank": {"7"},
	}
	site.router.rankOf("1")
	for range 3 {
		site.router.decide(site.chat2.addr, site.chat1.addr)
		p.want(t, call{header: spoof}, 200, "chat2")
		site.router.decide(site.chat1.addr, "")
		p.want(t, call{body: make([]byte, 3<<20)}, 200, "chat1")
		site.router.rank("10.9.9.9:1", site.chat2.addr)
		p.want(t, call{}, 200, "chat2")
	}
	p.want(t, call{path: "/shop", header: spoof}, 200, "shop")
	eventually(t, "records of the decided requests", func() error {
		if n := len(site.router.logged()); n != 9 {
			return fmt.Errorf("%d records, want 9", n)
		}
		return nil
	})
	for _, r := range site.router.logged() {
		up := r.GetCommonProperties().GetUpstreamRemoteAddress().GetSocketAddress()
		if got := fmt.Sprintf("%s:%d", up.GetAddress(), up.GetPortValue()); got != site.chat1.addr && got != site.chat2.addr {
			t.Errorf("record of upstream %q", got)
		}
	}
	site.router.decide("", "")
	p.want(t, call{header: spoof}, 200, "chat")
	site.chat1.stop()
	for range 10 {
		site.router.decide(site.chat1.addr, site.chat2.addr)
		p.want(t, call{}, 200, "chat2")
		site.router.decide(site.chat1.addr, "")
		p.want(t, call{}, 200, "chat2")
	}
	site.router.grpc.Stop()
	for range 10 {
		p.want(t, call{header: spoof}, 200, "chat2")
	}
	if n := len(canary.requests()); n != 0 {
		t.Errorf("%d requests reached the address that clients named", n)
	}
	for _, r := range site.all() {
		if r.header.Get(HeaderTarget)+r.header.Get(HeaderSecond)+r.header.Get("x-extra")+r.header.Get("x-cache-salt") != "" {
			t.Errorf("engine sees %v", r.header)
		}
		if rank := r.header.Get(HeaderRank); rank != "" && rank != "1" {
			t.Errorf("engine sees the rank %q", rank)
		}
	}
	if first := site.chat2.requests()[0].header; first.Get(HeaderRank) != "1" {
		t.Errorf("engine does not see the router's rank: %v", first)
	}
}

// TestClientHeaders has the filter set what clients cannot: the rank in every layout.
func TestClientHeaders(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		o := site.onePool()
		o.StripHeaders, o.RankHeader = []string{"x-cache-salt"}, true
		p := startEnvoy(t, s, o)
		header := http.Header{"X-CACHE-SALT": {"a", "b"}, "X-Data-Parallel-Rank": {"7"}, "X-Other": {"kept"}}
		site.router.decide(site.chat1.addr, "")
		p.want(t, call{header: header}, 200, "chat1")
		site.router.rankOf("3")
		p.want(t, call{header: header}, 200, "chat1")
		for i, want := range []string{"", "3"} {
			h := site.chat1.requests()[i].header
			if h.Get(HeaderRank) != want || h.Get("x-cache-salt") != "" || h.Get("x-other") != "kept" {
				t.Errorf("engine sees %v, want rank %q", h, want)
			}
		}
		for _, h := range site.router.asked() {
			if h["x-cache-salt"]+h[HeaderRank] != "" {
				t.Errorf("router is shown what a client sent: %v", h)
			}
		}
	})
}
