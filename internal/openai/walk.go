package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// walk is a cursor over JSON that Parse has validated. It checks nothing again, which makes it several times faster than scanning; on anything
// else it finds less than there is, and still ends.
type walk struct {
	data []byte
	pos  int
	long []span // strings of data whose ends are known, in order; may be fewer than there are
}

// space steps over white space and returns the byte that follows, 0 at the end.
func (w *walk) space() byte {
	for ; w.pos < len(w.data); w.pos++ {
		if c := w.data[w.pos]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// enter steps into the array or object that starts here.
func (w *walk) enter() {
	w.space()
	w.pos++
}

// next reports whether there is another entry and moves to it; at the end it leaves the array or object.
func (w *walk) next() bool {
	c := w.space()
	if c == ',' {
		w.pos++
		c = w.space()
	}
	if c == ']' || c == '}' {
		w.pos++
		return false
	}
	return c != 0
}

// key returns an object's key without quotes, its escapes undone as the scanner's key does, and steps over the colon.
func (w *walk) key() []byte {
	w.space()
	start := w.pos
	key, _ := w.str()
	if bytes.IndexByte(key, '\\') >= 0 {
		key = appendText(nil, w.data[start:w.pos])
	}
	if w.space() == ':' {
		w.pos++
	}
	return key
}

// str returns the content of the string that starts here, without quotes, its escapes as they are, and whether these are the shortest ones
// as far as two bytes tell: neither \u nor \/.
func (w *walk) str() (content []byte, short bool) {
	if w.space() != '"' {
		w.pos = len(w.data)
		return nil, true
	}
	for len(w.long) > 0 && int(w.long[0].start) < w.pos {
		w.long = w.long[1:]
	}
	if len(w.long) > 0 && int(w.long[0].start) == w.pos {
		known := w.long[0]
		w.pos = int(known.end)
		return w.data[known.start+1 : known.end-1], known.short
	}
	short = true
	d, i := w.data, w.pos+1
	for start := i; i < len(d); {
		for i+8 <= len(d) {
			if m := ending(binary.LittleEndian.Uint64(d[i:])); m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		switch {
		case i >= len(d):
		case d[i] == '"':
			w.pos = i + 1
			return d[start:i], short
		case d[i] == '\\':
			short = short && i+1 < len(d) && d[i+1] != 'u' && d[i+1] != '/'
			i += 2
		default:
			i++
		}
	}
	w.pos = len(d)
	return nil, true
}

// ending marks, in the top bit of each byte, the quotes and backslashes of x. Marks above the lowest one may be wrong.
func ending(x uint64) uint64 {
	quote, slash := x^ones*'"', x^ones*'\\'
	return ((quote-ones)&^quote | (slash-ones)&^slash) & tops
}

// value steps over the value that starts here, of any type, and returns it.
func (w *walk) value() Raw {
	c := w.space()
	start := w.pos
	switch c {
	case '"':
		w.str()
	case '{', '[':
		w.balance()
	default:
		for w.pos < len(w.data) && !ends(w.data[w.pos]) {
			w.pos++
		}
	}
	return w.data[start:w.pos]
}

// ends reports whether c ends a number or a literal.
func ends(c byte) bool { return c == ',' || c == ']' || c == '}' || c <= ' ' }

func (w *walk) balance() {
	for n := 0; w.pos < len(w.data); {
		switch w.data[w.pos] {
		case '"':
			w.str()
			continue
		case '{', '[':
			n++
		case '}', ']':
			n--
		}
		w.pos++
		if n == 0 {
			return
		}
	}
}
