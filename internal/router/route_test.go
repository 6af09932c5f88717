package router

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/tokenize"
	"github.com/kvsteer/kvsteer/subscriber"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const block = 16

var plain = blockhash.Namespace{}

// Every reason is reached, and nothing but a reason of the closed set comes out.
func TestEveryReason(t *testing.T) {
	a, b, c := address(0), address(1), address(2)
	long := run(1, 10*block)
	text := strings.Repeat("x", 100)
	indexed := func(w *world) { w.hold(a, block, plain, run(1, 4*block)) }
	tests := []struct {
		reason  Reason
		name    string
		options Options
		pools   []pool.Config // default: chat of three
		prepare func(w *world)
		ctx     func(context.Context) context.Context
		req     Request
		want    Decision // Reason and ID apart; Endpoint "*" is any
	}{
		{reason: ReasonPrefix, prepare: indexed, req: given("llama", long), want: Decision{Pool: "chat", Endpoint: a, Matched: 4 * block, Prompt: 10 * block}},
		{reason: ReasonLoad, prepare: func(w *world) {
			indexed(w)
			w.r.all()[0].all()[0].account.charge(1e6, 0, 0)
		}, req: given("llama", long), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 10 * block}},
		{reason: ReasonNoMatch, prepare: indexed, req: given("llama", run(500, 10*block)), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 10 * block}},
		{reason: ReasonShort, prepare: indexed, req: given("llama", run(1, block)), want: Decision{Pool: "chat", Endpoint: "*", Prompt: block}},
		{reason: ReasonSingle, prepare: func(w *world) { indexed(w); w.fail(a, c) }, req: given("llama", long), want: Decision{Pool: "chat", Endpoint: b, Prompt: 10 * block}},
		{reason: ReasonNoEvents, req: completion(`"model":"llama","prompt":"hello"`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonNoEvents, name: "token ids", req: given("llama", long), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 10 * block}},
		{reason: ReasonNoIndex, name: "connected but empty", prepare: func(w *world) { w.connect(a, block) }, req: completion(`"model":"llama","prompt":"hello"`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonNoIndex, name: "the only indexed is down", prepare: func(w *world) { indexed(w); w.fail(a) }, req: completion(`"model":"llama","prompt":"hello"`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonNoIndex, name: "disconnected", prepare: func(w *world) {
			indexed(w)
			w.sources[a].Describe(subscriber.Description{BlockSize: block})
		}, req: given("llama", long), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 10 * block}},
		{reason: ReasonNoExtra, prepare: func(w *world) {
			indexed(w)
			w.sources[a].Describe(subscriber.Description{Connected: true, BlockSize: block})
		}, req: completion(`"model":"llama","cache_salt":"s","prompt":"hello"`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonOverModel, name: "configured", pools: []pool.Config{limited(10 * block)}, prepare: indexed, req: given("llama", long), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 10 * block}},
		{reason: ReasonOverModel, name: "told by the engine", prepare: func(w *world) { indexed(w); w.words.maxLen = 50 }, req: completion(`"model":"llama","prompt":"` + text + `"`), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 102}},
		{reason: ReasonUnread, prepare: indexed, req: Request{Unread: true}, want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonUnknownModel, prepare: indexed, req: given("gpt", long), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonNoTokenizer, prepare: func(w *world) { indexed(w); w.r.settings.Load().Tokenizer = nil }, req: completion(`"model":"llama","prompt":"hello"`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonDeadline, prepare: indexed, ctx: expired, req: completion(`"model":"llama","prompt":"hello"`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonAborted, prepare: indexed, ctx: canceled, req: completion(`"model":"llama","prompt":"hello"`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonNoPool, pools: []pool.Config{chat(2), code()}, req: given("gpt", long)},
		{reason: ReasonNoEndpoint, prepare: func(w *world) { w.fail(a, b, c) }, req: given("llama", long), want: Decision{Pool: "chat"}},
		{reason: ReasonNoEndpoint, name: "all drain", prepare: func(w *world) { w.drain(a, b, c) }, req: given("llama", long), want: Decision{Pool: "chat"}},
		{reason: ReasonSingle, name: "the others drain", prepare: func(w *world) { indexed(w); w.drain(a, c) }, req: given("llama", long), want: Decision{Pool: "chat", Endpoint: b, Prompt: 10 * block}},
		{reason: ReasonNoIndex, name: "the only indexed drains", prepare: func(w *world) { indexed(w); w.drain(a) }, req: completion(`"model":"llama","prompt":"hello"`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonLoad, name: "the holder is suspect", prepare: func(w *world) { indexed(w); w.r.all()[0].all()[0].endpoint.ReportMissed() }, req: given("llama", long), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 10 * block}},
		{reason: ReasonNoSubset, prepare: indexed, req: within(given("llama", long), "10.9.9.9:8000"), want: Decision{Pool: "chat"}},
		{reason: ReasonNoSubset, name: "empty", prepare: indexed, req: within(given("llama", long)), want: Decision{Pool: "chat"}},
		{reason: ReasonNoSubset, name: "down", prepare: func(w *world) { indexed(w); w.fail(b) }, req: within(given("llama", long), b), want: Decision{Pool: "chat"}},
		{reason: ReasonNoIndex, name: "not of the subset", prepare: indexed, req: within(given("llama", long), b, c), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 10 * block}},
		{reason: ReasonOverloaded, prepare: func(w *world) {
			for _, t := range w.r.all()[0].all() {
				t.account.charge(1001, 0, 0)
			}
		}, req: Request{Unread: true, Shed: 1000}, want: Decision{Pool: "chat", Overloaded: true}},
		{reason: Reason(openai.ReasonMultipart), name: "not read", prepare: indexed, req: Request{Unread: true, Meta: openai.Meta{ContentType: "multipart/form-data"}}, want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: ReasonOff, prepare: func(w *world) { w.mode("chat", ModeOff, 100) }, req: given("llama", long), want: Decision{Pool: "chat", Mode: ModeOff}},
		{reason: ReasonOff, name: "by the model", pools: []pool.Config{chat(2), code()}, prepare: func(w *world) { w.mode("code", ModeOff, 100) }, req: given("qwen", long), want: Decision{Pool: "code", Mode: ModeOff}},
		{reason: Reason(openai.ReasonTooLong), name: "text", options: Options{Limits: openai.Limits{PromptTokens: 50}}, prepare: indexed, req: completion(`"model":"llama","prompt":"` + text + `"`), want: Decision{Pool: "chat", Endpoint: "*", Prompt: 102}},
		{reason: Reason(openai.ReasonNotJSON), prepare: indexed, req: completion(`"model":`), want: Decision{Pool: "chat", Endpoint: "*"}},
		{reason: Reason(openai.ReasonNoBody), name: "model list", prepare: indexed, req: Request{Meta: openai.Meta{Method: "GET", Path: "/v1/models"}}, want: Decision{Pool: "chat", Endpoint: "*"}},
	}
	known := map[Reason]bool{}
	for _, d := range Reasons() {
		known[d.Reason] = true
	}
	reached := map[Reason]bool{}
	for _, tt := range tests {
		t.Run(strings.TrimSpace(string(tt.reason)+" "+tt.name), func(t *testing.T) {
			if tt.pools == nil {
				tt.pools = []pool.Config{chat(3)}
			}
			w := newWorld(t, tt.options, tt.pools...)
			if tt.prepare != nil {
				tt.prepare(w)
			}
			ctx := t.Context()
			if tt.ctx != nil {
				ctx = tt.ctx(ctx)
			}
			got := w.r.Decide(ctx, tt.req)
			if !known[got.Reason] {
				t.Errorf("reason %q is not of the closed set", got.Reason)
			}
			if got.Reason != tt.reason {
				t.Errorf("reason %q, want %q", got.Reason, tt.reason)
			}
			reached[got.Reason] = true
			if got.ID == "" || got.Second == got.Endpoint && got.Endpoint != "" {
				t.Errorf("decision %+v", got)
			}
			if tt.want.Endpoint == "*" && got.Endpoint != "" {
				tt.want.Endpoint = got.Endpoint
			}
			want := tt.want
			want.ID, want.Reason, want.Second = got.ID, got.Reason, got.Second
			switch {
			case want.Endpoint == "":
				want.Rung = RungNone
			case slices.Contains([]Reason{ReasonPrefix, ReasonLoad, ReasonNoMatch, ReasonShort}, tt.reason):
				want.Rung = RungExact
			default:
				want.Rung = RungLoad
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("decision\n got %+v\nwant %+v", got, want)
			}
		})
	}
	for _, d := range Reasons() {
		if !reached[d.Reason] && !ofOthers(d.Reason) {
			t.Errorf("reason %q is not reached by any case", d.Reason)
		}
	}
}

