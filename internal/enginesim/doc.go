// Package enginesim is a simulated vLLM engine: what a router sees of one, without a model and without a GPU.
//
// It serves completions and chat (streamed and not) and what renders them, adapters that are loaded and unloaded, /tokenize, /v1/models,
// /health, /version, /load, /metrics, /kv_event_sources and /reset_prefix_cache as vLLM 0.32 does, and publishes KV cache events over ZMQ. What decides about routing is exact:
//
//   - Prefix cache and scheduler follow the rules of vLLM's V1 engine. Fed with the requests and generated tokens of
//     recorded runs of the real engine (testdata), they give its event messages byte for byte, its evictions, duplicate
//     copies and preemptions included, and its cached_tokens.
//   - Block hashes are those of --prefix-caching-hash-algo sha256_cbor or sha256.
//   - The replay socket answers as recorded, in both reply forms, and says nothing of what its buffer has lost. It answers at once, where
//     vLLM does so between two polls of 0.1 s.
//   - Data-parallel ranks have a cache, sockets, numbers and metrics of their own each. The header X-data-parallel-rank names the one
//     that serves a request; without it all choices of a request go to the rank with the fewest requests.
//   - Tokens are the same on every engine, and a prompt that continues an earlier prompt with its answer begins with the
//     same tokens.
//
// What a model would compute is made up. The tokenizer splits text by simple rules, about four characters to a token, and
// takes a hash of each piece for its id. Answers are words drawn at random from the prompt; they end where max_tokens says,
// a chat without a bound after 128 tokens. Time passes as [Timing] says, in steps as in the real engine: a step computes
// one token of every answer and, with what room is left, prompts in order of arrival.
//
// Tests can have batches lost ([Engine.LoseBatches]), connections cut ([Engine.CutConnections]) and long replays with a hole as vLLM up to
// 0.32 gives them ([Events].ReplayLimit).
//
// GET /sim/blocks?pool=NAME lists what prompts could hit in the caches, as fingerprints of a pool: tests compare it with what a router believes.
//
// Not simulated: sampling parameters, log probabilities, tool calls in answers, multimodal input, report modes,
// offload tiers.
//
// # Use
//
//	e, err := enginesim.New(enginesim.Options{
//		BlockSize: 16,
//		Blocks:    1024,
//		Timing:    enginesim.Timing{PrefillRate: 8000, DecodeRate: 80},
//		Events:    enginesim.Events{Connect: "tcp://127.0.0.1:5557", Topic: "kv-events"},
//	})
//	…
//	go e.Run(ctx)
//	<-e.Ready()
//	fmt.Println("serving on", e.Addr())
//
// A prompt of 40 tokens to an empty engine of block size 16 stores two blocks, published when its first token is ready:
//
//	[1234.5, [{"type": "BlockStored", "block_hashes": [h0, h1], "parent_block_hash": nil, "token_ids": [t0 … t31], …}], 0]
//
// The same prompt again publishes nothing and reports 32 cached tokens. With 20 tokens of answer, of which the last is
// never computed, the blocks end at token 59, so that a third block is stored on the way, with h1 as its parent.
//
// # Concurrency
//
// An Engine is made once and run once: Run returns when every goroutine it started has ended, with requests in flight cut.
// One goroutine runs the steps of a rank; handlers add and abort sequences under the loop's mutex, and receive tokens through a
// stream of their own. A step's events are numbered and queued for all subscribers before any of its tokens is delivered.
// Messages to one subscriber are in order; a subscriber that is slow by more than 64 MiB misses messages and sees a gap in
// the numbers, and never holds up the engine. Of requests at most 16,384 wait; more are refused with 503. Connections
// without a complete handshake are closed after ten seconds.
package enginesim
