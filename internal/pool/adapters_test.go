package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fleet answers probes and questions for models by the endpoint asked.
type fleet struct {
	mu     sync.Mutex
	bodies map[string]string // of /v1/models; without one the status is 404
	status map[string]int
	down   map[string]bool
	hung   bool // /v1/models gives no answer, and then one without an end
	asked  map[string]int
	keys   []string
}

func newFleet() *fleet {
	return &fleet{bodies: map[string]string{}, status: map[string]int{}, down: map[string]bool{}, asked: map[string]int{}}
}

func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hung && r.URL.Path == "/v1/models" {
		if f.asked[r.URL.Host]++; f.asked[r.URL.Host] > 1 {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(endless{r.Context()}), Request: r}, nil
		}
		f.mu.Unlock()
		<-r.Context().Done()
		f.mu.Lock()
		return nil, r.Context().Err()
	}
	if f.down[r.URL.Host] {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	status, body := http.StatusOK, ""
	switch r.URL.Path {
	case "/version":
		body = `{"version":"0.32.0"}`
	case "/v1/models":
		f.asked[r.URL.Host]++
		f.keys = append(f.keys, r.Header.Get("Authorization"))
		if body = f.bodies[r.URL.Host]; body == "" {
			status = http.StatusNotFound
		}
		if s := f.status[r.URL.Host]; s != 0 {
			status = s
		}
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{"Location": {"http://10.9.9.9/"}}, Request: r}, nil
}

