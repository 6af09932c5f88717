package envoy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// problems are the keys and the texts of a joined error.
func problems(t *testing.T, err error) (keys []string, text string) {
	t.Helper()
	if err == nil {
		return nil, ""
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%T is not a joined error", err)
	}
	for _, e := range joined.Unwrap() {
		var o *OptionError
		if !errors.As(e, &o) {
			t.Fatalf("%T is no OptionError: %v", e, e)
		}
		keys = append(keys, o.Key)
	}
	return keys, err.Error()
}

func TestValidate(t *testing.T) {
	one := []Pool{{Name: "chat", Endpoints: []string{"127.0.0.1:8001"}}}
	pool := func(change func(*Pool)) Options {
		p := Pool{Name: "chat", Endpoints: []string{"127.0.0.1:8001"}}
		change(&p)
		return Options{Pools: []Pool{p}}
	}
	match := func(m Match) Options { return pool(func(p *Pool) { p.Match = m }) }
	tests := []struct {
		name string
		o    Options
		keys []string
		says string
	}{
		{"defaults", Options{Pools: one}, nil, ""},
		{"everything set", Options{
			Routers: []string{"unix:///run/kv.sock"}, Listen: "[::]:80", Admin: "[::1]:0", Version: "1.40.1", MessageTimeout: time.Minute,
			MaxBody: 1 << 30, AllPaths: true, AccessLog: "/dev/null", Balance: RoundRobin, Pools: one,
		}, nil, ""},
		{"host", match(Match{Host: "LLM.example.com"}), nil, ""},
		{"host is an address", match(Match{Host: "[::1]"}), nil, ""},
		{"path prefix", match(Match{PathPrefix: "/a/b-c_d.e~f"}), nil, ""},
		{"prefix shares letters with a path", match(Match{PathPrefix: "/v1-chat"}), nil, ""},

		{"no pools", Options{}, []string{"pools"}, "1 to 256"},
		{"router is a name", Options{Routers: []string{"router:9002", "10.0.0.1:9002"}, Pools: one}, nil, ""},
		{"router TLS", Options{RouterTLS: TLS{CAFile: "/ca.pem", ServerName: "router"}, Pools: one}, nil, ""},
		{"engine TLS by address", Options{EngineTLS: TLS{CAFile: "/ca.pem", ServerName: "::1", CertFile: "/a", KeyFile: "/b"}, SecretsDir: "/run", Pools: one}, nil, ""},
		{"router port 0", Options{Routers: []string{"127.0.0.1:0"}, Pools: one}, []string{"routers[0]"}, "from 1 to 65535"},
		{"router name without port", Options{Routers: []string{"router"}, Pools: one}, []string{"routers[0]"}, "name:port"},
		{"router name with port 0", Options{Routers: []string{"router:0"}, Pools: one}, []string{"routers[0]"}, "name:port"},
		{"router name is a wildcard", Options{Routers: []string{"*.test:1"}, Pools: one}, []string{"routers[0]"}, "name:port"},
		{"router twice", Options{Routers: []string{"a:1", "b:1", "a:1"}, Pools: one}, []string{"routers[2]"}, "routers[0] is the same"},
		{"socket beside a name", Options{Routers: []string{"unix:/a", "b:1"}, Pools: one}, []string{"routers"}, "cannot hold both"},
		{"router TLS without a name", Options{RouterTLS: TLS{CAFile: "/ca.pem"}, Pools: one}, []string{"router_tls.server_name"}, "certificate carries"},
		{"router TLS without authority", Options{RouterTLS: TLS{ServerName: "a"}, Pools: one}, []string{"router_tls.ca_file"}, "absolute path"},
		{"engine TLS certificate without key", Options{EngineTLS: TLS{CAFile: "/ca.pem", ServerName: "a", CertFile: "/a"}, Pools: one}, []string{"engine_tls.key_file"}, "beside cert_file"},
		{"engine TLS key without certificate", Options{EngineTLS: TLS{CAFile: "/ca.pem", ServerName: "a", KeyFile: "/a"}, Pools: one}, []string{"engine_tls.cert_file"}, "beside key_file"},
		{"TLS file relative", Options{EngineTLS: TLS{CAFile: "ca.pem", ServerName: "a", CertFile: "a", KeyFile: "b"}, Pools: one}, []string{"engine_tls.ca_file", "engine_tls.cert_file", "engine_tls.key_file"}, "absolute"},
		{"secrets relative", Options{SecretsDir: "run", Pools: one}, []string{"secrets_dir"}, "absolute"},
		{"fallback is a cluster", pool(func(p *Pool) { p.Cluster = "engines" }), []string{"pools[0].fallback.cluster"}, "--filter-only"},
		{"router everywhere", Options{Routers: []string{"0.0.0.0:9002"}, Pools: one}, []string{"routers[0]"}, "can be connected to"},
		{"router socket relative", Options{Routers: []string{"unix:run/kv.sock"}, Pools: one}, []string{"routers[0]"}, "absolute path"},
		{"router socket too long", Options{Routers: []string{"unix:/" + strings.Repeat("a", 107)}, Pools: one}, []string{"routers[0]"}, "107 bytes"},
		{"listen without port", Options{Listen: "127.0.0.1", Pools: one}, []string{"listen"}, "ip:port"},
		{"listen with a zone", Options{Listen: "[fe80::1%eth0]:80", Pools: one}, []string{"listen"}, "ip:port"},
		{"admin beyond loopback", Options{Admin: "0.0.0.0:9901", Pools: one}, []string{"admin"}, "loopback"},
		{"timeout too short", Options{MessageTimeout: time.Millisecond, Pools: one}, []string{"message_timeout"}, "10ms to 1m0s"},
		{"timeout negative", Options{MessageTimeout: -1, Pools: one}, []string{"message_timeout"}, `"-1ns"`},
		{"body below Envoy's default", Options{MaxBody: 64 << 10, Pools: one}, []string{"max_body"}, "1048576 to 1073741824 bytes"},
		{"log relative", Options{AccessLog: "access.log", Pools: one}, []string{"access_log"}, "absolute"},
		{"log with a zero", Options{AccessLog: "/a\x00b", Pools: one}, []string{"access_log"}, "absolute"},
		{"balance unknown", Options{Balance: "random", Pools: one}, []string{"balance"}, "least_request or round_robin"},
		{"version too old", Options{Version: "1.36.4", Pools: one}, []string{"version"}, "1.37 or newer"},
		{"version is no version", Options{Version: "latest", Pools: one}, []string{"version"}, "such as 1.40.0"},
		{"pool without name", pool(func(p *Pool) { p.Name = "" }), []string{"pools[0].name"}, "1 to 63"},
		{"pool name with a dot", pool(func(p *Pool) { p.Name = "a.b" }), []string{"pools[0].name"}, "letters, digits"},
		{"fallback unknown", pool(func(p *Pool) { p.Fallback = "all" }), []string{"pools[0].fallback"}, "endpoints or none"},
		{"no endpoints", pool(func(p *Pool) { p.Endpoints = nil }), []string{"pools[0].fallback"}, "at least one"},
		{"an address for a name", pool(func(p *Pool) { p.DNS = "10.0.0.1:8000" }), []string{"pools[0].dns"}, "name:port"},
		{"a name without a port", pool(func(p *Pool) { p.DNS = "engines.test" }), []string{"pools[0].dns"}, "name:port"},
		{"endpoint is a name", pool(func(p *Pool) { p.Endpoints = []string{"127.0.0.1:1", "gpu1:8000"} }), []string{"pools[0].endpoints[1]"}, "gpu1:8000"},
		{"endpoint IPv6 bare", pool(func(p *Pool) { p.Endpoints = []string{"::1:8000"} }), []string{"pools[0].endpoints[0]"}, "[ip6]:port"},
		{"endpoint twice", pool(func(p *Pool) { p.Endpoints = []string{"[::1]:8000", "[0:0::1]:8000"} }), []string{"pools[0].endpoints[1]"}, "pools[0].endpoints[0] too"},
		{"host with port", match(Match{Host: "a:80"}), []string{"pools[0].match.host"}, "without port"},
		{"host wildcard", match(Match{Host: "*.example.com"}), []string{"pools[0].match.host"}, "wildcard"},
		{"host IPv6 bare", match(Match{Host: "::1"}), []string{"pools[0].match.host"}, "host name"},
		{"host of dots", match(Match{Host: "a..b"}), []string{"pools[0].match.host"}, "host name"},
		{"prefix without slash", match(Match{PathPrefix: "chat"}), []string{"pools[0].match.path_prefix"}, "leading"},
		{"prefix with trailing slash", match(Match{PathPrefix: "/chat/"}), []string{"pools[0].match.path_prefix"}, "trailing"},
		{"prefix root", match(Match{PathPrefix: "/"}), []string{"pools[0].match.path_prefix"}, "trailing"},
		{"prefix climbs", match(Match{PathPrefix: "/a/../b"}), []string{"pools[0].match.path_prefix"}, "segments"},
		{"prefix is a regex", match(Match{PathPrefix: "/a.*"}), []string{"pools[0].match.path_prefix"}, "segments"},
		{"prefix too long", match(Match{PathPrefix: "/" + strings.Repeat("a", 128)}), []string{"pools[0].match.path_prefix"}, "128 bytes"},
		{"prefix of the API", match(Match{PathPrefix: "/v1"}), []string{"pools[0].match.path_prefix"}, "in front of the API's paths"},
		{"header without value", match(Match{HeaderName: "x-pool"}), []string{"pools[0].match.header.value"}, "x-pool"},
		{"value without header", match(Match{HeaderValue: "chat"}), []string{"pools[0].match.header.name"}, "chat"},
		{"header is ours", match(Match{HeaderName: "X-Target-Endpoint", HeaderValue: "a"}), []string{"pools[0].match.header.name"}, "ordinary"},
		{"header is secret", match(Match{HeaderName: "Authorization", HeaderValue: "a"}), []string{"pools[0].match.header.name"}, "kept from the router"},
		{"header is pseudo", match(Match{HeaderName: ":path", HeaderValue: "/"}), []string{"pools[0].match.header.name"}, "pseudo"},
		{"header is Envoy's", match(Match{HeaderName: "x-envoy-a", HeaderValue: "a"}), []string{"pools[0].match.header.name"}, "x-envoy-"},
		{"value with a newline", match(Match{HeaderName: "x-pool", HeaderValue: "a\nb"}), []string{"pools[0].match.header.value"}, "control"},
		{"value is no UTF-8", match(Match{HeaderName: "x-pool", HeaderValue: "\xff"}), []string{"pools[0].match.header.value"}, "control"},
		{"list of endpoints", Options{Layout: LayoutOverride, Body: BodyFullDuplex, Headers: HeadersGAIE, Version: "1.37.1", Pools: one}, nil, ""},
		{"layout by release", Options{Layout: LayoutAuto, Version: "1.38", Pools: one}, nil, ""},
		{"composite of a release that is not known", Options{Layout: LayoutComposite, Pools: one}, nil, ""},
		{"compat for a new release", Options{Layout: LayoutCompat, Version: "1.41", Pools: one}, nil, ""},
		{"layout unknown", Options{Layout: "aggregate", Pools: one}, []string{"layout"}, "auto, composite, compat or override_host"},
		{"composite before 1.40", Options{Layout: LayoutComposite, Version: "1.39.2", Pools: one}, []string{"layout"}, "answers 503"},
		{"list before 1.37", Options{Layout: LayoutOverride, Version: "1.36", Pools: one}, []string{"version"}, "not tested with override_host"},
		{"list without a fallback", func() Options {
			o := pool(func(p *Pool) { p.Fallback = FallbackNone })
			o.Layout = LayoutOverride
			return o
		}(), []string{"pools[0].fallback"}, "always draw an endpoint"},
		{"body unknown", Options{Body: "streamed", Pools: one}, []string{"body"}, "buffered or full_duplex"},
		{"vocabulary unknown", Options{Headers: "x", Pools: one}, []string{"headers"}, "kvsteer or gaie"},
		{"header is a gateway's", match(Match{HeaderName: "X-Gateway-Destination-Endpoint", HeaderValue: "a"}), []string{"pools[0].match.header.name"}, "ordinary"},
		{"header is a gateway's subset", match(Match{HeaderName: "x-gateway-destination-endpoint-subset", HeaderValue: "a"}), []string{"pools[0].match.header.name"}, "ordinary"},
		{"header is the rank's", match(Match{HeaderName: "X-Data-Parallel-Rank", HeaderValue: "0"}), []string{"pools[0].match.header.name"}, "ordinary"},
		{"headers are removed", Options{StripHeaders: []string{"X-Cache-Salt", "x-tenant"}, RankHeader: true, Pools: one}, nil, ""},
		{"removed header is empty", Options{StripHeaders: []string{""}, Pools: one}, []string{"strip_headers[0]"}, "ordinary header"},
		{"removed header is ours", Options{StripHeaders: []string{"X-Target-Endpoint"}, Pools: one}, []string{"strip_headers[0]"}, "ordinary header"},
		{"removed header is secret", Options{StripHeaders: []string{"x", "Authorization"}, Pools: one}, []string{"strip_headers[1]"}, "kept from the router"},
		{"removed header is of the body", Options{StripHeaders: []string{"Content-Length"}, Pools: one}, []string{"strip_headers[0]"}, "message's form"},
		{"removed header is pseudo", Options{StripHeaders: []string{":path"}, Pools: one}, []string{"strip_headers[0]"}, "pseudo"},
		{"too many removed headers", Options{StripHeaders: strings.Split(strings.Repeat("a ", 64)+"a", " "), Pools: one}, []string{"strip_headers"}, "at most 64"},
		{"removed header tells a pool", func() Options {
			o := match(Match{HeaderName: "X-Pool", HeaderValue: "a"})
			o.StripHeaders = []string{"x-pool"}
			return o
		}(), []string{"strip_headers[0]"}, "pools[0].match.header"},
		{
			"all at once",
			Options{
				Routers: []string{"x"}, Listen: "x", Admin: "x", Version: "x", MessageTimeout: -1, MaxBody: -1, AccessLog: "x", Balance: "x",
				Pools: []Pool{{Name: "", Fallback: "x", Match: Match{Host: "*"}}},
			},
			[]string{
				"routers[0]", "listen", "admin", "version", "message_timeout", "max_body", "access_log", "balance",
				"pools[0].name", "pools[0].fallback", "pools[0].match.host",
			},
			`"x"`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			keys, text := problems(t, tt.o.Validate())
			if diff := cmp.Diff(tt.keys, keys); diff != "" {
				t.Errorf("keys (-want +got):\n%s\n%s", diff, text)
			}
			if !strings.Contains(text, tt.says) {
				t.Errorf("error does not say %q:\n%s", tt.says, text)
			}
			if _, err := Render(tt.o); (err == nil) != (tt.keys == nil) {
				t.Errorf("Render disagrees with Validate: %v", err)
			}
		})
	}
}

