package openai

import (
	"bytes"
	"encoding/binary"
)

// TextWriter takes the canonical text of a prompt: bytes that are equal for prompts which the engine renders alike, and whose order is that of
// the rendered prompt. How a text is cut into pieces means nothing. A piece is valid until the method returns.
type TextWriter interface {
	// Head takes what stands before all messages, or decides on the rendering of all of them: cache salt, tools, documents and template
	// arguments. It is called before the other methods.
	Head(p []byte)
	// Text takes what follows, in order.
	Text(p []byte)
	// Media takes a part that is not text, such as an image: the bytes that tell it from others.
	Media(p []byte)
	// Opened is called after the first message.
	Opened()
}

// Marks stand between the pieces of a canonical text. No UTF-8 text has these bytes, so different prompts never have one text.
const (
	markField   byte = 0xf8 // before a field, followed by its number
	markMessage byte = 0xf9 // before a message, and before each of several prompts
)

// Fields of the head; their order is that of the text.
const (
	headSalt = iota
	headSpecialTokens
	headTemplate
	headTools
	headDocuments
	headEffort
	headKwargs
	headMediaKwargs
	headMMKwargs
	headSuffix
	headFields
)

// WriteText writes the canonical text of the request's prompt, also of some that cannot be keyed exactly: with parts that are not text, several
// prompts, a template of their own. It reports whether there is one; otherwise nothing is written. buf is memory to work in, 1 KiB or more.
//
// The text does not depend on the order of a message's fields, on white space and on how a character is spelled in JSON, on null fields, nor on whether a content is a
// string or a list of text parts (engines join them by newlines). It does depend on the order of keys within tools and template arguments, which
// templates print. A follow-up turn's text begins with the text of the turn before, as what is written only at the end of a prompt, such as the
// generation prompt, is left out.
func (r *Request) WriteText(w TextWriter, buf []byte) bool {
	x := inexact{}
	switch {
	case r.Reason == "" && r.Form != NoPrompt:
		x.Request = *r
	case r.inexact != nil:
		x = *r.inexact
	default:
		return false
	}
	t := texter{out: w, buf: buf[:0], head: true}
	t.writeHead(&x)
	t.head = false
	switch x.Form {
	case Messages:
		t.messages(x.whole, !x.unordered)
	case Text:
		t.content(&x.whole)
	case Tokens:
		t.ids(x.Tokens)
	default:
		t.prompts(&walk{data: x.prompts})
	}
	t.flush()
	return true
}

// texter writes one text. Short pieces are gathered in buf.
type texter struct {
	out  TextWriter
	buf  []byte
	head bool
}

func (t *texter) flush() {
	if len(t.buf) > 0 {
		t.emit(t.buf)
		t.buf = t.buf[:0]
	}
}

func (t *texter) emit(p []byte) {
	if t.head {
		t.out.Head(p)
	} else {
		t.out.Text(p)
	}
}

func (t *texter) put(p []byte) {
	if len(p) > cap(t.buf)-len(t.buf) {
		t.flush()
		if len(p) >= cap(t.buf)/4 {
			t.emit(p)
			return
		}
	}
	t.buf = append(t.buf, p...)
}

// room makes room for a few bytes to be appended to buf.
func (t *texter) room() {
	if cap(t.buf)-len(t.buf) < 16 {
		t.flush()
	}
}

func (t *texter) mark(b byte) {
	t.room()
	t.buf = append(t.buf, b)
}

func (t *texter) field(number int) {
	t.room()
	t.buf = append(t.buf, markField, byte(number))
}

func (t *texter) writeHead(x *inexact) {
	t.mark(byte(x.Kind))
	if x.Form == Tokens {
		t.mark(byte(Tokens)) // ids are not text of equal bytes
	}
	var fields [headFields]Raw
	fields[headSpecialTokens], fields[headTemplate] = x.AddSpecialTokens, x.template
	fields[headTools], fields[headDocuments] = x.Tools, x.Documents
	fields[headEffort], fields[headKwargs] = x.ReasoningEffort, x.TemplateKwargs
	fields[headMediaKwargs], fields[headMMKwargs] = x.MediaIOKwargs, x.MMProcessorKwargs
	fields[headSuffix] = x.suffix
	for i, raw := range fields {
		switch {
		case i == headSalt && x.Salt != "":
			t.field(i)
			for _, b := range []byte(x.Salt) {
				t.mark(b)
			}
		case raw != nil:
			t.field(i)
			t.json(raw)
		}
	}
	t.flush()
}

// content writes the content of the string at the cursor, in its shortest spelling. Most strings have it already: encoders write \n and \" as two bytes, and
// only some of them write \/ or \u where they need not.
func (t *texter) content(w *walk) {
	s, short := w.str()
	if !short {
		t.respell(s)
		return
	}
	t.put(s)
}

func (t *texter) respell(s []byte) {
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 || i+1 == len(s) {
			t.put(s)
			return
		}
		t.put(s[:i])
		n := 2
		switch s[i+1] {
		case '/':
			t.mark('/')
		case 'u':
			n = 6
			if high, _ := hex4(s[i+2:]); pair(high, s[i+6:]) {
				n = 12
			}
			t.room()
			t.buf = appendShort(t.buf, s[i:i+n])
		default:
			t.put(s[i : i+2])
		}
		s = s[i+n:]
	}
}

// appendShort appends the shortest spelling of a \u escape, or of a pair of them.
func appendShort(dst, escape []byte) []byte {
	const letters = "btn\x00fr" // of \b to \r
	var quoted [14]byte         // appendText reads a string with its quotes
	n := copy(quoted[1:], escape) + 2
	start := len(dst)
	dst = appendText(dst, quoted[:n])
	switch c := dst[start]; {
	case c >= '\b' && c <= '\r' && c != '\v':
		return append(dst[:start], '\\', letters[c-'\b'])
	case c == '"' || c == '\\':
		return append(dst[:start], '\\', c)
	case c < 0x20:
		return append(dst[:start], '\\', 'u', '0', '0', '0'+c>>4, "0123456789abcdef"[c&15])
	}
	return dst
}

// json writes any JSON value without white space between its parts.
func (t *texter) json(raw Raw) {
	for w := (walk{data: raw}); w.space() != 0; {
		if raw[w.pos] == '"' {
			t.mark('"')
			t.content(&w)
			t.mark('"')
			continue
		}
		start := w.pos
		for w.pos < len(raw) && raw[w.pos] > ' ' && raw[w.pos] != '"' {
			w.pos++
		}
		t.put(raw[start:w.pos])
	}
}

// ids writes token ids as four bytes each.
func (t *texter) ids(ids []uint32) {
	for _, id := range ids {
		t.room()
		t.buf = binary.LittleEndian.AppendUint32(t.buf, id)
	}
}

// prompts writes a list of prompts, each a string or a list of token ids, or one list of token ids. Lists may nest as deep as Parse allows.
func (t *texter) prompts(w *walk) {
	w.enter()
	for w.next() {
		switch w.space() {
		case '"':
			t.mark(markMessage)
			t.content(w)
		case '[':
			t.mark(markMessage)
			t.prompts(w)
		default:
			t.id(w.value())
		}
	}
}

// id writes one token id, and nothing for what is none.
func (t *texter) id(raw Raw) {
	var v uint64
	for _, c := range raw {
		if !digit(c) || v > 1<<32-1 {
			return
		}
		v = v*10 + uint64(c-'0')
	}
	if v <= 1<<32-1 {
		t.ids([]uint32{uint32(v)})
	}
}
