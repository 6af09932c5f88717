package router

import (
	"context"
	"errors"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Decide says where a request goes. It never fails: what cannot be known costs precision, and the reason says what. It returns within the
// budget or the deadline of ctx, whichever is sooner, give or take the time to read the body.
func (r *Router) Decide(ctx context.Context, req Request) Decision {
	watch := r.m.start(r.now)
	sc := r.scratch.Get().(*scratch)
	defer r.scratch.Put(sc)

	sc.settings = r.settings.Load()
	d := r.decide(ctx, req, sc, &watch)
	took := watch.stop()
	r.m.decided(d)
	r.recent.add(PastDecision{Time: watch.begin, Duration: took, Decision: d})
	return d
}

func (r *Router) decide(ctx context.Context, req Request, sc *scratch, watch *stopwatch) Decision {
	id, number := r.ids.next()
	d := Decision{ID: id, Rung: RungNone}
	keyed := r.keyed(req)
	if keyed != nil && keyed.steering.Load().mode == ModeOff { // as Passes says
		return keyed.off(d)
	}
	parsed := openai.Request{Reason: openai.Reason(ReasonUnread)}
	if !req.Unread {
		parsed = openai.Parse(req.Meta, req.Body, sc.settings.Limits)
		watch.lap(stageParse)
	} else if reason := openai.Unreadable(req.Meta); reason != "" {
		parsed.Reason = reason
	}
	f, adapter := r.fleetOf(keyed, &parsed)
	if f == nil {
		d.Mode, d.Reason = r.modeWithoutPool(), ReasonNoPool
		return d
	}
	mode, counts := f.steering.Load().draw(r.random)
	if mode == ModeOff {
		return f.off(d)
	}
	d.Pool, d.Mode = f.name(), mode

	indexed := sc.gather(f, f.asked(req), r.swaps.Load())
	if len(sc.candidates) == 0 {
		d.Reason = ReasonNoEndpoint
		return d
	}
	if req.Subset != nil {
		if indexed = sc.restrict(req.Subset); len(sc.candidates) == 0 {
			d.Reason = ReasonNoSubset
			return d
		}
	}
	if adapter != "" {
		indexed = sc.dropWithout(f.pool.Load(), adapter)
	}
	takeSalt(f.pool.Load(), req, &parsed)
	deadline := watch.begin.Add(sc.settings.Budget)
	prompt := min(estimate(req, &parsed), longest(f, sc.settings))
	var tokens []uint32
	d.Reason = Reason(parsed.Reason)
	exact := sc.exact(&parsed, indexed)
	if exact != nil {
		parsed.Salt = exact.Salt
		var reason Reason
		if tokens, reason = r.tokens(ctx, deadline, f, sc, exact, indexed, watch); reason != reasonNotOffered {
			d.Reason = reason
		}
	}
	if tokens != nil {
		prompt, d.Prompt = len(tokens), len(tokens)
	}
	usable := 0
	if d.Reason == "" {
		ns := blockhash.Namespace{Pool: d.Pool, Adapter: adapter, Salt: parsed.Salt}
		usable = r.match(sc, ns, tokens, watch)
	}
	d.Rung = RungLoad
	texted := false // whether sc.text has the prompt
	if recalled(d.Reason) && spent(ctx, watch.last, deadline) == "" {
		if texted = r.keyText(sc, f, adapter, &parsed, watch); texted {
			var held bool
			prompt, held = r.recall(sc, f, &parsed, len(tokens), longest(f, sc.settings), watch)
			if len(sc.candidates) > 1 {
				d.Prompt = prompt
			}
			if held {
				d.Rung = RungApproximate
			}
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		d.Reason = ReasonAborted
	}

	b := booking{number: number, charge: counts && d.Reason != ReasonOverModel, steered: d.Mode == ModeOn}
	if d.Reason == ReasonAborted {
		b.number = 0 // nobody is left to send it
	}
	if b.steered {
		b.shed = float64(req.Shed)
	}
	first, second := f.place(sc, prompt, b, r.weights, watch.last, r.random)
	if first < 0 {
		d.Rung, d.Reason, d.Overloaded = RungNone, ReasonOverloaded, true
		return d
	}
	chosen := sc.candidates[first].target
	d.Endpoint = chosen.endpoint.Addr()
	if chosen.pinned {
		d.Pinned, d.Rank = true, chosen.ranks[0].number
	}
	chosen.count(d.Mode)
	d.Ranked = sc.ranked(first, second, req.Ranked)
	if second >= 0 {
		d.Second = sc.candidates[second].endpoint.Addr()
	}
	d.Matched = sc.standings[first].any
	if d.Reason == "" {
		d.Rung = RungExact
		d.Reason = outcome(sc.standings, first, usable)
	}
	watch.lap(stageScore)
	if counts {
		r.learn(sc, f, adapter, &parsed, &d, first, texted, watch)
	}
	if tokens != nil && runs(d.Reason) {
		sc.testify(d.Steers(), first, subscriber.Prompt{Adapter: adapter, Salt: parsed.Salt, Tokens: tokens})
	}
	return d
}

// keyed is the pool that Envoy's own key tells, without the body; nil when it tells none.
func (r *Router) keyed(req Request) *fleet {
	if p, ok := r.pools.ByRequest(req.Host, req.Meta.Path, req.Header); ok {
		return r.fleet(p.Name())
	}
	return nil
}

// Passes says by the headers of a request that nothing will be decided for it, whatever its body: its pool is off.
func (r *Router) Passes(req Request) bool {
	f := r.keyed(req)
	return f != nil && f.steering.Load().mode == ModeOff
}

// off completes the decision not to decide.
func (f *fleet) off(d Decision) Decision {
	d.Pool, d.Mode, d.Reason = f.name(), ModeOff, ReasonOff
	return d
}

// fleetOf finds the pool of a request by the model it names, else takes the one that Envoy's own key tells. An unknown model becomes the
// request's reason, before any other: it is the one that an operator can do something about.
func (r *Router) fleetOf(keyed *fleet, parsed *openai.Request) (f *fleet, adapter string) {
	if parsed.Model != "" {
		if p, adapter, ok := r.pools.ByModel(parsed.Model); ok {
			return r.fleet(p.Name()), adapter
		}
		parsed.Reason = openai.Reason(ReasonUnknownModel)
	}
	return keyed, ""
}

// modeWithoutPool is the mode of requests that belong to no pool: the strongest of all pools' modes. While none is on, nobody wants requests
// to be refused for want of an endpoint.
func (r *Router) modeWithoutPool() Mode {
	m := ModeOff
	for _, f := range r.all() {
		switch f.steering.Load().mode {
		case ModeOn:
			return ModeOn
		case ModeObserve:
			m = ModeObserve
		}
	}
	return m
}

// outcome is the reason of a request that was matched.
func outcome(all []standing, first, usable int) Reason {
	if all[first].any > 0 {
		return ReasonPrefix
	}
	for i := range all {
		if all[i].any > 0 {
			return ReasonLoad
		}
	}
	if usable == 0 {
		return ReasonShort
	}
	return ReasonNoMatch
}

const (
	bytesPerToken = 4     // of English text and of JSON around it, roughly
	maxEstimate   = 8_192 // tokens charged for a body that may be anything, such as images
)

// longest is the most that a prompt of unknown length is charged: engines refuse what their model does not take. Where nobody says what that
// is, it is what prompts are matched up to, so that one hostile body does not keep requests from an endpoint for minutes.
func longest(f *fleet, s *Settings) int {
	if n := f.modelLen(); n > 0 {
		return n
	}
	return s.Limits.PromptTokens
}

// estimate is the number of prompt tokens to charge for a prompt whose tokens are not known.
func estimate(req Request, parsed *openai.Request) int {
	switch {
	case req.Unread:
		return maxEstimate
	case parsed.Kind == openai.None:
		return 0
	case parsed.Reason != "":
		return min(len(req.Body)/bytesPerToken, maxEstimate)
	case parsed.Form == openai.Tokens:
		return len(parsed.Tokens)
	}
	return (len(parsed.Prompt) + len(parsed.Messages) + len(parsed.Tools)) / bytesPerToken
}

// spent says whether a decision has no time left, and why.
func spent(ctx context.Context, now, deadline time.Time) Reason {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ReasonAborted
	case ctx.Err() != nil, !now.Before(deadline):
		return ReasonDeadline
	}
	return ""
}