func TestValidateFilter(t *testing.T) {
	pool := func(change func(*Pool)) Options {
		p := Pool{Name: "chat", Cluster: "engines", Endpoints: []string{"127.0.0.1:8001"}}
		change(&p)
		return Options{Pools: []Pool{p}}
	}
	tests := []struct {
		name string
		o    Options
		keys []string
		says string
	}{
		{"a cluster of one's own", pool(func(*Pool) {}), nil, ""},
		{"the endpoints", pool(func(p *Pool) { p.Cluster = "" }), nil, ""},
		{"what is not rendered", Options{Listen: "x", Admin: "0.0.0.0:1", AccessLog: "x", Pools: []Pool{{Name: "chat", Endpoints: []string{"127.0.0.1:8001"}}}}, nil, ""},
		{"a cluster beside the endpoints", pool(func(p *Pool) { p.Fallback = FallbackEndpoints }), []string{"pools[0].fallback"}, `nothing beside the cluster "engines"`},
		{"a cluster beside none", pool(func(p *Pool) { p.Fallback = FallbackNone }), []string{"pools[0].fallback"}, "nothing beside"},
		{"our own cluster", pool(func(p *Pool) { p.Cluster = ClusterPick }), []string{"pools[0].fallback.cluster"}, "does not begin with kvsteer_"},
		{"cluster with a newline", pool(func(p *Pool) { p.Cluster = "a\nb" }), []string{"pools[0].fallback.cluster"}, "255 bytes"},
		{"version too old", Options{Version: "1.36.4", Pools: pool(func(*Pool) {}).Pools}, []string{"version"}, "1.37 or newer"},
		{"no pools", Options{}, []string{"pools"}, "1 to 256"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			keys, text := problems(t, tt.o.ValidateFilter())
			if diff := cmp.Diff(tt.keys, keys); diff != "" {
				t.Errorf("keys (-want +got):\n%s\n%s", diff, text)
			}
			if !strings.Contains(text, tt.says) {
				t.Errorf("error does not say %q:\n%s", tt.says, text)
			}
			if _, err := RenderFilter(tt.o); (err == nil) != (tt.keys == nil) {
				t.Errorf("RenderFilter disagrees with ValidateFilter: %v", err)
			}
		})
	}
}

