package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/ports"
)

const (
	nodeAddr  = "127.0.0.1:23011"
	nodePage  = nodeAddr + "/metrics"
	nodeState = nodeAddr + "/api/v1/state"

	events1 = `events: {listen: "tcp://127.0.0.1:23101", replay: "tcp://127.0.0.1:23111"}`
	events2 = `events: {listen: "tcp://127.0.0.1:23102", replay: "tcp://127.0.0.1:23112"}`
)

// newNodeWorld returns a node without a fault and its engines.
func newNodeWorld(t *testing.T) *world {
	w := newEngines(t)
	w.node, w.config = true, w.read("node.yaml")
	w.pages[nodePage] = w.read("node/metrics.txt")
	w.pages[nodeState] = w.read("node/state.json")
	w.pages[nodeAddr+"/readyz"] = "ready\n"
	w.opt = Options{Admin: "http://" + nodeAddr, Proc: "testdata/none", Probe: true}
	return w
}

// ofEngine2 sets a series of the second engine on the node's page.
func (w *world) ofEngine2(name, more, value string) {
	w.metric(nodePage, name+`{endpoint="`+engine2+`",pool="chat",rank="0"`+more+`}`, value)
}

// auto has the node pick all ports.
func (w *world) auto() {
	w.configure("\n    "+events1, "")
	w.configure("\n    "+events2, "")
	w.configure("pools:", "state_dir: "+w.t.TempDir()+"\npools:")
}

// model is a folder of a model, with these files.
func (w *world) model(files ...string) string {
	dir := w.t.TempDir()
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f), make([]byte, 2048), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	return dir
}

// offers has the node offer a tokenizer.
func (w *world) offers(tokenizer string) {
	w.configure("- name: chat", "- name: chat\n  tokenizer: "+tokenizer)
}

