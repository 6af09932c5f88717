package router

import (
	"slices"

	"github.com/kvsteer/kvsteer/internal/openai"
)

// Reasons of the router itself. A prompt that cannot be keyed has the reason that package openai gives.
const (
	ReasonPrefix    Reason = "prefix"     // Endpoint holds leading blocks of the prompt
	ReasonLoad      Reason = "load"       // another endpoint holds leading blocks of the prompt, but waiting for it costs as much as computing them again, or more; or it is suspect
	ReasonNoMatch   Reason = "no_match"   // matched, and no endpoint holds a block of it
	ReasonShort     Reason = "short"      // the prompt is too short for any endpoint to reuse a block of it
	ReasonSingle    Reason = "single"     // only one endpoint of the pool can get requests
	ReasonNoEvents  Reason = "no_events"  // no endpoint of the pool has an event source
	ReasonNoIndex   Reason = "no_index"   // no healthy endpoint of the pool has known blocks
	ReasonNoExtra   Reason = "no_extra"   // the prompt is salted and no indexed endpoint tells salted blocks from plain ones
	ReasonOverModel Reason = "over_model" // longer than the model takes: the engine will refuse it, and it is not charged as load

	ReasonUnread       Reason = "unread"        // the body exceeds a byte cap and was not read
	ReasonUnknownModel Reason = "unknown_model" // no pool serves the model: routed by what Envoy knows

	ReasonNoTokenizer         Reason = "no_tokenizer"         // the prompt is text and no tokenizer is configured
	ReasonTokenizeTimeout     Reason = "tokenize_timeout"     // no token ids in time
	ReasonTokenizeShed        Reason = "tokenize_shed"        // too many tokenizer calls under way
	ReasonTokenizeRefused     Reason = "tokenize_refused"     // the tokenizer refused the prompt
	ReasonTokenizeUnreachable Reason = "tokenize_unreachable" // no connection to the tokenizer
	ReasonTokenizeError       Reason = "tokenize_error"       // the tokenizer gave no usable answer

	ReasonDeadline   Reason = "deadline"    // the budget was spent before the prompt was matched
	ReasonAborted    Reason = "aborted"     // the caller went away; not charged as load
	ReasonNoPool     Reason = "no_pool"     // no pool could be told: Envoy decides
	ReasonNoEndpoint Reason = "no_endpoint" // no endpoint of the pool can get requests: Envoy decides
	ReasonNoSubset   Reason = "no_subset"   // no endpoint that the request may go to can get requests
	ReasonOverloaded Reason = "overloaded"  // every endpoint has more to do than the request may find: it is refused
	ReasonOff        Reason = "off"         // nothing is decided for the pool: Envoy decides
)

// ReasonDoc is one reason and what it means, for documentation.
type ReasonDoc struct {
	Reason  Reason
	Meaning string
}

