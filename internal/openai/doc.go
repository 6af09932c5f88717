// Package openai reads the bodies of OpenAI-style inference requests as far as a router needs them, and the two bodies of the
// engine's POST /tokenize and its render endpoints.
//
// Parse never fails. What it cannot key exactly carries a Reason from a closed set: the tokens of a prompt are known or not, never guessed
// at. The model name is extracted from every body that is JSON. [Request.WriteText] gives the text of a prompt, also of some with a
// Reason, to those who match by text.
//
//	r := openai.Parse(openai.Meta{Method: "POST", Path: "/v1/completions?x=1"}, body, openai.Limits{})
//	switch {
//	case r.Reason != "":              // route by load, or by r.WriteText
//	case r.Form == openai.Tokens:     // r.Tokens are the prompt
//	default:                          // ask /tokenize with openai.AppendTokenize(nil, model, &r)
//	}
//
// # Rules
//
// Path: what stands before the first '?' is compared by its suffix, so that a pool's path prefix may stand in front:
// …/v1/completions is a Completion, …/v1/chat/completions is a Chat, everything else is Other. Percent-encoding and trailing
// slashes are not undone, as engines do not serve such paths.
//
// Content type: application/json, application/…+json or none at all is read as JSON.
//
// JSON: the whole body is validated as RFC 8259 asks, in one pass. A key that occurs twice counts with its last value, as in
// the engines (Python's json), and keys are compared after their escapes are undone. Unknown fields are validated and skipped.
// Nesting beyond Limits.Depth is stepped over by counting brackets, not validated, and is a reason.
//
// Raw values of a Request are spans of the body, not copies: they are valid as long as the body is.
//
// # Concurrency
//
// All functions are pure. A Request may be read by many goroutines.
package openai
