package blockhash

// The hash input needs four CBOR types and null, in canonical form (RFC 8949, section 4.2.1: shortest heads, definite
// lengths). A block's is encoded here and not by fxamacker/cbor, because the library's encoder takes values through interfaces:
// it allocates per block and takes about as long as the SHA-256 itself. The tests hold this encoder against the library.
const (
	majorUnsigned = 0 << 5
	majorNegative = 1 << 5
	majorBytes    = 2 << 5
	majorText     = 3 << 5
	majorArray    = 4 << 5

	null = 0xf6
)

// appendHead appends the head of a data item: its major type and its argument in the shortest form.
func appendHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return append(b, major|25, byte(n>>8), byte(n))
	case n < 1<<32:
		return append(b, major|26, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(b, major|27, byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

// appendText appends a text string. Python refuses strings that are not UTF-8 before it comes to hashing, so s is not
// checked here.
func appendText(b []byte, s string) []byte {
	return append(appendHead(b, majorText, uint64(len(s))), s...)
}

// appendInt appends an integer; a negative n is encoded as −1 − n.
func appendInt(b []byte, n int64) []byte {
	if n < 0 {
		return appendHead(b, majorNegative, uint64(-1-n))
	}
	return appendHead(b, majorUnsigned, uint64(n))
}
