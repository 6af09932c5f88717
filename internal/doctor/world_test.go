package doctor

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kvsteer/kvsteer/internal/config"
)

// The addresses of the recorded site.
const (
	engine1    = "127.0.0.1:23001"
	engine2    = "127.0.0.1:23002"
	routerAddr = "127.0.0.1:23083"
	envoyAddr  = "127.0.0.1:23081"
)

// world is a site made of recorded pages, that a test damages.
type world struct {
	t      *testing.T
	config string
	node   bool              // config is a node's
	pages  map[string]string // by address and path
	status map[string]int    // by address and path, where it is not 200
	down   map[string]bool   // addresses that refuse connections
	hang   map[string]bool   // by address and path: no answer
	opt    Options
	server *httptest.Server // stands for all of the site

	mu   sync.Mutex
	seen []string // method, address and path of each request
	keys []string // of those with a bearer token
}

// newWorld returns a site without a fault, with the Envoy of one folder of testdata before it.
func newWorld(t *testing.T, envoy string) *world {
	w := newEngines(t)
	w.config = w.read("kvsteer.yaml")
	w.pages[routerAddr+"/metrics"] = w.read("router/metrics.txt")
	w.pages[routerAddr+"/readyz"] = "ready\n"
	w.envoy(envoy)
	switch envoy {
	case "envoy-foreign":
		w.configure("envoy:\n", "envoy:\n  access_log_service: false\n")
	case "envoy-override":
		w.configure("envoy:\n", "envoy:\n  body: full_duplex\n")
	case "envoy-gaie":
		w.configure("pools:", "headers: gaie\npools:")
	}
	w.opt = Options{Admin: "http://" + routerAddr, Envoy: "http://" + envoyAddr, Proc: "testdata/proc", Probe: true}
	return w
}

// newEngines returns a site of two engines and nothing else.
func newEngines(t *testing.T) *world {
	w := &world{t: t, pages: map[string]string{}, status: map[string]int{}, down: map[string]bool{}, hang: map[string]bool{}}
	for i, e := range []string{engine1, engine2} {
		for path, file := range map[string]string{
			"/version": "version.json", "/v1/models": "models.json", "/metrics": "metrics.txt", "/tokenize": "tokenize.json",
			"/v1/completions": "completion.json", "/kv_event_sources": "kv_event_sources.json",
		} {
			w.pages[e+path] = w.read("vllm-0.32.0/" + file)
		}
		w.pages[e+"/health"] = ""
		// The recorded engine binds its sockets on all addresses; these connect to the router, and bind the one for replays on loopback.
		w.replace(e+"/kv_event_sources", "tcp://*:18557", "tcp://127.0.0.1:2310"+string(rune('1'+i)))
		w.replace(e+"/kv_event_sources", "tcp://*:18567", "tcp://127.0.0.1:2311"+string(rune('1'+i)))
	}
	w.server = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(w.server.Close)
	return w
}

// envoy puts the pages of a folder behind Envoy's address.
func (w *world) envoy(folder string) {
	for path, file := range map[string]string{"/server_info": "server_info.json", "/config_dump": "config_dump.json", "/clusters": "clusters.json"} {
		w.pages[envoyAddr+path] = w.read(folder + "/" + file)
	}
}

func (w *world) read(name string) string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}

// replace changes every occurrence of a text in a page, and wants one.
func (w *world) replace(page, old, new string) {
	w.t.Helper()
	if !strings.Contains(w.pages[page], old) {
		w.t.Fatalf("%s does not hold %q", page, old)
	}
	w.pages[page] = strings.ReplaceAll(w.pages[page], old, new)
}

// configure changes a text in the configuration.
func (w *world) configure(old, new string) {
	w.t.Helper()
	if !strings.Contains(w.config, old) {
		w.t.Fatalf("the configuration does not hold %q", old)
	}
	w.config = strings.ReplaceAll(w.config, old, new)
}

