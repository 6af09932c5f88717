package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// tokens reads an array of token ids. It returns ok false when an element is no integer in 0…2³²−1, and long true when there
// are more than limit; the array is validated to its end in either case.
func (s *scanner) tokens(limit int) (ids []uint32, ok, long bool) {
	if !s.enter('[') {
		return nil, false, false
	}
	// Token arrays hold no brackets, so the commas up to the next one tell the length before anything is allocated.
	end := bytes.IndexByte(s.data[s.pos:], ']')
	if end < 0 {
		s.fail()
		return nil, false, false
	}
	n := bytes.Count(s.data[s.pos:s.pos+end], []byte{','}) + 1
	ok, long = true, n > limit
	if s.space() != ']' && !long {
		ids = make([]uint32, 0, n)
	}
	for first := true; s.next(&first, ']'); {
		ids = s.run(ids)
		id, valid := s.token()
		if !valid {
			ok = false
			s.skip()
			continue
		}
		if len(ids) < cap(ids) {
			ids = append(ids, id)
		}
	}
	if !ok || long || s.broken {
		return nil, ok, long
	}
	return ids, true, false
}

// run reads token ids of up to seven digits as long as each is followed by a comma and the next digit, at most with one space
// between: all but the last of a list as clients write it.
func (s *scanner) run(ids []uint32) []uint32 {
	d, i := s.data, s.pos
	for len(ids) < cap(ids) && i+10 <= len(d) {
		// Digits become 0 to 9; the marks in the top bits of all other bytes are right up to the lowest one.
		x := binary.LittleEndian.Uint64(d[i:]) ^ ones*'0'
		n := bits.TrailingZeros64((x+ones*(0x80-10)|x)&tops) >> 3
		if n == 0 || n == 8 || n > 1 && d[i] == '0' || d[i+n] != ',' {
			break
		}
		i += n + 1
		if d[i] == ' ' {
			i++
		}
		if !digit(d[i]) {
			break
		}
		ids = append(ids, eight(x<<(64-8*n)))
		s.pos = i
	}
	return ids
}

// eight is the number whose eight decimal digits are the bytes of x, the lowest byte first. Neighbours are joined to pairs, pairs
// to fours and fours to eight.
func eight(x uint64) uint32 {
	x = (x*10 + x>>8) & 0x00ff00ff00ff00ff
	x = (x*100 + x>>16) & 0x0000ffff0000ffff
	return uint32(x*10_000 + x>>32)
}

// token reads one token id and leaves the position alone when what stands here is none.
func (s *scanner) token() (id uint32, ok bool) {
	s.space()
	d, i := s.data, s.pos
	var v uint64
	for i < len(d) && digit(d[i]) && i-s.pos <= 10 {
		v = v*10 + uint64(d[i]-'0')
		i++
	}
	if i == s.pos || i == len(d) || v > 1<<32-1 || i-s.pos > 1 && d[s.pos] == '0' {
		return 0, false
	}
	switch d[i] {
	case ',', ']', ' ', '\n', '\t', '\r':
		s.pos = i
		return uint32(v), true
	}
	return 0, false
}
