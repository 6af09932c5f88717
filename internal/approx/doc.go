// Package approx remembers which prompts were sent to which endpoint, by their text, so that a follow-up can be sent where its beginning went.
//
// It serves prompts whose token ids are not known, and endpoints that publish no events. Nothing in it is observed: it assumes that an endpoint
// has cached what it was sent, and forgets that when the endpoint's cache has plausibly dropped it.
//
// # Keys
//
// A [Keyer] cuts the canonical text of a prompt (see [openai.Request.WriteText]) into blocks of [BlockBytes] bytes and chains their hashes as
// fingerprints of token blocks are chained:
//
//	root  = chain(root of pool, adapter and block size; blocks of the head)
//	key_i = chain(key_{i-1}, hash of bytes 256·i … 256·i+255 of the text after the head)
//
// The head holds what stands before all messages or decides on their rendering: cache salt, tools, documents, template arguments. So another
// tool list makes another chain from its first block on, and a follow-up turn extends the chain of the turn before. An example: of a chat
// whose messages have 1,000 bytes of text three blocks are keyed; a follow-up of 1,700 bytes has six, the first three of them equal.
// A part that is not text, such as an image, is 16 blocks made of its hash. No text is kept.
//
// # Memory
//
// For each endpoint there is one list of keys, the latest used first. [Endpoint.Learn] moves all keys of a prompt to its front, the last key
// first, so that whoever stands before a key in its chain also stands before it in the list. The last key of the list therefore is one that no
// other key of the list depends on: dropping from the end keeps the set closed under prefix, as [kvindex] asks, and is also what engines do,
// which evict the tail of the least recently used prompt first. Keys are dropped when
//
//   - the endpoint has more than Limits.Blocks of them: its cache is full (cause "capacity");
//   - it has more than its even share of Options.MaxBlocks, the bound on all (cause "bound");
//   - they have not been used for Limits.Lifetime (cause "lifetime");
//   - the endpoint went down, was drained, reset or removed (cause "forgotten").
//
// A prompt longer than the endpoint's room is remembered from its beginning as far as there is room. A block takes about 75 bytes for each
// endpoint that was sent it.
//
// # Concurrency
//
// All methods of an [Index] and of an [Endpoint] may be called concurrently. Learn holds its endpoint's lock; matching takes no lock but that
// of an endpoint whose oldest keys have outlived their time, and only when it is free. Dropping what has expired is done by those who learn and
// look up, a bounded number of keys at a time. The package starts no goroutines. A Keyer belongs to one goroutine.
package approx