// metric sets the value of every series that begins so, and wants one; a series that is not there is added when it holds a label.
func (w *world) metric(page, series, value string) {
	w.t.Helper()
	lines := strings.Split(strings.TrimSpace(w.pages[page]), "\n")
	found := false
	for i, line := range lines {
		if strings.HasPrefix(line, series) {
			lines[i] = line[:strings.LastIndexByte(line, ' ')+1] + value
			found = true
		}
	}
	if !found {
		if !strings.HasSuffix(series, "}") {
			w.t.Fatalf("%s holds no series %s", page, series)
		}
		lines = append(lines, series+" "+value)
	}
	w.pages[page] = strings.Join(lines, "\n") + "\n"
}

// edit changes every object of Envoy's configuration for which change returns true, and wants one.
func (w *world) edit(change func(o map[string]any) bool) {
	w.t.Helper()
	page := envoyAddr + "/config_dump"
	var doc any
	if err := json.Unmarshal([]byte(w.pages[page]), &doc); err != nil {
		w.t.Fatal(err)
	}
	changed := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if change(v) {
				changed++
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(doc)
	if changed == 0 {
		w.t.Fatal("no object of Envoy's configuration was changed")
	}
	text, err := json.Marshal(doc)
	if err != nil {
		w.t.Fatal(err)
	}
	w.pages[page] = string(text)
}

// ofType picks objects by the end of their type.
func ofType(name string, change func(o map[string]any)) func(o map[string]any) bool {
	return func(o map[string]any) bool {
		if url, _ := o["@type"].(string); !strings.HasSuffix(url, "."+name) {
			return false
		}
		change(o)
		return true
	}
}

// named picks objects by their name.
func named(name string, change func(o map[string]any)) func(o map[string]any) bool {
	return func(o map[string]any) bool {
		if o["name"] != name || len(o) == 1 { // a member of a composite is a name alone
			return false
		}
		change(o)
		return true
	}
}

// set writes a value at a path, and deletes it for nil.
func set(value any, path ...string) func(o map[string]any) {
	return func(o map[string]any) {
		for _, key := range path[:len(path)-1] {
			inner, _ := o[key].(map[string]any)
			if inner == nil {
				inner = map[string]any{}
				o[key] = inner
			}
			o = inner
		}
		if last := path[len(path)-1]; value == nil {
			delete(o, last)
		} else {
			o[last] = value
		}
	}
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	at := r.Host + r.URL.Path
	_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client has gone
	w.mu.Lock()
	w.seen = append(w.seen, r.Method+" "+at)
	if key := r.Header.Get("Authorization"); key != "" {
		w.keys = append(w.keys, at+" "+key)
	}
	w.mu.Unlock()
	if w.hang[at] {
		<-r.Context().Done()
		return
	}
	page, ok := w.pages[at]
	if !ok {
		http.Error(rw, `{"detail":"Not Found"}`, http.StatusNotFound)
		return
	}
	if s := w.status[at]; s != 0 {
		rw.Header().Set("Location", "http://"+engine2+"/health") // for those that are redirects
		rw.WriteHeader(s)
	}
	_, _ = rw.Write([]byte(page))
}

// run looks at the site.
func (w *world) run() *Report {
	w.t.Helper()
	report, err := w.doctor().Run(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

func (w *world) doctor() *Doctor {
	w.t.Helper()
	o := w.opt
	var err error
	if w.node {
		o.Node, err = config.ParseNode("node.yaml", []byte(w.config))
	} else {
		o.Config, err = config.Parse("kvsteer.yaml", []byte(w.config))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if w.down[address] {
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		return new(net.Dialer).DialContext(ctx, network, w.server.Listener.Addr().String())
	}
	d, err := New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// codes are the different codes of a report.
func codes(r *Report) []Code {
	var all []Code
	for _, f := range r.Findings {
		all = append(all, f.Code)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
