package blockhash

import "encoding/binary"

// Kinds of canonical extra keys: the first byte of each.
const (
	extraItem   = 1
	extraDigest = 2
)

// AppendItem appends the canonical form of one multimodal item that overlaps the block: its identifier, and the start of
// the item minus the start of the block in tokens, negative when the item began in an earlier block. Items are appended in
// the order of their start, the same image twice as two items.
//
//	01 ‖ length of identifier (uint32) ‖ identifier ‖ offset (int64), little-endian
func AppendItem(dst []byte, identifier string, offset int64) []byte {
	dst = append(dst, extraItem)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(identifier)))
	dst = append(dst, identifier...)
	return binary.LittleEndian.AppendUint64(dst, uint64(offset))
}

// AppendDigest appends the canonical form of the digest of the prompt embeddings that lie in the block.
//
//	02 ‖ length of digest (uint32, little-endian) ‖ digest
func AppendDigest(dst, digest []byte) []byte {
	dst = append(dst, extraDigest)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(digest)))
	return append(dst, digest...)
}
