package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/tokenize"
	"github.com/kvsteer/kvsteer/subscriber"
)

// textual is a world whose pool matches by text, too.
func textual(t testing.TB, o Options, endpoints int) *world {
	t.Helper()
	var err error
	if o.Texts, err = approx.New(approx.Options{}); err != nil {
		t.Fatal(err)
	}
	return newWorld(t, o, texted(endpoints))
}

// texted is a pool of n endpoints that matches by text.
func texted(n int) pool.Config {
	c := chat(n)
	c.CacheTokens, c.CacheLifetime = 400_000, time.Hour
	return c
}

// chats is a request for /v1/chat/completions with these messages and further fields.
func chats(fields string, messages ...string) Request {
	return Request{
		Meta: openai.Meta{Method: "POST", Path: "/v1/chat/completions"},
		Body: []byte(`{"model":"llama",` + fields + `"messages":[` + strings.Join(messages, ",") + `]}`),
	}
}

func message(role, text string, n int) string {
	return `{"role":"` + role + `","content":"` + strings.Repeat(text, n) + `"}`
}

// sendAlone decides and lets the charge of the decision pass, so that only what was sent where matters.
func (w *world) sendAlone(req Request) Decision {
	w.t.Helper()
	d := w.r.Decide(w.t.Context(), req)
	w.pass(10 * time.Minute)
	return d
}

func TestApproximate(t *testing.T) {
	first := []string{message("system", "You are kind. ", 60), message("user", "Hello there. ", 40)}
	more := append(append([]string(nil), first...), message("assistant", "Hi. ", 20), message("user", "And so on. ", 40))
	image := `{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a/b.png"}}]}`
	const bytes = 60*14 + 40*13 // of first, with some more around them
	tests := []struct {
		name     string
		prepare  func(w *world)
		req, and Request
		reason   Reason
		matched  int // least tokens; 0: rung load
	}{
		{name: "follow-up", req: chats("", first...), and: chats("", more...), reason: ReasonNoEvents, matched: bytes/4 - 64},
		{name: "the same again", req: chats("", first...), and: chats("", first...), reason: ReasonNoEvents, matched: bytes/4 - 64},
		{name: "tools count once they are held with the first message", req: chats(`"tools":["`+strings.Repeat("t", 2000)+`"],`, first...), and: chats(`"tools":["`+strings.Repeat("t", 2000)+`"],`, more...), reason: ReasonNoEvents, matched: (bytes+2000)/4 - 64},
		{name: "other tools", req: chats(`"tools":[1],`, first...), and: chats(`"tools":[2],`, more...), reason: ReasonNoEvents},
		{name: "salt", req: chats("", first...), and: chats(`"cache_salt":"s",`, more...), reason: ReasonNoEvents},
		{name: "the same salt", req: chats(`"cache_salt":"s",`, first...), and: chats(`"cache_salt":"s",`, more...), reason: ReasonNoEvents, matched: bytes/4 - 64},
		{name: "another conversation", req: chats("", first...), and: chats("", message("user", "Other. ", 200)), reason: ReasonNoEvents},
		{name: "image", req: chats("", append(first, image)...), and: chats("", append(first, image, more[2])...), reason: Reason(openai.ReasonMultimodal), matched: bytes/4 + 1000},
		{name: "token ids", req: given("llama", run(1, 1000)), and: given("llama", run(1, 1200)), reason: ReasonNoEvents, matched: 960},
		{name: "adapter", req: given("llama", run(1, 1000)), and: given("sql", run(1, 1200)), reason: ReasonNoEvents},
		{name: "truncated", req: chats("", first...), and: chats(`"truncate_prompt_tokens":10,`, more...), reason: Reason(openai.ReasonTruncation)},
		{name: "not JSON", req: chats("", first...), and: chats(`,`, more...), reason: Reason(openai.ReasonNotJSON)},
		{name: "unread", req: chats("", first...), and: Request{Unread: true}, reason: ReasonUnread},
		{name: "unknown model", req: chats("", first...), and: func() Request {
			r := chats("", more...)
			r.Body = []byte(strings.Replace(string(r.Body), "llama", "gpt", 1))
			return r
		}(), reason: ReasonUnknownModel},
		{name: "nothing is indexed", prepare: func(w *world) { w.connect(address(0), block) }, req: chats("", first...), and: chats("", more...), reason: ReasonNoIndex, matched: bytes/4 - 64},
		{name: "the tokenizer fails", prepare: func(w *world) {
			w.hold(address(0), block, plain, run(1, 4*block))
			w.words.errs = map[string]error{"": &tokenize.Error{Outcome: tokenize.Timeout}}
		}, req: chats("", first...), and: chats("", more...), reason: ReasonTokenizeTimeout, matched: bytes/4 - 64},
		{name: "no tokenizer", prepare: func(w *world) {
			w.hold(address(0), block, plain, run(1, 4*block))
			w.r.settings.Load().Tokenizer = nil
		}, req: chats("", first...), and: chats("", more...), reason: ReasonNoTokenizer, matched: bytes/4 - 64},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := textual(t, Options{}, 8)
			if tt.prepare != nil {
				tt.prepare(w)
			}
			one := w.sendAlone(tt.req)
			if one.Rung != RungLoad || one.Matched != 0 {
				t.Errorf("the first decision: %+v", one)
			}
			two := w.sendAlone(tt.and)
			if two.Reason != tt.reason {
				t.Errorf("reason %q, want %q", two.Reason, tt.reason)
			}
			if tt.matched == 0 {
				if two.Rung != RungLoad || two.Matched != 0 {
					t.Errorf("decision %+v, want one by load", two)
				}
				return
			}
			if two.Rung != RungApproximate || two.Endpoint != one.Endpoint || two.Matched < tt.matched || two.Matched >= two.Prompt {
				t.Errorf("decision %+v, want %d tokens or more at %s", two, tt.matched, one.Endpoint)
			}
		})
	}
}

