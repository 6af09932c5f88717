package envoy

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/goccy/go-yaml"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden.yaml")

// goldenCase is one configuration, or the pieces for another one, rendered in every layout that takes it.
type goldenCase struct {
	name    string
	scope   scope
	options Options
}

// in gives the case in a layout, of the oldest release that takes it. The one for requests that a decision alone can place is not for the
// override_host layout, and one that names a release itself is for that layout alone.
func (c goldenCase) in(l Layout) (goldenCase, bool) {
	c.options.Layout = ""
	if c.options.Version != "" && l != LayoutOverride {
		return c, false
	}
	c.options.Version = cmp.Or(c.options.Version, releases()[l])
	if l == LayoutOverride {
		c.options.Layout = l
		for _, p := range c.options.Pools {
			if p.Fallback == FallbackNone {
				return c, false
			}
		}
	}
	return c, true
}

// eachGolden gives all cases in all layouts.
func eachGolden(f func(l Layout, c goldenCase)) {
	for _, l := range []Layout{LayoutComposite, LayoutCompat, LayoutOverride} {
		for _, c := range goldenCases() {
			if c, ok := c.in(l); ok {
				f(l, c)
			}
		}
	}
}

func (c goldenCase) render() ([]byte, error) {
	if c.scope == filterOnly {
		return RenderFilter(c.options)
	}
	return Render(c.options)
}

