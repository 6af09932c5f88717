package openai

import "unicode/utf8"

// appendText appends the content of a validated JSON string, given with its quotes, as UTF-8. Half a surrogate pair becomes
// U+FFFD.
func appendText(dst []byte, raw Raw) []byte {
	d := raw[1 : len(raw)-1]
	for i := 0; i < len(d); {
		if d[i] != '\\' {
			dst = append(dst, d[i])
			i++
			continue
		}
		switch c := d[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			high, _ := hex4(d[i+2:])
			i += 6
			switch {
			case !surrogate(high):
				dst = utf8.AppendRune(dst, rune(high))
			case pair(high, d[i:]):
				low, _ := hex4(d[i+2:])
				dst = utf8.AppendRune(dst, rune(high-0xd800)<<10+rune(low-0xdc00)+0x10000)
				i += 6
			default:
				dst = utf8.AppendRune(dst, utf8.RuneError)
			}
			continue
		default: // quote, backslash, slash
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}

// appendString appends text as a JSON string. text is UTF-8.
func appendString(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// hex4 reads the four hexadecimal digits of a \u escape: one UTF-16 unit.
func hex4(d []byte) (unit uint16, ok bool) {
	if len(d) < 4 {
		return 0, false
	}
	for _, c := range d[:4] {
		switch {
		case digit(c):
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		unit = unit<<4 | uint16(c)
	}
	return unit, true
}

func surrogate(unit uint16) bool { return unit&0xf800 == 0xd800 }

// pair reports whether high and the escape that rest starts with are a surrogate pair.
func pair(high uint16, rest []byte) bool {
	if high&0xfc00 != 0xd800 || len(rest) < 6 || rest[0] != '\\' || rest[1] != 'u' {
		return false
	}
	low, ok := hex4(rest[2:])
	return ok && low&0xfc00 == 0xdc00
}
