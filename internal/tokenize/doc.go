// Package tokenize turns the prompt of a request into token ids, by the engine's own render endpoints or its POST /tokenize.
//
//	t, err := tokenize.New(tokenize.Options{})
//	r, err := t.Tokens(ctx, tokenize.Call{Pool: "chat", Endpoint: "10.0.0.11:8000", Model: "tiny", Request: &req})
//	// r.Tokens: read-only; r.Outcome: why there are none when err is not nil
//
// Render endpoints (POST /v1/completions/render and /v1/chat/completions/render) take the request's own body, so that they are
// exact in all recorded cases; /tokenize takes what its parameters can say. With Options.Render they are asked first. Where one is
// not offered, which engines say by 401, 403, 404, 405, 501 or an answer in another form, /tokenize is asked within the same time,
// and the endpoint is remembered: it is not asked for that again while its engine has the same life and release. A server error
// there has /tokenize asked for this prompt alone. What only a render endpoint can tell (truncation, a template of the request's
// own) is [NotOffered] elsewhere.
//
// A prompt that the request gives as token ids needs no call. Everything else is looked up in a cache bounded by bytes, whose
// key is SHA-256 over the pool and the body that /tokenize would be sent, model name included. Where both APIs give the same tokens
// they share an entry; where the engine's settings or the request itself can make them differ, render's answer has a key of its
// own. What the cache lacks is asked of the endpoint that the caller names. Entries older than Options.CacheAge are asked again,
// because a pool's engines may come back with another chat template.
//
// A call never takes longer than Options.Timeout or the caller's context. It is never queued: beyond Options.Concurrency calls
// under way it is shed at once. Connections are kept for reuse, but for less time than uvicorn keeps an idle one (5 s); when a
// kept connection turns out dead, the call is made once more on a fresh one. These calls change nothing in the engine, so a
// repetition does no harm. Neither prompts nor keys appear in errors.
//
// # Concurrency
//
// A Tokenizer may be used by many goroutines. It starts none of its own; net/http keeps two per open connection, and Close ends
// those of idle connections. Calls for the same prompt at the same time are made once: the first caller makes it on its own
// goroutine, the others wait for its result, each no longer than its own context and timeout allow. When the first
// caller's context ends, one of the waiting callers makes the call in its place; the same happens when the first caller's
// endpoint fails and a waiting caller named another one.
package tokenize