// What has been matched exactly is known to the rung below when the tokenizer fails.
func TestApproximateAfterExact(t *testing.T) {
	w := textual(t, Options{}, 4)
	for i := range 4 {
		w.hold(address(i), block, plain, run(1, 4*block))
	}
	text := message("user", "Hello there. ", 100)
	one := w.sendAlone(chats("", text))
	if one.Rung != RungExact {
		t.Fatalf("decision %+v", one)
	}
	w.words.errs = map[string]error{"": &tokenize.Error{Outcome: tokenize.Failed}}
	two := w.sendAlone(chats("", text, message("user", "More. ", 50)))
	if two.Rung != RungApproximate || two.Endpoint != one.Endpoint || two.Matched == 0 || two.Reason != ReasonTokenizeError {
		t.Errorf("decision %+v after %+v", two, one)
	}
}

// Prompts given as token ids have nothing to fail when all is indexed, so they are not noted.
func TestTokenIDsAreNotNoted(t *testing.T) {
	w := textual(t, Options{}, 2)
	w.hold(address(0), block, plain, run(1, 4*block))
	noted := func() int { return w.r.all()[0].all()[0].sent.Blocks() + w.r.all()[0].all()[1].sent.Blocks() }
	w.sendAlone(given("llama", run(1, 1000)))
	if noted() == 0 {
		t.Error("while an endpoint is not indexed, nothing was noted")
	}
	w.hold(address(1), block, plain, run(1, 4*block))
	before := noted()
	w.sendAlone(given("llama", run(5000, 1000)))
	if got := noted(); got != before {
		t.Errorf("%d blocks were noted", got-before)
	}
}

// Siblings of a burst follow the first one, until the work queued there costs more than the prompt.
func TestApproximateBurst(t *testing.T) {
	w := textual(t, Options{}, 4)
	counts := map[string]int{}
	for i := range 40 {
		d := w.r.Decide(t.Context(), chats("", message("system", "A long system prompt. ", 2000), message("user", fmt.Sprintf("Question %d? ", i), 10)))
		counts[d.Endpoint]++
		w.pass(20 * time.Millisecond)
	}
	if len(counts) == 4 {
		t.Errorf("a burst of one prefix was spread over all: %v", counts)
	}
	// Load terms still apply: 40 prompts without any common prefix, all at once, use all endpoints.
	clear(counts)
	for i := range 40 {
		d := w.r.Decide(t.Context(), chats("", message("user", fmt.Sprintf("Story %d. ", i), 1000)))
		counts[d.Endpoint]++
	}
	if len(counts) != 4 {
		t.Errorf("40 prompts were sent to %v", counts)
	}
}

