package blockhash

import (
	"crypto/sha256"
	"encoding/binary"
)

// Opcodes of Python's pickle, protocol 5, as far as a block's hash input has them.
const (
	pickleProto   = 0x80 // ‖ version
	pickleFrame   = 0x95 // ‖ length of what follows, uint64 little-endian
	pickleStop    = '.'
	pickleMemoize = 0x94 // gives the object on top the next number
	pickleGet     = 'h'  // ‖ uint8: the object of that number
	pickleLongGet = 'j'  // ‖ uint32
	pickleNone    = 'N'
	pickleInt8    = 'K' // ‖ uint8
	pickleInt16   = 'M' // ‖ uint16
	pickleInt32   = 'J' // ‖ int32
	pickleLong    = 0x8a
	pickleText8   = 0x8c // ‖ uint8 length ‖ UTF-8
	pickleText32  = 'X'  // ‖ uint32
	pickleBytes8  = 'C'  // ‖ uint8
	pickleBytes32 = 'B'  // ‖ uint32
	pickleMark    = '('
	pickleTuple   = 't'
	pickleEmpty   = ')'
	pickleTuple1  = 0x85 // 0x86 and 0x87 for two and three elements
)

// NoneHashPickle returns the parent of every first block under --prefix-caching-hash-algo sha256: SHA-256 of the pickled
// seed. What the seed is stands at [NoneHash].
func NoneHashPickle(seed string) Digest {
	var p pickler
	p.begin()
	p.text(seed)
	return p.sum()
}

// SHA256Pickle recomputes the chain of vLLM's default algorithm, sha256. The zero value is ready for use; it keeps a buffer
// from block to block, so that no block allocates, and is not safe for concurrent use.
//
// Python writes a string that is the same object as an earlier one as a reference to that. Of a tag that repeats this is
// certain and done here. Whether two multimodal items with the same identifier share the object cannot be told from outside:
// the digest of such a block may differ from the engine's. So does that of a block whose pickle is above 64 KiB (some
// 16,000 tokens), which Python splits into frames.
type SHA256Pickle struct {
	p pickler
}

// Block returns the digest of one block from its parent's digest ([NoneHashPickle] for a first block), its tokens and its
// extra keys (nil for none).
func (h *SHA256Pickle) Block(parent Digest, tokens []uint32, extra *ExtraKeys) Digest {
	h.p.block(parent[:], tokens, extra)
	return h.p.sum()
}

// pickler writes one pickle in a single frame.
type pickler struct {
	buf  []byte
	memo uint32 // number of the next object
}

// pickleHead is protocol and frame header: what stands before the first object.
const pickleHead = 2 + 1 + 8

func (p *pickler) begin() {
	p.buf = append(p.buf[:0], pickleProto, 5, pickleFrame, 0, 0, 0, 0, 0, 0, 0, 0)
	p.memo = 0
}

// block writes what is hashed for one block.
func (p *pickler) block(parent []byte, tokens []uint32, extra *ExtraKeys) {
	p.begin()
	p.bytes(parent)
	p.open(len(tokens))
	for _, t := range tokens {
		p.int(int64(t))
	}
	p.close(len(tokens))
	p.extra(extra)
	p.close(3)
}

// end ends the pickle and returns it.
func (p *pickler) end() []byte {
	p.buf = append(p.buf, pickleStop)
	binary.LittleEndian.PutUint64(p.buf[3:], uint64(len(p.buf)-pickleHead))
	return p.buf
}

// sum ends the pickle and hashes it.
func (p *pickler) sum() Digest { return sha256.Sum256(p.end()) }

// memoize numbers the object just written and returns its number.
func (p *pickler) memoize() uint32 {
	p.buf = append(p.buf, pickleMemoize)
	p.memo++
	return p.memo - 1
}

func (p *pickler) text(s string) uint32 {
	if len(s) < 256 {
		p.buf = append(p.buf, pickleText8, byte(len(s)))
	} else {
		p.buf = binary.LittleEndian.AppendUint32(append(p.buf, pickleText32), uint32(len(s)))
	}
	p.buf = append(p.buf, s...)
	return p.memoize()
}

func (p *pickler) bytes(b []byte) {
	if len(b) < 256 {
		p.buf = append(p.buf, pickleBytes8, byte(len(b)))
	} else {
		p.buf = binary.LittleEndian.AppendUint32(append(p.buf, pickleBytes32), uint32(len(b)))
	}
	p.buf = append(p.buf, b...)
	p.memoize()
}

func (p *pickler) get(n uint32) {
	if n < 256 {
		p.buf = append(p.buf, pickleGet, byte(n))
		return
	}
	p.buf = binary.LittleEndian.AppendUint32(append(p.buf, pickleLongGet), n)
}

func (p *pickler) int(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		p.buf = append(p.buf, pickleInt8, byte(n))
	case n >= 0 && n < 1<<16:
		p.buf = binary.LittleEndian.AppendUint16(append(p.buf, pickleInt16), uint16(n))
	case n >= -1<<31 && n < 1<<31:
		p.buf = binary.LittleEndian.AppendUint32(append(p.buf, pickleInt32), uint32(n))
	default: // two's complement in as few bytes as hold it
		size := 5
		for size < 8 && n>>(8*size-1) != 0 && n>>(8*size-1) != -1 {
			size++
		}
		p.buf = append(p.buf, pickleLong, byte(size))
		for i := range size {
			p.buf = append(p.buf, byte(n>>(8*i)))
		}
	}
}

// open begins a tuple of n elements, where n needs it.
func (p *pickler) open(n int) {
	if n > 3 {
		p.buf = append(p.buf, pickleMark)
	}
}

// close ends a tuple of n elements.
func (p *pickler) close(n int) {
	switch {
	case n == 0:
		p.buf = append(p.buf, pickleEmpty) // has no number
		return
	case n > 3:
		p.buf = append(p.buf, pickleTuple)
	default:
		p.buf = append(p.buf, pickleTuple1+byte(n-1))
	}
	p.memoize()
}

// extra writes the third element of the hashed tuple: None without keys, never an empty tuple.
func (p *pickler) extra(e *ExtraKeys) {
	n := e.keys()
	if n == 0 {
		p.buf = append(p.buf, pickleNone)
		return
	}
	p.open(n)
	switch {
	case e.LoRA != "" && e.Tagged:
		p.text("lora")
		p.text(e.LoRA)
		p.text(e.LoRAPath)
		p.close(3)
	case e.LoRA != "":
		p.text(e.LoRA)
	case e.LoRAID != 0:
		p.int(e.LoRAID)
	}
	var tag uint32
	for i, item := range e.Items {
		switch {
		case !e.Tagged:
		case i == 0:
			tag = p.text("mm")
		default:
			p.get(tag)
		}
		p.text(item.Identifier)
		p.int(item.Offset)
		if e.Tagged {
			p.close(3)
		} else {
			p.close(2)
		}
	}
	if e.Salt != "" {
		if e.Tagged {
			p.text("cache_salt")
		}
		p.text(e.Salt)
		if e.Tagged {
			p.close(2)
		}
	}
	if e.Embeds != nil {
		if e.Tagged {
			p.text("prompt_embeds")
		}
		p.bytes(e.Embeds)
		if e.Tagged {
			p.close(2)
		}
	}
	p.close(n)
}
