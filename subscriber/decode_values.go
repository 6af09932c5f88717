package subscriber

import (
	"encoding/binary"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// The values inside events. Each reader checks the code before it lets the
// msgpack decoder read, so that what the decoder can fail at is the end of the
// payload only.

func (d *decoder) hashes() error {
	n, err := d.arrayLen()
	if err != nil {
		return err
	}
	if n > maxEventHashes {
		return errMalformed
	}
	d.ev.hashes = d.ev.hashes[:0] // a map may hold the key twice
	for range n {
		h, err := d.hash()
		if err != nil {
			return err
		}
		d.ev.hashes = append(d.ev.hashes, h)
	}
	return nil
}

// hash reads an engine hash: an unsigned or signed integer as it is, a digest
// (bytes or text) by vLLM's rule for the integer form, its last 8 bytes.
func (d *decoder) hash() (uint64, error) {
	code, err := d.peek()
	if err != nil {
		return 0, err
	}
	switch {
	case code == msgpcode.Uint64 && d.cur.remaining() >= 9:
		h := binary.BigEndian.Uint64(d.cur.b[d.cur.pos+1:])
		d.cur.pos += 9
		return h, nil
	case isInt(code):
		h, err := d.mp.DecodeUint64()
		if err != nil {
			return 0, errTruncated
		}
		return h, nil
	}
	digest, err := d.text()
	if err != nil {
		return 0, err
	}
	if len(digest) == 0 {
		return 0, errMalformed
	}
	if len(digest) >= 8 {
		return binary.BigEndian.Uint64(digest[len(digest)-8:]), nil
	}
	var h uint64
	for _, b := range digest {
		h = h<<8 | uint64(b)
	}
	return h, nil
}

func (d *decoder) tokenIDs() error {
	if d.null() {
		return nil
	}
	start := d.cur.pos
	n, err := d.arrayLen()
	if err != nil {
		return err
	}
	if n > maxEventTokens {
		return errMalformed
	}
	var ok bool
	d.ev.tokenForm = tokenIDs
	if d.ev.tokens, ok = d.cur.tokens(d.ev.tokens[:0], n); ok {
		return nil
	}
	d.ev.tokens = d.ev.tokens[:0]
	code, err := d.peek()
	if err != nil {
		return err
	}
	d.ev.tokenForm = tokenOther
	if isArray(code) {
		d.ev.tokenForm = tokenBigrams
	}
	d.cur.pos = start
	return d.cur.skip()
}

func (d *decoder) peek() (byte, error) {
	if d.cur.remaining() == 0 {
		return 0, errTruncated
	}
	return d.cur.b[d.cur.pos], nil
}

// null passes a nil and tells whether there was one.
func (d *decoder) null() bool {
	if d.cur.remaining() > 0 && d.cur.b[d.cur.pos] == msgpcode.Nil {
		d.cur.pos++
		return true
	}
	return false
}

// arrayLen reads the head of an array whose elements, a byte at least each,
// can be there.
func (d *decoder) arrayLen() (int, error) {
	code, err := d.peek()
	if err != nil {
		return 0, err
	}
	if !isArray(code) {
		return 0, errMalformed
	}
	n, err := d.mp.DecodeArrayLen()
	if err != nil {
		return 0, errTruncated
	}
	if n > d.cur.remaining() {
		return 0, errTruncated
	}
	return n, nil
}

// mapLen is arrayLen for maps.
func (d *decoder) mapLen() (int, error) {
	code, err := d.peek()
	if err != nil {
		return 0, err
	}
	if !isMap(code) {
		return 0, errMalformed
	}
	n, err := d.mp.DecodeMapLen()
	if err != nil {
		return 0, errTruncated
	}
	if n > d.cur.remaining()/2 {
		return 0, errTruncated
	}
	return n, nil
}

// key reads a map key; one that is no text is skipped and comes back empty.
func (d *decoder) key() ([]byte, error) {
	code, err := d.peek()
	if err != nil {
		return nil, err
	}
	if !isText(code) {
		return nil, d.cur.skip()
	}
	return d.text()
}

// text reads a str or bin without copying it.
func (d *decoder) text() ([]byte, error) {
	code, err := d.peek()
	if err != nil {
		return nil, err
	}
	if !isText(code) {
		return nil, errMalformed
	}
	n, err := d.mp.DecodeBytesLen()
	if err != nil {
		return nil, errTruncated
	}
	return d.cur.take(n)
}

// optionalText is text, or nil for nil and for an empty text.
func (d *decoder) optionalText() ([]byte, error) {
	if d.null() {
		return nil, nil
	}
	s, err := d.text()
	if len(s) == 0 {
		return nil, err
	}
	return s, err
}

func (d *decoder) int() (int64, error) {
	code, err := d.peek()
	if err != nil {
		return 0, err
	}
	if !isInt(code) {
		return 0, errMalformed
	}
	n, err := d.mp.DecodeInt64()
	if err != nil {
		return 0, errTruncated
	}
	return n, nil
}

func (d *decoder) uint() (uint64, error) {
	n, err := d.int()
	if err == nil && n < 0 {
		err = errMalformed
	}
	return uint64(n), err
}

func isArray(code byte) bool {
	return msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32
}

func isMap(code byte) bool {
	return msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32
}

func isBin(code byte) bool { return msgpcode.IsBin(code) }

func isText(code byte) bool { return msgpcode.IsString(code) || isBin(code) }

func isInt(code byte) bool {
	return msgpcode.IsFixedNum(code) || code >= msgpcode.Uint8 && code <= msgpcode.Int64
}