func TestApproximateForgets(t *testing.T) {
	text := message("user", "Hello there. ", 100)
	for _, tt := range []struct {
		name string
		do   func(w *world, endpoint string)
		want Rung
	}{
		{"nothing happens", func(*world, string) {}, RungApproximate},
		{"the endpoint is down", func(w *world, endpoint string) { w.fail(endpoint) }, RungLoad},
		{"the endpoint was down and is back", func(w *world, endpoint string) {
			w.fail(endpoint)
			w.net.accept()
			w.recover(endpoint)
		}, RungLoad},
		{"the endpoint drains", func(w *world, endpoint string) { w.drain(endpoint) }, RungLoad},
		{"the endpoint drained, and nothing came meanwhile", func(w *world, endpoint string) {
			w.drain(endpoint)
			w.undrain(endpoint)
		}, RungLoad},
		{"a configuration that drains the endpoint, and then not", func(w *world, endpoint string) {
			c := texted(3)
			c.Draining = []string{endpoint}
			w.apply(c)
			w.apply(texted(3))
		}, RungLoad},
		{"an undrained endpoint is undrained", func(w *world, endpoint string) { w.undrain(endpoint) }, RungApproximate},
		{"the endpoint drained once", func(w *world, endpoint string) {
			w.drain(endpoint)
			w.sendAlone(Request{Unread: true})
			w.undrain(endpoint)
		}, RungLoad},
		{"reset", func(w *world, endpoint string) {
			if err := w.r.Reset(endpoint); err != nil {
				w.t.Error(err)
			}
		}, RungLoad},
		{"another endpoint is reset", func(w *world, endpoint string) {
			for i := range 3 {
				if address(i) != endpoint {
					if err := w.r.Reset(address(i)); err != nil {
						w.t.Error(err)
					}
				}
			}
		}, RungApproximate},
		{"a configuration with one endpoint more", func(w *world, _ string) { w.apply(texted(4)) }, RungApproximate},
		{"a configuration without the endpoint, and then with it", func(w *world, endpoint string) {
			c := texted(3)
			c.Endpoints = slices.DeleteFunc(c.Endpoints, func(e string) bool { return e == endpoint })
			w.apply(c)
			w.apply(texted(3))
		}, RungLoad},
		{"a configuration that switches it off", func(w *world, _ string) { w.apply(chat(3)) }, RungLoad},
		{"a configuration that switches it off and on again", func(w *world, _ string) { w.apply(chat(3)); w.apply(texted(3)) }, RungLoad},
		{"time", func(w *world, _ string) { w.pass(2 * time.Hour) }, RungLoad},
		{"the cache is full of others", func(w *world, _ string) {
			for i := range 400 {
				w.sendAlone(chats("", message("user", fmt.Sprintf("Story %d. ", i), 2000)))
			}
		}, RungLoad},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := textual(t, Options{}, 3)
			one := w.sendAlone(chats("", text))
			tt.do(w, one.Endpoint)
			if two := w.sendAlone(chats("", text)); two.Rung != tt.want {
				t.Errorf("decision %+v, want rung %s", two, tt.want)
			}
		})
	}
}

// Observed decisions teach as obeyed ones do; those about requests that are left to Envoy for comparison teach nothing.
func TestApproximateModes(t *testing.T) {
	text := message("user", "Hello there. ", 100)
	for _, tt := range []struct {
		name    string
		mode    Mode
		percent int
		want    Rung
	}{
		{"on", ModeOn, 100, RungApproximate},
		{"observe", ModeObserve, 100, RungApproximate},
		{"on for none", ModeOn, 0, RungLoad},
		{"off", ModeOff, 100, RungNone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := textual(t, Options{}, 3)
			w.mode("chat", tt.mode, tt.percent)
			w.sendAlone(chats("", text))
			if d := w.sendAlone(chats("", text)); d.Rung != tt.want {
				t.Errorf("decision %+v, want rung %s", d, tt.want)
			}
		})
	}
}

