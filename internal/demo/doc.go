// Package demo shows what kvsteer does: the same chat traffic through a real Envoy twice, once steered by kvsteer and once
// round robin, over simulated engines, with the figures that the engines and the clients report.
//
// The workload is several tenants, each with a long system prompt of its own, whose users hold conversations of several turns:
// every turn sends the whole conversation so far, as chat clients do. Times between turns, lengths and tenants are drawn from a
// seeded generator, so both arms send the same requests at the same offsets; only the answers' timing differs.
//
// Each arm runs on engines of its own that start empty. The steered arm's site stays up while the other arm runs, idle, so that
// it can be looked at afterwards.
package demo