// ofOthers are the reasons of package openai, and those that TestTokenizerFails reaches.
func ofOthers(r Reason) bool {
	return slices.Contains(openai.Reasons(), openai.Reason(r)) || strings.HasPrefix(string(r), "tokenize_")
}

func limited(n int) pool.Config {
	c := chat(3)
	c.MaxModelLen = n
	return c
}

func code() pool.Config {
	return pool.Config{Name: "code", Models: []string{"qwen"}, Endpoints: []string{"10.1.0.1:8000", "10.1.0.2:8000"}}
}

func canceled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

func expired(ctx context.Context) context.Context {
	ctx, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
	cancel()
	return ctx
}

func TestReasonsAreDocumented(t *testing.T) {
	seen := map[Reason]bool{}
	for _, d := range Reasons() {
		if seen[d.Reason] || d.Meaning == "" {
			t.Errorf("reason %q occurs twice or has no meaning", d.Reason)
		}
		seen[d.Reason] = true
	}
	for _, r := range openai.Reasons() {
		if !seen[Reason(r)] {
			t.Errorf("reason %q of package openai has no entry", r)
		}
	}
}

// What a candidate holds is counted in its own block size, its own namespace, and never up to the last token.
func TestMatched(t *testing.T) {
	a, b, c := address(0), address(1), address(2)
	tokens := run(1, 20*block)
	salted := func(r Request) Request {
		r.Body = append([]byte(`{"cache_salt":"red",`), r.Body[1:]...)
		return r
	}
	tests := []struct {
		name     string
		prepare  func(w *world)
		req      Request
		endpoint string // "" for any
		matched  int
	}{
		{"longest holder", func(w *world) { w.hold(a, block, plain, tokens[:2*block]); w.hold(b, block, plain, tokens[:9*block]) }, given("llama", tokens), b, 9 * block},
		{"not the last token", func(w *world) { w.hold(a, block, plain, tokens) }, given("llama", tokens), a, 19 * block},
		{"partial block", func(w *world) { w.hold(a, block, plain, tokens) }, given("llama", tokens[:3*block+7]), a, 3 * block},
		{"coarse blocks hold more", func(w *world) { w.hold(a, block, plain, tokens[:5*block]); w.hold(b, 4*block, plain, tokens[:8*block]) }, given("llama", tokens), b, 8 * block},
		{"coarse blocks reach less far", func(w *world) { w.hold(a, block, plain, tokens); w.hold(b, 8*block, plain, tokens) }, given("llama", tokens), a, 19 * block},
		{"four block sizes", func(w *world) {
			for i, size := range []int{1, 2, 64, 128} {
				w.hold(address(i), size, plain, tokens[:128+i*64])
			}
		}, given("llama", tokens), "", 256},
		{"adapter", func(w *world) {
			w.hold(a, block, plain, tokens)
			w.hold(b, block, blockhash.Namespace{Adapter: "sql"}, tokens[:4*block])
		}, given("sql", tokens), b, 4 * block},
		{"adapter's blocks are not the base's", func(w *world) { w.hold(a, block, blockhash.Namespace{Adapter: "sql"}, tokens) }, given("llama", tokens), "", 0},
		{"salt", func(w *world) {
			w.hold(a, block, plain, tokens)
			w.hold(b, block, blockhash.Namespace{Salt: "red"}, tokens[:4*block])
		}, salted(given("llama", tokens)), b, 4 * block},
		{"other salt", func(w *world) { w.hold(a, block, blockhash.Namespace{Salt: "blue"}, tokens) }, salted(given("llama", tokens)), "", 0},
		{"salted prompt and an old engine", func(w *world) {
			w.hold(a, block, blockhash.Namespace{Salt: "red"}, tokens)
			w.hold(b, block, blockhash.Namespace{Salt: "red"}, tokens[:4*block])
			w.sources[a].Describe(subscriber.Description{Connected: true, BlockSize: block})
		}, salted(given("llama", tokens)), b, 4 * block},
		{"unhealthy holder", func(w *world) {
			w.hold(a, block, plain, tokens)
			w.hold(b, block, plain, tokens[:2*block])
			w.fail(a)
		}, given("llama", tokens), b, 2 * block},
		{"after a reset", func(w *world) {
			w.hold(a, block, plain, tokens)
			w.hold(b, block, plain, tokens[:2*block])
			w.sources[a].Reset(subscriber.CauseGap)
		}, given("llama", tokens), b, 2 * block},
		{"host copy only", func(w *world) {
			w.hold(a, block, plain, tokens[:10*block])
			ns := plain
			ns.Pool, ns.BlockSize = "chat", block
			keys := blockhash.AppendKeys(nil, ns.Root(), tokens[:10*block], block)
			slices.Reverse(keys)
			w.sources[a].Remove(subscriber.Device, keys)
			w.hold(c, block, plain, tokens[:6*block])
		}, given("llama", tokens), a, 10 * block},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(4))
			tt.prepare(w)
			got := w.r.Decide(t.Context(), tt.req)
			if tt.endpoint != "" && got.Endpoint != tt.endpoint || got.Matched != tt.matched {
				t.Errorf("decision %+v, want %d tokens at %q", got, tt.matched, tt.endpoint)
			}
		})
	}
}

