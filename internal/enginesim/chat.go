package enginesim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// conversation is what the chat template sees.
type conversation struct {
	messages        []message
	tools           []json.RawMessage
	documents       []json.RawMessage
	reasoningEffort string
	noThinking      bool
	generate        bool // add_generation_prompt
	continueLast    bool // continue_final_message
}

type message struct {
	Role      string            `json:"role"`
	Content   json.RawMessage   `json:"content"`
	ToolCalls []json.RawMessage `json:"tool_calls"`
}

// templateKwargs are the variables that chat_template_kwargs may set.
type templateKwargs struct {
	ReasoningEffort string            `json:"reasoning_effort"`
	EnableThinking  *bool             `json:"enable_thinking"`
	Documents       []json.RawMessage `json:"documents"`
}

// render applies the simulated chat template. What does not change between the turns of a conversation comes first, and each
// message is closed, so that the prompt of a turn followed by its answer is the beginning of the next turn's prompt.
func (c *conversation) render() (string, error) {
	var b strings.Builder
	section := func(role string, lines []json.RawMessage) {
		if len(lines) == 0 {
			return
		}
		b.WriteString(textStartMsg + role + "\n")
		for _, l := range lines {
			b.Write(compact(l))
			b.WriteByte('\n')
		}
		b.WriteString(textEndMsg + "\n")
	}
	section("tools", c.tools)
	section("documents", c.documents)
	if c.reasoningEffort != "" {
		b.WriteString(textStartMsg + "effort\n" + c.reasoningEffort + textEndMsg + "\n")
	}
	for i, m := range c.messages {
		b.WriteString(textStartMsg + m.Role + "\n")
		text, err := m.text()
		if err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
		b.WriteString(text)
		for _, t := range m.ToolCalls {
			b.WriteString("<tool_call>")
			b.Write(compact(t))
			b.WriteString("</tool_call>")
		}
		if !c.continueLast || i+1 < len(c.messages) {
			b.WriteString(textEndMsg + "\n")
		}
	}
	if c.generate {
		b.WriteString(textStartMsg + "assistant\n")
		if c.noThinking {
			b.WriteString("<think>\n\n</think>\n\n")
		}
	}
	return b.String(), nil
}

// text is the content of a message: a string, or text parts that are joined by newlines.
func (m *message) text() (string, error) {
	if len(m.Content) == 0 || string(m.Content) == "null" {
		return "", nil
	}
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s, nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(m.Content, &parts); err != nil {
		return "", errors.New("content is neither a string nor a list of parts")
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if p.Type != "text" {
			return "", fmt.Errorf("content part of type %q: tiny is not a multimodal model", p.Type)
		}
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n"), nil
}

// compact returns JSON without insignificant white space, its keys in the order they came in.
func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}