func TestSecrets(t *testing.T) {
	o := Options{
		RouterTLS: TLS{CAFile: "/ca.pem", ServerName: "router.test", CertFile: "/a.pem", KeyFile: "/a.key"},
		EngineTLS: TLS{CAFile: "/engines.pem", ServerName: "10.0.0.1"}, SecretsDir: "/run/kv",
		Pools: []Pool{{Name: "chat", Endpoints: []string{"127.0.0.1:8001"}}},
	}
	files, err := Secrets(o)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range files {
		got[f.Name] = string(f.Text)
	}
	for name, says := range map[string]string{
		"kvsteer_router_ca.yaml":   "trusted_ca: {filename: /ca.pem}",
		"kvsteer_router_cert.yaml": "private_key: {filename: /a.key}",
		"kvsteer_engine_ca.yaml":   "san_type: IP_ADDRESS",
	} {
		if !strings.Contains(got[name], says) {
			t.Errorf("%s does not say %q:\n%s", name, says, got[name])
		}
	}
	if len(files) != 3 {
		t.Errorf("%d files, want 3: %v", len(files), got)
	}
	for name, o := range map[string]Options{"no folder": {RouterTLS: o.RouterTLS, Pools: o.Pools}, "no TLS": {SecretsDir: "/run/kv", Pools: o.Pools}} {
		if files, err := Secrets(o); err != nil || files != nil {
			t.Errorf("%s: %v, %v", name, files, err)
		}
	}
	if _, err := Secrets(Options{SecretsDir: "x"}); err == nil {
		t.Error("bad options give no error")
	}
}