func nodeSeeds() []seed {
	seeds := []seed{
		{name: "what engines hold in clear text", code: ClearText, damage: func(w *world) { w.configure("listen: 127.0.0.1:23010", "listen: 0.0.0.0:23010\ninsecure: true") }},
		{name: "the admin token in clear text", code: ClearText, damage: func(w *world) {
			w.configure("admin: 127.0.0.1:23011", "admin: {listen: \"0.0.0.0:23011\", token_file: "+w.file("a-token-of-the-admin\n")+"}\ninsecure: true")
		}},
		{name: "a token that is not there", code: FileUnreadable, damage: func(w *world) { w.configure("pools:", "token_file: "+filepath.Join(w.t.TempDir(), "token")+"\npools:") }},
		{name: "a token of two lines", code: FileUnreadable, damage: func(w *world) { w.configure("pools:", "token_file: "+w.file("one\ntwo\n")+"\npools:") }},
		{name: "certificates that are none", code: FileUnreadable, damage: func(w *world) {
			w.configure("pools:", "tls: {cert_file: "+w.file("none")+", key_file: "+w.file("none")+"}\npools:")
		}},
		{name: "a key of another certificate", code: FileUnreadable, damage: func(w *world) {
			cert, _ := w.certificate()
			_, key := w.certificate()
			w.configure("pools:", "tls: {cert_file: "+cert+", key_file: "+key+"}\npools:")
		}},
		{name: "a file in place of the folder", code: StateUnwritable, damage: func(w *world) { w.configure("pools:", "state_dir: "+w.file("")+"\npools:") }},
		{name: "state that no replay can prove", code: StateUnused, also: []Code{NoReplay}, damage: func(w *world) {
			w.configure("pools:", "state_dir: "+w.t.TempDir()+"\npools:")
			w.configure(`replay: "tcp://127.0.0.1:23111"`, "replay: none")
			w.configure(`replay: "tcp://127.0.0.1:23112"`, "replay: none")
		}},
		{name: "an engine that the file drains", code: Draining, damage: func(w *world) { w.configure("- address: "+engine2, "- address: "+engine2+"\n    drain: true") }},
		{name: "an engine that somebody drained", code: Draining, damage: func(w *world) {
			w.metric(nodePage, `kvsteer_pool_endpoint_draining{endpoint="`+engine2, "1")
		}},

		{name: "an engine that is not there", code: EngineSilent, damage: func(w *world) { w.down[engine2] = true }},
		{name: "another served name", code: NameDiffers, also: []Code{NameUnlisted}, damage: func(w *world) {
			w.configure("models: [tiny]", "models: [Tiny]")
		}},
		{name: "prefix caching off", code: PrefixCachingOff, damage: func(w *world) {
			w.replace(engine1+"/metrics", `enable_prefix_caching="True"`, `enable_prefix_caching="False"`)
		}},
		{name: "no hash algorithm", code: HashUnknown, damage: func(w *world) { w.replace(engine1+"/metrics", `prefix_caching_hash_algo="sha256_cbor",`, "") }},
		{name: "no block size", code: BlockSizeUnknown, damage: func(w *world) { w.replace(engine1+"/metrics", "vllm:cache_config_info", "vllm:other_info") }},
		{name: "a wrong key", code: KeyRefused, damage: func(w *world) {
			w.configure("- name: chat", "- name: chat\n  api_key_file: "+w.file("secret\n"))
			w.status[engine1+"/v1/models"] = 401
		}},
		{name: "questions for models that fail", code: RefreshFailing, damage: func(w *world) {
			w.metric(nodePage, `kvsteer_pool_models_refreshes_total{endpoint="`+engine1+`",outcome="unreachable"`, "9")
		}},

		{name: "an engine that does not connect", code: EventsUnconnected, damage: func(w *world) { w.ofEngine2("kvsteer_subscriber_connected", "", "0") }},
		{name: "an engine that cannot be dialled", code: EventsUnconnected, also: []Code{EventsElsewhere}, damage: func(w *world) {
			w.configure(`listen: "tcp://127.0.0.1:23102"`, `dial: "tcp://127.0.0.1:23102"`)
			w.ofEngine2("kvsteer_subscriber_connected", "", "0")
		}},
		{name: "an engine at another port", code: EventsElsewhere, also: []Code{EventsUnconnected}, damage: func(w *world) {
			w.replace(engine2+"/kv_event_sources", "23102", "5557")
			w.ofEngine2("kvsteer_subscriber_connected", "", "0")
		}},
		{name: "an engine at another port than was picked", code: EventsElsewhere, also: []Code{EventsUnconnected}, damage: func(w *world) {
			w.auto()
			w.replace(engine2+"/kv_event_sources", "23102", "5557")
			w.ofEngine2("kvsteer_subscriber_connected", "", "0")
		}},
		{name: "events switched off", code: EventsOff, damage: func(w *world) {
			w.replace(engine2+"/kv_event_sources", `"enable_kv_cache_events":true`, `"enable_kv_cache_events":false`)
		}},
		{name: "sockets that an engine binds", code: EventsOpen, damage: func(w *world) {
			w.pages[engine2+"/kv_event_sources"] = w.read("vllm-0.32.0/kv_event_sources.json")
		}},
		{name: "a dialled address on the network", code: EventsOpen, damage: func(w *world) {
			w.configure(`listen: "tcp://127.0.0.1:23102"`, `dial: "tcp://10.0.0.12:23102"`)
		}},
		{name: "engines that compute and tell nothing", code: EventsAbsent, damage: func(w *world) {
			w.metric(nodePage, "kvsteer_subscriber_batches_total", "0")
			w.metric(nodePage, "kvsteer_scrape_prefix_query_tokens_total", "9000")
		}},
		{name: "two engines at one port", code: SecondEngine, damage: func(w *world) {
			w.ofEngine2("kvsteer_subscriber_refused_connections_total", `,reason="second_peer"`, "7")
		}},
		{name: "two ranks", code: SeveralRanks, damage: func(w *world) {
			w.replace(engine2+"/kv_event_sources", `{"0":`, `{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:23103","topic":"kv-events"},"0":`)
		}},
		{name: "engines without replays", code: NoReplay, damage: func(w *world) {
			for _, i := range []string{"1", "2"} {
				w.configure(`replay: "tcp://127.0.0.1:2311`+i+`"`, "replay: none")
				w.replace("127.0.0.1:2300"+i+"/kv_event_sources", `"tcp://127.0.0.1:2311`+i+`"`, "null")
			}
		}},
		{name: "an engine without a replay socket", code: ReplayElsewhere, damage: func(w *world) {
			w.replace(engine2+"/kv_event_sources", `"tcp://127.0.0.1:23112"`, "null")
		}},
		{name: "a replay socket that does not answer", code: ReplayFailing, damage: func(w *world) {
			w.ofEngine2("kvsteer_subscriber_replays_total", `,outcome="timeout"`, "40")
		}},
		{name: "holes in replays", code: ReplayHoles, damage: func(w *world) { w.ofEngine2("kvsteer_subscriber_replays_total", `,outcome="hole"`, "2") }},
		{name: "a gap that was not closed", code: EventsLost, damage: func(w *world) { w.ofEngine2("kvsteer_subscriber_gaps_total", `,outcome="reset"`, "1") }},
		{name: "a damaged file", code: MirrorDamaged, damage: func(w *world) { w.ofEngine2("kvsteer_subscriber_restores_total", `,outcome="damaged"`, "1") }},
		{name: "a full disk", code: SavesFailing, damage: func(w *world) { w.ofEngine2("kvsteer_subscriber_saves_total", `,outcome="failed"`, "3") }},
		{name: "orphans", code: OrphansHigh, damage: func(w *world) {
			w.ofEngine2("kvsteer_subscriber_blocks", "", "1000")
			w.ofEngine2("kvsteer_subscriber_orphan_blocks", "", "300")
		}},

		{name: "another node's file", code: OtherConfig, damage: func(w *world) {
			w.metric(nodePage, `kvsteer_pool_endpoint_up{endpoint="127.0.0.1:23003",pool="chat"}`, "1")
		}},
		{name: "an engine that is down for the node", code: EndpointDown, damage: func(w *world) {
			w.metric(nodePage, `kvsteer_pool_endpoint_up{endpoint="`+engine2, "0")
		}},
		{name: "a file that was refused", code: ReloadRefused, damage: func(w *world) { w.metric(nodePage, "kvsteer_config_last_reload_successful", "0") }},

		{name: "no node", code: NodeSilent, damage: func(w *world) { w.down[nodeAddr] = true }},
		{name: "a node that wants a token", code: NodeSilent, damage: func(w *world) { w.status[nodePage] = 401 }},
		{name: "a router at the node's address", code: NodeSilent, damage: func(w *world) { w.pages[nodePage] = w.read("router/metrics.txt") }},
		{name: "a node that is not ready", code: NodeUnready, damage: func(w *world) {
			w.status[nodeAddr+"/readyz"] = 503
			w.pages[nodeAddr+"/readyz"] = "tcp://127.0.0.1:23102 cannot be listened on\n"
		}},
		{name: "a node without routers", code: NodeUnwatched, damage: func(w *world) {
			state := w.pages[nodeState]
			from, to := strings.Index(state, `"routers":[`), strings.Index(state, `],"engines"`)
			w.pages[nodeState] = state[:from] + `"routers":[` + state[to:]
		}},
		{name: "metrics that cannot be read", code: LoadUnknown, damage: func(w *world) {
			w.metric(nodePage, `kvsteer_scrape_stale{endpoint="`+engine2, "1")
			w.metric(nodePage, `kvsteer_scrape_scrapes_total{endpoint="`+engine2+`",outcome="missing",pool="chat"}`, "12")
		}},
		{name: "a model's folder that is not there", code: FilesNotOffered, damage: func(w *world) { w.offers("{dir: " + filepath.Join(w.t.TempDir(), "none") + "}") }},
		{name: "a file in place of a model's folder", code: FilesNotOffered, damage: func(w *world) { w.offers("{dir: " + w.file("") + "}") }},
		{name: "a folder without a tokenizer", code: FilesNotOffered, damage: func(w *world) { w.offers("{dir: " + w.model("config.json") + "}") }},
		{name: "a file that is too long", code: FilesNotOffered, damage: func(w *world) { w.offers("{dir: " + w.model("config.json", "tokenizer.json") + ", max_size: 1KiB}") }},
		{name: "a folder in place of a file", code: FilesNotOffered, damage: func(w *world) {
			dir := w.model("tokenizer.json")
			if err := os.Mkdir(filepath.Join(dir, "vocab.json"), 0o700); err != nil {
				w.t.Fatal(err)
			}
			w.offers("{dir: " + dir + "}")
		}},
		{name: "ports that were never picked", code: PortsUnknown, also: []Code{NodeSilent}, damage: func(w *world) {
			w.auto()
			w.down[nodeAddr] = true
		}},
		{name: "somebody else at a port", code: PortTaken, also: []Code{NodeSilent}, damage: func(w *world) {
			w.opt.Proc = "testdata/proc" // where somebody listens at 23101
			w.down[nodeAddr] = true
		}},
	}
	for problem, code := range map[string]Code{
		"no_token_ids": NoTokenIDs, "lookahead": Speculates, "page_size": PageSizeOne, "mirror_full": MirrorFull, "hybrid": BlocksPartly,
	} {
		seeds = append(seeds, seed{name: "problem " + problem, code: code, damage: func(w *world) {
			w.ofEngine2("kvsteer_subscriber_problem", `,problem="`+problem+`"`, "1")
		}})
	}
	return seeds
}

