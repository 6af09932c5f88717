// Package blockhash names KV blocks: by kvsteer's own fingerprint and by the engine's hash.
//
// # Fingerprint
//
// A fingerprint is a chained 64-bit key of a block. It depends on the token ids of the block and of all blocks before it,
// and on a [Namespace]: the pool (base weights), the adapter, the block size and the cache salt. It does not depend on the
// engine, its version, hash algorithm or seed, so a prompt and an engine event that mean the same block give the same key:
//
//	root      = XXH3-64(seed 1337, fields of the namespace, each with its length)
//	content_i = XXH3-64(seed 1337, token ids of block i as uint32 little-endian ‖ canonical extra keys, if any)
//	key_i     = XXH3-64(seed 1337, key_{i-1} little-endian ‖ content_i little-endian), key_{-1} = root
//
// Content hashes do not depend on each other: a block whose parent is not known yet is kept as the 8 bytes of its content
// and gets its key by [Chain] once the parent turns up. [AppendKeys] keys the whole blocks of a plain text prompt; a
// partial trailing block has no key, as engines do not cache it.
//
// Adapter and cache salt stand in the root, because the chain carries them to every block. What belongs to single blocks
// goes into their content as canonical extra keys, in the order of the engine's events: [AppendItem] for each multimodal
// item that overlaps the block, then [AppendDigest] for prompt embeddings.
//
// Worked example, pool "chat", no adapter, no salt, blocks of 4, tokens 1…9: the root is the hash of these 44 bytes,
//
//	04 00 00 00 00 00 00 00  63 68 61 74     pool: length, "chat"
//	00 00 00 00 00 00 00 00                  adapter: length
//	08 00 00 00 00 00 00 00  04 00 00 00 …   block size: length 8, uint64
//	00 00 00 00 00 00 00 00                  salt: length
//
// content_0 the hash of 01 00 00 00 02 00 00 00 03 00 00 00 04 00 00 00, key_0 = Chain(root, content_0), likewise block 1
// with tokens 5…8; token 9 fills no block.
//
// # Engine hash
//
// [SHA256CBOR] recomputes vLLM's chain of --prefix-caching-hash-algo sha256_cbor: each block's digest is SHA-256 over the
// canonical CBOR array of the parent's digest, the token ids and the extra keys. Blocks without a parent chain from
// [NoneHash]. vLLM publishes either the 32 bytes or their fold, [Digest.Uint64]. The worked example, seed "vllm-none-hash",
// tokens 1…4, no extra keys:
//
//	83                                       array of 3
//	   58 20 9bd96a48 … 9581eef0             parent: 32 bytes, NoneHash
//	   84 01 02 03 04                        token ids, each in its shortest form
//	   f6                                    null: no extra keys
//	SHA-256 = 58d0879d … b151d55111, published as 0x84b146b151d55111
//
// [SHA256Pickle] recomputes the chain of vLLM's default, sha256, in which the same three values are hashed as a Python pickle
// (protocol 5). The same example, from [NoneHashPickle]:
//
//	80 05  95 32 00 00 00 00 00 00 00        protocol 5; one frame of 0x32 bytes
//	   43 20 066b1e89 … b4f0d71198   94     parent: 32 bytes; 94 numbers an object
//	   28 4b 01 4b 02 4b 03 4b 04 74  94     tuple of token ids, each in its shortest form
//	   4e                                    None: no extra keys
//	   87 94  2e                             tuple of 3; end
//	SHA-256 = 52a7f141 … e3edd9361a, published as 0x1a1eb4e3edd9361a
//
// [EngineChain] is one of these chains, or one of XXH3-128 over the same bytes, or SGLang's pages (SHA-256 over the parent's
// digest and the token ids as uint32 little-endian), chosen by [Algorithm].
//
// # Concurrency
//
// All functions are pure. A SHA256CBOR, a SHA256Pickle and an EngineChain own a buffer and belong to one goroutine.
package blockhash
