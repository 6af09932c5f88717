// Package fleet decides which endpoints there are.
//
// A pool's endpoints stand in the configuration, come from DNS, or are announced by nodes. [Fleet.Plan] puts together what is known of all three:
//
//	configured                                      endpoint
//	given by DNS                                    endpoint; also what it gave before, until there is an answer for another name
//	announced, in a pool that takes such            endpoint
//	announced, in a pool whose endpoints DNS gives  leaving until DNS gives it: its cache is known when it gets its first request
//	announced, in another pool                      refused, unless it is configured there: a node tells of the caches of endpoints, not which there are
//	its node says that it drains                    leaving, wherever it comes from
//	not any more                                    leaving until its open requests have ended, at least 5 s and at most 2 min
//
// A leaving endpoint gets nothing new, and keeps what is known of its cache: where DNS or a node gives it again in time, nothing is lost.
//
// An address is in one pool. Of two that claim it a configured one has it, then who had it before, then the earlier pool. A replica that says what it
// serves must serve one of its pool's models. There are at most as many endpoints, each rank counted, as the index was made for: configured ones first,
// then those that are there, then by address. What is refused stands in the plan with its reason.
//
//	f := fleet.New(fleet.Options{Capacity: 128})
//	f.Resolved(name, addrs)
//	f.Announced("node-1", replicas)
//	plan := f.Plan(cfg, now, busy)
//	err := router.Apply(plan.Enter(pools), settings)
//	f.Commit(plan)
//
// A Fleet starts nothing, reads no clock and has no lock: one goroutine at a time may use it.
package fleet
