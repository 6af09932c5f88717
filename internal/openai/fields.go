package openai

import "unicode/utf8"

// fault is a finding about one field. The last occurrence of a key decides, so each occurrence sets or clears its faults.
type fault uint16

const (
	faultReportMode fault = 1 << iota
	faultEmbeds
	faultTemplate
	faultKwargsTemplate
	faultTruncate
	faultTruncateSide
	faultSuffix
	faultSalt
	faultKwargs
	faultEffort
	faultPromptLogprobs
	markEcho // these two are faults together
	markLogprobs
)

// parser fills a Request while it scans.
type parser struct {
	scanner
	limit  int // token ids of a prompt
	r      Request
	faults fault
	prompt Reason // of the field that holds the prompt
	source inexact
}

func (p *parser) set(f fault, on bool) {
	p.faults &^= f
	if on {
		p.faults |= f
	}
}

// reason gives the first that applies, in the order of Reasons. An echo is of the prompt with its log probabilities where those of the answer
// are asked for, and vLLM's chat endpoint takes a number of them for granted.
func (p *parser) reason() Reason {
	has := func(f fault) bool { return p.faults&f != 0 }
	switch {
	case p.broken:
		return ReasonNotJSON
	case p.deep:
		return ReasonTooDeep
	case p.badUTF8:
		return ReasonBadUTF8
	case p.lone:
		return ReasonLoneSurrogate
	case p.r.Model == "":
		return ReasonNoModel
	case p.r.Kind == Other:
		return ReasonUnsupportedPath
	case has(faultReportMode):
		return ReasonReportMode
	case has(faultPromptLogprobs) || has(markEcho) && (has(markLogprobs) || p.r.Kind == Chat):
		return ReasonPromptLogprobs
	case has(faultEmbeds) || p.prompt == ReasonPromptEmbeds:
		return ReasonPromptEmbeds
	case has(faultTemplate | faultKwargsTemplate):
		return ReasonTemplate
	case has(faultTruncate | faultTruncateSide):
		return ReasonTruncation
	case has(faultSuffix):
		return ReasonSuffix
	case has(faultSalt):
		return ReasonBadSalt
	case has(faultKwargs | faultEffort):
		return ReasonBadField
	case p.prompt == "" && p.r.Form == NoPrompt:
		return ReasonNoPrompt
	}
	return p.prompt
}

// inexact returns what the text of a prompt with a reason is written from, nil when it has none: when the engine will refuse the request or reuse
// nothing for it, and when what is left of the prompt is not known (truncation) or no text (embeddings).
func (p *parser) inexact() *inexact {
	const none = faultEmbeds | faultTruncate | faultTruncateSide | faultSalt | faultKwargs | faultEffort | faultPromptLogprobs | markEcho
	switch p.r.Reason {
	case ReasonReportMode, ReasonTemplate, ReasonSuffix, ReasonSeveralPrompts, ReasonTooLong, ReasonMultimodal:
	default:
		return nil
	}
	switch p.prompt {
	case "", ReasonSeveralPrompts, ReasonTooLong, ReasonMultimodal:
	default:
		return nil
	}
	if p.faults&none != 0 || p.prompt == "" && p.r.Form == NoPrompt {
		return nil
	}
	text := p.source
	text.Request = p.r
	return &text
}

// body reads the whole text: one object and nothing after it.
func (p *parser) body() {
	if !p.enter('{') {
		return
	}
	for first := true; p.next(&first, '}'); {
		key := p.key()
		if p.r.Kind == Other {
			p.otherField(key)
		} else {
			p.field(key)
		}
	}
	if p.space() != 0 || p.pos != len(p.data) {
		p.fail()
	}
}

func (p *parser) otherField(key []byte) {
	if string(key) == "model" {
		p.r.Model = p.text()
		return
	}
	p.skip()
}

