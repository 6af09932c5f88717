package router

import (
	"math"
	"sync/atomic"

	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/kvindex"
)

// remembered says whether a prompt with a reason is noted for the endpoint that gets it: not when the engine will refuse the request, nor when
// there is no time left for anything.
func remembered(reason Reason) bool {
	switch reason {
	case ReasonUnknownModel, ReasonOverModel, ReasonDeadline, ReasonAborted:
		return false
	}
	return true
}

// recalled says whether a prompt that was not matched exactly is looked up by its text.
func recalled(reason Reason) bool {
	return reason != "" && reason != ReasonSingle && remembered(reason)
}

// keyText computes the keys of the prompt's text, and reports whether it has any text and the pool matches by it.
func (r *Router) keyText(sc *scratch, f *fleet, adapter string, req *openai.Request, watch *stopwatch) bool {
	if r.texts == nil {
		return false
	}
	limits := f.textLimits()
	if limits.Blocks == 0 || !sc.text.Key(f.name(), adapter, req, limits.Blocks) {
		return false
	}
	watch.lap(stageText)
	return true
}

// recall enters what each candidate was sent of the prompt into sc.standings, in tokens, and reports whether any was sent some. prompt is how many
// tokens the prompt has, 0 when that is not known; then it is estimated, and longest at most.
func (r *Router) recall(sc *scratch, f *fleet, req *openai.Request, prompt, longest int, watch *stopwatch) (tokens int, held bool) {
	perToken := f.ratio.of(req)
	if prompt == 0 {
		prompt = min(int(math.Ceil(float64(sc.text.Bytes)/perToken)), longest)
	}
	if len(sc.candidates) == 1 {
		return prompt, false
	}
	_, lifetime := f.pool.Load().Cache()
	sc.slots, sc.held, sc.at = sc.slots[:0], sc.held[:0], sc.at[:0]
	for i := range sc.candidates {
		c := &sc.candidates[i]
		if slot, ok := c.target.sent.Slot(c.life, lifetime, watch.last); ok {
			sc.slots = append(sc.slots, slot)
			sc.held = append(sc.held, kvindex.Held{})
			sc.at = append(sc.at, i)
		}
	}
	if len(sc.slots) > 0 {
		r.texts.Match(sc.text.Keys[:sc.text.Reusable()], sc.slots, sc.held)
	}
	for k, i := range sc.at {
		// Of several ranks one was sent the prompt, and the engine may choose any.
		n := int(float64(sc.text.Covered(int(sc.held[k].Any))) / perToken / float64(len(sc.candidates[i].target.ranks)))
		n = max(0, min(n, prompt-1)) // the engine computes the last token
		sc.standings[i].device, sc.standings[i].any = n, n
		held = held || n > 0
	}
	watch.lap(stageRecall)
	return prompt, held
}

// learn notes the prompt for the candidate that gets it. A prompt that was matched exactly is noted too, since the tokenizer may fail at its next
// turn; only where the request brings its token ids and every candidate is indexed nothing is left to fail. texted says that sc.text has the prompt.
func (r *Router) learn(sc *scratch, f *fleet, adapter string, req *openai.Request, d *Decision, first int, texted bool, watch *stopwatch) {
	if r.texts == nil || !remembered(d.Reason) {
		return
	}
	if !texted {
		if d.Rung == RungExact && req.Form == openai.Tokens && sc.allIndexed() {
			return
		}
		if !r.keyText(sc, f, adapter, req, watch) {
			return
		}
	}
	if d.Rung == RungExact && req.Form != openai.Tokens {
		f.ratio.learn(sc.text.Bytes, d.Prompt)
	}
	c := &sc.candidates[first]
	limits := f.textLimits()
	limits.Blocks *= len(c.target.ranks)
	c.target.sent.Learn(sc.text.Keys, c.life, limits, watch.last)
	watch.lap(stageLearn)
}

// textLimits are the pool's limits for one rank in text blocks; no blocks when it does not match by text.
func (f *fleet) textLimits() approx.Limits {
	tokens, lifetime := f.pool.Load().Cache()
	return approx.Limits{Blocks: int(float64(tokens) * f.ratio.load() / approx.BlockBytes), Lifetime: lifetime}
}

// ratio is how many bytes of text a token of a pool's prompts has, averaged over prompts whose tokens are known. The zero ratio knows of none.
type ratio struct{ bits atomic.Uint64 }

// leastTokens is the shortest prompt that says something about the ratio: what the template adds weighs less than a few percent.
const leastTokens = 256

func (r *ratio) load() float64 {
	if v := math.Float64frombits(r.bits.Load()); v > 0 {
		return v
	}
	return approx.BytesPerToken
}

// of is the ratio of a request's text: token ids have a fixed size.
func (r *ratio) of(req *openai.Request) float64 {
	if req.Form == openai.Tokens {
		return approx.BytesPerToken
	}
	return r.load()
}

// learn takes one more prompt into the average. One of two samples that come at the same time may be lost.
func (r *ratio) learn(bytes, tokens int) {
	if tokens < leastTokens {
		return
	}
	const weight = 1.0 / 16
	sample := min(max(float64(bytes)/float64(tokens), 1), 16)
	if r.bits.Load() != 0 {
		sample = r.load() + weight*(sample-r.load())
	}
	r.bits.Store(math.Float64bits(sample))
}
