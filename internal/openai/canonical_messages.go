package openai

// Fields of a message that engines hand to the template, in the order of the text. Other fields reach no template.
const (
	fieldRole = iota
	fieldName
	fieldReasoning
	fieldContent
	fieldToolCalls
	fieldToolCallID
	fieldTools
	messageFields
)

// messages writes the messages of a chat.
func (t *texter) messages(w walk, ordered bool) {
	w.enter()
	for first := true; w.next(); first = false {
		t.mark(markMessage)
		if w.space() != '{' {
			w.value()
			continue
		}
		t.message(&w, ordered)
		if first {
			t.flush()
			t.out.Opened()
		}
	}
}

// message writes a message whose fields stand in the order of the text as it reads them, and any other one field after field.
func (t *texter) message(w *walk, ordered bool) {
	var fields [messageFields]walk
	w.enter()
	for w.next() {
		number := messageField(w.key())
		switch {
		case number < 0:
			w.value()
		case ordered:
			t.messageField(number, w)
		default:
			w.space()
			fields[number] = *w
			w.value()
		}
	}
	for number := range fields {
		if w := &fields[number]; w.data != nil {
			t.messageField(number, w)
		}
	}
}

// messageField writes the field whose value stands at the cursor.
func (t *texter) messageField(number int, w *walk) {
	switch c := w.space(); {
	case c == 'n': // null says as much as leaving it out
		w.value()
	case c == '"':
		t.field(number)
		t.content(w)
	case c == '[' && number == fieldContent:
		t.field(number)
		t.parts(w)
	default:
		t.field(number)
		t.json(w.value())
	}
}

// messageField is the number of a message's field, −1 for one that reaches no template.
func messageField(key []byte) int {
	switch string(key) {
	case "role":
		return fieldRole
	case "name":
		return fieldName
	case "content":
		return fieldContent
	case "reasoning", "reasoning_content":
		return fieldReasoning
	case "tool_calls":
		return fieldToolCalls
	case "tool_call_id":
		return fieldToolCallID
	case "tools":
		return fieldTools
	}
	return -1
}

// parts writes the parts of a content.
func (t *texter) parts(w *walk) {
	w.enter()
	for first := true; w.next(); first = false {
		if !first {
			t.put([]byte(`\n`)) // as a string of two lines has it
		}
		if w.space() == '"' {
			t.content(w)
			continue
		}
		t.part(w)
	}
}

// part writes one part: its text, or what tells it from other parts that are not text. That is its JSON as it came: a client writes the same part
// alike in each of its turns.
func (t *texter) part(w *walk) {
	start := w.pos
	if w.space() != '{' {
		w.value()
		return
	}
	var kind []byte
	var text, refusal, thinking walk
	w.enter()
	for w.next() {
		key := w.key()
		c := w.space()
		here := *w
		if c == '"' && string(key) == "type" {
			kind, _ = w.str()
			continue
		}
		w.value()
		switch string(key) {
		case "type":
			kind = nil
		case "text":
			text = here
		case "refusal":
			refusal = here
		case "thinking":
			thinking = here
		}
	}
	switch string(kind) {
	case "text", "input_text", "output_text":
	case "refusal":
		text = refusal
	case "thinking":
		text = thinking
	default:
		t.flush()
		t.out.Media(w.data[start:w.pos])
		return
	}
	if text.space() == '"' {
		t.content(&text)
	}
}
