package openai

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// slowParse is Parse by encoding/json: slow, and plain enough to be right. It covers the body; meta is a POST of JSON.
func slowParse(kind Kind, body []byte, limits Limits) Request {
	limits = limits.withDefaults()
	refuse := func(reason Reason, model string) Request { return Request{Kind: kind, Reason: reason, Model: model} }
	if len(body) == 0 {
		return Request{Reason: ReasonNoBody}
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || fields == nil {
		return refuse(ReasonNotJSON, "")
	}
	model := slowText(fields["model"], maxText)
	switch {
	case !utf8.Valid(body):
		return refuse(ReasonBadUTF8, model)
	case slowLone(body):
		return refuse(ReasonLoneSurrogate, model)
	case model == "":
		return refuse(ReasonNoModel, "")
	case kind == Other:
		return refuse(ReasonUnsupportedPath, model)
	}
	get := func(key string) Raw {
		if v := fields[key]; string(v) != "null" {
			return Raw(v)
		}
		return nil
	}
	r := Request{Kind: kind, Model: model, AddSpecialTokens: Raw(fields["add_special_tokens"])}
	r.Salt = slowText(fields["cache_salt"], maxText)

	var xargs, kwargs map[string]json.RawMessage
	_ = json.Unmarshal(fields["vllm_xargs"], &xargs)
	mode := xargs["kv_cache_report_mode"]
	badField := false
	if kind == Chat {
		r.AddGenerationPrompt, r.ContinueFinalMessage = Raw(fields["add_generation_prompt"]), Raw(fields["continue_final_message"])
		r.Tools, r.Documents, r.ReasoningEffort = get("tools"), get("documents"), get("reasoning_effort")
		r.TemplateKwargs = get("chat_template_kwargs")
		r.MediaIOKwargs, r.MMProcessorKwargs = get("media_io_kwargs"), get("mm_processor_kwargs")
		badField = r.TemplateKwargs != nil && json.Unmarshal(r.TemplateKwargs, &kwargs) != nil
		badField = badField || r.ReasoningEffort != nil && r.ReasoningEffort[0] != '"'
		_, r.thinkingSet = kwargs["enable_thinking"]
		r.toolsOff = string(fields["tool_choice"]) == `"none"`
	}
	template := kwargs["chat_template"]
	prompt := slowPrompt(&r, fields["prompt"], fields["messages"], limits)
	// reason is the first that applies, without those that a render endpoint does away with when it is asked.
	reason := func(rendered bool) Reason {
		switch {
		case mode != nil && string(mode) != "null" && slowText(mode, 100) != "incremental":
			return ReasonReportMode
		case get("prompt_logprobs") != nil || (kind == Chat || get("logprobs") != nil) && get("echo") != nil && string(get("echo")) != "false":
			return ReasonPromptLogprobs
		case get("prompt_embeds") != nil || prompt == ReasonPromptEmbeds:
			return ReasonPromptEmbeds
		case kind == Chat && (!rendered && get("chat_template") != nil || template != nil && string(template) != "null"):
			return ReasonTemplate
		case !rendered && (get("truncate_prompt_tokens") != nil || get("truncation_side") != nil):
			return ReasonTruncation
		case kind == Completion && get("suffix") != nil:
			return ReasonSuffix
		case get("cache_salt") != nil && r.Salt == "":
			return ReasonBadSalt
		case badField:
			return ReasonBadField
		}
		return prompt
	}
	if found := reason(false); found != "" {
		refused := refuse(found, model)
		if (found == ReasonTemplate || found == ReasonTruncation) && reason(true) == "" && r.Form != Tokens {
			r.renderOnly = true
			refused.rendered = &r
		}
		return refused
	}
	return r
}

func slowPrompt(r *Request, prompt, messages json.RawMessage, limits Limits) Reason {
	var list []json.RawMessage
	if r.Kind == Chat {
		switch {
		case messages == nil || string(messages) == "null":
			return ReasonNoPrompt
		case json.Unmarshal(messages, &list) != nil:
			return ReasonBadField
		case len(list) == 0:
			return ReasonNoPrompt
		}
		r.Form, r.Messages = Messages, Raw(messages)
		for _, m := range list {
			if reason := slowMessage(m); reason != "" {
				return reason
			}
		}
		return ""
	}
	switch {
	case prompt == nil || string(prompt) == "null" || string(prompt) == `""`:
		return ReasonNoPrompt
	case prompt[0] == '"':
		r.Form, r.Prompt = Text, Raw(prompt)
		return ""
	case json.Unmarshal(prompt, &list) != nil:
		return ReasonBadField
	case len(list) == 0:
		return ReasonNoPrompt
	}
	if c := list[0][0]; c != '-' && !digit(c) {
		switch {
		case len(list) > 1:
			return ReasonSeveralPrompts
		case c == '"':
			return slowPrompt(r, list[0], nil, limits)
		case c != '[':
			return ReasonBadField
		}
		inner := list[0]
		list = nil
		if _ = json.Unmarshal(inner, &list); len(list) == 0 {
			return ReasonNoPrompt
		}
	}
	if len(list) > limits.PromptTokens {
		return ReasonTooLong
	}
	for _, v := range list {
		id, err := strconv.ParseUint(string(v), 10, 32)
		if err != nil {
			r.Tokens = nil
			return ReasonBadTokens
		}
		r.Tokens = append(r.Tokens, uint32(id))
	}
	r.Form = Tokens
	return ""
}

func slowMessage(raw json.RawMessage) Reason {
	var message map[string]json.RawMessage
	if raw[0] != '{' || json.Unmarshal(raw, &message) != nil {
		return ReasonBadField
	}
	content := message["content"]
	if content == nil || content[0] == '"' || content[0] == 'n' {
		return ""
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) != nil {
		return ReasonBadField
	}
	for _, raw := range parts {
		if raw[0] == '"' {
			continue
		}
		var part map[string]json.RawMessage
		if raw[0] != '{' || json.Unmarshal(raw, &part) != nil {
			return ReasonBadField
		}
		switch slowText(part["type"], 100) {
		case "text", "refusal", "input_text", "output_text", "thinking":
		case "prompt_embeds":
			return ReasonPromptEmbeds
		default:
			return ReasonMultimodal
		}
	}
	return ""
}

// slowText is the value of a JSON string of 1…limit bytes, else "".
func slowText(raw json.RawMessage, limit int) string {
	var s string
	if len(raw) == 0 || raw[0] != '"' || !utf8.Valid(raw) || json.Unmarshal(raw, &s) != nil || len(s) > limit {
		return ""
	}
	return s
}

// slowLone reports whether valid JSON has an escape for half a surrogate pair.
func slowLone(body []byte) bool {
	high := false // the escape just before was the first half
	for i := 0; i < len(body); {
		unit := uint64(0)
		n := 1
		if body[i] == '\\' {
			n = 2
			if body[i+1] == 'u' {
				n = 6
				unit, _ = strconv.ParseUint(string(body[i+2:i+6]), 16, 16)
			}
		}
		isLow := unit >= 0xdc00 && unit <= 0xdfff
		if high != isLow {
			return true
		}
		high = unit >= 0xd800 && unit <= 0xdbff
		i += n
	}
	return high
}

// slowDepth is the deepest nesting of brackets outside strings.
func slowDepth(body []byte) int {
	deepest, n, inside := 0, 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case inside:
		case c == '{' || c == '[':
			n++
			deepest = max(deepest, n)
		case c == '}' || c == ']':
			n--
		}
	}
	return deepest
}

