// Package subscriber follows the KV-cache events of one engine and tells a
// Sink which blocks the engine holds.
//
// An engine (vLLM, SGLang) publishes every block that enters or leaves its
// prefix cache on a ZeroMQ PUB socket, by a hash that only it can compute. A
// Subscriber keeps a mirror of that cache, names blocks by fingerprints
// computed from the token ids in the events, and announces net changes. At
// every moment the set of blocks announced is prefix-closed: a block is there
// only with all its ancestors. Token ids do not leave the package.
//
//	s, err := subscriber.New(subscriber.Options{
//		Pool:     "chat",
//		Endpoint: "127.0.0.1:8001",
//		Listen:   "tcp://127.0.0.1:5557",
//		Sink:     sink,
//	})
//	…
//	err = s.Run(ctx) // until ctx ends
//
// # Who connects to whom
//
// With Listen the subscriber binds and the engine connects (vLLM's PUB
// connects whenever its endpoint has neither "*" nor "::"). This is the
// better choice on one host: an engine that binds publishes the token ids of
// every prompt to whoever can reach its port, and one that connects is back
// within 0.1 s, ZeroMQ's reconnect interval, when the subscriber restarts. Only
// loopback addresses are taken unless InsecureListen is set, since whoever
// connects can announce blocks in the engine's name. There is one engine per
// address: the newest connection wins, because a restarted engine can be back
// before its old connection is seen dead. Two that replace each other are
// slowed down; the loser shows as refused_connections_total{reason="second_peer"}.
//
// With Dial the engine binds and the subscriber connects, for ever, with
// growing pauses of at most BackoffMax. What the engine publishes before it
// is connected is missed.
//
// # What was missed
//
// There is no way to ask an engine what it holds, and a mirror that missed a
// removal would announce blocks that are gone. But engines can repeat their
// latest batches (10,000 by default), on a socket that Replay names:
//
//   - at the start those from number 0 on are asked for;
//   - when a number is missing, after a lost connection, and after 2 s of silence
//     those from the last one applied on. Equal bytes show that the engine is
//     the same process as before, since a batch carries the time it was made;
//     then nothing is forgotten. While the engine stays idle it is asked less and
//     less often, down to every 30 s. That finds a tail that was lost,
//     and a restart that no number shows.
//
// Live messages wait meanwhile. The Sink hears that the engine is not connected
// and, at the end, one net change. Lifetimes of what is replayed begin when the
// engine made the batch. Engines lose batches in the middle of long
// replays (vLLM up to 0.32, beyond 1,000) and do not notice, so the
// numbers of a replay must follow each other, and a hole is asked again, at most
// 16 times. Description.Complete says that the mirror has followed the
// engine from its batch 0.
//
// A replay socket that cannot be reached or does not answer is counted, and what
// follows in this case is what happens without one. It is not waited for until
// it has answered again: what it has is asked for beside the live batches.
//
// # When blocks are forgotten
//
// Everything is forgotten, and the Sink told by a Reset, when the engine is
// another process than before (backwards), when a replay lacks what was missed
// (lost), when a batch cannot be read (unreadable), and when the engine says
// that it emptied its cache (cleared). Without an answer from a replay
// socket a connection's end (disconnect) and a missing number (gap) cost
// everything, too. A batch that follows is applied to the empty mirror: its blocks are
// announced if their ancestors are in it, and held as orphans otherwise. A number
// that goes back by less than 64 may be of a batch that a relay delivers late or twice:
// such a batch is not applied to the empty mirror, as later ones can have
// removed what it stores, and what follows it counts from the next
// larger number on, or from a replay. The
// mirror of a lost connection is kept for Options.Keep. Silence forgets
// nothing: an engine publishes only changes.
//
// # Healing
//
// An engine publishes nothing for a prompt that it holds whole, so after a
// Reset a hot prefix would never be announced again, and every conversation on
// it would stay an orphan. [Subscriber.Witness] takes the prompts that are
// routed to the engine. A prompt proves nothing by itself: it only says which
// tokens stand behind hashes that the engine itself publishes. The proof is a
// stored block: when it was stored, its parent and all ancestors were
// resident, or the engine could not have used them.
//
// Where the engine's hash can be recomputed (vLLM's sha256 and sha256_cbor from
// 0.29 on, every algorithm with Options.HashSeed, SGLang without adapters), the
// ancestors get their own engine hashes, so that removals end them. An engine
// that holds blocks a, b, c, d of a prompt when the mirror is reset:
//
//	Witness  tokens of blocks 0…5                  h0…h5 recomputed and kept
//	event    BlockStored h4 h5, parent h3          h4 is an orphan: h3 is unknown,
//	                                               but it is hash 3 of the prompt
//	         a, b, c, d enter as h0…h3             one copy each, on the device
//	Sink     Store k0 k1 k2 k3 k4 k5               h4 and h5 are rooted
//	event    BlockRemoved h2                       resolved as any other removal
//	Sink     Remove k5 k4 k3 k2
//
// It does not matter whether the prompt or the event comes first, within
// bounds. A block is not entered when a copy of it was removed after the event
// that proves it. Of several copies of a block one is known then, so that it
// can be withdrawn too early, never too late. Nothing is inferred for engines
// with several full-attention groups.
//
// How an engine hashes is found out: from a chain's first block when one is
// stored, else by trying the candidates on prompts, 16 Ki blocks for one
// prompt and 64 Ki in a second at most. Only an equal hash counts as a fit,
// so a wrong guess costs time and announces nothing.
//
// Elsewhere (vLLM up to 0.28 without a seed, xxhash, a tagged adapter whose path
// is not known) the contents of an orphan and of what follows it are looked
// up in the prompts. Found at exactly one position, 32 tokens or more, of the
// same adapter, what precedes them there is assumed for 10 min, and longer
// while the engine stores blocks under it. Then it is withdrawn. Only the
// orphan's parent has its engine hash, so other removals go unseen until
// then. Salted prompts are not healed in this way, and no prompt is once
// a salt was seen: the salt does not show in the blocks after the first.
//
// Where prompts are routed on another host, that one hashes them for what Options.Wanted tells ([Proxy], [Hasher]), and
// [Subscriber.WitnessHashes] takes the hashes: the same rules on the same evidence, without the tokens.
//
// Witnesses are wanted ([Subscriber.Wants]) while the engine is connected
// and its history is not complete: until it clears its cache, or a replay
// from its first batch. Kept are 32 Ki blocks of prompts for 1 to 2 min, 16 Ki
// proofs and 32 Ki removals, some 9 MB; what is older is forgotten and proves
// nothing. Token ids are kept only of prompts that wait for the block size to
// be known: 64 prompts and 256 Ki tokens at most.
//
// # A full mirror
//
// A mirror has Options.MaxBlocks blocks at most. For each one more it withdraws a leaf, a block without children in it: of those off the device first, then the
// one that was used longest ago, which is when it was stored or something was stored under it. So a conversation goes from its end. What was withdrawn is
// not known any more: its removal is of nothing, and what the engine stores under it is an orphan, never a root. It comes back
// when the engine stores it again; when it stores something under it while its content is still kept (64 Ki blocks, 30 min); or, where
// hashes can be recomputed, by a prompt that shows it, for which prompts are wanted from then on. Too little is announced
// then, never too much. ProblemMirrorFull says so, until 10 min after a block was last withdrawn.
//
// # Saved mirrors
//
// With a StateDir the mirror is saved 5 s after Run began, then about once a minute when something was applied, and at Run's end. The next Run, of
// another process as a rule, reads the file and asks the engine for the batch that was applied last. The same bytes prove the same
// process, and the replay goes on from there; else the mirror is forgotten before the Sink has heard of it. A file that is not what was
// written is set aside. Without Replay nothing is saved, as nothing could be proven. save_encode.go tells the format.
//
// # What a peer can do
//
// ZMTP is spoken by go-zeromq/zmq4, one socket for each connection's life,
// which sees no byte that has not passed a guard: greeting and READY
// command well-formed, and every frame header within Limits before its body
// is allocated. A handshake, each message once begun, and each write have a
// deadline; TCP keepalive finds hosts that vanished. Batches are applied as
// they are received; a Sink that is slow holds up reading at Limits.Buffered
// bytes, what follows waits with the kernel and then in the engine's send queue
// (100,000 batches by default), which drops what does not fit, and that shows
// as a gap. So a peer costs at most Limits.Buffered, one message, 64 KiB and
// the mirror, and a listener 32 pending handshakes of 4 KiB. It accepts 500 connections a
// second, the others wait with the kernel, so that an engine gets in behind 1,000 that stay silent. A replay socket gets a
// connection for each request, behind the same guard, and costs as much again; so do
// the live messages that wait for it: what does not fit is dropped and asked
// for again. The last batch is kept, at most Limits.Message. A replay ends after a
// million batches, 8 GiB, 60 s, or 10 s without any; and after 8 at once there is
// one per second. A batch that takes far more
// steps than the mirror has blocks counts as unreadable.
//
// # A message and a batch
//
// One message as recorded from vLLM 0.32, with the bytes that precede each
// frame on the wire:
//
//	01 09  6b 76 2d 65 76 65 6e 74 73   more follows, 9 bytes: topic "kv-events"
//	01 08  00 00 00 00 00 00 00 54      more follows, 8 bytes: sequence 84
//	00 65  93 cb 41 da … 00             last, 101 bytes: the batch
//
// and the batch, in msgpack:
//
//	93                                  batch: time, events, data-parallel rank
//	  cb 41dac3114654b0d4               time 1795966233.32 s, the engine's clock
//	  91                                one event
//	    84                              a map (up to vLLM 0.23 an array)
//	      a4 "type"         ac "BlockRemoved"
//	      ac "block_hashes" 91 c4 20 f097cb98…91 82 ee fe 7d
//	                                    one hash of 32 bytes, known by its last
//	                                    8 as a big-endian number
//	      a6 "medium"       a3 "GPU"
//	      a9 "group_idx"    00
//	  00                                rank 0
//
// # Concurrency
//
// New starts nothing. Run starts the goroutines of a connection and of a
// listener, and one while a replay is under way, and returns when ctx has ended and all of them have; by then the
// Sink has had a Reset if anything was announced, and a Description that is not
// connected. All calls of a Sink come from the goroutine in Run, one at a
// time and in the order of the engine's batches. Addr may be called at any
// time from anywhere. Run may be called again after it returned, not before.
package subscriber
