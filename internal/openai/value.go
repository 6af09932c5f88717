package openai

// skip validates the value that starts here, of any type, and returns it.
func (s *scanner) skip() Raw {
	c := s.space()
	start := s.pos
	switch c {
	case '"':
		s.str()
	case '{', '[':
		s.nested()
	default:
		s.scalar(c)
	}
	if s.broken {
		return nil
	}
	return s.data[start:s.pos]
}

// nested validates an array or object without recursion: one bit per open container tells which kind it is.
func (s *scanner) nested() {
	var objects [maxDepth / 64]uint64
	start, n := s.pos, 0
	for !s.broken {
		switch c := s.space(); c {
		case '{', '[':
			if s.open+n >= s.max {
				s.deep = true
				s.pos = start
				s.balance()
				return
			}
			s.pos++
			word, bit := n/64, uint64(1)<<(n%64)
			objects[word] &^= bit
			if c == '{' {
				objects[word] |= bit
			}
			n++
			if s.space() != c+2 { // '{'+2 is '}', '['+2 is ']'
				if c == '{' {
					s.colon()
				}
				continue
			}
		case '"':
			s.str()
		default:
			s.scalar(c)
		}
		// A value ends here; an empty container has not been closed yet.
		for !s.broken {
			if n == 0 {
				return
			}
			object := objects[(n-1)/64]>>((n-1)%64)&1 == 1
			c := s.space()
			if c == ',' {
				s.pos++
				if object {
					s.colon()
				}
				break
			}
			if object && c != '}' || !object && c != ']' {
				s.fail()
				return
			}
			s.pos++
			n--
		}
	}
}

// colon validates a key and the colon after it.
func (s *scanner) colon() {
	s.str()
	if s.space() != ':' {
		s.fail()
		return
	}
	s.pos++
}

// balance steps over an array or object by counting brackets outside strings.
func (s *scanner) balance() {
	for n := 0; s.pos < len(s.data); {
		switch s.data[s.pos] {
		case '"':
			s.str()
			continue
		case '{', '[':
			n++
		case '}', ']':
			n--
		}
		s.pos++
		if n == 0 {
			return
		}
	}
	s.fail()
}

// scalar validates a number, true, false or null that starts with c.
func (s *scanner) scalar(c byte) {
	rest := s.data[s.pos:]
	switch c {
	case 't':
		s.literal(rest, "true")
	case 'f':
		s.literal(rest, "false")
	case 'n':
		s.literal(rest, "null")
	default:
		n := number(rest)
		if n == 0 {
			s.fail()
			return
		}
		s.pos += n
	}
}

func (s *scanner) literal(rest []byte, text string) {
	if len(rest) < len(text) || string(rest[:len(text)]) != text {
		s.fail()
		return
	}
	s.pos += len(text)
}

// number returns the length of the JSON number that d starts with, 0 when it is none.
func number(d []byte) int {
	i := 0
	if i < len(d) && d[i] == '-' {
		i++
	}
	switch {
	case i < len(d) && d[i] == '0':
		i++
	case i < len(d) && digit(d[i]):
		i = digits(d, i)
	default:
		return 0
	}
	if i < len(d) && d[i] == '.' {
		end := digits(d, i+1)
		if end == i+1 {
			return 0
		}
		i = end
	}
	if i < len(d) && (d[i] == 'e' || d[i] == 'E') {
		i++
		if i < len(d) && (d[i] == '+' || d[i] == '-') {
			i++
		}
		end := digits(d, i)
		if end == i {
			return 0
		}
		i = end
	}
	return i
}

func digits(d []byte, i int) int {
	for i < len(d) && digit(d[i]) {
		i++
	}
	return i
}

func digit(c byte) bool { return c >= '0' && c <= '9' }