// slowMapped is AppendTokenize by encoding/json.
func slowMapped(model string, r *Request) []byte {
	name, _ := json.Marshal(model)
	body := map[string]json.RawMessage{"model": name}
	kwargs := make(map[string]json.RawMessage)
	_ = json.Unmarshal(r.TemplateKwargs, &kwargs)
	if r.ReasoningEffort != nil {
		if _, set := kwargs["enable_thinking"]; !set {
			kwargs["enable_thinking"] = json.RawMessage("true")
			if slowText(json.RawMessage(r.ReasoningEffort), 10) == "none" {
				kwargs["enable_thinking"] = json.RawMessage("false")
			}
		}
		kwargs["reasoning_effort"] = json.RawMessage(r.ReasoningEffort)
	}
	if r.Documents != nil {
		kwargs["documents"] = json.RawMessage(r.Documents)
	}
	if r.TemplateKwargs != nil || len(kwargs) > 0 {
		body["chat_template_kwargs"], _ = json.Marshal(kwargs)
	}
	for key, raw := range map[string]Raw{
		"prompt": r.Prompt, "messages": r.Messages, "tools": r.Tools, "add_special_tokens": r.AddSpecialTokens,
		"add_generation_prompt": r.AddGenerationPrompt, "continue_final_message": r.ContinueFinalMessage,
		"media_io_kwargs": r.MediaIOKwargs, "mm_processor_kwargs": r.MMProcessorKwargs,
	} {
		if raw != nil {
			body[key] = json.RawMessage(raw)
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return text
}

// slowReply is ReadTokens by encoding/json.
func slowReply(body []byte, limit int) (Reply, error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || fields == nil {
		return Reply{}, ErrReply
	}
	var list []json.RawMessage
	if raw := fields["tokens"]; raw == nil || raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
		return Reply{}, ErrReply
	}
	if len(list) > limit {
		return Reply{}, ErrReplyLong
	}
	r := Reply{}
	for _, v := range list {
		id, err := strconv.ParseUint(string(v), 10, 32)
		if err != nil {
			return Reply{}, ErrReply
		}
		r.Tokens = append(r.Tokens, uint32(id))
	}
	whole := func(key string) int {
		n, err := strconv.Atoi(string(fields[key]))
		if err != nil || n < 0 || n > math.MaxInt32 {
			return -1
		}
		return n
	}
	if n := whole("count"); n >= 0 && n != len(list) {
		return Reply{}, ErrReply
	}
	r.MaxModelLen = max(whole("max_model_len"), 0)
	return r, nil
}

// compact makes JSON texts comparable by meaning.
func compact(text []byte) any {
	var v any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return "invalid: " + strings.ToValidUTF8(string(text), "?")
	}
	return v
}
