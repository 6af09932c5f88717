package router

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/tokenize"
	"github.com/kvsteer/kvsteer/subscriber"
)

// hearer writes down the prompts that it is told of.
type hearer struct {
	wants bool

	mu  sync.Mutex
	got []subscriber.Prompt
}

func (h *hearer) Wants() bool { return h.wants }

func (h *hearer) Witness(p subscriber.Prompt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, p)
}

// TestWitness: who hears of a prompt, and for whom it is tokenized.
func TestWitness(t *testing.T) {
	hello := completion(`"model":"llama","prompt":"hello"`)
	tokens := tokensOf(`"hello"`)
	all := []int{0, 1, 2}
	tests := []struct {
		name    string
		wants   []int // endpoints whose subscribers want prompts
		pools   []pool.Config
		prepare func(w *world)
		ctx     func(context.Context) context.Context
		req     Request
		reason  Reason
		asked   int // calls of the tokenizer
		heard   int // how many of those that want a prompt are told: 0, 1 for the choice, 3 for all
		want    subscriber.Prompt
	}{
		{name: "nobody wants it", req: hello, reason: ReasonNoIndex},
		{name: "nothing is indexed", wants: all, req: hello, reason: ReasonNoIndex, asked: 1, heard: 1, want: subscriber.Prompt{Tokens: tokens}},
		{name: "token ids", wants: all, req: given("llama", run(1, 40)), reason: ReasonNoIndex, heard: 1, want: subscriber.Prompt{Tokens: run(1, 40)}},
		{name: "adapter and salt", wants: all, req: completion(`"model":"sql","cache_salt":"s","prompt":"hello"`), reason: ReasonNoIndex, asked: 1, heard: 1, want: subscriber.Prompt{Adapter: "sql", Salt: "s", Tokens: tokens}},
		{name: "one indexed that has everything", wants: []int{0}, prepare: func(w *world) { w.hold(address(0), block, plain, run(1, 64)) }, req: given("llama", run(1, 40)), reason: ReasonPrefix, heard: 1, want: subscriber.Prompt{Tokens: run(1, 40)}},
		{name: "another is chosen", wants: []int{1}, prepare: func(w *world) { w.hold(address(0), block, plain, run(1, 64)) }, req: given("llama", run(1, 40)), reason: ReasonPrefix},
		{name: "salted, and the indexed cannot tell", wants: []int{1}, prepare: func(w *world) {
			w.hold(address(0), block, plain, run(1, 64))
			w.sources[address(0)].Describe(subscriber.Description{Connected: true, BlockSize: block})
			w.drain(address(2))
			w.r.all()[0].all()[0].account.charge(1e6, 0, 0)
		}, req: completion(`"model":"llama","cache_salt":"s","prompt":"hello"`), reason: ReasonNoExtra, asked: 1, heard: 1, want: subscriber.Prompt{Salt: "s", Tokens: tokens}},
		{name: "observed", wants: all, prepare: func(w *world) { w.mode("chat", ModeObserve, 100) }, req: hello, reason: ReasonNoIndex, asked: 1, heard: 3, want: subscriber.Prompt{Tokens: tokens}},
		{name: "left to Envoy", wants: all, prepare: func(w *world) { w.mode("chat", ModeOn, 0) }, req: hello, reason: ReasonNoIndex, asked: 1, heard: 3, want: subscriber.Prompt{Tokens: tokens}},
		{name: "off", wants: all, prepare: func(w *world) { w.mode("chat", ModeOff, 100) }, req: hello, reason: ReasonOff},
		{name: "the tokenizer fails", wants: all, prepare: func(w *world) {
			w.words.errs = map[string]error{"": &tokenize.Error{Outcome: tokenize.Refused, Err: errors.New("no")}}
		}, req: hello, reason: ReasonNoIndex, asked: 1},
		{name: "no tokenizer", wants: all, prepare: func(w *world) { w.r.settings.Load().Tokenizer = nil }, req: hello, reason: ReasonNoIndex},
		{name: "no time", wants: all, ctx: expired, req: hello, reason: ReasonDeadline},
		{name: "nobody waits", wants: all, ctx: canceled, req: given("llama", run(1, 40)), reason: ReasonAborted},
		{name: "longer than the model takes", wants: all, pools: []pool.Config{limited(40)}, req: given("llama", run(1, 40)), reason: ReasonOverModel},
		{name: "longer than is matched", wants: all, prepare: func(w *world) { w.r.settings.Load().Limits.PromptTokens = 3 }, req: hello, reason: "too_long", asked: 1},
		{name: "alone", wants: all, prepare: func(w *world) { w.drain(address(1), address(2)) }, req: hello, reason: ReasonSingle},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.pools == nil {
				tt.pools = []pool.Config{chat(3)}
			}
			w := newWorld(t, Options{}, tt.pools...)
			hearers := map[string]*hearer{}
			for i := range w.r.all()[0].all() {
				h := &hearer{}
				for _, j := range tt.wants {
					h.wants = h.wants || i == j
				}
				w.connect(address(i), block).TellPrompts(h)
				hearers[address(i)] = h
			}
			if tt.prepare != nil {
				tt.prepare(w)
			}
			ctx := t.Context()
			if tt.ctx != nil {
				ctx = tt.ctx(ctx)
			}
			d := w.r.Decide(ctx, tt.req)
			if d.Reason != tt.reason || w.words.count() != tt.asked {
				t.Errorf("reason %q with %d calls of the tokenizer, want %q with %d", d.Reason, w.words.count(), tt.reason, tt.asked)
			}
			heard := 0
			for address, h := range hearers {
				if len(h.got) == 0 {
					continue
				}
				heard++
				if tt.heard == 1 && address != d.Endpoint {
					t.Errorf("%s is told, %s is chosen", address, d.Endpoint)
				}
				if diff := cmp.Diff([]subscriber.Prompt{tt.want}, h.got); diff != "" {
					t.Errorf("prompts (-want +got):\n%s", diff)
				}
			}
			if heard != tt.heard {
				t.Errorf("%d are told, want %d", heard, tt.heard)
			}
		})
	}
}