func TestBlockSizesAreBounded(t *testing.T) {
	w := newWorld(t, Options{}, chat(6))
	tokens := run(1, 20*block)
	for i := range maxBlockSizes {
		w.hold(address(i), 1<<i, plain, run(5000, 64)) // another prompt
	}
	w.hold(address(5), 1<<maxBlockSizes, plain, tokens)
	if got := w.r.Decide(t.Context(), given("llama", tokens)); got.Reason != ReasonNoMatch {
		t.Errorf("%+v, want the fifth block size not to be looked up", got)
	}
	w.pass(time.Hour)
	w.sources[address(0)].Reset(subscriber.CauseGap)
	if got := w.r.Decide(t.Context(), given("llama", tokens)); got.Endpoint != address(5) {
		t.Errorf("%+v, want the holder with one block size less in the pool", got)
	}
}

func TestNoTokenizerCallWithoutIndex(t *testing.T) {
	w := newWorld(t, Options{}, chat(3))
	for _, req := range []Request{
		completion(`"model":"llama","prompt":"hello"`),
		completion(`"model":"sql","prompt":"hello"`),
		completion(`"model":"gpt","prompt":"hello"`),
		completion(`"model":"llama","prompt":["a","b"]`),
		{Unread: true},
	} {
		w.r.Decide(t.Context(), req)
	}
	w.hold(address(0), block, plain, run(1, 64))
	w.r.Decide(t.Context(), given("llama", run(1, 64))) // brings its own
	if n := w.words.count(); n != 0 {
		t.Errorf("%d tokenizer calls, want none", n)
	}
	w.r.Decide(t.Context(), completion(`"model":"llama","prompt":"hello"`))
	if n := w.words.count(); n != 1 {
		t.Errorf("%d tokenizer calls, want one", n)
	}
}

