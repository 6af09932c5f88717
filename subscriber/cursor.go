package subscriber

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// The msgpack codes that the cursor reads itself. Those of the msgpack module
// are variables, which costs in its loops.
const (
	maxPosFixed = 0x7f
	fixMap      = 0x80 // to 0x8f
	fixArray    = 0x90 // to 0x9f
	fixStr      = 0xa0 // to 0xbf
	codeNil     = 0xc0
	codeFalse   = 0xc2
	codeTrue    = 0xc3
	codeBin8    = 0xc4
	codeBin16   = 0xc5
	codeBin32   = 0xc6
	codeExt8    = 0xc7
	codeExt16   = 0xc8
	codeExt32   = 0xc9
	codeFloat32 = 0xca
	codeFloat64 = 0xcb
	codeUint8   = 0xcc
	codeUint16  = 0xcd
	codeUint32  = 0xce
	codeUint64  = 0xcf
	codeInt8    = 0xd0
	codeInt16   = 0xd1
	codeInt32   = 0xd2
	codeInt64   = 0xd3
	codeFixExt1 = 0xd4 // to 0xd8: 1, 2, 4, 8, 16 bytes
	codeStr8    = 0xd9
	codeStr16   = 0xda
	codeStr32   = 0xdb
	codeArray16 = 0xdc
	codeArray32 = 0xdd
	codeMap16   = 0xde
	codeMap32   = 0xdf
	minNegFixed = 0xe0
)

// errTruncated ends a batch whose framing reaches beyond its payload.
var errTruncated = errors.New("truncated")

// errFraming ends a batch that holds a byte which starts no msgpack value.
var errFraming = errors.New("invalid msgpack code")

// cursor reads a payload. It implements io.ByteScanner, so that the msgpack
// decoder on top of it reads no byte ahead and both can be used in turn: the
// decoder for the structure, the cursor for strings (not copied), for runs of
// integers and to skip values.
type cursor struct {
	b   []byte
	pos int
}

func (c *cursor) remaining() int { return len(c.b) - c.pos }

func (c *cursor) ReadByte() (byte, error) {
	if c.pos >= len(c.b) {
		return 0, io.EOF
	}
	c.pos++
	return c.b[c.pos-1], nil
}

func (c *cursor) UnreadByte() error {
	if c.pos == 0 {
		return errTruncated
	}
	c.pos--
	return nil
}

func (c *cursor) Read(p []byte) (int, error) {
	if c.pos >= len(c.b) {
		return 0, io.EOF
	}
	n := copy(p, c.b[c.pos:])
	c.pos += n
	return n, nil
}

// take returns the next n bytes without copying them.
func (c *cursor) take(n int) ([]byte, error) {
	if n < 0 || n > c.remaining() {
		return nil, errTruncated
	}
	s := c.b[c.pos : c.pos+n : c.pos+n]
	c.pos += n
	return s, nil
}

// skip passes one value. It counts the values that are still to come instead
// of descending into them, so that nesting costs no stack, and as each takes
// at least a byte, their number is bounded by what remains.
func (c *cursor) skip() error {
	for pending := 1; pending > 0; pending-- {
		if pending > c.remaining() {
			return errTruncated
		}
		code := c.b[c.pos]
		c.pos++
		size, values := 0, 0
		switch {
		case code <= maxPosFixed, code >= minNegFixed, code == codeNil:
		case code < fixArray:
			values = 2 * int(code-fixMap)
		case code < fixStr:
			values = int(code - fixArray)
		case code < codeNil:
			size = int(code - fixStr)
		default:
			var err error
			if size, values, err = c.header(code); err != nil {
				return err
			}
		}
		if size > c.remaining() || values > c.remaining() {
			return errTruncated
		}
		c.pos += size
		pending += values
	}
	return nil
}

