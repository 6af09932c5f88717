package enginesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

const (
	// defaultCompletion is vLLM's max_tokens of a completion request that has none.
	defaultCompletion = 16
	// defaultAnswer is the length at which an answer ends by itself, when the chat request sets no bound.
	defaultAnswer = 128
	maxChoices    = 128
	maxSalt       = 128
)

// prompt is a request's input as tokens.
type prompt struct {
	tokens []uint32
	fresh  bool // the answer begins a message
}

// decodeBody reads a JSON body, as vLLM does refusing what is not JSON or has fields of the wrong type.
func decodeBody(raw []byte) (*requestBody, *apiError) {
	var b requestBody
	if err := json.Unmarshal(raw, &b); err != nil {
		if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
			return nil, wrongType(wrong)
		}
		return nil, invalid("body", "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body', 'msg': '%s'}", strings.ReplaceAll(err.Error(), "'", ""))
	}
	return &b, nil
}

// wrongType says which field of a body has a value of another type than it needs, in the terms of JSON.
func wrongType(e *json.UnmarshalTypeError) *apiError {
	at, want := "body", "dictionary"
	if e.Field != "" {
		at += "." + e.Field
	}
	switch e.Type.Kind() {
	case reflect.String:
		want = "string"
	case reflect.Bool:
		want = "boolean"
	case reflect.Slice:
		want = "list"
	case reflect.Int:
		want = "integer"
	}
	return invalid("body", "1 validation error:\n  {'type': 'type_error', 'loc': '%s', 'msg': 'Input should be a valid %s'}", at, want)
}

// adapterOf finds the model a request names; nil is the base model.
func (e *Engine) adapterOf(model string) (*adapter, *apiError) {
	if model == "" || slices.Contains(e.opts.Models, model) {
		return nil, nil
	}
	for _, a := range e.all() {
		if a.name == model {
			return a, nil
		}
	}
	return nil, &apiError{
		Status: http.StatusNotFound, Type: "NotFoundError", Param: ptr("model"),
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(e.opts.Models, ", ")),
	}
}

// chatText renders the messages; fresh says that the answer begins a message. rewrite maps reasoning_effort and documents of
// the body to template variables, which the chat endpoint does and /tokenize does not.
func chatText(b *requestBody, rewrite bool) (text string, fresh bool, _ *apiError) {
	var c conversation
	if err := json.Unmarshal(b.Messages, &c.messages); err != nil {
		return "", false, invalid("body.messages", "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list'}")
	}
	if b.ChatTemplate != "" {
		return "", false, badRequest("", "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with untrusted chat template.")
	}
	c.tools, c.documents = b.Tools, b.ChatTemplateKwargs.Documents
	c.reasoningEffort = b.ChatTemplateKwargs.ReasoningEffort
	thinking := b.ChatTemplateKwargs.EnableThinking
	if rewrite {
		if b.Documents != nil {
			c.documents = b.Documents
		}
		if b.ReasoningEffort != "" {
			c.reasoningEffort = b.ReasoningEffort
			if thinking == nil {
				thinking = ptr(b.ReasoningEffort != "none")
			}
		}
	}
	c.noThinking = thinking != nil && !*thinking
	c.generate = b.AddGenerationPrompt == nil || *b.AddGenerationPrompt
	c.continueLast = b.ContinueFinalMessage
	if c.generate && c.continueLast {
		return "", false, badRequest("", "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
	}
	text, err := c.render()
	if err != nil {
		return "", false, badRequest("messages", "%s", err)
	}
	return text, c.generate, nil
}

// promptText is the prompt of /tokenize, which takes a single text only.
func promptText(b *requestBody) (string, *apiError) {
	const missing = "\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required'}"
	if len(b.Prompt) == 0 {
		return "", invalid("body.prompt", "2 validation errors:\n  {'type': 'missing', 'loc': 'body.prompt', 'msg': 'Field required'}"+missing)
	}
	var text string
	if err := json.Unmarshal(b.Prompt, &text); err != nil {
		return "", invalid("body.prompt", "2 validation errors:\n  {'type': 'string_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid string'}"+missing)
	}
	return text, nil
}

// completionPrompts reads the four forms of a completion's prompt: text, token ids, and lists of either.
func completionPrompts(raw json.RawMessage) ([]prompt, *apiError) {
	var (
		text   string
		texts  []string
		ids    []uint32
		idList [][]uint32
	)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case json.Unmarshal(raw, &text) == nil:
		texts = []string{text}
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		idList = [][]uint32{ids}
	case json.Unmarshal(raw, &texts) == nil && len(texts) > 0:
	case json.Unmarshal(raw, &idList) == nil && len(idList) > 0:
		texts = nil
	default:
		return nil, invalid("body.prompt", "1 validation error:\n  {'type': 'string_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid string, list of strings or list of token ids'}")
	}
	var out []prompt
	if idList == nil {
		for _, t := range texts {
			out = append(out, prompt{tokens: tokenize(nil, t)})
		}
	}
	for _, ids := range idList {
		for _, id := range ids {
			if id >= vocabulary {
				return nil, badRequest("prompt", "Token id %d is out of vocabulary", id)
			}
		}
		out = append(out, prompt{tokens: ids})
	}
	return out, nil
}