func TestPoolKeys(t *testing.T) {
	type p struct {
		match    Match
		fallback Fallback
	}
	host := func(h string) Match { return Match{Host: h} }
	path := func(x string) Match { return Match{PathPrefix: x} }
	header := func(n, v string) Match { return Match{HeaderName: n, HeaderValue: v} }
	tests := []struct {
		name  string
		pools []p
		keys  []string
		says  string
	}{
		{"one pool needs no key", []p{{}}, nil, ""},
		{"hosts", []p{{host("a"), ""}, {host("b"), ""}}, nil, ""},
		{"paths", []p{{path("/a"), ""}, {path("/ab"), ""}}, nil, ""},
		{"headers", []p{{header("x", "1"), ""}, {header("X", "2"), ""}}, nil, ""},
		{"one host, two paths", []p{{Match{Host: "a", PathPrefix: "/x"}, ""}, {Match{Host: "a", PathPrefix: "/y"}, ""}}, nil, ""},
		{"one path, two hosts", []p{{Match{Host: "a", PathPrefix: "/x"}, ""}, {Match{Host: "b", PathPrefix: "/x"}, ""}}, nil, ""},
		{"none for those without key", []p{{host("a"), ""}, {Match{}, FallbackNone}, {Match{}, FallbackNone}}, nil, ""},
		{"none may overlap", []p{{host("a"), ""}, {path("/x"), FallbackNone}, {host("a"), FallbackNone}}, nil, ""},

		{"no key", []p{{}, {}}, []string{"pools[0].match", "pools[1].match"}, "does not know the model"},
		{"no key beside one with", []p{{host("a"), ""}, {}}, []string{"pools[1].match"}, `"p1"`},
		{"no key beside none", []p{{Match{}, FallbackNone}, {}}, []string{"pools[1].match"}, "fallback: none"},
		{"same host", []p{{host("a"), ""}, {host("A"), ""}}, []string{"pools[1].match"}, "pools[0] (host a)"},
		{"nested paths", []p{{path("/a"), ""}, {path("/a/b"), ""}}, []string{"pools[1].match"}, "one request can satisfy both"},
		{"nested paths, longer first", []p{{path("/a/b"), ""}, {path("/a"), ""}}, []string{"pools[1].match"}, "pools[0] (path /a/b/…)"},
		{"same header", []p{{header("x", "1"), ""}, {header("X", "1"), ""}}, []string{"pools[1].match"}, "header x: 1"},
		{"other headers", []p{{header("x", "1"), ""}, {header("y", "1"), ""}}, []string{"pools[1].match"}, "satisfy both"},
		{"host against path", []p{{host("a"), ""}, {path("/x"), ""}}, []string{"pools[1].match"}, "satisfy both"},
		{"host within host and path", []p{{host("a"), ""}, {Match{Host: "a", PathPrefix: "/x"}, ""}}, []string{"pools[1].match"}, "satisfy both"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{}
			for i, p := range tt.pools {
				o.Pools = append(o.Pools, Pool{Name: fmt.Sprint("p", i), Match: p.match, Fallback: p.fallback, Endpoints: []string{fmt.Sprint("10.0.0.1:", i+1)}})
			}
			keys, text := problems(t, o.Validate())
			if diff := cmp.Diff(tt.keys, keys); diff != "" {
				t.Errorf("keys (-want +got):\n%s\n%s", diff, text)
			}
			if !strings.Contains(text, tt.says) {
				t.Errorf("error does not say %q:\n%s", tt.says, text)
			}
		})
	}
	o := Options{Pools: []Pool{{Name: "a", Endpoints: []string{"10.0.0.1:1"}}, {Name: "a", Fallback: FallbackNone, Endpoints: []string{"10.0.0.1:1"}}}}
	keys, _ := problems(t, o.Validate())
	if diff := cmp.Diff([]string{"pools[1].name", "pools[1].endpoints[0]", "pools[0].match"}, keys); diff != "" {
		t.Errorf("shared name and endpoint (-want +got):\n%s", diff)
	}
}