func TestTokenizesAtTheLeastBusyIndexedCandidate(t *testing.T) {
	w := newWorld(t, Options{}, chat(4))
	w.hold(address(1), block, plain, run(1, 64))
	w.hold(address(2), block, plain, run(1, 64))
	w.r.all()[0].all()[1].account.charge(100, 0, 0)
	w.r.Decide(t.Context(), completion(`"model":"llama","prompt":"hello"`))
	if want := []string{address(2)}; !slices.Equal(w.words.calls, want) {
		t.Errorf("asked %q, want %q", w.words.calls, want)
	}
}

func TestTokenizerFails(t *testing.T) {
	all := func(o tokenize.Outcome) map[string]error { return map[string]error{"": &tokenize.Error{Outcome: o}} }
	first := func(o tokenize.Outcome) map[string]error {
		return map[string]error{address(0): fmt.Errorf("wrapped: %w", &tokenize.Error{Outcome: o})}
	}
	tests := []struct {
		name   string
		errs   map[string]error
		calls  int
		reason Reason
	}{
		{"no failure", nil, 1, ReasonNoMatch},
		{"first endpoint is unreachable", first(tokenize.Unreachable), 2, ReasonNoMatch},
		{"first endpoint fails", first(tokenize.Failed), 2, ReasonNoMatch},
		{"all endpoints are unreachable", all(tokenize.Unreachable), 2, ReasonTokenizeUnreachable},
		{"all endpoints fail", all(tokenize.Failed), 2, ReasonTokenizeError},
		{"refused", first(tokenize.Refused), 1, ReasonTokenizeRefused},
		{"shed", first(tokenize.Shed), 1, ReasonTokenizeShed},
		{"timeout", first(tokenize.Timeout), 1, ReasonTokenizeTimeout},
		{"canceled", first(tokenize.Canceled), 1, ReasonAborted},
		{"too long", first(tokenize.TooLong), 1, Reason(openai.ReasonTooLong)},
		{"bad reply", first(tokenize.BadReply), 1, ReasonTokenizeError},
		{"another error", map[string]error{"": errors.New("no tokens")}, 2, ReasonTokenizeError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(3))
			w.hold(address(0), block, plain, run(1, 64))
			w.hold(address(1), block, plain, run(1, 64))
			w.r.all()[0].all()[1].account.charge(100, 0, 0) // so that address(0) is asked first
			w.words.errs = tt.errs
			got := w.r.Decide(t.Context(), completion(`"model":"llama","prompt":"the quick brown fox jumps"`))
			if got.Reason != tt.reason || w.words.count() != tt.calls || got.Endpoint == "" {
				t.Errorf("%+v after %d calls, want reason %q after %d", got, w.words.count(), tt.reason, tt.calls)
			}
		})
	}
}

