// Package envoy holds the names that the router and Envoy share, and renders an Envoy configuration that uses the router.
//
// [Render] gives a whole bootstrap: a listener, the external-processing filter, routes, the engines' clusters and the router's. It
// is built from Envoy's own API types and written as YAML with a comment at each setting that is there for a reason. [RenderFilter]
// gives the same parts as pieces for a configuration that exists: there the filters are disabled but for the routes that enable them, so
// that other routes open no stream to the router.
//
// # How a request finds its engine
//
// The filter sends headers and body of a request to the router. The router's reply sets [HeaderTarget] and perhaps [HeaderSecond];
// clusters of type ORIGINAL_DST dial the addresses in them. Whatever keeps the reply from coming (router down, slow, wrong) leaves
// the headers unset, and the request goes to the pool's fallback, a plain cluster of the pool's endpoints. No error comes of it.
//
// Clients cannot use the headers: both are removed when a request arrives, before its route is chosen and before any filter. Engines
// do not see them either. The filter accepts no other header from the router, and it sends the router no credentials.
//
// # Layouts
//
// A composite cluster is a list of clusters; attempt i of a request uses member i. From Envoy 1.40 on a member that finds no host is
// passed over within the attempt; before, it ends the request with 503. Hence two layouts, chosen by [LayoutFor]:
//
//	composite, 1.40 or newer
//	  pool's requests ──▶ composite [first choice, second choice, fallback, fallback]
//
//	compat, 1.37 or newer, and the default while the release is not known
//	  pool's requests with x-target-endpoint ──▶ composite [first choice, fallback, fallback]
//	  pool's requests without               ──▶ fallback
//
// The compat layout needs a reply that clears the route, since the route was chosen before the header was there. The fallback stands
// in the list twice because a retry leaves out endpoints that it knows to have failed, but not the first choice: it was found
// through another cluster. Retries happen only when no engine has seen the request.
//
// How the headers are hidden differs too. In the composite layout a filter after the router's moves them into dynamic metadata, which
// the clusters read. A filter of the cluster would do for one attempt only, since what it removes is gone for the retry; that is
// enough for the compat layout, whose retries do not look at the headers.
//
// The clusters that dial addresses belong to all pools, so a decision by the model is obeyed whichever pool's route was taken.
//
// A third layout is chosen by name, for those who have a cluster of the endpoints already:
//
//	override_host, 1.37 or newer
//	  pool's requests ──▶ cluster of the pool's endpoints, with the override_host policy
//
// The policy reads the list [KeyRanked] from metadata and gives each attempt the next endpoint of it; without a list, and behind its end, it
// draws as Balance says. It looks at no health check of Envoy's. No header is involved, so the filter accepts none. What the cluster does
// not hold cannot be picked: a decision is obeyed within its own pool alone, and every pool has a fallback.
//
// # Vocabulary
//
// With [HeadersGAIE] the choice comes as the endpoint picker protocol of the Gateway API inference extension has it: in [GatewayEndpoint], as a
// header of one endpoint for the first two layouts and as a list in metadata for the third. There is no second choice in a header of its own.
//
// # Pools
//
// The model of a request stands in its body, which Envoy does not read. So each pool with a fallback needs a [Match] (host, path
// prefix or header, alone or together) unless it is the only pool, and Options that leave two such pools undecided for some request
// are refused. [FallbackNone] lifts that for a pool: its requests are served as long as the router decides, and answered with 503
// otherwise. So are requests that no key fits. A path prefix is taken away before the engine sees the path; the router sees it.
//
// # Paths
//
// Engines serve metrics, cache resets and the loading of adapters on the port of their API. Only [InferencePaths] and GET /v1/models
// are routed unless Options.AllPaths is set; all else is answered with 404. The model list goes to any endpoint of the pool, without a
// decision. What Envoy answers by itself has the form of an OpenAI error object.
//
// # Bodies
//
// With [BodyFullDuplex] there is no buffer filter and no timer: the body streams to the router and back, and is lost with it. The rest of this
// section is about [BodyBuffered].
//
// A buffer filter before the router's holds each request until its body is there, and answers 413 beyond Options.MaxBody. The limit of
// the virtual host alone would not: it stands only while some filter waits for the body, which is not so when the router is down or
// decides without it. So a slow upload costs the router nothing, and a retry always has the whole body.
//
// # Routers
//
// Options.Routers may name several. Requests are spread over those whose gRPC health check succeeds; one that refuses a connection is
// left out from then on. There is no panic mode: with no router left, requests fall back at once. Changes of health reach Envoy's
// workers at once too, which by default they do only once a second.
//
// # TLS
//
// Envoy checks the certificates of routers and engines against the authority and the one name in [TLS]; an engine's address is not looked
// at. Envoy reads the files that a bootstrap names once. It watches those that a secret in a file of its own names, which is what
// [Secrets] is for: the files hold paths, no keys.
//
// # Access log
//
// One JSON object per request with Envoy's view (code, flags, details, attempts, cluster, upstream) beside the decision
// ([KeyDecisionID], [KeyPool], [KeyEndpoint], [KeyReason], [KeyMatched], [KeyPrompt]). An upstream that differs from the endpoint
// shows a second choice or a fallback. With Options.AccessLogService Envoy also sends a record of each request to a router when it has
// ended, pieces only of those that have a decision.
package envoy