func TestLayoutFor(t *testing.T) {
	tests := []struct {
		version string
		want    Layout // "" is refused
	}{
		{"", LayoutCompat},
		{"1.37", LayoutCompat},
		{"1.39.3", LayoutCompat},
		{"v1.40", LayoutComposite},
		{"1.40.0", LayoutComposite},
		{" 1.41.2\n", LayoutComposite},
		{"2.0.0", LayoutComposite},
		{"1.40.0-dev", LayoutCompat},
		{"1.41.0-dev", LayoutComposite},
		{"/usr/bin/envoy  version: 9e5580933739775e8bce696a57a2e1bc99368f23/1.40.0/Clean/RELEASE/BoringSSL\n", LayoutComposite},
		{"/opt/envoy-1.40.0/envoy  version: 3909deb175ef358202d6ab4f94d683ffc0fdb477/1.37.0/Clean/RELEASE/BoringSSL", LayoutCompat},
		{"envoy  version: abc/1.40.0-dev/Modified/DEBUG/BoringSSL", LayoutCompat},

		{"1.36.4", ""},
		{"0.99", ""},
		{"1.37.0-dev", ""},
		{"envoy  version: abc/1.36.0/Clean/RELEASE/BoringSSL", ""},
		{"1", ""},
		{"1.x", ""},
		{"latest", ""},
		{"1.40.0/../1.36", ""},
		{"99999999999999999999.1", ""},
	}
	for _, tt := range tests {
		got, err := LayoutFor(tt.version)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("LayoutFor(%q) = %q, %v; want %q", tt.version, got, err, tt.want)
		}
	}
}

