// Package vllmdemo shows kvsteer on real engines: two vLLM servers that run a
// tiny model on CPU, the router and a real Envoy, all with the configuration
// of one example folder. Chat traffic with salts and a LoRA adapter goes
// through Envoy; what the router predicted of each request is compared with
// the cached tokens that the engine reports for it. Then the router misses
// events and is started again, with and without replay; the caches change
// behind its back: they are emptied, an engine is killed, one evicts; and an
// engine has two data-parallel ranks. When nothing is under way, prompts are
// asked for again, and predictions must be what the engines report.
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
