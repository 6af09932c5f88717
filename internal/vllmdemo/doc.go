// Package vllmdemo shows kvsteer on real engines: two vLLM servers that run a
// tiny model on CPU, the router and a real Envoy, all with the configuration
// of one example folder. Chat traffic with salts and a LoRA adapter goes
// through Envoy; what the router predicted of each request is compared with
// the cached tokens that the engine reports for it. Then the caches change
// behind the router's back: they are emptied, an engine is killed, one evicts.
//
// Run prints its progress and, at the end, a table of checks. It fails when a
// check does.
//
// # Concurrency
//
// Run starts child processes and client goroutines, and returns when all of
// them have ended, also when ctx ends early. An engine is a group of
// processes; should this process be killed itself, the kernel ends the first
// one of each group and the others stay behind.
package vllmdemo