// certificate writes a certificate and its key.
func (w *world) certificate() (cert, key string) {
	w.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	text, err2 := x509.MarshalPKCS8PrivateKey(private)
	if err := errors.Join(err, err2); err != nil {
		w.t.Fatal(err)
	}
	return w.file(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))), w.file(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})))
}

// TestNodeSeeds holds that each damage of a node is found, and nothing else.
func TestNodeSeeds(t *testing.T) {
	for _, s := range nodeSeeds() {
		t.Run(string(s.code)+" "+s.name, func(t *testing.T) {
			w := newNodeWorld(t)
			s.damage(w)
			r := w.run()
			want := append([]Code{s.code}, s.also...)
			slices.Sort(want)
			if diff := cmp.Diff(want, codes(r)); diff != "" {
				t.Errorf("codes (-want +got):\n%s\n%+v", diff, r.Findings)
			}
			for _, f := range r.Findings {
				if strings.Contains(f.Message, "the router") || f.Subject == "router" || strings.Contains(f.Message, "!") {
					t.Errorf("of a node it is said: %s: %s", f.Subject, f.Message)
				}
			}
		})
	}
}

// TestNodeSound holds that a node without a fault gives no finding, wherever its ports are known from, and that nothing is asked that changes something.
func TestNodeSound(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(w *world)
		want    []Code
		unknown string
	}{
		{"all in the file", func(*world) {}, nil, ""},
		{"ports as the node says", (*world).auto, nil, ""},
		{"ports as they are kept", func(w *world) {
			w.auto()
			w.down[nodeAddr] = true
			w.opt.Kept = map[string]ports.Ports{engine1: {Events: 23101, Replay: 23111}, engine2: {Events: 23102, Replay: 23112}}
		}, []Code{NodeSilent}, ""},
		{"ports that may not be read", func(w *world) {
			w.auto()
			w.down[nodeAddr] = true
			w.opt.KeptErr = errors.New("permission denied")
		}, []Code{NodeSilent}, "its event ports"},
		{"a tokenizer", func(w *world) { w.offers("{dir: " + w.model("config.json", "tokenizer.json") + "}") }, nil, ""},
		{"TLS and tokens", func(w *world) {
			cert, key := w.certificate()
			w.configure("pools:", "tls: {cert_file: "+cert+", key_file: "+key+", client_ca_file: "+cert+"}\ntoken_file: "+w.file("a-token-of-the-feed\n")+"\npools:")
		}, nil, ""},
		{"a node that was not to be looked at", func(w *world) { w.opt.Admin = "" }, nil, "everything"},
		{"a node that does not tell its state", func(w *world) { delete(w.pages, nodeState) }, nil, "routers that watch it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newNodeWorld(t)
			tt.change(w)
			r := w.run()
			if diff := cmp.Diff(tt.want, codes(r)); diff != "" {
				t.Errorf("codes (-want +got):\n%s\n%+v", diff, r.Findings)
			}
			if tt.unknown == "" && len(r.NotChecked) > 0 || tt.unknown != "" && !slices.ContainsFunc(r.NotChecked, func(n NotChecked) bool { return n.What == tt.unknown }) {
				t.Errorf("not looked at: %+v, want %q", r.NotChecked, tt.unknown)
			}
			for _, seen := range w.seen {
				method, at, _ := strings.Cut(seen, " ")
				if path := at[strings.IndexByte(at, '/'):]; method != "GET" && path != "/tokenize" && path != "/v1/completions" {
					t.Errorf("request %s", seen)
				}
			}
		})
	}
}

