package blockhash_test

import (
	"fmt"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

func Example() {
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}

	// The same prompt has the same keys wherever it is keyed, and other ones under another salt.
	root := blockhash.Namespace{Pool: "chat", BlockSize: 4}.Root()
	for i, key := range blockhash.AppendKeys(nil, root, tokens, 4) {
		fmt.Printf("block %d: %016x\n", i, key)
	}
	salted := blockhash.Namespace{Pool: "chat", BlockSize: 4, Salt: "tenant-1"}.Root()
	fmt.Printf("salted:  %016x\n", blockhash.AppendKeys(nil, salted, tokens, 4)[0])

	// What vLLM publishes for the first block, at its default seed.
	var h blockhash.SHA256CBOR
	digest := h.Block(blockhash.NoneHash(blockhash.DefaultSeed), tokens[:4], nil)
	fmt.Printf("engine:  %016x\n", digest.Uint64())

	// Output:
	// block 0: 44accf78e5b19816
	// block 1: eb9fb14133651344
	// salted:  2bb8d82803c74b8f
	// engine:  84b146b151d55111
}