// With a single healthy endpoint nothing is looked up, but what it is sent is noted for when there are several again.
func TestApproximateSingle(t *testing.T) {
	w := textual(t, Options{}, 2)
	w.fail(address(1))
	text := message("user", "Hello there. ", 100)
	for range 2 {
		if d := w.sendAlone(chats("", text)); d.Rung != RungLoad || d.Reason != ReasonSingle {
			t.Errorf("decision %+v", d)
		}
	}
	w.net.accept()
	w.recover(address(1))
	if d := w.sendAlone(chats("", text)); d.Rung != RungApproximate || d.Endpoint != address(0) {
		t.Errorf("decision %+v", d)
	}
}

func TestApproximateSwitchedOff(t *testing.T) {
	texts, err := approx.New(approx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Options{Texts: texts}, chat(2))
	for range 2 {
		if d := w.sendAlone(chats("", message("user", "Hello there. ", 100))); d.Rung != RungLoad || d.Reason != ReasonNoEvents {
			t.Errorf("decision %+v", d)
		}
	}
	if n := w.r.all()[0].all()[0].sent.Blocks() + w.r.all()[0].all()[1].sent.Blocks(); n != 0 {
		t.Errorf("%d blocks were noted", n)
	}
}

// No engine is asked for tokens where none publishes events, and no time is taken that is not there.
func TestApproximateAsksNobody(t *testing.T) {
	w := textual(t, Options{}, 3)
	text := message("user", "Hello there. ", 100)
	w.sendAlone(chats("", text))
	if d := w.sendAlone(chats("", text)); d.Rung != RungApproximate || w.words.count() != 0 {
		t.Errorf("decision %+v after %d calls of the tokenizer", d, w.words.count())
	}
	for name, ctx := range map[string]func(context.Context) context.Context{"expired": expired, "canceled": canceled} {
		if d := w.r.Decide(ctx(t.Context()), chats("", text)); d.Rung != RungLoad {
			t.Errorf("%s: decision %+v", name, d)
		}
	}
}

// A prompt that is estimated to be longer than the model takes is counted as long as the model takes, and never as held to its end.
func TestApproximateLongerThanTheModel(t *testing.T) {
	c := texted(2)
	c.MaxModelLen = 200
	texts, err := approx.New(approx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Options{Texts: texts}, c)
	text := message("user", "Hello there. ", 200)
	w.sendAlone(chats("", text))
	if d := w.sendAlone(chats("", text)); d.Rung != RungApproximate || d.Prompt != 200 || d.Matched != 199 {
		t.Errorf("decision %+v", d)
	}
	for _, l := range w.loads(w.clock()) {
		if l.memory < 0 || l.backlog < 0 {
			t.Errorf("load %+v", l)
		}
	}
}

// What events say of a cache holds for what is assumed of it.
func TestEventsForget(t *testing.T) {
	text := message("user", "Hello there. ", 100)
	for cause, want := range map[subscriber.Cause]Rung{
		subscriber.CauseGap: RungApproximate, subscriber.CauseDisconnect: RungApproximate, subscriber.CauseUnreadable: RungApproximate,
		subscriber.CauseBackwards: RungLoad, subscriber.CauseCleared: RungLoad,
	} {
		t.Run(string(cause), func(t *testing.T) {
			w := textual(t, Options{}, 2)
			one := w.sendAlone(chats("", text))
			w.connect(one.Endpoint, block).Reset(cause)
			if two := w.sendAlone(chats("", text)); two.Rung != want || two.Reason != ReasonNoIndex {
				t.Errorf("decision %+v, want rung %s", two, want)
			}
		})
	}
}