// Whatever Validate lets through renders as a bootstrap that says what was built, the same each time.
func TestAnyOptions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }
	rendered := 0
	for range 25 {
		o := Options{
			Routers:   []string{pick(DefaultRouter, "unix:/a b/\"c\"#", "[::1]:1", "10.0.0.1:65535", "router.test:9002")},
			Listen:    pick("", "0.0.0.0:0"),
			Version:   pick("", "1.38", "1.40"),
			AllPaths:  rng.IntN(2) == 0,
			AccessLog: pick("", "/var/log/k: v # \u00e9.log", "/null"),
			Balance:   Balance(pick("", "round_robin")),
		}
		for i := range 1 + rng.IntN(4) {
			o.Pools = append(o.Pools, Pool{
				Name: pick("null", "true", "1", "-", "on", "0x1", "chat", "_") + fmt.Sprint(i),
				Match: Match{
					Host:        pick("", "", "1.2.3.4", "a.b", "[::1]"),
					PathPrefix:  pick("", "", "/1.0", "/~", "/null/-"),
					HeaderName:  "x-" + pick("a", "b", "1"),
					HeaderValue: pick("1", "true", "a: b", "- #", "{x}", `"\'`, "é", "~"),
				},
				Fallback:  Fallback(pick("", "", "none")),
				Endpoints: []string{fmt.Sprintf("10.0.%d.1:80", i), fmt.Sprintf("[2001:db8::%d]:80", i)},
			})
			if rng.IntN(2) == 0 {
				p := &o.Pools[i].Match
				p.HeaderName, p.HeaderValue = "", ""
			}
		}
		if o.Validate() != nil {
			continue
		}
		rendered++
		text, err := Render(o)
		if err != nil {
			t.Fatal(err)
		}
		requireSame(t, o, text)
		if again, _ := Render(o); string(text) != string(again) {
			t.Fatal("two renderings differ")
		}
	}
	if rendered < 5 {
		t.Errorf("only %d of the options were valid", rendered)
	}
}
