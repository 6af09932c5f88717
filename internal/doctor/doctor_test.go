package doctor

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
)

func TestNew(t *testing.T) {
	cfg := config.Default()
	for _, tt := range []struct {
		name string
		opt  Options
		want string
	}{
		{"no configuration", Options{}, "a configuration is needed"},
		{"unknown code", Options{Config: cfg, Ignore: []Code{NoEventSources, "KV999"}}, `"KV999"`},
		{"negative timeout", Options{Config: cfg, Timeout: -1}, "timeout"},
		{"no authorities", Options{Config: cfg, CAFile: "testdata/none.pem"}, "none.pem"},
		{"authorities that are none", Options{Config: cfg, CAFile: "testdata/README"}, "CERTIFICATE"},
		{"good", Options{Config: cfg, Ignore: []Code{NoEventSources}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.opt)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestSourcesLeftOut holds that what was not to be looked at is no finding.
func TestSourcesLeftOut(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	w.opt.Admin, w.opt.Envoy, w.opt.Probe = "", "", false
	r := w.run()
	if len(r.Findings) > 0 {
		t.Errorf("findings %+v", r.Findings)
	}
	var subjects []string
	for _, n := range r.NotChecked {
		subjects = append(subjects, n.Subject)
	}
	if want := []string{"engine " + engine1, "engine " + engine2, "envoy", "router"}; !slices.Equal(subjects, want) {
		t.Errorf("not looked at: %q, want %q", subjects, want)
	}
	for _, seen := range w.seen {
		if strings.HasSuffix(seen, "/v1/completions") || strings.Contains(seen, routerAddr) || strings.Contains(seen, envoyAddr) {
			t.Errorf("request %s", seen)
		}
	}
}

func TestIgnore(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	w.down[engine2] = true
	w.metric(routerPage, "kvsteer_extproc_panics_total", "1")
	w.opt.Ignore = []Code{EngineSilent}
	r := w.run()
	if got := codes(r); !slices.Equal(got, []Code{RouterPanics}) || r.Ignored != 1 || r.Counts.Error != 1 {
		t.Errorf("codes %v, %+v", got, r)
	}
}

// TestBounds holds that one bad server costs its time and no more.
func TestBounds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(w *world)
		code   Code
		want   string
	}{
		{"an engine that hangs", func(w *world) { w.hang[engine1+"/health"] = true }, EngineSilent, "no answer within 1s"},
		{"an engine that hangs late", func(w *world) { w.hang[engine1+"/tokenize"] = true }, TokenizeRefused, "no answer within 1s"},
		{"an engine that hangs often", func(w *world) {
			for _, p := range []string{"/v1/models", "/metrics", "/version", "/kv_event_sources"} {
				w.hang[engine1+p] = true
			}
		}, TokenizeRefused, "the pages before it took 2s"},
		{"an engine without an end", func(w *world) { w.pages[engine1+"/tokenize"] = strings.Repeat(" ", maxReply+1) }, TokenizeRefused, "longer than"},
		{"an engine that sends away", func(w *world) { w.status[engine1+"/tokenize"] = http.StatusFound }, TokenizeRefused, "status 302"},
		{"an Envoy that hangs", func(w *world) { w.hang[envoyAddr+"/config_dump"] = true }, EnvoySilent, "no answer within 1s"},
		{"a router that speaks TLS", func(w *world) { w.status[routerPage] = 400 }, RouterSilent, "does it speak TLS? Then its URL starts with https://"},
		{"a router that hangs", func(w *world) { w.hang[routerPage] = true }, RouterSilent, "no answer within 1s"},
		{"an Envoy that sends no JSON", func(w *world) { w.pages[envoyAddr+"/config_dump"] = "<html>" }, EnvoySilent, "config_dump"},
		{"an Envoy of another form", func(w *world) {
			w.pages[envoyAddr+"/config_dump"] = `{"configs":[7,{"static_listeners":{"a":1},"static_clusters":[[]]}]}`
		}, NoFilter, "0 HTTP connection managers"},
		{"clusters of another form", func(w *world) { w.pages[envoyAddr+"/clusters"] = `[1]` }, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // mostly waiting
			w := newWorld(t, "envoy-1.40.0")
			tt.damage(w)
			if len(w.hang) > 0 {
				w.opt.Timeout = time.Second // long enough for the others on a busy machine
			}
			r := w.run()
			if tt.code == "" {
				if len(r.Findings) > 0 {
					t.Errorf("%+v", r.Findings)
				}
				return
			}
			if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Code == tt.code && strings.Contains(f.Message, tt.want) }) {
				t.Errorf("no %s with %q: %+v", tt.code, tt.want, r.Findings)
			}
		})
	}
}

