// Package ports keeps which ports of loopback a node has picked for its engines, so that an engine that is running goes on connecting to
// the right one whatever becomes of the node.
//
//	book := ports.New(ports.Options{Dir: "/var/lib/kvsteer-node", First: 5557, Last: 5999})
//	picked, err := book.Pick([]ports.Want{{Engine: "127.0.0.1:8001", Ranks: 2, Events: true, Replay: true}})
//	// picked.Of["127.0.0.1:8001"] is {Events: 5557, Replay: 5559}: rank 1 has 5558 and 5560
//
// The file ports.json in Dir holds what was picked:
//
//	{"version": 1, "engines": [{"engine": "127.0.0.1:8001", "ranks": 2, "events": 5557, "replay": 5559}]}
//
// What stands there is given again. A port is picked anew for an engine that has none, for more ranks than before, when the port is not one of First to
// Last any more, is Taken by something else of the configuration, or, where Want.Check asks for it, another process listens on it. The ports of an engine
// that is not wanted any more are kept from others for a week, or until there is no other port.
//
// Kept says the same of engines that have ports, and changes nothing.
//
// The file is replaced as a whole, under a lock, so that a node and a command that prints its ports agree. One that cannot be
// understood is set aside, and Picked says so.
//
// # Concurrency
//
// A Book may be used from any goroutine, and by several processes at a time.
package ports