func (p *parser) field(key []byte) {
	switch string(key) {
	case "model":
		p.r.Model = p.text()
	case "cache_salt":
		p.salt()
	case "add_special_tokens":
		p.r.AddSpecialTokens = p.skip()
	case "truncate_prompt_tokens":
		p.set(faultTruncate, p.optional() != nil)
	case "truncation_side":
		p.set(faultTruncateSide, p.optional() != nil)
	case "prompt_embeds":
		p.set(faultEmbeds, p.optional() != nil)
	case "vllm_xargs":
		p.xargs()
	case "prompt_logprobs":
		p.set(faultPromptLogprobs, p.optional() != nil)
	case "echo":
		echo := p.optional()
		p.set(markEcho, echo != nil && string(echo) != "false")
	default:
		if p.r.Kind == Chat {
			p.chatField(key)
		} else {
			p.completionField(key)
		}
	}
}

func (p *parser) completionField(key []byte) {
	switch string(key) {
	case "prompt":
		p.promptField()
	case "logprobs":
		p.set(markLogprobs, p.optional() != nil)
	case "suffix":
		p.source.suffix = p.optional()
		p.set(faultSuffix, p.source.suffix != nil)
	default:
		p.skip()
	}
}

func (p *parser) chatField(key []byte) {
	switch string(key) {
	case "messages":
		p.messages()
	case "tools":
		p.r.Tools = p.optional()
	case "tool_choice":
		p.r.toolsOff = string(p.skip()) == `"none"`
	case "documents":
		p.r.Documents = p.optional()
	case "reasoning_effort":
		p.r.ReasoningEffort = p.optional()
		p.set(faultEffort, p.r.ReasoningEffort != nil && p.r.ReasoningEffort[0] != '"')
	case "chat_template":
		p.source.template = p.optional()
		p.set(faultTemplate, p.source.template != nil)
	case "chat_template_kwargs":
		p.kwargs()
	case "add_generation_prompt":
		p.r.AddGenerationPrompt = p.skip()
	case "continue_final_message":
		p.r.ContinueFinalMessage = p.skip()
	case "media_io_kwargs":
		p.r.MediaIOKwargs = p.optional()
	case "mm_processor_kwargs":
		p.r.MMProcessorKwargs = p.optional()
	default:
		p.skip()
	}
}

// optional reads a value for which null means the same as leaving it out.
func (p *parser) optional() Raw {
	raw := p.skip()
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// text reads a string of 1…maxText bytes of UTF-8; everything else gives "".
func (p *parser) text() string {
	if p.space() != '"' {
		p.skip()
		return ""
	}
	raw, escaped := p.str()
	switch {
	case p.broken || len(raw) > 6*maxText+2: // an escape takes at most six bytes for one
		return ""
	case escaped:
		raw = appendText(nil, raw)
	default:
		raw = raw[1 : len(raw)-1]
	}
	if len(raw) > maxText || !utf8.Valid(raw) {
		return ""
	}
	return string(raw)
}

func (p *parser) salt() {
	absent := p.space() == 'n'
	p.r.Salt = p.text()
	p.set(faultSalt, !absent && p.r.Salt == "")
}

// xargs looks for a report mode other than the engine's default.
func (p *parser) xargs() {
	p.set(faultReportMode, false)
	if p.space() != '{' {
		p.skip()
		return
	}
	p.enter('{')
	for first := true; p.next(&first, '}'); {
		if string(p.key()) != "kv_cache_report_mode" {
			p.skip()
			continue
		}
		absent := p.space() == 'n'
		mode := p.text()
		p.set(faultReportMode, !absent && mode != "incremental")
	}
}

// kwargs notes which of the template's variables the request sets itself.
func (p *parser) kwargs() {
	p.set(faultKwargs|faultKwargsTemplate, false)
	p.r.TemplateKwargs, p.r.thinkingSet = nil, false
	if p.space() != '{' {
		p.set(faultKwargs, p.optional() != nil)
		return
	}
	start := p.pos
	p.enter('{')
	for first := true; p.next(&first, '}'); {
		switch string(p.key()) {
		case "enable_thinking":
			p.r.thinkingSet = true
			p.skip()
		case "chat_template":
			p.set(faultKwargsTemplate, p.optional() != nil)
		default:
			p.skip()
		}
	}
	if !p.broken {
		p.r.TemplateKwargs = p.data[start:p.pos]
	}
}
