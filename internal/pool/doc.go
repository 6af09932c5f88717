// Package pool knows the endpoints: which pools there are, which pool a request belongs to, and which endpoints are healthy.
//
// A pool is one set of endpoints that serve the same base weights, under one or more served names and with adapters on top.
// A request finds its pool by the model it names ([Set.ByModel]), or, where the model is not known, by what Envoy knows without
// reading the body ([Set.ByRequest]): host, path prefix or a header.
//
//	set, err := pool.New(pool.Options{Pools: []pool.Config{{
//		Name:      "chat",
//		Models:    []string{"llama"},
//		Adapters:  []string{"llama-sql"},
//		Endpoints: []string{"10.0.0.11:8000", "10.0.0.12:8000"},
//	}}})
//	go set.Run(ctx)
//	p, adapter, ok := set.ByModel("llama-sql") // pool chat, adapter "llama-sql"
//
// # Health
//
// An endpoint is taken to be healthy until shown otherwise, so that a router that has just started routes at once. Each endpoint is
// probed with GET /health every ProbeInterval; any answer below 500 shows that it lives (an engine without that path answers
// 404, a dead vLLM engine behind a live web server answers 503). It is down after two failed checks in a row, or one
// refused connection: nobody listens there. A connect error that the rest of the program reports counts as one failed check and
// makes the next probe happen at once. While checks fail, the time between probes doubles from a quarter of ProbeInterval up to
// MaxBackoff, with jitter. One good probe brings the endpoint back, and nothing else does.
//
// A request that was sent to an endpoint and ran elsewhere makes it suspect: it is probed at once and then every second, until a probe is good.
// An answer with a server error, or one that breaks off, has the endpoint probed at once. Five of them without a good answer in between make it
// suspect for 5 s although its probes are good: a web server that lives before an engine that fails. After that one more is enough, until a
// good answer ends the count. What one client's bad request does is not enough, and a suspect endpoint still serves where all are suspect.
// A draining endpoint is probed as any other and is to get no more requests.
//
// # Adapters
//
// Where Config.AdaptersRefresh is set, each endpoint is asked for GET /v1/models when it is new or back, when it begins to drain, and at that
// interval; a failing answer changes nothing and is asked for sooner. A name whose parent is one of the pool's models is an adapter of the pool, and
// ByModel finds it. In the answer
//
//	{"data": [{"id": "llama", "root": "/m", "parent": null}, {"id": "law", "root": "/loras/law", "parent": "llama"}]}
//
// that is law, [Pool.AdapterPath] of which is /loras/law. What the configuration names stays where it is; a name that two pools' engines claim
// stays with the pool that had it first; a name without a parent that is not configured is ignored. An adapter is known as long as an engine tells of
// it in its present life: what one told that is down does not count. [Endpoint.Serves] says of one endpoint what it told.
//
// Where somebody else says what an endpoint serves ([Set.Announce]), it is not asked, and what it would have said is what was announced. With
// Config.AdaptersAfter a new endpoint is asked only after so long, as somebody may be about to.
//
// # Another configuration
//
// [Set.Apply] replaces all pools while everything goes on. An endpoint whose address and pool's name stay is the same *Endpoint with its
// health; the others end and begin. An endpoint drains as its configuration says until [Endpoint.Drain] says otherwise; what
// was said there lasts until the configuration changes for this endpoint. One in Config.Leaving drains whatever is said.
//
// # Concurrency
//
// All methods may be called from any goroutine. [Set.Run] probes and asks for models, with two goroutines per endpoint, and returns when all of them have
// ended; it may be called once. Lookups only read snapshots: who looked up a pool or an endpoint may go on using it after an Apply, which it does not
// see. Nothing takes a lock that is held over I/O. The metric series of an endpoint disappear when its probing ends.
package pool
