package openai

// promptField reads the prompt of a completion. A list of one prompt is the prompt: the engine fans a list out, and there is
// one to route.
func (p *parser) promptField() {
	p.r.Form, p.r.Prompt, p.r.Tokens, p.prompt, p.source.prompts = NoPrompt, nil, nil, "", nil
	switch p.space() {
	case '"':
		p.textPrompt()
	case '[':
		p.promptList()
	case 'n':
		p.skip()
		p.prompt = ReasonNoPrompt
	default:
		p.skip()
		p.prompt = ReasonBadField
	}
}

func (p *parser) textPrompt() {
	p.space()
	p.r.whole.pos = p.pos
	raw, _ := p.str()
	if len(raw) <= 2 {
		p.prompt = ReasonNoPrompt
		return
	}
	p.r.Form, p.r.Prompt = Text, raw
}

func (p *parser) promptList() {
	start := p.pos
	p.pos++
	switch c := p.space(); {
	case c == '-' || digit(c):
		p.pos = start
		p.tokenPrompt()
		p.source.prompts = p.data[start:p.pos]
		return
	case c == ']':
		p.pos++
		p.prompt = ReasonNoPrompt
		return
	}
	p.pos = start
	p.enter('[')
	n := 0
	for first := true; p.next(&first, ']'); n++ {
		switch c := p.space(); {
		case n > 0:
			p.skip()
		case c == '"':
			p.textPrompt()
		case c == '[':
			p.tokenPrompt()
		default:
			p.skip()
			p.prompt = ReasonBadField
		}
	}
	p.source.prompts = p.data[start:p.pos]
	if n > 1 {
		p.r.Form, p.r.Prompt, p.r.Tokens, p.prompt = NoPrompt, nil, nil, ReasonSeveralPrompts
	}
}

func (p *parser) tokenPrompt() {
	ids, ok, long := p.tokens(p.limit)
	switch {
	case long:
		p.prompt = ReasonTooLong
	case !ok:
		p.prompt = ReasonBadTokens
	case len(ids) == 0:
		p.prompt = ReasonNoPrompt
	default:
		p.r.Form, p.r.Tokens = Tokens, ids
	}
}

// messages reads the messages of a chat; the first one that cannot be keyed gives the reason.
func (p *parser) messages() {
	p.r.Form, p.r.Messages, p.prompt, p.r.unordered = NoPrompt, nil, "", false
	if p.space() != '[' {
		p.prompt = ReasonBadField
		if p.optional() == nil {
			p.prompt = ReasonNoPrompt
		}
		return
	}
	start, n := p.pos, 0
	p.enter('[')
	for first := true; p.next(&first, ']'); n++ {
		if reason := p.message(); p.prompt == "" {
			p.prompt = reason
		}
	}
	switch {
	case p.broken:
	case n == 0:
		p.prompt = ReasonNoPrompt
	default:
		p.r.Form, p.r.Messages, p.r.whole.pos = Messages, p.data[start:p.pos], start
	}
}

func (p *parser) message() (reason Reason) {
	if p.space() != '{' {
		p.skip()
		return ReasonBadField
	}
	p.enter('{')
	last := -1
	for first := true; p.next(&first, '}'); {
		number := messageField(p.key())
		if number >= 0 {
			p.r.unordered = p.r.unordered || number <= last
			last = number
		}
		if number == fieldContent {
			reason = p.content()
		} else {
			p.skip()
		}
	}
	return reason
}

// content reads a message's content: text, null, or a list of parts.
func (p *parser) content() (reason Reason) {
	switch p.space() {
	case '"', 'n':
		p.skip()
		return ""
	case '[':
	default:
		p.skip()
		return ReasonBadField
	}
	p.enter('[')
	for first := true; p.next(&first, ']'); {
		if r := p.part(); reason == "" {
			reason = r
		}
	}
	return reason
}

// part reads one content part. vLLM takes a bare string for text, and these types for text; every other type is an image,
// audio, video or embeddings, or one that is not known to be text.
func (p *parser) part() Reason {
	switch p.space() {
	case '"':
		p.str()
		return ""
	case '{':
	default:
		p.skip()
		return ReasonBadField
	}
	reason := ReasonMultimodal
	p.enter('{')
	for first := true; p.next(&first, '}'); {
		if string(p.key()) != "type" {
			p.skip()
			continue
		}
		reason = ReasonMultimodal
		if p.space() != '"' {
			p.skip()
			continue
		}
		switch string(p.short(p.str())) {
		case "text", "refusal", "input_text", "output_text", "thinking":
			reason = ""
		case "prompt_embeds":
			reason = ReasonPromptEmbeds
		}
	}
	return reason
}