func goldenCases() []goldenCase {
	chat := Pool{Name: "chat", Endpoints: []string{"10.0.0.11:8000", "10.0.0.12:8000"}}
	embed := Pool{Name: "embed", Endpoints: []string{"10.0.0.21:8000"}}
	with := func(p Pool, m Match) Pool { p.Match = m; return p }
	none := func(p Pool) Pool { p.Fallback = FallbackNone; return p }
	own := func(p Pool) Pool { p.Cluster = "engines"; return p }
	return []goldenCase{
		{"one_pool", whole, Options{Pools: []Pool{chat}}},
		{"hosts", whole, Options{Pools: []Pool{with(chat, Match{Host: "Chat.example.com"}), with(embed, Match{Host: "embed.example.com"})}}},
		{"path_prefixes", whole, Options{Pools: []Pool{with(chat, Match{PathPrefix: "/chat"}), with(embed, Match{PathPrefix: "/embed.v2"})}}},
		{"headers", whole, Options{Pools: []Pool{
			with(chat, Match{HeaderName: "X-Pool", HeaderValue: "chat"}),
			with(embed, Match{HeaderName: "X-Pool", HeaderValue: "embed"}),
		}}},
		{"mixed_keys", whole, Options{Pools: []Pool{
			with(chat, Match{Host: "llm.example.com", PathPrefix: "/chat"}),
			with(embed, Match{PathPrefix: "/embed"}),
			none(Pool{Name: "code", Match: Match{Host: "llm.example.com"}, Endpoints: []string{"10.0.0.31:8000"}}),
			none(Pool{Name: "small", Endpoints: []string{"10.0.0.41:8000"}}),
		}}},
		{"dns", whole, Options{Pools: []Pool{
			{Name: "chat", DNS: "engines.example.com:8000", Match: Match{Host: "chat.example.com"}},
			{Name: "embed", DNS: "embed.example.com:8000", Endpoints: embed.Endpoints, Match: Match{Host: "embed.example.com"}},
		}}},
		{"filter_unknown", filterOnly, Options{Pools: []Pool{own(Pool{Name: "chat"})}}},
		{"fallback_none", whole, Options{Pools: []Pool{none(chat), none(embed)}}},
		{"unix_socket", whole, Options{Routers: []string{"unix:/run/kvsteer/extproc.sock"}, AccessLog: "/var/log/envoy/kvsteer.log", Pools: []Pool{chat}}},
		{"all_paths", whole, Options{AllPaths: true, Pools: []Pool{with(chat, Match{PathPrefix: "/chat"}), with(embed, Match{Host: "embed.example.com", PathPrefix: "/embed"})}}},
		{"ipv6", whole, Options{
			Routers: []string{"[::1]:9002"}, Listen: "[::]:8080", Admin: "[::1]:9901", Balance: RoundRobin,
			Pools: []Pool{{Name: "chat", Endpoints: []string{"[2001:db8::11]:8000", "[2001:db8::12]:8000"}}},
		}},
		{"tls", whole, Options{
			RouterTLS: TLS{CAFile: "/etc/kvsteer/ca.pem", ServerName: "router.example.com"}, EngineHTTP2: true,
			EngineTLS:        TLS{CAFile: "/etc/kvsteer/engines.pem", ServerName: "10.0.0.1", CertFile: "/etc/kvsteer/envoy.pem", KeyFile: "/etc/kvsteer/envoy.key"},
			AccessLogService: true, DecisionHeader: true, Pools: []Pool{chat},
		}},
		{"tls_secrets", whole, Options{
			RouterTLS:  TLS{CAFile: "/etc/kvsteer/ca.pem", ServerName: "router.example.com", CertFile: "/etc/kvsteer/envoy.pem", KeyFile: "/etc/kvsteer/envoy.key"},
			EngineTLS:  TLS{CAFile: "/etc/kvsteer/engines.pem", ServerName: "engines.example.com"},
			SecretsDir: "/etc/kvsteer/envoy", Pools: []Pool{chat},
		}},
		{"client_headers", whole, Options{StripHeaders: []string{"X-Cache-Salt", "x-tenant"}, RankHeader: true, Pools: []Pool{chat}}},
		{"routers", whole, Options{Routers: []string{"10.0.0.1:9002", "10.0.0.2:9002"}, AccessLogService: true, Pools: []Pool{chat}}},
		{"router_names", whole, Options{Routers: []string{"kvsteer.example.com:9002"}, Pools: []Pool{chat}}},

		{"full_duplex", whole, Options{Body: BodyFullDuplex, AccessLogService: true, Pools: []Pool{chat}}},
		{"gaie", whole, Options{Headers: HeadersGAIE, AccessLogService: true, RankHeader: true, Pools: []Pool{chat}}},
		{"gaie_full_duplex", whole, Options{Headers: HeadersGAIE, Body: BodyFullDuplex, Pools: []Pool{with(chat, Match{Host: "chat.example.com"})}}},
		{"gaie_1.40", whole, Options{Headers: HeadersGAIE, Served: true, Version: "1.40.0", Pools: []Pool{chat}}},
		{"gaie_full_duplex_1.40", whole, Options{Headers: HeadersGAIE, Served: true, Body: BodyFullDuplex, Version: "1.40.0", Pools: []Pool{chat}}},

		{"filter", filterOnly, Options{AccessLogService: true, StripHeaders: []string{"X-Cache-Salt"}, RankHeader: true, Pools: []Pool{own(chat)}}},
		{"filter_pools", filterOnly, Options{
			Routers: []string{"10.0.0.1:9002", "kvsteer.example.com:9002"}, RouterTLS: TLS{CAFile: "/etc/kvsteer/ca.pem", ServerName: "router.example.com"},
			SecretsDir: "/etc/kvsteer/envoy", AccessLogService: true, DecisionHeader: true,
			Pools: []Pool{
				with(own(chat), Match{Host: "llm.example.com", PathPrefix: "/chat"}),
				with(embed, Match{PathPrefix: "/embed"}),
				none(Pool{Name: "small", Endpoints: []string{"10.0.0.41:8000"}}),
			},
		}},
		{"filter_all_paths", filterOnly, Options{
			AllPaths: true, EngineTLS: TLS{CAFile: "/etc/kvsteer/engines.pem", ServerName: "engines.example.com"}, EngineHTTP2: true,
			Pools: []Pool{with(own(chat), Match{PathPrefix: "/llm"})},
		}},
		{"filter_own_pools", filterOnly, Options{Balance: RoundRobin, Pools: []Pool{
			with(own(chat), Match{Host: "chat.example.com"}), with(own(embed), Match{Host: "embed.example.com"}),
			with(Pool{Name: "code", Endpoints: []string{"10.0.0.31:8000"}}, Match{Host: "code.example.com"}),
		}}},
		{"filter_full_duplex", filterOnly, Options{Body: BodyFullDuplex, AccessLogService: true, Pools: []Pool{own(chat)}}},
		{"filter_gaie", filterOnly, Options{Headers: HeadersGAIE, Body: BodyFullDuplex, Pools: []Pool{own(chat)}}},
	}
}