// TestShippedNodes holds that the files of nodes that are shipped give no finding, but that clear text is named where they ask for it.
func TestShippedNodes(t *testing.T) {
	const root = "../.."
	files, err := filepath.Glob(root + "/examples/*/node.yaml")
	for _, more := range []string{"/deploy/*/node.yaml", "/deploy/*/*/node.yaml", "/deploy/*/*/*/node.yaml"} {
		found, err2 := filepath.Glob(root + more)
		files, err = append(files, found...), errors.Join(err, err2)
	}
	if err != nil || len(files) < 5 {
		t.Fatalf("files %q, %v", files, err)
	}
	for _, path := range files {
		t.Run(strings.TrimPrefix(path, root+"/"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			n, err := config.ParseNode(path, text)
			if err != nil {
				t.Fatal(err)
			}
			w := newNodeWorld(t)
			w.config = strings.ReplaceAll(string(text), "/var/lib/kvsteer", t.TempDir())
			cert, key := w.certificate()
			for name, file := range map[string]string{n.Admin.TokenFile: w.file("a-token-of-16-bytes\n"), n.TokenFile: w.file("a-token-of-16-bytes\n"), n.TLS.CertFile: cert, n.TLS.KeyFile: key, n.TLS.ClientCAFile: cert} {
				if name != "" {
					w.configure(name, file)
				}
			}
			for _, p := range n.Pools {
				for i, e := range p.Engines {
					w.move(nodeAddr, []string{engine1, engine2}[i], e, p)
				}
				if len(p.Engines) == 1 { // the recorded node has another one
					for _, page := range []string{nodePage} {
						lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(w.pages[page]), "\n"), func(l string) bool { return strings.Contains(l, engine2) })
						w.pages[page] = strings.Join(lines, "\n") + "\n"
					}
				}
			}
			want := []Code(nil)
			if n.Insecure {
				want = []Code{ClearText}
			}
			r := w.run()
			if diff := cmp.Diff(want, codes(r)); diff != "" {
				t.Errorf("codes (-want +got):\n%s\n%+v", diff, r.Findings)
			}
		})
	}
}

// move gives a recorded engine, and what the node says of it, the address, names and ports of another one.
func (w *world) move(node, from string, e config.Engine, p config.NodePool) {
	number := from[len(from)-1:]
	to := e.Local()
	words := []string{from, to, `"id":"tiny"`, `"id":"` + p.Models[0] + `"`, `"parent":"tiny"`, `"parent":"` + p.Models[0] + `"`}
	for recorded, at := range map[string]string{"tcp://127.0.0.1:2310" + number: e.Events.Listen, "tcp://127.0.0.1:2311" + number: e.Events.Replay} {
		if at != config.Auto { // else the recorded ones are as good as any that a node picks
			words = append(words, recorded, at)
		}
	}
	change := strings.NewReplacer(words...)
	pages := map[string]string{}
	for at, page := range w.pages {
		if rest, ok := strings.CutPrefix(at, from); ok {
			delete(w.pages, at)
			pages[to+rest] = change.Replace(page)
		} else if strings.HasPrefix(at, node) {
			pages[at] = change.Replace(page)
		}
	}
	for at, page := range pages {
		w.pages[at] = page
	}
}
