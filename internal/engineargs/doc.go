// Package engineargs says how to start an engine so that kvsteer can follow
// it: the arguments and the environment of vLLM or SGLang for each endpoint of
// a configuration.
//
// Plan is pure: a configuration in, one Engine per endpoint out. Shell,
// Container and JSON write engines for people and programs.
//
//	engines, err := engineargs.Plan(cfg, engineargs.Options{Replay: true})
//	…
//	err = engineargs.Shell(os.Stdout, engines)
//
// For the endpoint
//
//	{address: 127.0.0.1:8000, events: {listen: "tcp://127.0.0.1:5557"}}
//
// of a pool that serves "tiny" the arguments are, one per line,
//
//	--host
//	127.0.0.1
//	--port
//	8000
//	--served-model-name
//	tiny
//	--enable-prefix-caching
//	--enable-prompt-tokens-details
//	--prefix-caching-hash-algo
//	sha256_cbor
//	--kv-events-config
//	{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","replay_endpoint":"tcp://127.0.0.1:6557"}
//
// and the environment is PYTHONHASHSEED, the pool's hash_seed or 0. They go behind the model and beside
// whatever else the engine is started with.
//
// # Who binds
//
// Engines decide by the text of the endpoint: their PUB socket binds when it
// contains "*" or "::" and connects otherwise. So an engine connects to the
// router's loopback port (events.listen), and nothing of it can be reached
// from another host. An engine for events.dial must bind every IPv4 interface,
// because an address of one interface would make it connect; that publishes the
// token ids of every prompt, so such arguments are given only when
// Options.Bind asks for them. The socket that answers replays always binds:
// on loopback, unless events.replay names another host.
package engineargs