func TestCanceled(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := w.doctor().Run(ctx); !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("%v, %v", r, err)
	}
}

// TestSecrets holds that keys and tokens go to whom they belong, and into no report.
func TestSecrets(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	w.configure("- name: chat", "- name: chat\n  api_key_file: "+w.file("engine-secret\n"))
	w.configure("admin: 127.0.0.1:23083", "admin: {listen: 127.0.0.1:23083, token_file: "+w.file("router-secret\n")+"}")
	w.status[engine1+"/v1/models"] = 401
	w.pages[engine1+"/v1/models"] = `{"error":"engine-secret is wrong"}`
	w.status[engine1+"/tokenize"] = 401
	r := w.run()
	var text bytes.Buffer
	if err := errors.Join(r.WriteJSON(&text), r.WriteTable(&text)); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "secret") || len(r.Findings) != 2 {
		t.Errorf("report:\n%s", &text)
	}
	if len(w.keys) < 10 {
		t.Errorf("keys went out %d times", len(w.keys))
	}
	for _, k := range w.keys {
		at, key, _ := strings.Cut(k, " ")
		want := "Bearer engine-secret"
		if strings.HasPrefix(at, routerAddr) {
			want = "Bearer router-secret"
		}
		if key != want || strings.HasPrefix(at, envoyAddr) {
			t.Errorf("%s got %q", at, key)
		}
	}
}

// secure serves the site by TLS and returns files with the server's certificate and key.
func (w *world) secure() (cert, key string) {
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	w.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // refused handshakes are meant
	w.server.StartTLS()
	w.t.Cleanup(w.server.Close)
	private, err := x509.MarshalPKCS8PrivateKey(w.server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.file(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw}))),
		w.file(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

func TestEnginesTLS(t *testing.T) {
	for name, want := range map[string][]Code{"example.com": nil, "other.test": {EngineSilent}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "envoy-1.40.0")
			w.opt.Admin, w.opt.Envoy = "", ""
			cert, _ := w.secure()
			w.configure("pools:", "engines: {tls: {server_name: "+name+", ca_file: "+cert+"}}\npools:")
			if got := codes(w.run()); !slices.Equal(got, want) {
				t.Errorf("codes %v, want %v", got, want)
			}
		})
	}
}

func TestRouterTLS(t *testing.T) {
	for _, tt := range []struct {
		name string
		ca   bool // --ca-file instead of the configuration's certificate
		good bool
	}{{"the configuration's certificate", false, true}, {"authorities", true, true}, {"neither", false, false}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "envoy-1.40.0")
			w.down[engine1], w.down[engine2] = true, true
			w.opt.Envoy, w.opt.Admin = "", "https://"+routerAddr
			cert, key := w.secure()
			switch {
			case tt.ca:
				w.opt.CAFile = cert
			case tt.good:
				w.configure("admin: 127.0.0.1:23083", "admin: {listen: 127.0.0.1:23083, tls: {cert_file: "+cert+", key_file: "+key+"}}")
			}
			if got := codes(w.run()); slices.Contains(got, RouterSilent) == tt.good || slices.Contains(got, FileUnreadable) {
				t.Errorf("codes %v", got)
			}
		})
	}
}