func TestAPIKeyGoesToItsPool(t *testing.T) {
	w := newWorld(t, Options{APIKeys: map[string]string{"chat": "secret", "code": "other"}}, chat(3), code())
	w.hold(address(0), block, plain, run(1, 64))
	w.r.Decide(t.Context(), completion(`"model":"sql","prompt":"hello"`))
	want := tokenize.Call{Pool: "chat", Endpoint: address(0), Model: "sql", APIKey: "secret"}
	got := w.words.last
	got.Request = nil
	if got != want {
		t.Errorf("call %+v, want %+v", got, want)
	}
}

func TestBudgetHoldsWithAHungTokenizer(t *testing.T) {
	tests := []struct {
		name    string
		options Options
		timeout time.Duration // of the caller; 0 for none
		cancel  time.Duration // the caller goes away; 0 for never
		took    time.Duration
		reason  Reason
	}{
		{"default budget", Options{}, 0, 0, 400 * time.Millisecond, ReasonTokenizeTimeout},
		{"own budget", Options{Budget: 50 * time.Millisecond}, 0, 0, 50 * time.Millisecond, ReasonTokenizeTimeout},
		{"caller's deadline is sooner", Options{}, 30 * time.Millisecond, 0, 30 * time.Millisecond, ReasonTokenizeTimeout},
		{"caller goes away", Options{}, 0, 20 * time.Millisecond, 20 * time.Millisecond, ReasonAborted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.options.Now = time.Now
				w := newWorld(t, tt.options, chat(3))
				w.hold(address(0), block, plain, run(1, 64))
				w.words.hang = true
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, tt.timeout)
					defer cancel()
				}
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				begin := time.Now()
				got := w.r.Decide(ctx, completion(`"model":"llama","prompt":"hello"`))
				if took := time.Since(begin); took != tt.took || got.Reason != tt.reason || got.Endpoint == "" {
					t.Errorf("%+v after %v, want reason %q after %v", got, took, tt.reason, tt.took)
				}
			})
		})
	}
}