// header reads the length field after code and returns how many bytes and how
// many values follow it.
func (c *cursor) header(code byte) (size, values int, err error) {
	switch code {
	case codeFalse, codeTrue:
	case codeUint8, codeInt8:
		size = 1
	case codeUint16, codeInt16:
		size = 2
	case codeUint32, codeInt32, codeFloat32:
		size = 4
	case codeUint64, codeInt64, codeFloat64:
		size = 8
	case codeStr8, codeBin8:
		size, err = c.length(1)
	case codeStr16, codeBin16:
		size, err = c.length(2)
	case codeStr32, codeBin32:
		size, err = c.length(4)
	case codeArray16:
		values, err = c.length(2)
	case codeArray32:
		values, err = c.length(4)
	case codeMap16:
		values, err = c.length(2)
		values *= 2
	case codeMap32:
		values, err = c.length(4)
		values *= 2
	case codeFixExt1, codeFixExt1 + 1, codeFixExt1 + 2, codeFixExt1 + 3, codeFixExt1 + 4:
		size = 1 + 1<<(code-codeFixExt1) // a type byte and the data
	case codeExt8:
		size, err = c.length(1)
		size++
	case codeExt16:
		size, err = c.length(2)
		size++
	case codeExt32:
		size, err = c.length(4)
		size++
	default:
		return 0, 0, errFraming
	}
	return size, values, err
}

// length reads a big-endian length of 1, 2 or 4 bytes.
func (c *cursor) length(width int) (int, error) {
	b, err := c.take(width)
	if err != nil {
		return 0, err
	}
	switch width {
	case 1:
		return int(b[0]), nil
	case 2:
		return int(binary.BigEndian.Uint16(b)), nil
	}
	return int(binary.BigEndian.Uint32(b)), nil
}

// tokens appends n token ids to dst; the caller has checked that n values can
// be there. ok is false at the first value that is
// not an unsigned integer of at most 32 bits; the cursor then stands before it.
//
// Most of an event's bytes are token ids. Read here they cost a quarter of what
// they cost through the decoder, which reads each by two interface calls.
func (c *cursor) tokens(dst []uint32, n int) (_ []uint32, ok bool) {
	dst = slices.Grow(dst, n)[:len(dst)+n]
	out := dst[len(dst)-n:]
	b := c.b[c.pos:]
	for i := range out {
		switch {
		case len(b) >= 3 && b[0] == codeUint16:
			out[i] = uint32(b[1])<<8 | uint32(b[2])
			b = b[3:]
		case len(b) >= 1 && b[0] <= maxPosFixed:
			out[i] = uint32(b[0])
			b = b[1:]
		case len(b) >= 5 && b[0] == codeUint32:
			out[i] = binary.BigEndian.Uint32(b[1:])
			b = b[5:]
		case len(b) >= 2 && b[0] == codeUint8:
			out[i] = uint32(b[1])
			b = b[2:]
		default:
			v, width, fits := wideToken(b)
			if !fits {
				c.pos = len(c.b) - len(b)
				return dst[:len(dst)-n+i], false
			}
			out[i] = v
			b = b[width:]
		}
	}
	c.pos = len(c.b) - len(b)
	return dst, true
}

// wideToken reads a token id from an encoding wider or signed than it needs:
// encoders are free to choose it.
func wideToken(b []byte) (v uint32, width int, ok bool) {
	if len(b) == 0 {
		return 0, 0, false
	}
	var n uint64
	switch b[0] {
	case codeInt8:
		width = 2
	case codeInt16:
		width = 3
	case codeInt32:
		width = 5
	case codeInt64, codeUint64:
		width = 9
	default:
		return 0, 0, false
	}
	if len(b) < width {
		return 0, 0, false
	}
	for _, x := range b[1:width] {
		n = n<<8 | uint64(x)
	}
	if b[0] != codeUint64 && b[1] >= 0x80 { // negative
		return 0, 0, false
	}
	if n > 1<<32-1 {
		return 0, 0, false
	}
	return uint32(n), width, true
}
