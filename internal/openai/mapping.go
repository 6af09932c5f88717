package openai

// AppendTokenize appends the body of POST /tokenize that gives the prompt's token ids as the engine itself would compute them.
// r is of form Text or Messages and has no Reason; model is the served name to ask with, base model or adapter.
//
// The two endpoints read the same fields except for these, which vLLM's chat endpoint turns into template variables and
// /tokenize ignores:
//   - reasoning_effort is chat_template_kwargs.reasoning_effort, and sets enable_thinking to effort ≠ "none" unless the
//     request's own kwargs have that key;
//   - documents is chat_template_kwargs.documents.
func AppendTokenize(dst []byte, model string, r *Request) []byte {
	dst = append(dst, `{"model":`...)
	dst = appendString(dst, model)
	if r.Form == Text {
		dst = appendField(dst, "prompt", r.Prompt)
		dst = appendField(dst, "add_special_tokens", r.AddSpecialTokens)
		return append(dst, '}')
	}
	dst = appendField(dst, "messages", r.Messages)
	dst = appendField(dst, "tools", r.Tools)
	dst = appendField(dst, "add_generation_prompt", r.AddGenerationPrompt)
	dst = appendField(dst, "continue_final_message", r.ContinueFinalMessage)
	dst = appendField(dst, "add_special_tokens", r.AddSpecialTokens)
	dst = appendField(dst, "media_io_kwargs", r.MediaIOKwargs)
	dst = appendField(dst, "mm_processor_kwargs", r.MMProcessorKwargs)
	dst = appendKwargs(dst, r)
	return append(dst, '}')
}

// appendKwargs appends chat_template_kwargs. The request's top-level fields come after its own kwargs, because there, too, they
// win, and the last of two equal keys counts.
func appendKwargs(dst []byte, r *Request) []byte {
	if r.ReasoningEffort == nil && r.Documents == nil {
		return appendField(dst, "chat_template_kwargs", r.TemplateKwargs)
	}
	dst = append(dst, `,"chat_template_kwargs":{`...)
	start := len(dst)
	if n := len(r.TemplateKwargs); n >= 2 {
		dst = append(dst, r.TemplateKwargs[1:n-1]...)
		if blank(dst[start:]) {
			dst = dst[:start]
		}
	}
	if r.ReasoningEffort != nil {
		dst = appendField(dst, "reasoning_effort", r.ReasoningEffort)
		if !r.thinkingSet {
			thinking := Raw("true")
			if string(appendText(nil, r.ReasoningEffort)) == "none" {
				thinking = Raw("false")
			}
			dst = appendField(dst, "enable_thinking", thinking)
		}
	}
	dst = appendField(dst, "documents", r.Documents)
	if dst[start] == ',' {
		dst = append(dst[:start], dst[start+1:]...)
	}
	return append(dst, '}')
}

// appendField appends a field after others; an absent value appends nothing.
func appendField(dst []byte, name string, value Raw) []byte {
	if value == nil {
		return dst
	}
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return append(dst, value...)
}

func blank(d []byte) bool {
	for _, c := range d {
		if c > ' ' {
			return false
		}
	}
	return true
}
