// Package feed carries what a node knows of its engines to any number of routers: which engines there are, what their caches hold, how
// loaded they are. Routers dial, nodes serve. The same streams carry between the routers of a node what each has sent to its engines.
//
//	n, err := feed.NewNode(feed.NodeOptions{Name: "gpu-7", Release: version, TLS: files.Config(), Metrics: feed.NewNodeMetrics(reg)})
//	source := n.Source() // a subscriber's Sink, one for each rank of each engine
//	n.Announce([]feed.Replica{{Endpoint: ":8000", Pool: "chat", Models: []string{"llama"}, Sources: []uint32{source.Number()}}})
//	err = n.Run(ctx, listener)
//
// # One stream
//
// A router opens one stream to each node (feedpb/feed.proto). It begins with the router's hello, within 5 s, and the node's answer, which
// names the protocol version spoken from there on: the newest that both know. Without one the stream ends, and the error says which side is to
// be upgraded. What a side does not know in a message it ignores.
//
//	router                          node
//	hello {versions, instance} ──▶
//	                           ◀──  hello {version, name, instance}
//	                           ◀──  replicas                all of the node; again whenever anything in them changes
//	                           ◀──  state, begin            for each source
//	                           ◀──  blocks … blocks, end    one source after the other, deltas in between
//	                           ◀──  delta, reset, state     from there on
//	                           ◀──  loads, peers, alive     at any time; something at least once a second
//	charges, record            ──▶  charges, record         to the node's other routers
//
// A source is the blocks of one rank of one engine. Its number belongs to one place in one replica and is not given again by the same
// instance of a node. States, resets, begins and what follows come for sources of the last replicas only: when a source is not among them any more it is
// to be forgotten, and should it come back it begins anew.
//
// # Copies and deltas
//
// Begin opens a copy. What a router knew of the source stays matched meanwhile, but no more changes of it come: it counts as lost from
// there on, as on a lost stream, and what comes belongs to the copy. At End the copy is the source's set exactly and takes the place of what was known. From then on
// deltas are net changes: what came and went within one window does not leave the node. Begin may come for a source that has ended before: what
// the router took too long to read was dropped, and is copied again for it alone.
//
// A delta is applied in order: removed keys, first from the device and then from any tier, then added keys, first to any tier and then to
// the device. Applied so, key by key, both tiers are prefix-closed at every moment, as each was a subset of the other's parents: removals are ordered
// children first, additions parents first. In a copy the keys of a delta may be known already or not: a copy is applied without regard
// to that.
//
// A router that is not among the peers any more is gone, whether a message of charges said so or not.
package feed