// TestDynamicEnvoy holds that a configuration from a control plane is read as one from a file.
func TestDynamicEnvoy(t *testing.T) {
	for _, envoy := range []string{"envoy-1.40.0", "envoy-1.37.0"} {
		w := newWorld(t, envoy)
		w.edit(ofType("ExternalProcessor", func(o map[string]any) { // a TypedStruct holds it, as control planes wrap what they do not know
			value := map[string]any{}
			for k, v := range o {
				value[k] = v
				delete(o, k)
			}
			url := value["@type"]
			delete(value, "@type")
			o["@type"], o["type_url"], o["value"] = "type.googleapis.com/xds.type.v3.TypedStruct", url, value
		}))
		var tables []any
		w.edit(ofType("HttpConnectionManager", func(o map[string]any) {
			tables = append(tables, map[string]any{"route_config": o["route_config"]})
			o["rds"] = map[string]any{"route_config_name": "kvsteer"}
			delete(o, "route_config")
		}))
		w.edit(func(o map[string]any) bool {
			moved := false
			if l, ok := o["static_listeners"].([]any); ok {
				delete(o, "static_listeners")
				var dynamic []any
				for _, one := range l {
					dynamic = append(dynamic, map[string]any{"name": "kvsteer", "active_state": one})
				}
				o["dynamic_listeners"], moved = dynamic, true
			}
			if c, ok := o["static_clusters"]; ok {
				delete(o, "static_clusters")
				o["dynamic_active_clusters"], moved = c, true
			}
			if _, ok := o["static_route_configs"]; ok {
				delete(o, "static_route_configs")
				o["dynamic_route_configs"], moved = tables, true
			}
			return moved
		})
		if r := w.run(); len(r.Findings) > 0 || len(r.NotChecked) > 0 {
			t.Errorf("%s: %+v %+v", envoy, r.Findings, r.NotChecked)
		}

		// The same without the route table.
		w.edit(func(o map[string]any) bool {
			_, ok := o["dynamic_route_configs"]
			delete(o, "dynamic_route_configs")
			return ok
		})
		if r := w.run(); len(r.Findings) > 0 || len(r.NotChecked) != 1 || r.NotChecked[0].What != "routes" {
			t.Errorf("%s without routes: %+v %+v", envoy, r.Findings, r.NotChecked)
		}
	}
}

// TestOtherShapes holds that other ways to the same end are no finding.
func TestOtherShapes(t *testing.T) {
	perRoute := func(o map[string]any) map[string]any {
		o["@type"] = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
		return map[string]any{"envoy.filters.http.ext_proc": o}
	}
	for _, tt := range []struct {
		name   string
		damage func(w *world)
	}{
		{"a filter that one route enables", func(w *world) {
			w.edit(named("envoy.filters.http.ext_proc", set(true, "disabled")))
			w.edit(named("chat/decided", set(perRoute(map[string]any{"config": map[string]any{}}), "typed_per_filter_config")))
		}},
		{"a pool without a fallback", func(w *world) {
			w.configure("- name: chat", "- name: chat\n  fallback: none")
			w.edit(named("kvsteer_pool_chat", func(o map[string]any) { o["name"] = "kvsteer_no_fallback" }))
			w.edit(named("chat/decided", set("kvsteer_no_fallback", "route", "cluster")))
			w.edit(ofType("ClusterConfig", set([]any{map[string]any{"name": "kvsteer_pick"}, map[string]any{"name": "kvsteer_pick_2"}}, "clusters")))
		}},
		{"a cluster that overrides its host", func(w *world) {
			w.edit(named("kvsteer_pool_chat", func(o map[string]any) {
				delete(o, "cluster_type")
				o["load_assignment"] = map[string]any{"endpoints": []any{map[string]any{"lb_endpoints": []any{
					map[string]any{"endpoint": map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 23001}}}},
					map[string]any{"endpoint": map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 23002}}}},
				}}}}
				o["load_balancing_policy"] = map[string]any{"policies": []any{map[string]any{"typed_extension_config": map[string]any{"typed_config": map[string]any{
					"@type":                 "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
					"override_host_sources": []any{map[string]any{"header": "x-target-endpoint"}},
				}}}}}
			}))
		}},
		{"weights", func(w *world) {
			w.edit(named("chat/decided", func(o map[string]any) {
				set(nil, "route", "cluster")(o)
				set([]any{map[string]any{"name": "kvsteer_pool_chat", "weight": 90}, map[string]any{"name": "kvsteer_fallback_chat", "weight": 10}},
					"route", "weighted_clusters", "clusters")(o)
			}))
		}},
		{"headers removed by a matcher", func(w *world) {
			w.edit(ofType("early_header_mutation.header_mutation.v3.HeaderMutation", set([]any{
				map[string]any{"remove_on_match": map[string]any{"key_matcher": map[string]any{"prefix": "X-TARGET-", "ignore_case": true}}},
			}, "mutations")))
		}},
		{"a router listed by name", func(w *world) {
			w.configure("listen: 127.0.0.1:23082", "listen: 127.0.0.1:9002")
			w.configure("envoy:\n", "envoy:\n  routers: [\"127.0.0.1:23082\"]\n")
		}},
		{"a retry policy of the virtual host", func(w *world) {
			w.edit(named("chat/decided", set(nil, "route", "retry_policy")))
			w.edit(named("any_host", set(map[string]any{"retry_on": "5xx, reset"}, "retry_policy")))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "envoy-1.40.0")
			tt.damage(w)
			if r := w.run(); len(r.Findings) > 0 {
				t.Errorf("%+v", r.Findings)
			}
		})
	}
}

