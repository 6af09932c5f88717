package tokenize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/openai"
)

const secret = "squeamish ossifrage"

func TestOutcomes(t *testing.T) {
	cutOff := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"tokens":[1`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"tokens":[1`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	breaks := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for _, c := range []struct {
		name     string
		endpoint string // the engine's is a:1
		handler  http.HandlerFunc
		wait     time.Duration // of the caller; 0 = for ever
		want     Outcome
	}{
		{"answer", "a:1", letters, 0, OK},
		{"bad request", "a:1", status(400), 0, Refused},
		{"unauthorized", "a:1", status(401), 0, Refused},
		{"not found", "a:1", status(404), 0, Refused},
		{"error", "a:1", status(500), 0, Failed},
		{"unavailable", "a:1", status(503), 0, Failed},
		{"redirect", "a:1", status(307), 0, Failed},
		{"no content", "a:1", status(204), 0, Failed},
		{"not json", "a:1", text("hello"), 0, BadReply},
		{"several lists", "a:1", text(`{"tokens":[[1],[2]]}`), 0, BadReply},
		{"cut off", "a:1", cutOff, 0, BadReply},
		{"too many tokens", "a:1", text(`{"tokens":[` + strings.Repeat("1,", 100) + `1]}`), 0, TooLong},
		{"too many bytes", "a:1", text(`{"tokens":[1` + strings.Repeat(" ", 1<<20) + `]}`), 0, TooLong},
		{"drips", "a:1", drip, 0, Timeout},
		{"silent", "a:1", silent, 0, Timeout},
		{"caller's deadline", "a:1", silent, 10 * time.Millisecond, Timeout},
		{"connection breaks", "a:1", breaks, 0, Unreachable},
		{"refused connection", "b:1", letters, 0, Unreachable},
		{"no connection", "hole:1", letters, 0, Unreachable},
		{"no connection in the caller's time", "hole:1", letters, 10 * time.Millisecond, Timeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f fabric
				f.engine(t, "a:1", c.handler)
				z := f.tokenizer(t, Options{MaxTokens: 100})
				ctx := t.Context()
				limit := 250 * time.Millisecond
				if c.wait > 0 {
					limit = c.wait
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.wait)
					defer cancel()
				}
				start := time.Now()
				r, err := z.Tokens(ctx, call(t, c.endpoint, secret))
				if took := time.Since(start); took > limit {
					t.Errorf("took %v", took)
				}
				if r.Outcome != c.want {
					t.Errorf("outcome %q, want %q (%v)", r.Outcome, c.want, err)
				}
				if n := z.cache.entries(); (n > 0) != (c.want == OK) {
					t.Errorf("%d entries cached", n)
				}
				if c.want == OK {
					if err != nil || r.MaxModelLen != 2048 || len(r.Tokens) != len(secret) {
						t.Errorf("result %+v, error %v", r, err)
					}
					return
				}
				var e *Error
				if !errors.As(err, &e) || e.Outcome != c.want || e.Endpoint != c.endpoint || r.Tokens != nil {
					t.Errorf("result %+v, error %#v", r, err)
				}
				if strings.Contains(err.Error(), "squeamish") {
					t.Errorf("prompt in error: %v", err)
				}
			})
		})
	}
}

