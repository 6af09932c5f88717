package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/tokenize"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// world is a router over pools of made-up endpoints. Time stands still unless a test moves it.
type world struct {
	t       testing.TB
	r       *Router
	pools   *pool.Set
	index   *kvindex.Index
	words   *words
	net     *probes
	sources map[string]*Source

	mu  sync.Mutex
	now time.Time
}

// address of endpoint i of the first pool.
func address(i int) string { return fmt.Sprintf("10.0.%d.%d:8000", i/250, 1+i%250) }

// chat is a pool of n endpoints.
func chat(n int) pool.Config {
	c := pool.Config{Name: "chat", Models: []string{"llama"}, Adapters: []string{"sql"}}
	for i := range n {
		c.Endpoints = append(c.Endpoints, address(i))
	}
	return c
}

func newWorld(t testing.TB, o Options, configs ...pool.Config) *world {
	t.Helper()
	w := &world{t: t, words: &words{}, net: &probes{}, sources: map[string]*Source{}, now: epoch}
	var err error
	if w.pools, err = pool.New(pool.Options{Pools: configs, HTTP: &http.Client{Transport: w.net}}); err != nil {
		t.Fatal(err)
	}
	if o.Index == nil {
		if o.Index, err = kvindex.New(kvindex.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	w.index = o.Index
	o.Pools = w.pools
	if o.Tokenizer == nil {
		o.Tokenizer = w.words
	}
	if o.Now == nil {
		o.Now = w.clock
	}
	if w.r, err = New(o); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// connect makes the endpoint's events known: blocks of so many tokens.
func (w *world) connect(endpoint string, blockSize int) *Source {
	w.t.Helper()
	s := w.sources[endpoint]
	if s == nil {
		var err error
		if s, err = w.r.Source("chat", endpoint, 0); err != nil {
			w.t.Fatal(err)
		}
		w.sources[endpoint] = s
	}
	s.Describe(subscriber.Description{Connected: true, BlockSize: blockSize, ExtraKeys: true})
	return s
}

// hold makes the endpoint announce the blocks of a prompt in both tiers.
func (w *world) hold(endpoint string, blockSize int, ns blockhash.Namespace, tokens []uint32) {
	w.t.Helper()
	s := w.connect(endpoint, blockSize)
	ns.Pool, ns.BlockSize = "chat", blockSize
	keys := blockhash.AppendKeys(nil, ns.Root(), tokens, blockSize)
	s.Store(subscriber.Any, keys)
	s.Store(subscriber.Device, keys)
}

func (w *world) drain(endpoints ...string) {
	w.t.Helper()
	for _, e := range endpoints {
		if err := w.r.Drain(e, true); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) undrain(endpoint string) {
	w.t.Helper()
	if err := w.r.Drain(endpoint, false); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) mode(pool string, m Mode, percent int) {
	w.t.Helper()
	if err := w.r.SetMode(pool, m, percent); err != nil {
		w.t.Fatal(err)
	}
}

// apply replaces the pools and leaves the settings.
func (w *world) apply(pools ...pool.Config) {
	w.t.Helper()
	if err := w.r.Apply(pools, *w.r.settings.Load()); err != nil {
		w.t.Fatal(err)
	}
}

// fail makes the probes of these endpoints be refused and waits until all are down.
func (w *world) fail(endpoints ...string) {
	w.t.Helper()
	w.net.refuse(endpoints)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.pools.Run(ctx) }()
	defer func() { cancel(); <-done }()
	deadline := time.Now().Add(5 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, p := range w.pools.Pools() {
		for _, e := range p.Endpoints() {
			for slices.Contains(endpoints, e.Addr()) && e.Healthy() {
				if time.Now().After(deadline) {
					w.t.Fatalf("endpoint %s is not down", e.Addr())
				}
				<-tick.C
			}
		}
	}
}

// recover waits until the endpoint is up.
func (w *world) recover(endpoint string) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.pools.Run(ctx) }()
	defer func() { cancel(); <-done }()
	deadline := time.Now().Add(5 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, t := range w.r.all()[0].all() {
		for t.endpoint.Addr() == endpoint && !t.endpoint.Healthy() {
			if time.Now().After(deadline) {
				w.t.Fatalf("endpoint %s is not up", endpoint)
			}
			<-tick.C
		}
	}
}

// probes answers health probes.
type probes struct {
	mu      sync.Mutex
	refused []string
}

func (p *probes) refuse(endpoints []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = append(p.refused, endpoints...)
}

// accept ends all refusing.
func (p *probes) accept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = nil
}

func (p *probes) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.refused, r.URL.Host) {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// words is a tokenizer that makes one token of each byte, and counts its calls.
type words struct {
	mu     sync.Mutex
	calls  []string // endpoints asked
	last   tokenize.Call
	errs   map[string]error // by endpoint; "" for all
	hang   bool             // until ctx ends
	during func()           // what happens during each call
	maxLen int
}

func (f *words) Tokens(ctx context.Context, c tokenize.Call) (tokenize.Result, error) {
	f.mu.Lock()
	f.calls, f.last = append(f.calls, c.Endpoint), c
	err, hang := f.errs[c.Endpoint], f.hang
	if err == nil {
		err = f.errs[""]
	}
	f.mu.Unlock()
	if f.during != nil {
		f.during()
	}
	if hang {
		<-ctx.Done()
		outcome := tokenize.Timeout
		if errors.Is(ctx.Err(), context.Canceled) {
			outcome = tokenize.Canceled
		}
		return tokenize.Result{}, &tokenize.Error{Outcome: outcome, Err: ctx.Err()}
	}
	if err != nil {
		return tokenize.Result{}, err
	}
	return tokenize.Result{Tokens: tokensOf(string(c.Request.Prompt) + string(c.Request.Messages)), MaxModelLen: f.maxLen}, nil
}

func (f *words) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

// tokensOf gives one token per byte.
func tokensOf(text string) []uint32 {
	tokens := make([]uint32, len(text))
	for i := range tokens {
		tokens[i] = uint32(text[i])
	}
	return tokens
}

// run returns n tokens counted from a start.
func run(start uint32, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = start + uint32(i)
	}
	return tokens
}

// completion is a request for /v1/completions with further fields, such as `"prompt":"x"`.
func completion(fields string) Request {
	return Request{
		Meta: openai.Meta{Method: "POST", Path: "/v1/completions", ContentType: "application/json"},
		Body: []byte("{" + fields + "}"),
	}
}

// given is a request whose prompt is token ids.
func given(model string, tokens []uint32) Request {
	b := append([]byte(nil), `{"model":"`+model+`","prompt":[`...)
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t), 10)
	}
	return Request{Meta: openai.Meta{Method: "POST", Path: "/v1/completions"}, Body: append(b, "]}"...)}
}

// loads are the loads of the first pool's endpoints.
func (w *world) loads(now time.Time) []load {
	f := w.r.all()[0]
	return f.loads(f.all(), now)
}