func goldenFile(layout Layout, name string) string {
	return filepath.Join("testdata", string(layout)+"_"+name+".golden.yaml")
}

// releases are the oldest Envoy of each layout.
func releases() map[Layout]string {
	return map[Layout]string{LayoutComposite: "1.40.0", LayoutCompat: "1.37.0", LayoutOverride: "1.37.0"}
}

// TestGolden compares with the files, and what they say with what was built: the YAML writer, its order and its comments change nothing of it.
func TestGolden(t *testing.T) {
	want := map[string]bool{}
	eachGolden(func(l Layout, c goldenCase) {
		file := goldenFile(l, c.name)
		want[file] = true
		t.Run(strings.TrimPrefix(file, "testdata/"), func(t *testing.T) {
			t.Parallel()
			got, err := c.render()
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v (go test ./envoy -run TestGolden -update writes it)", err)
			}
			if diff := gocmp.Diff(string(golden), string(got)); diff != "" {
				t.Errorf("differs from the golden file (-golden +rendered):\n%s", diff)
			}
			if c.scope == whole {
				requireSame(t, c.options, got)
			}
		})
	})
	files, err := filepath.Glob("testdata/*.golden.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, f := range files {
		if !want[f] {
			t.Errorf("%s belongs to no case", f)
		}
	}
}

// decode reads a configuration as strictly as Envoy does.
func decode(t testing.TB, text []byte) *bootstrapv3.Bootstrap {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatalf("not YAML: %v\n%s", err, text)
	}
	boot := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(asJSON, boot); err != nil {
		t.Fatalf("not a bootstrap: %v\n%s", err, text)
	}
	return boot
}

// requireSame compares a rendered configuration with the messages that it was made of.
func requireSame(t testing.TB, o Options, text []byte) {
	t.Helper()
	layout, err := o.choose()
	if err != nil {
		t.Fatal(err)
	}
	b := &builder{Options: o.withDefaults(), layout: layout}
	built := b.bootstrap()
	if err := built.ValidateAll(); err != nil {
		t.Errorf("breaks a rule of Envoy's API: %v", err)
	}
	// As JSON, because packed messages hold their maps in any order; protojson sorts them.
	if diff := gocmp.Diff(protojson.Format(built), protojson.Format(decode(t, text))); diff != "" {
		t.Errorf("differs (-built +rendered):\n%s", diff)
	}
}

// A note that no configuration shows has lost its setting.
func TestNotesAreUsed(t *testing.T) {
	var all strings.Builder
	missing := map[string]bool{}
	eachGolden(func(l Layout, c goldenCase) {
		text, err := os.ReadFile(goldenFile(l, c.name))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			if comment, ok := strings.CutPrefix(strings.TrimSpace(line), "# "); ok {
				all.WriteString(comment + " ")
			}
		}
		for _, n := range (&builder{Options: c.options.withDefaults(), layout: l, scope: c.scope}).notes() {
			missing[n.text] = true
		}
	})
	notes := make([]string, 0, len(missing))
	for text := range missing {
		notes = append(notes, text)
	}
	slices.Sort(notes)
	for _, text := range notes {
		if !strings.Contains(all.String(), text) {
			t.Errorf("note appears nowhere: %s", text)
		}
	}
}
