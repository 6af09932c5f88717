// Package e2e tests kvsteer as its users run it: the built binary, real Envoys and simulated engines as processes on loopback.
//
// The Envoy binaries come from KVSTEER_ENVOY_1_40 and KVSTEER_ENVOY_1_37, or from scripts/envoy.sh when these are not set. A
// missing Envoy fails the tests. The soak tests stand behind the build tag soak, those on real vLLM engines behind vllm.
package e2e
