package subscriber

import (
	"bytes"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// extraKeys reads the extra_keys of a stored event block by block: for each
// block nil, or an array of
//
//	str          adapter name, in every block
//	[str, int]   multimodal item: identifier, start of the item − start of the block
//	str          cache salt, in a first block only
//	bin          digest of the prompt embeddings
//
// in this order, without tags. So a text says by its place only what it is.
type extraKeys struct {
	d    decoder
	left int // blocks still to come
}

func newExtraKeys() *extraKeys {
	x := &extraKeys{}
	x.d.init()
	return x
}

// begin starts on the value of an event's extra_keys and tells whether it has
// one entry per block.
func (x *extraKeys) begin(raw []byte, blocks int) bool {
	x.d.cur = cursor{b: raw}
	n, err := x.d.arrayLen()
	x.left = blocks
	return err == nil && n == blocks
}

// release lets go of the payload.
func (x *extraKeys) release() { x.d.cur.b = nil }

// next reads the entry of the next block. It appends what goes into the
// block's content to dst, in canonical form, and returns the salt of a first
// block. ok is false when the entry has a form that is not known: the block
// then has no key.
//
// The adapter is the first text that equals lora. Any other text is the salt
// if the block is a first one and only digests follow; elsewhere it is a bare
// identifier (vLLM about 0.18.0), whose offset is not known.
func (x *extraKeys) next(dst []byte, lora []byte, first bool) (extra, salt []byte, ok bool) {
	if x.left == 0 {
		return dst, nil, false
	}
	x.left--
	d := &x.d
	if d.null() {
		return dst, nil, true
	}
	start := d.cur.pos
	extra, salt, err := x.entry(dst, lora, first)
	if err == nil {
		return extra, salt, true
	}
	d.cur.pos = start
	if d.cur.skip() != nil {
		x.left = 0
	}
	return dst, nil, false
}

func (x *extraKeys) entry(dst []byte, lora []byte, first bool) (_, salt []byte, err error) {
	d := &x.d
	n, err := d.arrayLen()
	if err != nil {
		return dst, nil, err
	}
	adapter := len(lora) == 0 // nothing, or nothing more, to strip
	for range n {
		code, err := d.peek()
		if err != nil {
			return dst, nil, err
		}
		switch {
		case isBin(code):
			digest, err := d.text()
			if err != nil {
				return dst, nil, err
			}
			dst = blockhash.AppendDigest(dst, digest)
		case isText(code):
			s, err := d.text()
			switch {
			case err != nil:
				return dst, nil, err
			case !adapter && bytes.Equal(s, lora):
				adapter = true
			case first && salt == nil && len(s) > 0:
				salt = s
			default:
				return dst, nil, errMalformed
			}
		case isArray(code) && salt == nil:
			if dst, err = x.item(dst); err != nil {
				return dst, nil, err
			}
		default:
			return dst, nil, errMalformed
		}
	}
	return dst, salt, nil
}

func (x *extraKeys) item(dst []byte) ([]byte, error) {
	n, err := x.d.arrayLen()
	if err != nil || n != 2 {
		return dst, errMalformed
	}
	code, err := x.d.peek()
	if err != nil || !isText(code) || isBin(code) {
		return dst, errMalformed
	}
	identifier, err := x.d.text()
	if err != nil {
		return dst, err
	}
	offset, err := x.d.int()
	if err != nil {
		return dst, err
	}
	return blockhash.AppendItem(dst, string(identifier), offset), nil
}
