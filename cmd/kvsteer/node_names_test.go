package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/router"
)

// namingEngine says what it serves, and remembers whose key the questions bring.
type namingEngine struct {
	mu       sync.Mutex
	refuses  string // key that it refuses
	adapters []string
	asked    map[string]int // by key
}

func (e *namingEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r.URL.Path {
	case "/health":
	case "/version":
		fmt.Fprint(w, `{"version":"0.32.0"}`)
	case "/v1/models":
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		e.asked[key]++
		if key == e.refuses {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		// The second name of the weights is one that no file has.
		data := []map[string]any{{"id": "tiny", "root": "/m", "max_model_len": 4096}, {"id": "alias", "root": "/m"}}
		for _, a := range e.adapters {
			data = append(data, map[string]any{"id": a, "root": "/loras/" + a, "parent": "alias"})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
	default:
		http.NotFound(w, r)
	}
}

func (e *namingEngine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func (e *namingEngine) askedBy(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[key]
}

// namingSite is a router and a node of engines that say what they serve.
type namingSite struct {
	t       *testing.T
	engines []*namingEngine
	addrs   []string
	node    *nodeSite
	router  string // pools of its file
}

func newNamingSite(t *testing.T, engines int) *namingSite {
	t.Helper()
	s := &namingSite{t: t, node: newNodeSite(t)}
	key := func(text string) string {
		path := filepath.Join(s.node.dir, text+".key")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s.node.head = strings.Replace(s.node.head, "  engines:", "  api_key_file: "+key("node")+"\n  engines:", 1)
	s.router = "pools: [{name: chat, models: [tiny], adapters_refresh: 1s, api_key_file: " + key("router") + "}]\n"
	for range engines {
		e := &namingEngine{asked: map[string]int{}}
		server := httptest.NewServer(e)
		t.Cleanup(server.Close)
		s.engines, s.addrs = append(s.engines, e), append(s.addrs, server.Listener.Addr().String())
	}
	s.write()
	return s
}

// write writes the node's file with all engines.
func (s *namingSite) write() {
	var all []string
	for _, a := range s.addrs {
		all = append(all, fmt.Sprintf("address: %q", a))
	}
	s.node.write(all...)
}

// start runs the router, with the pool's endpoints in its file or not.
func (s *namingSite) start(configured bool) *running {
	text := s.router
	if configured {
		text = strings.Replace(text, "models:", "endpoints: [{address: \""+strings.Join(s.addrs, `"}, {address: "`)+"\"}], models:", 1)
	}
	return startFleet(s.t, fmt.Sprintf("nodes: [{address: %q}]\n", s.node.listen)+text)
}

// routes is where a request for a model goes, and the pool that it finds.
func (r *running) routes(model string) (pool, endpoint string) {
	body := fmt.Sprintf(`{"model":%q,"prompt":[1,2,3]}`, model)
	d := r.router.Decide(r.t.Context(), router.Request{Meta: openai.Meta{Method: "POST", Path: "/v1/completions", ContentType: "application/json"}, Body: []byte(body)})
	r.router.Complete(router.Completion{ID: d.ID, Pool: d.Pool, Upstream: d.Endpoint, Attempts: 1, Code: 200, Answered: true})
	return d.Pool, d.Endpoint
}

// known says whether an adapter's requests find the pool.
func (r *running) known(adapter string) bool {
	_, name, ok := r.pools.ByModel(adapter)
	return ok && name == adapter
}

// TestNodesTellNames has a node say what its engines serve. The router asks none of them, wherever its endpoints come from, and follows what is loaded and unloaded.
func TestNodesTellNames(t *testing.T) {
	for _, configured := range []bool{false, true} {
		t.Run(fmt.Sprintf("configured=%t", configured), func(t *testing.T) {
			s := newNamingSite(t, 2)
			first, second := s.engines[0], s.engines[1]
			first.set(func() { first.adapters = []string{"law"} })
			r := s.start(configured) // before the node is there
			s.node.start()
			r.until("the adapter is known", func() bool { return r.known("law") })
			for range 8 {
				if pool, endpoint := r.routes("law"); pool != "chat" || endpoint != s.addrs[0] {
					t.Fatalf("a request for the adapter goes to %q in pool %q, want %s, which alone has it", endpoint, pool, s.addrs[0])
				}
			}
			e := r.pools.Endpoint("chat", s.addrs[0])
			if p := r.pools.Pools()[0]; e.AdapterPath("law") != "/loras/law" || p.ToldModelLen() != 4096 || e.Version() != "0.32.0" {
				t.Errorf("path %q, length %d, release %q", e.AdapterPath("law"), p.ToldModelLen(), e.Version())
			}
			if pool, _ := r.routes("none"); r.known("none") || pool != "" && pool != "chat" {
				t.Errorf("a request for an unknown name goes to pool %q", pool)
			}

			second.set(func() { second.adapters = []string{"art"} })
			r.until("an adapter that is loaded is known", func() bool { return r.known("art") })
			if _, endpoint := r.routes("art"); endpoint != s.addrs[1] {
				t.Errorf("a request for it goes to %q, want %s", endpoint, s.addrs[1])
			}
			first.set(func() { first.adapters = nil })
			r.until("one that is unloaded is not", func() bool { return !r.known("law") })
			if first.askedBy("router")+second.askedBy("router") > 0 || first.askedBy("node") < 2 {
				t.Errorf("the engines were asked %d and %d times by the router, and %d times by the node", first.askedBy("router"), second.askedBy("router"), first.askedBy("node"))
			}
		})
	}
}

// TestRouterAsksForNames has the router ask engines itself: of a node that gets no answer, that does not ask, and that is lost.
func TestRouterAsksForNames(t *testing.T) {
	s := newNamingSite(t, 1)
	e := s.engines[0]
	e.set(func() { e.adapters, e.refuses = []string{"law"}, "node" })
	r := s.start(true)
	n := s.node.start()
	r.until("an engine that refuses the node is asked by the router", func() bool { return r.known("law") && e.askedBy("router") > 0 })

	e.set(func() { e.refuses = "" })
	quiet := func() bool { // for more than two rounds of the node's
		before, by := e.askedBy("router"), e.askedBy("node")
		until(t, "the node asks", func() bool { return e.askedBy("node") >= by+3 })
		return e.askedBy("router") == before
	}
	r.until("a node that gets answers has the router ask no more", quiet)

	n.stop()
	e.set(func() { e.adapters = []string{"law", "art"} })
	r.until("while the node is away the router asks", func() bool { return r.known("art") })
	s.node.start()
	r.until("and no more when it is back", quiet)
	if !slices.Equal(r.pools.Pools()[0].Adapters(), []string{"art", "law"}) {
		t.Errorf("adapters are %q", r.pools.Pools()[0].Adapters())
	}

	s.node.head = strings.Replace(s.node.head, "adapters_refresh: 1s", "adapters_refresh: 0s", 1)
	s.write()
	before := e.askedBy("router")
	r.until("of a node that does not ask the router does", func() bool { return e.askedBy("router") > before+1 && r.known("art") })
}
