// Package feed carries what a node knows of its engines to any number of routers: which engines there are, what their caches hold, how
// loaded they are. Routers dial, nodes serve. The same streams carry between the routers of a node what each has sent to its engines.
//
//	n, err := feed.NewNode(feed.NodeOptions{Name: "gpu-7", Release: version, TLS: files.Config(), Metrics: feed.NewNodeMetrics(reg)})
//	source := n.Source() // a subscriber's Sink, one for each rank of each engine
//	n.Announce([]feed.Replica{{Endpoint: ":8000", Pool: "chat", Models: []string{"llama"}, Sources: []uint32{source.Number()}}})
//	err = n.Run(ctx, listener)
//
//	r, err := feed.NewRouter(feed.RouterOptions{Instance: router.Instance(), Release: version, Fleet: fleet, TLS: tls, Metrics: feed.NewRouterMetrics(reg)})
//	r.Set([]feed.Address{{Addr: "10.0.0.7:9010"}}) // at any time
//	err = r.Run(ctx)
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
//	                           ◀──  wanted                  which prompts help to know a source's blocks
//	witness                    ──▶                          what such a prompt hashes to
//
// A source is the blocks of one rank of one engine. Its number belongs to one place in one replica and is not given again by the same
// instance of a node. States, resets, begins and what follows come for sources of the last replicas only: when a source is not among them any more it is
// to be forgotten, and should it come back it begins anew.
//
// # Copies and deltas
//
// Begin opens a copy. What a router knew of the source stays matched meanwhile, but no more changes of it come: it counts as lost from
// there on, as on a lost stream, and what comes belongs to the copy. At End the copy is the source's set exactly and takes the place of what was
// known. From then on deltas are net changes: what came and went within one window (20 ms or 4,096 blocks) does not leave the node. Begin may come
// for a source whose copy has ended: what the router took too long to read was dropped, and is copied again for it alone. A reset empties what is
// known, and a copy that is under way, which goes on.
//
// A delta is applied in order: removed keys, first from the device and then from any tier, then added keys, first to any tier and then to
// the device. Applied so, key by key, both tiers are prefix-closed at every moment, and the device's blocks are a subset of the other's. In a copy the keys of
// a delta may be known already or not, and their parents may come later; at End all is in order.
//
// A window in which a block left the device and two were computed, as a NodeMessage of 35 bytes:
//
//	3a 21                            delta, 33 bytes
//	  08 05                          source 5
//	  12 08 88 77 66 55 44 33 22 11  removed: the fingerprint 1122334455667788, little-endian
//	  1a 01 02                       from the device only
//	  22 10 a8 a7 a6 a5 a4 a3 a2 a1  added: two fingerprints, the parent first,
//	        b8 b7 b6 b5 b4 b3 b2 b1  to all tiers, as nothing else is said
//
// # Witnesses
//
// A subscriber that has lost what it knew of its engine finds out by prompts that are routed there (package subscriber). Each source says by wanted whether it has use for
// them, and how they are to be hashed; a router takes that back when the stream ends. Only then does a router hash the prompts that may run there, and send root, content hashes and
// hashes of the engine's kind, 8 bytes each. It does so in a goroutine of each stream, at a pace; prompts wait in a queue of each source, 64 or 256 Ki tokens at most, of which the
// oldest are dropped. Charges and records go first. A node takes a witness for what its source wants at this time, and as many hashes in a second as a source may cost. Peers that know nothing of this are
// asked for nothing, and ask for nothing.
//
// # Slow routers
//
// Whoever tells a source something waits for no router: a message is encoded once, and each stream has a queue of its own for it. A queue is bounded
// in bytes. When a message does not fit, everything in the queue is dropped, and all sources are copied anew to this stream; resets and states are
// told at once. What routers tell each other gets in as long as the queue is half empty (releases and records: three quarters), and is counted otherwise. Loads
// and peers are beside the queue: the last ones count. Blocks are copied to four streams at a time. Each has a turn of a second while others
// wait, so a router that does not read delays nobody. A stream of which nothing is read for a minute is ended.
//
// # What a peer can do
//
// A node takes 256 streams, 64 of one address, and twice as many connections. A handshake and a hello have 5 s, a message has 1 MiB at most, and every list and
// text in it has a bound: what exceeds it ends the stream, and is counted. Charges come in the name of the router whose stream it is. Who
// is on the other end is for TLS with client certificates, and for a bearer token, to say; clear text is served on loopback only, unless it is allowed.
// Files are read by their hash, out of those that the node offers, four at a time. Token ids and prompts are in no message;
// docs/security.md says what hashes tell. Who sends a witness is believed about which hashes are of one block.
//
// Records for a router that is not there wait for it where they came, for a minute, and what was sent on a way that turns out to be lost is sent again:
// a record may come twice.
//
// A router that is not among the peers any more is gone, whether a message of charges said so or not.
//
// A router takes 4,096 nodes, and of one of them messages of 4 MiB, replicas and peers by the thousand, and as many blocks of a source as its options say. A
// message that no node sends ends the stream with nothing of it applied, and the next attempt waits, up to 5 s. A node speaks for endpoints at the address that
// was dialled and at those that its configuration allows, and for none that another node announced first; blocks, loads and charges of all others are
// dropped. So it can draw requests to its own engines, or keep them away, and to no others. In clear text a router dials loopback addresses only, unless more
// is allowed, and a certificate with IP addresses must have the dialled one among them.
//
// # Stale blocks
//
// A router believes what it has been told for 3 s from the last message of a stream that was lost, or from the begin of a copy to its end. Then the sink is told
// that it is not connected, until a copy is complete: also when the stream is back before, and the engine connected. After a lost stream what was
// known is forgotten then, as only a copy can replace it. A stream on which nothing came for 3 s is ended; a node that has nothing to say says so each second.
//
// # Concurrency
//
// All methods of a Node, a Source and a Router may be called from any goroutine, with the exception that a Source is a subscriber's Sink, whose calls come
// from one goroutine; they never wait for a peer. What a Source is told goes to each router in that order; what two sources are told has no order. Run
// starts all goroutines and returns when they have ended.
//
// A router calls its Fleet and its Sinks from one goroutine per node at a time, and from a timer's in between; calls that concern one node never overlap. While a node
// is away the replicas stay; the sinks are closed when the node withdraws their replica, when it is no node any more, and before Run returns. Charged,
// Released and Pass take a lock for the time of a map's update, and never call the Fleet.
package feed