func TestCharges(t *testing.T) {
	a := address(0)
	tests := []struct {
		name    string
		prepare func(context.Context, *world) context.Context
		req     Request
		want    float64 // backlog of all endpoints together
	}{
		{"uncached part of a match", nil, given("llama", run(1, 200)), 200 - 128},
		{"no match", nil, given("llama", run(900, 200)), 200},
		{"estimate of an image", nil, completion(`"model":"llama","prompt":["a","b"],"x":"` + strings.Repeat("y", 3958) + `"`), 1000},
		{"estimate of a huge body", nil, completion(`"model":"llama","prompt":["a","b"],"x":"` + strings.Repeat("y", 1<<20) + `"`), maxEstimate},
		{"body that was not read", nil, Request{Unread: true}, maxEstimate},
		{"no body", nil, Request{Meta: openai.Meta{Method: "GET", Path: "/v1/models"}}, 0},
		{"longer than the model takes", nil, given("llama", run(1, 12_000)), 0},
		{"longer than the model takes, nothing indexed", func(ctx context.Context, w *world) context.Context {
			w.sources[a].Reset(subscriber.CauseGap)
			return ctx
		}, given("llama", run(1, 12_000)), 0},
		{"too long to be tokenized, so longer than the model takes", func(ctx context.Context, w *world) context.Context {
			w.words.errs = map[string]error{"": &tokenize.Error{Outcome: tokenize.TooLong}}
			return ctx
		}, completion(`"model":"llama","prompt":"` + strings.Repeat("y", 1<<20) + `"`), 0},
		{"estimate is at most what the model takes", func(ctx context.Context, w *world) context.Context {
			w.words.errs = map[string]error{"": &tokenize.Error{Outcome: tokenize.Shed}}
			return ctx
		}, completion(`"model":"llama","prompt":"` + strings.Repeat("y", 1<<20) + `"`), 10_000},
		{"caller went away, nothing indexed", func(ctx context.Context, w *world) context.Context {
			w.sources[a].Reset(subscriber.CauseGap)
			return canceled(ctx)
		}, completion(`"model":"llama","prompt":"hello"`), 0},
		{"caller went away, prompt cannot be keyed", func(ctx context.Context, _ *world) context.Context { return canceled(ctx) }, completion(`"model":"llama","prompt":["a","b"]`), 0},
		{"caller went away", func(ctx context.Context, _ *world) context.Context { return canceled(ctx) }, completion(`"model":"llama","prompt":"hello"`), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, limited(10_000))
			w.hold(a, block, plain, run(1, 8*block))
			ctx := t.Context()
			if tt.prepare != nil {
				ctx = tt.prepare(ctx, w)
			}
			got := w.r.Decide(ctx, tt.req)
			sum := 0.0
			for i, l := range w.loads(w.clock()) {
				sum += l.backlog
				if l.backlog > 0 && address(i) != got.Endpoint {
					t.Errorf("%s is charged, %s was chosen", address(i), got.Endpoint)
				}
			}
			if sum != tt.want {
				t.Errorf("%v tokens charged, want %v", sum, tt.want)
			}
			w.pass(20 * time.Minute)
			for _, l := range w.loads(w.clock()) {
				if l != (load{}) {
					t.Errorf("20 minutes later: %+v", l)
				}
			}
		})
	}
}

// Where nobody says what the model takes, a prompt is charged no further than prompts are matched.
func TestEstimateIsBounded(t *testing.T) {
	w := newWorld(t, Options{Limits: openai.Limits{PromptTokens: 10_000}}, chat(1))
	w.r.Decide(t.Context(), completion(`"model":"llama","prompt":"`+strings.Repeat("y", 1<<20)+`"`))
	if got := w.loads(w.clock())[0].backlog; got != 10_000 {
		t.Errorf("%v tokens charged, want 10000", got)
	}
}

func TestEventsReleaseCharges(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	tokens := run(1, 30*block+5)
	backlog := func() (sum float64) {
		for _, l := range w.loads(w.clock()) {
			sum += l.backlog
		}
		return sum
	}
	w.hold(address(0), block, plain, tokens[:20*block])
	d := w.r.Decide(t.Context(), given("llama", tokens))
	if d.Endpoint != address(0) || backlog() != 10*block+5 {
		t.Fatalf("%+v with %v tokens charged", d, backlog())
	}
	keys := chain(tokens)[20:]
	w.sources[address(0)].Store(subscriber.Any, keys)
	if got := backlog(); got != 10*block+5 {
		t.Errorf("%v tokens charged before the device has the blocks", got)
	}
	w.sources[address(0)].Store(subscriber.Device, keys[:5])
	if got := backlog(); got != 10*block+5 {
		t.Errorf("%v tokens charged with part of the prompt computed", got)
	}
	w.sources[address(0)].Store(subscriber.Device, keys[5:])
	if got := backlog(); got != 0 {
		t.Errorf("%v tokens charged when the prompt is computed", got)
	}
}

func TestDecisionIDs(t *testing.T) {
	w, other := newWorld(t, Options{}, chat(1)), newWorld(t, Options{}, chat(1))
	if w.r.ids.instance == other.r.ids.instance || len(w.r.ids.instance) != 8 {
		t.Errorf("instances %q and %q", w.r.ids.instance, other.r.ids.instance)
	}
	seen := map[string]bool{}
	for range 1000 {
		id := w.r.Decide(t.Context(), Request{}).ID
		if seen[id] || !strings.HasPrefix(id, w.r.ids.instance+"-") || strings.ContainsFunc(id, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-'
		}) {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}

func TestNewValidates(t *testing.T) {
	_, err := New(Options{Budget: -1, PrefillRate: -1, Tiers: map[string]TierWeights{"chat": {Host: 2}, "code": {Disk: math.NaN()}}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"pools", "index", "budget", "prefill rate", `pool "chat": host weight: 2`, `pool "code": disk weight: NaN`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error lacks %q: %v", part, err)
		}
	}
}
