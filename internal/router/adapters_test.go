package router

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/kvindex"
)

// told answers probes, and questions for models with the adapters of the endpoint asked; without an entry the status is 404.
type told struct {
	mu       sync.Mutex
	adapters map[string][]string
}

func (f *told) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, body := http.StatusOK, ""
	if r.URL.Path == "/v1/models" {
		adapters, ok := f.adapters[r.URL.Host]
		if !ok {
			status = http.StatusNotFound
		}
		cards := []string{`{"id":"llama","root":"r","parent":null,"max_model_len":5000}`}
		for _, a := range adapters {
			cards = append(cards, fmt.Sprintf(`{"id":%q,"root":"lora","parent":"llama"}`, a))
		}
		body = `{"data":[` + strings.Join(cards, ",") + "]}"
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// TestAdapterCandidates asks for adapters that some endpoints serve, some do not, and of some is not known.
func TestAdapterCandidates(t *testing.T) {
	a, b, c := address(0), address(1), address(2)
	tests := []struct {
		name  string
		told  map[string][]string
		model string
		want  []string
	}{
		{"nobody has told", nil, "sql", []string{a, b, c}},
		{"the base model", map[string][]string{a: {"law"}, b: {}, c: {}}, "llama", []string{a, b, c}},
		{"configured, on one", map[string][]string{a: {"sql"}, b: {}, c: {}}, "sql", []string{a}},
		{"configured, one has not told", map[string][]string{a: {"sql"}, b: {}}, "sql", []string{a, c}},
		{"configured, not where it was told", map[string][]string{a: {}, b: {}}, "sql", []string{c}},
		{"configured, nowhere", map[string][]string{a: {}, b: {}, c: {}}, "sql", []string{a, b, c}},
		{"told, on two", map[string][]string{a: {"law"}, b: {}, c: {"law"}}, "law", []string{a, c}},
		{"told, one has not told", map[string][]string{a: {"law"}, b: {}}, "law", []string{a}},
		{"told by one", map[string][]string{c: {"law"}}, "law", []string{c}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := chat(3)
				config.AdaptersRefresh = time.Minute
				pools, err := pool.New(pool.Options{Pools: []pool.Config{config}, HTTP: &http.Client{Transport: &told{adapters: tt.told}}})
				if err != nil {
					t.Fatal(err)
				}
				index, err := kvindex.New(kvindex.Options{})
				if err != nil {
					t.Fatal(err)
				}
				r, err := New(Options{Pools: pools, Index: index})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- pools.Run(ctx) }()
				<-time.After(time.Second)
				synctest.Wait()
				chosen := map[string]bool{}
				for range 200 {
					d := r.Decide(t.Context(), given(tt.model, run(1, 100)))
					if chosen[d.Endpoint] = true; d.Second != "" {
						chosen[d.Second] = true
					}
				}
				got := []string{}
				for e := range chosen {
					got = append(got, e)
				}
				if slices.Sort(got); !slices.Equal(got, tt.want) {
					t.Errorf("chosen %v, want %v", got, tt.want)
				}
				if len(tt.told) > 0 {
					if d := r.Decide(t.Context(), given("llama", run(1, 6000))); d.Reason != ReasonOverModel {
						t.Errorf("a prompt longer than the model as told has reason %q", d.Reason)
					}
				}
				cancel()
				<-done
			})
		})
	}
}

// TestAdapterIsMatchedUnderItsName has the holder of an adapter's blocks found among those that serve it.
func TestAdapterIsMatchedUnderItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &told{adapters: map[string][]string{address(0): {"law"}, address(1): {"law"}, address(2): {}}}
		config := chat(3)
		config.AdaptersRefresh = time.Minute
		w := newWorld(t, Options{}, config)
		pools, err := pool.New(pool.Options{Pools: []pool.Config{config}, HTTP: &http.Client{Transport: f}})
		if err != nil {
			t.Fatal(err)
		}
		w.pools = pools
		if w.r, err = New(Options{Pools: pools, Index: w.index, Now: w.clock}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- pools.Run(ctx) }()
		<-time.After(time.Second)
		synctest.Wait()
		prompt := run(1, 200)
		w.hold(address(0), 16, blockhash.Namespace{}, prompt)
		w.hold(address(1), 16, blockhash.Namespace{Adapter: "law"}, prompt)
		w.hold(address(2), 16, blockhash.Namespace{Adapter: "law"}, prompt) // what it held before its adapter was unloaded
		if d := w.r.Decide(t.Context(), given("law", prompt)); d.Endpoint != address(1) || d.Reason != ReasonPrefix || d.Matched != 192 {
			t.Errorf("adapter: %+v", d)
		}
		if d := w.r.Decide(t.Context(), given("llama", prompt)); d.Endpoint != address(0) || d.Matched != 192 {
			t.Errorf("base model: %+v", d)
		}
		cancel()
		<-done
	})
}
