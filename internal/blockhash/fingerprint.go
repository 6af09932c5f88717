package blockhash

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// seed is the XXH3 seed of every fingerprint. Changing it changes every key, so all parts of a fleet must agree on it.
const seed = 1337

// Namespace separates chains of equal tokens that must not match each other. Its root stands in the place of the parent
// of the first block.
type Namespace struct {
	Pool      string // endpoints that serve the same base weights
	Adapter   string // LoRA name, "" for the base model
	BlockSize int    // tokens per block
	Salt      string // the request's cache salt, "" without
}

// Root returns the key that the first block of a chain in n has as its parent. It does not allocate while the strings
// together stay below about 450 bytes.
func (n Namespace) Root() uint64 {
	b := make([]byte, 0, 512)
	b = appendField(b, n.Pool)
	b = appendField(b, n.Adapter)
	b = binary.LittleEndian.AppendUint64(b, 8)
	b = binary.LittleEndian.AppendUint64(b, uint64(n.BlockSize))
	b = appendField(b, n.Salt)
	return xxh3.HashSeed(b, seed)
}

// appendField appends s after its length, so that no two lists of fields have the same bytes.
func appendField(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// Content returns the content hash of one block. extra holds the block's canonical extra keys, nil when it has none.
// It does not allocate, except for a block with extra keys whose tokens and extra keys exceed 4 KiB.
func Content(tokens []uint32, extra []byte) uint64 {
	if littleEndian() && len(extra) == 0 {
		return xxh3.HashSeed(tokenBytes(tokens), seed)
	}
	return copiedContent(tokens, extra)
}

// copiedContent is Content for blocks whose bytes do not lie in memory as they are hashed. The streaming hasher of xxh3
// would avoid the copy but allocates its secret.
func copiedContent(tokens []uint32, extra []byte) uint64 {
	b := make([]byte, 0, 4096)
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	b = append(b, extra...)
	return xxh3.HashSeed(b, seed)
}

// littleEndian reports whether a uint32 lies in memory as it is hashed. The compiler folds it to a constant.
func littleEndian() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}

// tokenBytes views token ids as the bytes in memory: hashing in place costs half of what copying them first does.
func tokenBytes(tokens []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), len(tokens)*4)
}

// Bytes returns the content hash of a block that is not of tokens: of so many bytes of text.
func Bytes(p []byte) uint64 { return xxh3.HashSeed(p, seed) }

// Chain returns the key of the block with that content whose parent has the key parent (the root for a first block).
func Chain(parent, content uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parent)
	binary.LittleEndian.PutUint64(b[8:], content)
	return xxh3.HashSeed(b[:], seed)
}

// AppendKeys appends the keys of all whole blocks of a plain text prompt to dst, first block first. A partial trailing
// block has no key; a blockSize below 1 gives none. It allocates only when dst lacks room for len(tokens)/blockSize keys.
func AppendKeys(dst []uint64, root uint64, tokens []uint32, blockSize int) []uint64 {
	if blockSize < 1 {
		return dst
	}
	key := root
	for len(tokens) >= blockSize {
		key = Chain(key, Content(tokens[:blockSize], nil))
		dst = append(dst, key)
		tokens = tokens[blockSize:]
	}
	return dst
}