func (f *fleet) do(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// serve has an endpoint serve llama and adapters on it.
func (f *fleet) serve(addr string, adapters ...string) {
	data := []map[string]any{{"id": "llama", "root": "dir", "parent": nil, "max_model_len": 2048}}
	for _, a := range adapters {
		data = append(data, map[string]any{"id": a, "root": "lora/" + a, "parent": "llama"})
	}
	body, _ := json.Marshal(map[string]any{"data": data})
	f.do(func() { f.bodies[addr] = string(body) })
}

// start runs a set in a bubble.
func (f *fleet) start(t *testing.T, o Options) (s *Set, stop func()) {
	t.Helper()
	o.HTTP = probeClient(Options{})
	o.HTTP.Transport = f
	s = newSet(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// refreshed is the pool chat, asked every 30 s.
func refreshed(endpoints ...string) Config {
	c := with(endpoints...)
	c.AdaptersRefresh, c.APIKey = 30*time.Second, "key-1"
	return c
}

const round = 40 * time.Second // more than a refresh with its jitter

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestAdaptersFollowTheEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, reg := newFleet(), prometheus.NewRegistry()
		f.serve(one, "sql", "law")
		f.serve(two)
		if _, _, ok := newSet(t, Options{Pools: []Config{refreshed(one, two)}}).ByModel("law"); ok {
			t.Error("an adapter is known before anybody told")
		}
		s, stop := f.start(t, Options{Pools: []Config{refreshed(one, two)}, Metrics: NewMetrics(reg)})
		pass(time.Second)
		p, adapter, ok := s.ByModel("law")
		if !ok || p.Name() != "chat" || adapter != "law" || p.AdapterPath("law") != "lora/law" || p.AdapterPath("sql") != "lora/sql" || p.AdapterPath("none") != "" {
			t.Fatalf("law: %v %q, path %q", ok, adapter, p.AdapterPath("law"))
		}
		if got := p.Adapters(); !slices.Equal(got, []string{"sql", "law"}) || p.ToldModelLen() != 2048 || p.Configures("law") || !p.Configures("sql") {
			t.Errorf("adapters %q, model length %d", got, p.ToldModelLen())
		}
		first, second := find(s, "chat", one), find(s, "chat", two)
		if serves, known := first.Serves("law"); !serves || !known || first.AdapterPath("law") != "lora/law" || first.Version() != "0.32.0" {
			t.Error("the endpoint with the adapter does not say so")
		}
		if serves, known := second.Serves("law"); serves || !known {
			t.Error("the endpoint without the adapter does not say so")
		}
		want := `
# HELP kvsteer_pool_adapters Adapters under whose names requests find the pool: those configured and those that its engines tell of.
# TYPE kvsteer_pool_adapters gauge
kvsteer_pool_adapters{pool="chat"} 2
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_pool_adapters"); err != nil {
			t.Error(err)
		}

		f.serve(two, "new")
		pass(round)
		if _, adapter, ok := s.ByModel("new"); !ok || adapter != "new" {
			t.Error("an adapter that was loaded is not known after a refresh")
		}
		f.serve(two)
		pass(round)
		if _, _, ok := s.ByModel("new"); ok {
			t.Error("an adapter that was unloaded is still known after a refresh")
		}

		// What only a dead endpoint told is not known, and is again when it is back.
		f.do(func() { f.down[one] = true })
		pass(round)
		if _, _, ok := s.ByModel("law"); ok {
			t.Error("an adapter of nobody but a dead endpoint is known")
		}
		if _, known := first.Serves("law"); known {
			t.Error("what a dead engine told counts")
		}
		if _, adapter, ok := s.ByModel("sql"); !ok || adapter != "sql" {
			t.Error("a configured adapter is gone")
		}
		f.do(func() { f.down[one] = false })
		pass(15 * time.Second) // longest backoff of a probe
		if _, _, ok := s.ByModel("law"); !ok {
			t.Error("an adapter is not known though its endpoint is back")
		}

		// A failing answer leaves what is known.
		f.do(func() { f.status[one] = 500 })
		pass(3 * round)
		if _, _, ok := s.ByModel("law"); !ok {
			t.Error("a failing refresh has an adapter forgotten")
		}
		stop()
		f.do(func() {
			for _, k := range f.keys {
				if k != "Bearer key-1" {
					t.Errorf("asked with %q", k)
				}
			}
		})
		if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
			t.Errorf("%d series left after Run, error %v", n, err)
		}
	})
}

func TestRefreshByConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.serve(one, "law")
		off := refreshed(one)
		off.AdaptersRefresh = 0
		s, stop := f.start(t, Options{Pools: []Config{off}})
		defer stop()
		pass(time.Hour)
		asked := func() (n int) { f.do(func() { n = f.asked[one] }); return n }
		if n := asked(); n != 0 {
			t.Errorf("asked %d times though it is off", n)
		}
		apply := func(c Config) {
			t.Helper()
			if err := s.Apply([]Config{c}); err != nil {
				t.Fatal(err)
			}
			pass(time.Second)
		}
		apply(refreshed(one))
		if _, _, ok := s.ByModel("law"); !ok || asked() != 1 {
			t.Errorf("known %v, asked %d times after it was switched on", ok, asked())
		}
		apply(refreshed(one))
		if _, _, ok := s.ByModel("law"); !ok || asked() != 1 {
			t.Errorf("known %v, asked %d times after the same configuration", ok, asked())
		}
		named := refreshed(one)
		named.Models = []string{"other"}
		apply(named)
		if _, _, ok := s.ByModel("law"); ok {
			t.Error("an adapter of a model that is configured no more is known")
		}
		before := asked()
		fast := refreshed(one)
		fast.AdaptersRefresh = time.Second
		apply(fast)
		pass(time.Minute)
		if n := asked() - before; n < 50 || n > 70 {
			t.Errorf("asked %d times in a minute, every second", n)
		}
		apply(off)
		before = asked()
		pass(time.Hour)
		if _, _, ok := s.ByModel("law"); ok || asked() != before {
			t.Errorf("known %v, asked %d times after it was switched off", ok, asked()-before)
		}
	})
}

func TestRefreshOutcomes(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		want   string
	}{
		{"refused", 401, "{}", "refused"},
		{"no such path", 0, "", "refused"},
		{"failed", 503, "{}", "failed"},
		{"a redirect", 302, "{}", "failed"},
		{"not a list", 0, "{}", "bad_reply"},
		{"too long", 0, `{"data":[` + `"` + strings.Repeat("x", maxModels) + `"]}`, "bad_reply"},
		{"good", 0, `{"data":[]}`, "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, reg := newFleet(), prometheus.NewRegistry()
				f.bodies[one], f.status[one] = tt.body, tt.status
				var log strings.Builder
				s, stop := f.start(t, Options{Pools: []Config{refreshed(one)}, Metrics: NewMetrics(reg), Log: slog.New(slog.NewTextHandler(&log, nil))})
				pass(time.Second)
				want := `
# HELP kvsteer_pool_models_refreshes_total Questions to the endpoint for the models and adapters that it serves, by outcome: ok, unreachable, refused, failed, bad_reply.
# TYPE kvsteer_pool_models_refreshes_total counter
`
				for _, o := range refreshOutcomes() {
					n := 0
					if string(o) == tt.want {
						n = 1
					}
					want += fmt.Sprintf("kvsteer_pool_models_refreshes_total{endpoint=\"10.0.0.1:8000\",outcome=%q,pool=\"chat\"} %d\n", o, n)
				}
				if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_pool_models_refreshes_total"); err != nil {
					t.Error(err)
				}
				if _, known := find(s, "chat", one).Serves("llama"); known != (tt.want == "ok") {
					t.Errorf("known %v", known)
				}
				pass(2 * round)
				stop()
				if n := strings.Count(log.String(), "does not say what it serves"); n > 1 || (n == 1) == (tt.want == "ok") {
					t.Errorf("said %d times:\n%s", n, log.String())
				}
				if strings.Contains(log.String(), "key-1") {
					t.Error("the key is logged")
				}
			})
		})
	}
}

// TestNamesOfTwoPools has random pools and listings over time, and compares names with a model that is read off the rules.
func TestNamesOfTwoPools(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 5))
	names := []string{"a", "b", "c", "d", "llama", "qwen", "sql"}
	for range 200 {
		configs := []Config{
			{Name: "chat", Models: []string{"llama"}, Adapters: []string{"sql"}, Endpoints: []string{one, two}, AdaptersRefresh: time.Second},
			{Name: "code", Models: []string{"qwen"}, Endpoints: []string{three}, AdaptersRefresh: time.Second},
		}
		s := newSet(t, Options{Pools: configs})
		owner := map[string]string{} // of the model: names that are not configured
		listed := map[string]map[string]bool{}
		pools := map[string]string{one: "chat", two: "chat", three: "code"}
		for range 30 {
			addr := []string{one, two, three}[rnd.IntN(3)]
			e := find(s, pools[addr], addr)
			switch rnd.IntN(6) {
			case 0: // the engine ends
				e.change(func(h health) health { return h.failed(true) })
				e.change(func(h health) health { return h.ok(time.Now()) })
				s.rename()
				delete(listed, addr)
			default:
				base := map[string]string{"chat": "llama", "code": "qwen"}[pools[addr]]
				var cards []card
				listed[addr] = map[string]bool{}
				for _, n := range names {
					if n != base && rnd.IntN(2) == 0 {
						parent := base
						if rnd.IntN(4) == 0 {
							parent = "stranger"
						} else {
							listed[addr][n] = true
						}
						cards = append(cards, card{id: n, root: "r", parent: parent, adapts: true})
					}
				}
				e.listing.Store(newListing(e.Life(), cards))
				s.rename()
			}
			tells := func(pool, name string) bool {
				for a, of := range pools {
					if of == pool && listed[a][name] {
						return true
					}
				}
				return false
			}
			for _, n := range names {
				if n == "llama" || n == "qwen" || n == "sql" {
					continue
				}
				if !tells(owner[n], n) {
					delete(owner, n)
				}
				for _, pool := range []string{"chat", "code"} {
					if owner[n] == "" && tells(pool, n) {
						owner[n] = pool
					}
				}
			}
			got := map[string]string{}
			for _, n := range names {
				if p, adapter, ok := s.ByModel(n); ok && adapter != "" {
					got[n] = p.Name()
				}
			}
			want := maps.Clone(owner)
			want["sql"] = "chat"
			if !maps.Equal(got, want) {
				t.Fatalf("adapters %v, want %v", got, want)
			}
			if p, adapter, ok := s.ByModel("llama"); !ok || adapter != "" || p.Name() != "chat" {
				t.Fatal("the base model is not its pool's")
			}
		}
	}
}

func TestWarnsOncePerName(t *testing.T) {
	var log strings.Builder
	code := Config{Name: "code", Models: []string{"qwen"}, Endpoints: []string{three}, AdaptersRefresh: time.Second}
	s := newSet(t, Options{Pools: []Config{refreshed(one), code}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	tell := func(e *Endpoint, cards ...card) {
		e.listing.Store(newListing(e.Life(), cards))
		s.rename()
	}
	for range 3 {
		tell(find(s, "chat", one), card{id: "x", parent: "llama", adapts: true}, card{id: "stranger"})
		tell(find(s, "code", three), card{id: "x", parent: "qwen", adapts: true}, card{id: "llama", parent: "qwen", adapts: true})
	}
	for text, want := range map[string]int{"belongs to another pool": 2, "it is ignored": 1, "adapters as the engines tell": 1} {
		if n := strings.Count(log.String(), text); n != want {
			t.Errorf("%q stands %d times in the log, want %d:\n%s", text, n, want, log.String())
		}
	}
	for i := range 2 * maxWarned {
		tell(find(s, "chat", one), card{id: fmt.Sprint(i)})
	}
	if len(s.warned) != maxWarned {
		t.Errorf("%d names are remembered", len(s.warned))
	}
}

// endless is an answer that begins well and has no end.
type endless struct{ ctx context.Context }

func (e endless) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
		return copy(p, `{"data":[`), nil
	case <-e.ctx.Done():
		return 0, e.ctx.Err()
	}
}

// An engine that gives no list, or no end of it, keeps its health, and what it told before.
func TestHungModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, reg := newFleet(), prometheus.NewRegistry()
		f.serve(one, "law")
		s, stop := f.start(t, Options{Pools: []Config{refreshed(one)}, Metrics: NewMetrics(reg)})
		pass(time.Second)
		f.do(func() { f.hung, f.asked = true, map[string]int{} })
		pass(3 * round)
		if _, _, ok := s.ByModel("law"); !ok || !find(s, "chat", one).Healthy() {
			t.Error("the endpoint is down, or its adapter forgotten")
		}
		n := 0
		f.do(func() { n = f.asked[one] })
		if n < 3 || n > 12 {
			t.Errorf("asked %d times in two minutes", n)
		}
		stop()
	})
}

func BenchmarkNames(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d/adapters=100", n), func(b *testing.B) {
			c := refreshed()
			for i := range n {
				c.Endpoints = append(c.Endpoints, fmt.Sprintf("10.0.%d.%d:8000", i/250, 1+i%250))
			}
			s, err := New(Options{Pools: []Config{c}})
			if err != nil {
				b.Fatal(err)
			}
			for _, e := range s.Pools()[0].Endpoints() {
				cards := []card{{id: "llama", root: "r"}}
				for i := range 100 {
					cards = append(cards, card{id: fmt.Sprintf("adapter-%d", i), parent: "llama", root: "lora", adapts: true})
				}
				e.listing.Store(newListing(0, cards))
			}
			b.ReportAllocs()
			for b.Loop() {
				s.rename()
			}
		})
	}
}