// bounds returns the most tokens an answer may have and, if it ends by itself before, at how many.
func (e *Engine) bounds(b *requestBody, chat bool, prompt int) (limit, stop int, _ *apiError) {
	longest := e.opts.MaxModelLen
	if prompt >= longest {
		return 0, 0, badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, "+
			"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%d)",
			longest, prompt, prompt)
	}
	asked := b.MaxTokens
	if chat && b.MaxCompletionTokens != nil {
		asked = b.MaxCompletionTokens
	}
	switch {
	case asked == nil && chat && b.IgnoreEOS:
		return longest - prompt, 0, nil
	case asked == nil && chat:
		return longest - prompt, defaultAnswer, nil
	case asked == nil:
		return min(defaultCompletion, longest-prompt), 0, nil
	case *asked < 1:
		return 0, 0, badRequest("max_tokens", "max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%d)", *asked, *asked)
	case *asked > longest-prompt:
		return 0, 0, badRequest("input_tokens", "This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt "+
			"contains %d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number of requested output tokens. "+
			"(parameter=input_tokens, value=%d)", longest, *asked, prompt, prompt+*asked, prompt)
	}
	return *asked, 0, nil
}

// checkSalt applies the rules for cache_salt of vLLM 0.30 and later.
func checkSalt(salt *string) *apiError {
	switch {
	case salt == nil:
		return nil
	case *salt == "":
		return badRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)")
	case len([]rune(*salt)) > maxSalt || strings.ContainsAny(*salt, "@/\\\x00"):
		return badRequest("cache_salt", `Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\', or NUL. (parameter=cache_salt)`)
	}
	return nil
}

// truncated applies truncate_prompt_tokens: the last n tokens, −1 for as many as the model takes.
func truncated(tokens []uint32, n *int, maxModelLen int) []uint32 {
	if n == nil {
		return tokens
	}
	keep := *n
	if keep < 0 {
		keep = maxModelLen
	}
	return tokens[max(0, len(tokens)-keep):]
}

// badRequest is a refusal by the endpoint, invalid one by the check of the body's form.
func badRequest(param, format string, args ...any) *apiError {
	return refusal("BadRequestError", param, format, args)
}

func invalid(param, format string, args ...any) *apiError {
	return refusal("Bad Request", param, format, args)
}

func refusal(kind, param, format string, args []any) *apiError {
	e := &apiError{Status: http.StatusBadRequest, Type: kind, Message: fmt.Sprintf(format, args...)}
	if param != "" {
		e.Param = &param
	}
	return e
}

func ptr[T any](v T) *T { return &v }