// TestListedShapes holds that other ways to follow the list are no finding: a cluster of somebody else's, a header, a release before 1.40.
func TestListedShapes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(w *world)
	}{
		{"as printed", func(*world) {}},
		{"an older release", func(w *world) { w.replace(envoyAddr+"/server_info", "/1.40.0/", "/1.37.0/") }},
		{"somebody's cluster", func(w *world) {
			w.configure("- name: chat", "- name: chat\n  fallback: {cluster: engines}")
			w.edit(named("kvsteer_pool_chat", func(o map[string]any) { o["name"] = "engines" }))
			w.edit(named("chat/decided", set("engines", "route", "cluster")))
			w.replace(envoyAddr+"/clusters", "kvsteer_pool_chat", "engines")
		}},
		{"a buffered body", func(w *world) {
			w.edit(ofType("ExternalProcessor", func(o map[string]any) {
				set("BUFFERED", "processing_mode", "request_body_mode")(o)
				set("1s", "message_timeout")(o)
			}))
		}},
		{"a small buffer for retries", func(w *world) { w.edit(named("any_host", set(1000.0, "request_body_buffer_limit"))) }},
		{"the header beside the list", func(w *world) {
			w.edit(ofType("OverrideHost", func(o map[string]any) {
				o["override_host_sources"] = append(o["override_host_sources"].([]any), map[string]any{"header": "x-target-endpoint"})
			}))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "envoy-override")
			tt.damage(w)
			if r := w.run(); len(r.Findings) > 0 {
				t.Errorf("%+v", r.Findings)
			}
		})
	}
}

// TestRankHeader holds that an Envoy which was not printed for pin_rank is found: it would let clients choose ranks, and the router not.
func TestRankHeader(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	w.configure(`23111"}`, `23211", ranks: 2}`) // each rank takes the next port
	w.configure(`23101"`, `23201"`)
	w.configure(`23112"}`, `23112", ranks: 2}`)
	w.configure("- name: chat", "- name: chat\n  pin_rank: true")
	var about []string
	for _, f := range w.run().Findings {
		if strings.Contains(f.Message, "x-data-parallel-rank") {
			about = append(about, string(f.Code))
		}
	}
	slices.Sort(about)
	if want := []string{string(HeadersKept), string(MutationRefused)}; !slices.Equal(about, want) {
		t.Errorf("found %v, want %v", about, want)
	}
}

// TestAnotherCluster holds that a fallback of somebody else's is not compared.
func TestAnotherCluster(t *testing.T) {
	w := newWorld(t, "envoy-foreign")
	w.onlyFirst()
	w.configure("- name: chat", "- name: chat\n  fallback: {cluster: engines}")
	w.edit(named("engines", func(o map[string]any) { delete(o, "load_assignment") }))
	w.pages[envoyAddr+"/clusters"] = "{}"
	r := w.run()
	if len(r.Findings) > 0 || len(r.NotChecked) != 1 || r.NotChecked[0].Subject != "envoy cluster engines" {
		t.Errorf("%+v %+v", r.Findings, r.NotChecked)
	}
}

// TestKnownAdapters holds that an adapter need not be listed where the router asks for it.
func TestKnownAdapters(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	before := len(w.run().Findings)
	w.configure("  adapters: [adapter-a]\n", "")
	if r := w.run(); len(r.Findings) != before {
		t.Errorf("%+v", r.Findings)
	}
}

// TestHostileText holds that what a server sends cannot steer a terminal.
func TestHostileText(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	name, _ := json.Marshal("tiny\x1b[2J\u009b" + strings.Repeat("long ", 1000))
	w.replace(engine1+"/v1/models", `"tiny"`, string(name))
	w.status[routerAddr+"/readyz"] = 503
	w.pages[routerAddr+"/readyz"] = "\x1b]0;title\x07\xff\n" + strings.Repeat("é", 2000)
	var text bytes.Buffer
	if err := w.run().WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(text.String(), "\n") {
		if n := len([]rune(line)); n > width && len(strings.Fields(line)) > 1 && !strings.Contains(line, "éééé") {
			t.Errorf("%d characters: %s", n, line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0xfffd || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("control characters in %q", line)
		}
	}
	if text.Len() > 5000 {
		t.Errorf("%d bytes", text.Len())
	}
}
