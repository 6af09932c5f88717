package router

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/tokenize"
)

// tokens returns the token ids of a prompt, or the reason why there are none or why they are not worth matching; both, when it is the tokens
// that tell. Nothing is asked of any engine unless some candidate could be matched, or learns by the prompt what it holds.
func (r *Router) tokens(ctx context.Context, deadline time.Time, f *fleet, sc *scratch, req *openai.Request, indexed bool, watch *stopwatch) ([]uint32, Reason) {
	tokens := req.Tokens // nil unless the request brings its own
	if f.overModel(len(tokens)) {
		return tokens, ReasonOverModel
	}
	if len(sc.candidates) == 1 {
		return tokens, ReasonSingle
	}
	blind := Reason("") // why no candidate can be matched
	switch {
	case !indexed && !f.hasEvents():
		return tokens, ReasonNoEvents
	case !indexed:
		blind = ReasonNoIndex
	case req.Salt != "" && !sc.dropPlain():
		blind = ReasonNoExtra
	}
	if blind != "" && !sc.wantsWitness() {
		return tokens, blind
	}
	if reason := spent(ctx, watch.last, deadline); reason != "" {
		return tokens, reason
	}
	if req.Form != openai.Tokens {
		if sc.settings.Tokenizer == nil {
			return nil, cmp.Or(blind, ReasonNoTokenizer)
		}
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		result, err := r.tokenize(ctx, f, sc, req, watch)
		watch.lap(stageTokenize)
		if err != nil {
			reason := tokenizeReason(err)
			if reason == Reason(openai.ReasonTooLong) && f.overModel(sc.settings.Limits.PromptTokens) {
				return nil, ReasonOverModel
			}
			return nil, cmp.Or(blind, reason)
		}
		tokens = result.Tokens
		if result.MaxModelLen > 0 {
			f.maxLen.Store(int64(result.MaxModelLen))
		}
	}
	if f.overModel(len(tokens)) {
		return tokens, ReasonOverModel
	}
	if len(tokens) > sc.settings.Limits.PromptTokens {
		return tokens, Reason(openai.ReasonTooLong)
	}
	return tokens, blind
}

// reasonNotOffered says that only a render endpoint could tell the tokens, and none is offered. No decision has it.
const reasonNotOffered Reason = "not_offered"

// exact is the request whose tokens are to be had: the parsed one, or, where the prompt cannot be keyed but by a render endpoint and one may be
// asked, that one's. It is nil when the request's own reason stands.
func (sc *scratch) exact(parsed *openai.Request, indexed bool) *openai.Request {
	if parsed.Reason == "" {
		return parsed
	}
	if q, ok := parsed.Rendered(); ok && sc.settings.Render && indexed && len(sc.candidates) > 1 {
		return q
	}
	return nil
}

// tokenize asks the engine of the least busy indexed candidate, of any when none is indexed, and when that fails at once, another one.
func (r *Router) tokenize(ctx context.Context, f *fleet, sc *scratch, req *openai.Request, watch *stopwatch) (tokenize.Result, error) {
	call := tokenize.Call{Pool: f.name(), Model: req.Model, APIKey: sc.settings.APIKeys[f.name()], Request: req}
	first := sc.leastBusy(f, nil, watch.last, r.random)
	if first == nil { // all went down since they were gathered
		return tokenize.Result{}, &tokenize.Error{Outcome: tokenize.Unreachable}
	}
	result, err := ask(ctx, sc.settings.Tokenizer, first, call)
	switch outcomeOf(err) {
	case tokenize.Unreachable, tokenize.Failed, tokenize.NotOffered:
	default:
		return result, err
	}
	second := sc.leastBusy(f, first, watch.last, r.random)
	if second == nil || ctx.Err() != nil {
		return result, err
	}
	return ask(ctx, sc.settings.Tokenizer, second, call)
}

func ask(ctx context.Context, t Tokenizer, e *pool.Endpoint, call tokenize.Call) (tokenize.Result, error) {
	call.Endpoint, call.Life, call.Version = e.Addr(), e.Life(), e.Version()
	result, err := t.Tokens(ctx, call)
	if outcomeOf(err) == tokenize.Unreachable {
		e.ReportConnectError()
	}
	return result, err
}

// outcomeOf is "" without an error.
func outcomeOf(err error) tokenize.Outcome {
	var e *tokenize.Error
	if errors.As(err, &e) {
		return e.Outcome
	}
	if err != nil {
		return tokenize.Failed
	}
	return ""
}

func tokenizeReason(err error) Reason {
	switch outcomeOf(err) {
	case tokenize.Timeout:
		return ReasonTokenizeTimeout
	case tokenize.Canceled:
		return ReasonAborted
	case tokenize.Shed:
		return ReasonTokenizeShed
	case tokenize.NotOffered:
		return reasonNotOffered
	case tokenize.Refused:
		return ReasonTokenizeRefused
	case tokenize.Unreachable:
		return ReasonTokenizeUnreachable
	case tokenize.TooLong:
		return Reason(openai.ReasonTooLong)
	case tokenize.Multimodal:
		return Reason(openai.ReasonMultimodal)
	}
	return ReasonTokenizeError
}