// Reasons lists the closed set of reasons.
func Reasons() []ReasonDoc {
	return slices.Concat([]ReasonDoc{
		{ReasonPrefix, "the endpoint holds leading blocks of the prompt"},
		{ReasonLoad, "another endpoint holds leading blocks of the prompt, but waiting for it costs as much as computing them again, or more; or it is suspect"},
		{ReasonNoMatch, "no endpoint holds a block of the prompt: least cost"},
		{ReasonShort, "the prompt is too short for any block of it to be reused: least cost"},
		{ReasonSingle, "only one endpoint of the pool is healthy and not draining; the prompt is not matched"},
		{ReasonNoEvents, "no endpoint of the pool has an event source; prompts are matched by their text, if at all"},
		{ReasonNoIndex, "no healthy endpoint of the pool has known blocks; the prompt is tokenized only where that helps an engine's blocks to be known: least cost"},
		{ReasonNoExtra, "the prompt is salted and no indexed endpoint tells salted blocks from plain ones: least cost"},
		{ReasonOverModel, "the prompt is longer than the model takes; the engine will refuse it: least cost, not counted as load"},
		{ReasonUnread, "the body exceeds a byte cap and was not read: least cost"},
		{ReasonUnknownModel, "no pool serves the model that the request names: least cost in the pool that Envoy's own key tells"},
		{ReasonNoTokenizer, "the prompt is text and no tokenizer is configured: least cost"},
		{ReasonTokenizeTimeout, "the tokenizer gave no token ids in time: least cost"},
		{ReasonTokenizeShed, "too many tokenizer calls are under way: least cost"},
		{ReasonTokenizeRefused, "the tokenizer refused the prompt: least cost"},
		{ReasonTokenizeUnreachable, "the tokenizer could not be reached: least cost"},
		{ReasonTokenizeError, "the tokenizer gave no usable answer: least cost"},
		{ReasonDeadline, "the budget was spent before the prompt was matched: least cost"},
		{ReasonAborted, "the caller went away before the decision; not counted as load"},
		{ReasonNoPool, "no pool could be told: Envoy's own route decides"},
		{ReasonNoEndpoint, "every endpoint of the pool is down or draining: Envoy's own fallback decides"},
		{ReasonNoSubset, "the gateway names the endpoints that the request may go to, and each is down, draining or none of the pool's"},
		{ReasonOverloaded, "every endpoint has more prompt tokens before it than gaie.shed_backlog allows: the request is answered with 429"},
		{ReasonOff, "the pool's mode is off, and the request is not read: Envoy's own fallback decides"},
	}, unkeyed())
}

// unkeyed are the reasons of package openai. All of them mean least cost.
func unkeyed() []ReasonDoc {
	return []ReasonDoc{
		{Reason(openai.ReasonNoBody), "not a POST, or an empty body"},
		{Reason(openai.ReasonCompressed), "the body is compressed"},
		{Reason(openai.ReasonMultipart), "the body is a multipart form"},
		{Reason(openai.ReasonContentType), "the content type is not JSON"},
		{Reason(openai.ReasonTooLarge), "the body is above the limit"},
		{Reason(openai.ReasonNotJSON), "the body is not one valid JSON object"},
		{Reason(openai.ReasonTooDeep), "the body nests too deeply"},
		{Reason(openai.ReasonBadUTF8), "a string in the body is not UTF-8"},
		{Reason(openai.ReasonLoneSurrogate), "an escape in the body names half a surrogate pair"},
		{Reason(openai.ReasonNoModel), "the request names no model"},
		{Reason(openai.ReasonUnsupportedPath), "a path whose prompts are not read"},
		{Reason(openai.ReasonReportMode), "kv_cache_report_mode makes the engine announce blocks again that it already holds"},
		{Reason(openai.ReasonPromptLogprobs), "log probabilities of the prompt are asked for, so the engine computes all of it and reuses no block"},
		{Reason(openai.ReasonPromptEmbeds), "the prompt is given as embeddings"},
		{Reason(openai.ReasonTemplate), "the request brings its own chat template, and no render endpoint of an engine was asked"},
		{Reason(openai.ReasonTruncation), "the engine is asked to truncate the prompt, and no render endpoint of an engine was asked"},
		{Reason(openai.ReasonSuffix), "a fill-in-the-middle completion is rendered inside the engine"},
		{Reason(openai.ReasonBadSalt), "cache_salt is empty, overlong or not a string, or the salt header is overlong, not UTF-8, or there several times"},
		{Reason(openai.ReasonBadField), "a field has a type that engines refuse"},
		{Reason(openai.ReasonNoPrompt), "prompt or messages are missing or empty"},
		{Reason(openai.ReasonSeveralPrompts), "the request has more than one prompt"},
		{Reason(openai.ReasonBadTokens), "a token id is out of range"},
		{Reason(openai.ReasonTooLong), "the prompt has more tokens than the limit"},
		{Reason(openai.ReasonMultimodal), "the prompt has parts that are not text"},
	}
}
