// Package router decides where each request goes: to the endpoint that holds most of its prompt, unless the work queued there costs more than
// computing the prompt again somewhere else.
//
// # One decision
//
// [Router.Decide] reads the body, finds the pool by the model (else by what Envoy knows), takes the pool's healthy endpoints for candidates,
// obtains the prompt's token ids, computes the fingerprints of its blocks, looks them up in the index, prices every candidate and
// picks the cheapest. Whatever is missing on the way leaves a decision by load alone and a [Reason] that says so; there is no error. Only a
// decision without a pool or without a healthy endpoint names no endpoint, and Envoy's own fallback then takes the request.
//
// The price of a candidate, in tokens of prefill:
//
//	cost = uncached + κ·lost + backlog + w·memory
//
// uncached is what the candidate must compute of the prompt, lost what it lacks of the best holder's share, backlog what it was sent and has
// not computed yet, memory what fills its cache with running and recent requests. κ is the pool's prefill queue: requests in
// prefill per endpoint, averaged over 10 s, at most 6. A worked example, with two requests in prefill per endpoint, a prompt of
// 1,000 tokens, A holding 800 of them with 2,000 tokens queued, B idle and empty:
//
//	A: 200 + 2·0   + 2,000 = 2,200
//	B: 1,000 + 2·800 + 0   = 2,600      A is chosen; were 500 more tokens queued there, it would be B
//
// backlog, memory and κ come from the router's own ledger. Each decision charges its uncached tokens to the endpoint. They are worked off in
// order at Options.PrefillRate, or sooner: when the engine announces the last block of a prompt, the prompt is complete, and when a
// record of Envoy's access log tells that the request has ended ([Router.Complete]), its charge is released. So
// charges do not depend on confirmation, and are exactly zero at rest, whatever became of the requests.
//
// # Open decisions
//
// A decision is open until its record comes, or until it is 10 min old or the oldest of 65,536 open ones in its pool. The whole prompts of open
// decisions are an endpoint's running requests while records come; while they do not, or many go astray, each prompt fades with a half-life
// of 5 s. A record that comes twice or late is counted and changes nothing. Records also tell how
// endpoints do: see package pool. Two requests, of 1,000 and 600 tokens, at one endpoint:
//
//	charge 1,000, charge 600      backlog 1,600   running 1,600
//	half a second at 1,000/s      backlog 1,100   running 1,600
//	record of the second          backlog   500   running 1,000
//	record of the first, twice    backlog     0   running     0
//
// # Several routers
//
// Routers over the same endpoints tell each other what they charge, through whoever Options.Peers is: a decision that counts as load is told after it was
// made, and its end when it has ended. What others tell ([Router.Charge], [Router.Release]) stands in the same accounts as what this router
// decides, so that all prices count it, and events confirm it too. At most 65,536 charges of one router and 262,144 of a pool are entered. When a
// router is gone ([Router.Gone]) its requests go on: its charges are worked off at the estimated rate, and their prompts fade with a half-life of
// 5 s. A charge whose end is never told expires as a decision does. So at rest all accounts of all routers are exactly zero, whatever was
// lost between them.
//
// A record for another router's decision is passed to it, and counts there as if it had come from Envoy ([Router.CompletePassed]). One
// that cannot be passed, or not yet, changes nothing, and says that some of this router's own go astray too.
//
// An adapter's requests go only to endpoints that are known to serve it, if any are: an engine without it would answer 404. Where the pool names a salt
// header, its value is the cache salt, before the body's.
//
// What counts as held: whole blocks, in the candidate's own block size, never up to the last token of the prompt, as engines compute at
// least that one. Tokens held outside of the device count for less: see TierWeights. A salted prompt is only matched where events tell
// salted blocks from plain ones.
//
// # Modes
//
// A pool's decisions are obeyed ([ModeOn]), only made and counted ([ModeObserve]), or not made ([ModeOff]). In ModeOn a percentage may be
// steered and the rest left to Envoy. Observe charges and learns as if the request ran where the decision says; what a percentage leaves to Envoy
// is decided too, and changes nothing. The mode that counts is that of the pool which the decision would be for; a pool which Envoy's own key
// tells and which is off ends the decision before the body is read. [Router.SetMode] acts from the next request on.
//
// A draining endpoint is no candidate, nor is one whose engine says that it sleeps ([Router.Report]), unless all do. One that is suspect (see package pool) is the first choice only when all candidates are.
//
// # Rungs
//
// Where exact matching is not possible the prompt is matched by its text against what this router sent where (package approx), in pools that say
// how much an engine's cache holds. The costs are the same, their tokens estimated. Each placed prompt is noted for the endpoint that gets it, also
// when it was matched exactly: the tokenizer may fail at its next turn.
//
// # Blocks
//
// [Router.Source] gives the sink for the events of one rank of an endpoint. It writes the rank's blocks into the index under a slot of its own, and takes a
// fresh slot after each reset. An endpoint is matched while it is connected, its block size is known and it has blocks; in all other
// times it is routed by load. [Router.Reset] lets blocks known so far not be matched, until its events start anew.
//
// Where a node tells the blocks, a copy of all of them may come at any time between [Source.Begin] and [Source.End], mixed with changes. It fills a slot of its
// own, which takes the place of the other one at End. No decision finds neither: one that was gathered before End and looks up after it is
// looked up again.
//
//	Store a b c            a b c matched
//	Begin, Store a b       a b c matched, copy: a b
//	Store d, Remove b      a b c matched, copy: a d
//	End                    a d matched
//
// A rank that is not connected is not matched, and matched again when it is. What was known before a copy does not come back once
// the rank was not connected during it or when it began: nobody knows how old it is.
//
// # Ranks
//
// An endpoint may stand for several engines, its data-parallel ranks. Each has a [Source] and a slot. Where the engine chooses the rank, a candidate
// is an endpoint and holds the mean of what its ranks hold; one account is worked off by all of them. Where decisions choose it, a candidate is one rank of
// one endpoint, with an account of its own, and the second choice is the same rank of another endpoint. A prompt of 1,600 tokens of
// which rank 0 of two holds 800:
//
//	engine chooses       400 held       asked for rank 1 by the client's own header: 0
//	decision chooses     800 at rank 0, 0 at rank 1
//
// [Router.Offer] takes over how many ranks the engine says it has; as long as that is another number, nothing of the endpoint is matched.
//
// # Another configuration
//
// [Router.Apply] replaces pools and settings. Endpoints that stay keep their blocks and charges. A mode set by SetMode and a drain set by
// [Router.Drain] last until the configuration changes in just that.
//
// # Concurrency
//
// Decide and Complete may be called from any number of goroutines. It reads health and sources from atomic values and takes one lock, that of its pool's
// ledger, while it prices and charges: each decision sees the charges of all before it. It waits for nothing but the tokenizer. Peers are
// told without that lock, and may call the Router meanwhile. A decision
// that has begun when Apply or a call comes ends by what it began with. All other methods of Router may be called at any time too. A
// Source is driven by one goroutine, as [subscriber.Sink] says. The package starts no goroutines.
package router
