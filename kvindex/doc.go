// Package kvindex answers one question: how many leading blocks of this prompt does each endpoint hold?
//
// # Model
//
// A block is named by a 64-bit key that depends on all blocks before it, so a prompt is a chain of keys and equal keys mean
// equal prefixes. A [Slot] stands for one source of blocks, an endpoint or one data-parallel rank of it. Slots hold
// blocks on two tiers, [Device] and [Any], and Device is part of Any. Callers keep a promise on which everything rests:
//
//   - On each tier, whoever holds a block holds all blocks before it, at every moment: Store gets parents before children,
//     Remove gets children before parents, and both work key by key in that order.
//   - Whoever holds a block on Device holds it on Any: stored on Any first, removed from Device first.
//   - The calls for one slot are made in order, from one goroutine at a time.
//
// # Match
//
// With the promise, whoever holds key i+1 holds key i: the holders only get fewer along a chain. [Index.Match] asks for the
// last key first and gives its holders the full length, then for the first key, and then splits the range in
// between wherever it knows that a slot ends. Of 4,096 blocks, 64 endpoints that hold all cost one read, 64 endpoints that
// end in 64 places some 450, and blocks in which nobody ends none. For 8 keys, three slots and one tier:
//
//	key     k0     k1     k2     k3     k4     k5     k6     k7
//	holds   a b c  a b c  a b c  a b    a b    a b    a      a
//
//	read k7: a                a holds 8; b and c hold fewer
//	read k0: a b c            b and c end between k0 and k7
//	read k3: a b              c ends between k0 and k3, b between k3 and k7
//	read k1, k5: a b c, a b   c ends between k1 and k3, b between k5 and k7
//	read k2, k6: a b c, a     c holds 3 and b holds 6
//
// # Storage
//
// Sets of holders are interned: each different set is stored once, as a bitmap, under a 32-bit id. A block is 16 bytes in an
// open-addressing table, its key and the ids of its two sets, whatever the number of holders. A table's fill keeps
// between 11/20 and 4/5, so a block takes 20 to 29 bytes, and the sets are few beside the blocks:
// with 1,000 slots, a set for every 64 blocks adds 3 bytes per block. Adding a holder to a block
// writes another set's id; the set one slot away from a known one is found in a single lookup, by a hash that is the
// exclusive or of its members' numbers, and a run of blocks with equal holders needs that lookup once. Nothing in the tables
// is a pointer that the garbage collector would follow. About 100 KB are taken whatever the number of blocks (1,024 slots).
//
// Bounds are in [Options]. A slot that meets one is dropped as a whole and reported (ErrFull, [Index.Full],
// [Stats].FullSlots): matched in part it would look like an endpoint that evicted. Sets without blocks and
// tables that have become too big are given back by the calls that made them so.
//
// # Checks
//
// One match of [Options].CheckEvery is repeated as a walk over every key, which needs no promise. A different result for a
// slot that was not written to meanwhile cannot be an accident. Where the slot has a block without one before it, its
// writer has broken the promise: the slot is not matched any more (ErrOpen, [Index.Open]), and no other is concerned. Any other
// difference is counted, and from then on every match walks ([Stats].Walking) until the process ends.
//
// # Concurrency
//
// All methods may be called concurrently, those that write to one slot in the caller's order.
//
// What a match promises while writers go on: for each slot and tier there is a moment between the call and the return of
// Match at which the slot held exactly that many leading keys. A result d < len(keys) rests on two reads: key d−1 was held at
// one moment, so at least d keys were held then; key d was not held at another moment, so at most d were held then. Single
// keys come and go one at a time and in order, so the count moves in steps of one and was exactly d at some moment between
// the two. (d = 0 and d = len(keys) rest on one read.) A slot released during the match has zero, as it has from the
// beginning of Release on. Results of different slots may be true at different moments.
//
// Match takes no lock that the whole index shares, and waits at most for one shard: a read that a writer disturbs four
// times in a row, by moving entries of the same 1/256 of the blocks, waits for that writer. A table that grows or shrinks
// disturbs nobody. What a match may still look at is not reused under it: ids of sets and places of slots are handed out
// again only when every match that began before they were given up has ended. Writers never wait for matches, except Acquire,
// briefly, when the only free places are kept back by them.
//
// Store and Remove lock their slot for the whole call and one shard per key; the table of sets is locked once per run of blocks
// with equal holders. Release and Reset go through all shards, one at a time, at some tens of
// nanoseconds per block in the index.
//
// New starts no goroutine and nothing has to be closed.
package kvindex