func TestNoCallNeeded(t *testing.T) {
	z, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := Call{Pool: "chat", Request: &openai.Request{Form: openai.Tokens, Tokens: []uint32{5, 6}}}
	for range 2 {
		r, err := z.Tokens(t.Context(), c)
		if diff := cmp.Diff(Result{Tokens: []uint32{5, 6}, Outcome: Given}, r); diff != "" || err != nil {
			t.Error(err, diff)
		}
	}
	for _, r := range []openai.Request{{}, {Form: openai.Text, Prompt: openai.Raw(`"p"`), Reason: openai.ReasonTruncation}} {
		got, err := z.Tokens(t.Context(), Call{Request: &r})
		if got.Outcome != Unkeyable || err == nil {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestHugePromptIsNotSent(t *testing.T) {
	z, err := New(Options{MaxTokens: 10})
	if err != nil {
		t.Fatal(err)
	}
	r, err := z.Tokens(t.Context(), call(t, "a:1", strings.Repeat("p", 10*promptToken)))
	if r.Outcome != TooLong || err == nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWhatIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		var got []string
		f.engine(t, "a:1", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got = append(got, fmt.Sprintf("%s %s %s %q %q %d %s", r.Method, r.URL, r.Host,
				r.Header["Content-Type"], r.Header["Authorization"], r.ContentLength, body))
			_, _ = io.WriteString(w, `{"tokens":[1]}`)
		})
		z := f.tokenizer(t, Options{})
		c := call(t, "a:1", "p")
		_, err := z.Tokens(t.Context(), c)
		c.Model, c.APIKey = `ada"pter`, "k1"
		_, err2 := z.Tokens(t.Context(), c)
		want := []string{
			`POST /tokenize a:1 ["application/json"] [] 29 {"model":"tiny","prompt":"p"}`,
			`POST /tokenize a:1 ["application/json"] ["Bearer k1"] 34 {"model":"ada\"pter","prompt":"p"}`,
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil || err2 != nil {
			t.Error(err, err2, diff)
		}
		if n := f.dials.Load(); n != 1 {
			t.Errorf("%d connections for two calls", n)
		}
		// A key that cannot be a header is a mistake of ours: not the endpoint's fault, and not to be shown.
		c = call(t, "a:1", "q")
		c.APIKey = "k\nsecret"
		r, err := z.Tokens(t.Context(), c)
		if r.Outcome != Unreachable || err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		f.engine(t, "a:1", letters)
		f.engine(t, "b:1", letters)
		now := time.Now()
		z := f.tokenizer(t, Options{CacheAge: time.Minute, Now: func() time.Time { return now }})
		step := func(name string, c Call, want Outcome) {
			t.Helper()
			if r, err := z.Tokens(t.Context(), c); r.Outcome != want || err != nil || len(r.Tokens) != 1 || r.MaxModelLen != 2048 {
				t.Errorf("%s: %+v, %v, want %q", name, r, err, want)
			}
		}
		c := call(t, "a:1", "p")
		step("first", c, OK)
		step("again", c, Cached)
		other := c
		other.Endpoint = "b:1"
		step("other endpoint", other, Cached)
		other = c
		other.Pool = "cha"
		step("other pool", other, OK)
		other = c
		other.Model = "adapter"
		step("other model", other, OK)
		step("other prompt", call(t, "a:1", "q"), OK)
		other = c
		request := *c.Request
		request.AddSpecialTokens = openai.Raw("false")
		other.Request = &request
		step("other field", other, OK)
		now = now.Add(time.Minute - 1)
		step("old", c, Cached)
		now = now.Add(1)
		step("too old", c, OK)
		step("renewed", c, Cached)
	})
}

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		f.engine(t, "a:1", letters)
		z := f.tokenizer(t, Options{CacheBytes: 10_000})
		for i := range 200 {
			if _, err := z.Tokens(t.Context(), call(t, "a:1", fmt.Sprintf("%0100d", i))); err != nil {
				t.Fatal(err)
			}
		}
		n, bytes := z.cache.entries(), z.cache.bytes()
		if bytes > 10_000 || n == 0 || bytes != uint64(n*(entryCost+400)) {
			t.Errorf("%d entries of %d bytes", n, bytes)
		}
		off := f.tokenizer(t, Options{CacheBytes: -1})
		for range 2 {
			if r, err := off.Tokens(t.Context(), call(t, "a:1", "p")); r.Outcome != OK || err != nil {
				t.Errorf("without a cache: %+v, %v", r, err)
			}
		}
	})
}

// gate answers like letters, each request when it is let through.
func gate(open <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-open:
			letters(w, r)
		case <-r.Context().Done():
		}
	}
}

// callers starts n identical calls and waits until all of them are under way.
func callers(z *Tokenizer, n int, ctx func(i int) context.Context, c func(i int) Call) func() map[Outcome]int {
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		outcomes = make(map[Outcome]int)
	)
	for i := range n {
		wg.Go(func() {
			r, _ := z.Tokens(ctx(i), c(i))
			mu.Lock()
			outcomes[r.Outcome]++
			mu.Unlock()
		})
		synctest.Wait()
	}
	return func() map[Outcome]int {
		wg.Wait()
		return outcomes
	}
}

func TestIdenticalCallsAreMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		open := make(chan struct{})
		f.engine(t, "a:1", gate(open))
		z := f.tokenizer(t, Options{Concurrency: 1})
		same := call(t, "a:1", "p")
		outcomes := callers(z, 50, func(int) context.Context { return t.Context() }, func(int) Call { return same })
		close(open)
		if diff := cmp.Diff(map[Outcome]int{OK: 1, Shared: 49}, outcomes()); diff != "" || f.calls.Load() != 1 {
			t.Errorf("%d calls: %s", f.calls.Load(), diff)
		}
		if len(z.flights) != 0 || len(z.slots) != 0 {
			t.Errorf("%d flights and %d slots left", len(z.flights), len(z.slots))
		}
	})
}

func TestFirstCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		open := make(chan struct{})
		f.engine(t, "a:1", gate(open))
		z := f.tokenizer(t, Options{})
		first, giveUp := context.WithCancel(t.Context())
		same := call(t, "a:1", "p")
		outcomes := callers(z, 5, func(i int) context.Context {
			if i == 0 {
				return first
			}
			return t.Context()
		}, func(int) Call { return same })
		giveUp()
		synctest.Wait()
		close(open)
		if diff := cmp.Diff(map[Outcome]int{Canceled: 1, OK: 1, Shared: 3}, outcomes()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWaitingCallersKeepTheirOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		f.engine(t, "a:1", silent)
		z := f.tokenizer(t, Options{})
		same := call(t, "a:1", "p")
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		gone, giveUp := context.WithCancel(t.Context())
		giveUp()
		start := time.Now()
		outcomes := callers(z, 4, func(i int) context.Context {
			return []context.Context{t.Context(), short, gone, t.Context()}[i]
		}, func(int) Call { return same })
		<-short.Done()
		synctest.Wait()
		if took := time.Since(start); took != 20*time.Millisecond {
			t.Errorf("short deadline ended after %v", took)
		}
		if diff := cmp.Diff(map[Outcome]int{Timeout: 3, Canceled: 1}, outcomes()); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(start); took != 250*time.Millisecond {
			t.Errorf("all ended after %v", took)
		}
	})
}

func TestFirstCallersEndpointFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		open := make(chan struct{})
		f.engine(t, "a:1", func(http.ResponseWriter, *http.Request) {
			<-open
			panic(http.ErrAbortHandler)
		})
		f.engine(t, "b:1", letters)
		z := f.tokenizer(t, Options{})
		a, b := call(t, "a:1", "p"), call(t, "b:1", "p")
		outcomes := callers(z, 4, func(int) context.Context { return t.Context() }, func(i int) Call {
			return []Call{a, a, b, b}[i]
		})
		close(open)
		got := outcomes()
		// One of the two callers of b asks it; the other shares or finds the answer in the cache.
		if got[Unreachable] != 2 || got[OK] != 1 || got[Shared]+got[Cached] != 1 {
			t.Errorf("outcomes %v", got)
		}
	})
}

func TestShedding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		open := make(chan struct{})
		f.engine(t, "a:1", gate(open))
		z := f.tokenizer(t, Options{Concurrency: 3})
		start := time.Now()
		outcomes := callers(z, 8, func(int) context.Context { return t.Context() }, func(i int) Call {
			return call(t, "a:1", fmt.Sprint("p", i))
		})
		if time.Since(start) != 0 {
			t.Error("a shed call waited")
		}
		close(open)
		if diff := cmp.Diff(map[Outcome]int{OK: 3, Shed: 5}, outcomes()); diff != "" {
			t.Error(diff)
		}
		if r, err := z.Tokens(t.Context(), call(t, "a:1", "later")); r.Outcome != OK {
			t.Errorf("after shedding: %+v, %v", r, err)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Timeout: -1}, {CacheAge: -1}, {Concurrency: -1}, {Concurrency: 1 << 20}, {MaxTokens: -1}, {MaxTokens: 1 << 30}} {
		if z, err := New(o); err == nil || z != nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	_, err := New(Options{Timeout: -1, MaxTokens: -1})
	if err == nil || !strings.Contains(err.Error(), "timeout") || !strings.Contains(err.Error(), "max tokens") {
		t.Errorf("error %v does not name both problems", err)
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		var f fabric
		f.engine(t, "a:1", letters)
		z := f.tokenizer(t, Options{Metrics: NewMetrics(reg)})
		for range 3 {
			_, _ = z.Tokens(t.Context(), call(t, "a:1", "p"))
		}
		_, _ = z.Tokens(t.Context(), call(t, "b:1", "q"))
		problems, err := testutil.GatherAndLint(reg)
		if err != nil || len(problems) > 0 {
			t.Errorf("lint: %v %v", problems, err)
		}
		want := `
# HELP kvsteer_tokenize_cache_bytes Bytes of cached token ids, with the cost of an entry.
# TYPE kvsteer_tokenize_cache_bytes gauge
kvsteer_tokenize_cache_bytes 260
# HELP kvsteer_tokenize_cache_entries Prompts whose token ids are cached.
# TYPE kvsteer_tokenize_cache_entries gauge
kvsteer_tokenize_cache_entries 1
# HELP kvsteer_tokenize_in_flight Calls of an engine's /tokenize or render endpoint that are under way.
# TYPE kvsteer_tokenize_in_flight gauge
kvsteer_tokenize_in_flight 0
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_tokenize_cache_bytes",
			"kvsteer_tokenize_cache_entries", "kvsteer_tokenize_in_flight"); err != nil {
			t.Error(err)
		}
		counts := make(map[string]uint64)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "kvsteer_tokenize_duration_seconds" {
				for _, m := range family.Metric {
					if n := m.Histogram.GetSampleCount(); n > 0 {
						counts[m.Label[0].GetValue()] = n
					}
				}
			}
		}
		if diff := cmp.Diff(map[string]uint64{"ok": 1, "cached": 2, "unreachable": 1}, counts); diff != "" {
			t.Error(diff)
		}
	})
}

func BenchmarkTokenizeCached(b *testing.B) {
	for _, size := range []int{2 << 10, 32 << 10, 197 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			z, err := New(Options{})
			if err != nil {
				b.Fatal(err)
			}
			c := call(b, "a:1", strings.Repeat("word ", size/5))
			body, _ := appendBody(nil, c)
			z.cache.put(sum(body), &entry{tokens: make([]uint32, size/5), stored: time.Now()})
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if r, err := z.Tokens(b.Context(), c); r.Outcome != Cached {
					b.Fatal(err)
				}
			}
		})
	}
}
