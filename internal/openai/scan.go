package openai

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// scanner validates one JSON text front to back, a single time, and hands out spans of it. Errors are sticky: after the first
// syntax error broken is set, loops over next end, and every method returns quickly. The other findings do not stop the scan,
// so that what follows them, the model name for one, is still found.
type scanner struct {
	data []byte
	pos  int
	open int // containers entered with enter
	max  int // bound on nesting

	broken  bool // not JSON
	deep    bool // nested beyond max; that value is not validated
	badUTF8 bool // a string holds bytes that are not UTF-8
	lone    bool // a string holds half a surrogate pair

	scratch [64]byte // for keys and short values with escapes

	// long are the strings of at least longString bytes read so far, in order, so that whoever reads the text again need not look for their ends.
	long  []span
	spelt bool // the string that is read has an escape for which there may be a shorter spelling
}

// span is a string with its quotes.
type span struct {
	start, end int32
	short      bool // none of its escapes is \u or \/
}

const longString = 256

func (s *scanner) fail() {
	s.broken = true
	s.pos = len(s.data)
}

// space steps over white space and returns the byte that follows, 0 at the end of the text.
func (s *scanner) space() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// enter steps into the array or object that starts here, and reports whether one does.
func (s *scanner) enter(opening byte) bool {
	if s.space() != opening {
		s.fail()
		return false
	}
	s.pos++
	s.open++
	return true
}

// next reports whether the entered container has another entry and moves to it; at the end it leaves the container. first is
// true before the first call and belongs to the loop.
func (s *scanner) next(first *bool, closing byte) bool {
	if s.broken {
		return false
	}
	c := s.space()
	switch {
	case c == closing:
		s.pos++
		s.open--
		return false
	case *first:
		*first = false
		return true
	case c == ',':
		s.pos++
		if s.space() != closing {
			return true
		}
	}
	s.fail()
	return false
}

// key reads an object's key and the colon, and returns the key with its escapes undone. A key too long to be any that is known
// comes back as nil. The result is valid until the next call.
func (s *scanner) key() []byte {
	raw, escaped := s.str()
	if s.space() != ':' {
		s.fail()
		return nil
	}
	s.pos++
	return s.short(raw, escaped)
}

// short returns the content of a JSON string that is to be compared with short constants, nil when it is longer than any.
func (s *scanner) short(raw Raw, escaped bool) []byte {
	switch {
	case len(raw) < 2:
		return nil
	case !escaped:
		return raw[1 : len(raw)-1]
	case len(raw) > len(s.scratch):
		// An escape takes at most six bytes for one, so a long string could still be a short key.
		if len(raw) > 6*len(s.scratch) {
			return nil
		}
		return appendText(nil, raw)
	default:
		return appendText(s.scratch[:0], raw)
	}
}

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// special marks, in the top bit of each byte, the bytes of x that end a run of plain ASCII inside a string: quote, backslash,
// control characters and everything above 0x7f. Marks above the lowest one may be wrong.
func special(x uint64) uint64 {
	quote := x ^ ones*'"'
	slash := x ^ ones*'\\'
	return ((x-ones*0x20)&^x | (quote-ones)&^quote | (slash-ones)&^slash | x) & tops
}

// str reads a string and returns it with its quotes, and whether it has escapes.
func (s *scanner) str() (raw Raw, escaped bool) {
	if s.space() != '"' {
		s.fail()
		return nil, false
	}
	s.spelt = false
	d, i := s.data, s.pos+1
	for {
		for i+8 <= len(d) {
			if m := special(binary.LittleEndian.Uint64(d[i:])); m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(d) {
			break
		}
		switch c := d[i]; {
		case c == '"':
			raw = d[s.pos : i+1]
			if len(raw) >= longString {
				s.long = append(s.long, span{int32(s.pos), int32(i + 1), !s.spelt})
			}
			s.pos = i + 1
			return raw, escaped
		case c == '\\':
			escaped = true
			n := s.escape(d[i:])
			if n == 0 {
				s.fail()
				return nil, false
			}
			i += n
		case c < 0x20:
			s.fail()
			return nil, false
		case c < utf8.RuneSelf:
			i++
		default:
			_, n := utf8.DecodeRune(d[i:])
			if n == 1 {
				s.badUTF8 = true
			}
			i += n
		}
	}
	s.fail()
	return nil, false
}

// escape returns the length of the escape that d starts with, 0 when it is none. A surrogate pair counts as one escape.
func (s *scanner) escape(d []byte) int {
	if len(d) < 2 {
		return 0
	}
	switch d[1] {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return 2
	case '/':
		s.spelt = true
		return 2
	case 'u':
		s.spelt = true
	default:
		return 0
	}
	unit, ok := hex4(d[2:])
	switch {
	case !ok:
		return 0
	case !surrogate(unit):
		return 6
	case pair(unit, d[6:]):
		return 12
	}
	s.lone = true
	return 6
}
