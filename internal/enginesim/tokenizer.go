package enginesim

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// The simulated vocabulary: special tokens have fixed ids, every other piece of text has the id its bytes hash to. Distinct
// pieces may share an id, which costs nothing here: equal text has equal tokens on every engine.
const (
	tokenEnd      uint32 = 0 // <|endoftext|>
	tokenStartMsg uint32 = 1 // <|im_start|>
	tokenEndMsg   uint32 = 2 // <|im_end|>, the end-of-sequence token

	reservedIDs = 256
	vocabulary  = 151936
)

const (
	textEnd      = "<|endoftext|>"
	textStartMsg = "<|im_start|>"
	textEndMsg   = "<|im_end|>"
)

const (
	maxLetters = 6
	maxDigits  = 3
)

// tokenize splits text into pieces and appends their ids: about four characters of English to a token. Special-token text
// is parsed as special wherever it stands, as engines do.
func tokenize(dst []uint32, text string) []uint32 {
	for len(text) > 0 {
		n, id := nextPiece(text)
		dst = append(dst, id)
		text = text[n:]
	}
	return dst
}

// pieces returns the text of each token.
func pieces(text string) []string {
	var out []string
	for len(text) > 0 {
		n, _ := nextPiece(text)
		out = append(out, text[:n])
		text = text[n:]
	}
	return out
}

// nextPiece returns length and id of the first piece of a non-empty text. Pieces never depend on what stands before them
// but for one rule: the last space of a run belongs to the letters that follow. So text that was made by joining pieces
// (see answer.go) splits into the same pieces again, wherever it is placed after a newline or a whole piece.
func nextPiece(s string) (int, uint32) {
	if s[0] == '<' {
		switch {
		case strings.HasPrefix(s, textStartMsg):
			return len(textStartMsg), tokenStartMsg
		case strings.HasPrefix(s, textEndMsg):
			return len(textEndMsg), tokenEndMsg
		case strings.HasPrefix(s, textEnd):
			return len(textEnd), tokenEnd
		}
	}
	n := pieceLen(s)
	return n, pieceID(s[:n])
}

func pieceLen(s string) int {
	switch c := s[0]; {
	case c == ' ':
		n := runLength(s, ' ')
		if n < len(s) && letterLen(s[n:]) > 0 {
			if n > 1 {
				return n - 1
			}
			return 1 + lettersLen(s[1:])
		}
		return n
	case c == '\n':
		return runLength(s, '\n')
	case c >= '0' && c <= '9':
		n := 1
		for n < len(s) && n < maxDigits && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		return n
	}
	if n := lettersLen(s); n > 0 {
		return n
	}
	_, n := utf8.DecodeRuneInString(s)
	return n
}

// runLength returns how many bytes c the text begins with.
func runLength(s string, c byte) int {
	n := 0
	for n < len(s) && s[n] == c {
		n++
	}
	return n
}

// lettersLen returns the length of up to maxLetters leading letters.
func lettersLen(s string) int {
	n := 0
	for range maxLetters {
		l := letterLen(s[n:])
		if l == 0 {
			break
		}
		n += l
	}
	return n
}

// letterLen returns the length of the letter the text begins with, 0 if it is none. Scripts without spaces between words
// have a token for each character instead.
func letterLen(s string) int {
	if len(s) == 0 {
		return 0
	}
	if c := s[0]; c < utf8.RuneSelf {
		if c |= 0x20; c >= 'a' && c <= 'z' {
			return 1
		}
		return 0
	}
	const firstIdeographic = 0x2e80
	if r, n := utf8.DecodeRuneInString(s); r < firstIdeographic && r != utf8.RuneError && unicode.IsLetter(r) {
		return n
	}
	return 0
}

// pieceID is FNV-1a, folded into the ids that are not reserved.
func pieceID(piece string) uint32 {
	h := uint64(14695981039346656037)
	for i := range len(piece) {
		h = (h ^ uint64(piece[i])) * 1099511628211
	}
	h ^= h >> 32
	return reservedIDs + uint32(h%(vocabulary-reservedIDs))
}
