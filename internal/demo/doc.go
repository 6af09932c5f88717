// Package demo shows what kvsteer does: the same chat traffic through a real Envoy three times, over simulated engines: steered by the engines'
// events, which two nodes follow, steered without any event as on engines that nobody has changed, and round robin. It prints the figures that the engines and the clients
// report.
//
// The workload is several tenants, each with a long system prompt of its own, whose users hold conversations of several turns:
// every turn sends the whole conversation so far, as chat clients do. Times between turns, lengths and tenants are drawn from a
// seeded generator, so all arms send the same requests at the same offsets; only the answers' timing differs.
//
// Each arm runs on engines of its own that start empty. Sites stay up, idle, until the end; the first one can be looked at afterwards.
package demo