// The bytes of a token are learned from prompts whose tokens are known: here each byte is a token.
func TestRatioIsLearned(t *testing.T) {
	w := textual(t, Options{}, 2)
	for i := range 2 {
		w.hold(address(i), block, plain, run(1, 4*block))
	}
	w.sendAlone(chats("", message("user", "Hello there. ", 100)))
	w.words.errs = map[string]error{"": &tokenize.Error{Outcome: tokenize.Failed}}
	d := w.sendAlone(chats("", message("user", "Hello there. ", 100), message("user", "More. ", 200)))
	if d.Rung != RungApproximate || d.Matched < 1024 || d.Prompt < 2400 || d.Prompt > 2700 {
		t.Errorf("decision %+v, want about 2,500 tokens and 1,280 of them matched", d)
	}
}

func TestRatio(t *testing.T) {
	ids, text := openai.Request{Form: openai.Tokens}, openai.Request{Form: openai.Text}
	var r ratio
	if r.load() != approx.BytesPerToken || r.of(&ids) != 4 || r.of(&text) != 4 {
		t.Errorf("without a sample %v", r.load())
	}
	r.learn(1000, leastTokens-1)
	if r.load() != 4 {
		t.Errorf("after a short prompt %v", r.load())
	}
	r.learn(3000, 1000)
	if r.load() != 3 || r.of(&text) != 3 || r.of(&ids) != 4 {
		t.Errorf("after the first sample %v", r.load())
	}
	r.learn(5000, 1000)
	if got := r.load(); got <= 3 || got >= 3.5 {
		t.Errorf("after another sample %v", got)
	}
	for range 1000 {
		r.learn(1, 1_000_000)
	}
	if got := r.load(); got < 1 || got > 1.01 {
		t.Errorf("after absurd samples %v, want 1", got)
	}
}

// A lookup by text costs no memory beyond buffers that are used again.
func TestApproximateAllocates(t *testing.T) {
	w := textual(t, Options{}, 8)
	req := chats("", message("system", "A long system prompt. ", 2000), message("user", "Hello there. ", 100))
	f, sc := w.r.all()[0], new(scratch)
	parsed := openai.Parse(req.Meta, req.Body, openai.Limits{})
	watch := w.r.m.start(w.r.now)
	d := Decision{Rung: RungApproximate}
	one := func() {
		sc.gather(f, -1, 0)
		if !w.r.keyText(sc, f, "", &parsed, &watch) {
			t.Fatal("no text")
		}
		w.r.recall(sc, f, &parsed, 0, 1<<20, &watch)
		w.r.learn(sc, f, "", &parsed, &d, 3, true, &watch)
	}
	one()
	if n := testing.AllocsPerRun(20, one); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Decisions by text go on while endpoints are reset, drained and replaced, and while the configuration changes what is remembered.
func TestApproximateConcurrentUse(t *testing.T) {
	w := textual(t, Options{Now: time.Now}, 6)
	stop := make(chan struct{})
	var changes, deciders sync.WaitGroup
	changes.Go(func() {
		rnd := rand.New(rand.NewPCG(3, 4))
		for {
			select {
			case <-stop:
				return
			default:
			}
			switch e := address(rnd.IntN(6)); rnd.IntN(4) {
			case 0:
				_ = w.r.Reset(e)
			case 1:
				_ = w.r.Drain(e, rnd.IntN(2) == 0)
			default:
				c := texted(4 + rnd.IntN(3))
				c.CacheTokens = []int{0, 1000, 400_000}[rnd.IntN(3)]
				if err := w.r.Apply([]pool.Config{c}, *w.r.settings.Load()); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for g := range 4 {
		deciders.Go(func() {
			for i := range 150 {
				said := []string{message("system", "You are kind. ", 60)}
				for turn := range 4 {
					said = append(said, message("user", fmt.Sprintf("%d %d %d. ", g, i, turn), 40))
					if d := w.r.Decide(t.Context(), chats("", said...)); d.Matched > 0 && d.Matched >= d.Prompt {
						t.Errorf("decision %+v", d)
					}
				}
			}
		})
	}
	deciders.Wait()
	close(stop)
	changes.Wait()
	if !w.r.texts.Sound() {
		t.Error("a check found a difference")
	}
}
