// Package eventsources asks an engine where its data-parallel ranks publish their KV cache events.
//
// vLLM answers from 0.31 on. Of this reply, whose ranks come in any order,
//
//	GET /kv_event_sources
//	{"1": {"publisher": "zmq", "endpoint": "tcp://*:5558", "replay_endpoint": null, …},
//	 "0": {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5567", …}}
//
// two ranks are taken, with the event ports 5557 and 5558, and the replay port 5567 of the first. Everything else is left: the host in an endpoint is
// what the engine binds, and not where others reach it; and whoever answers there must not be able to name other hosts.
//
// # Concurrency
//
// A Client may be used from any number of goroutines. It starts none that outlives a call.
package eventsources
