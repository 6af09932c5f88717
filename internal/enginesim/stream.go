package enginesim

import (
	"context"
	"encoding/json"
	"net/http"
)

// stream writes a call's tokens as server-sent events. The response headers go out before the first token is computed, as
// engines' web servers do: they say nothing about progress.
func (e *Engine) stream(ctx context.Context, w http.ResponseWriter, c *call) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	if flush() != nil {
		return
	}
	interval := e.opts.Timing.ChunkInterval
	s := sse{engine: e, call: c}
	for {
		if !c.wait(ctx) {
			panic(http.ErrAbortHandler)
		}
		s.buf = s.buf[:0]
		for i := range c.choices {
			s.choice(i)
		}
		if len(s.buf) == 0 {
			continue // its tokens went with the last chunk
		}
		if c.finished() {
			s.end()
		}
		if _, err := w.Write(s.buf); err != nil {
			return
		}
		if flush() != nil || c.finished() {
			return
		}
		if interval > 0 {
			pause(ctx, interval)
		}
	}
}

// sse composes the events of a stream.
type sse struct {
	engine *Engine
	call   *call
	buf    []byte
	tokens []uint32
	text   []byte
}

// choice adds what one choice has generated since the last time: one event with all of it, before the first one of a chat
// the event that names the role.
func (s *sse) choice(i int) {
	c := s.call
	ch := &c.choices[i]
	if ch.finish != "" {
		return
	}
	s.tokens = ch.take(s.tokens[:0])
	if len(s.tokens) == 0 && ch.finish == "" {
		return
	}
	s.text = s.engine.vocab.detokenize(s.text[:0], s.tokens)
	first := !ch.begun
	ch.begun = true
	var end *finish
	if ch.finish != "" {
		end = &ch.finish
	}
	var ids []uint32
	if c.body.ReturnTokenIDs {
		ids = s.tokens
	}
	if !c.chat {
		d := completionDelta{Index: i, Text: string(s.text), FinishReason: end, TokenIDs: ids}
		if first {
			d.PromptTokenIDs = c.promptIDs(i)
		}
		s.event(chunk{Choices: []any{d}, SystemFingerprint: s.fingerprint()})
		return
	}
	if first {
		s.event(chunk{
			Choices:   []any{chatDelta{Index: i, Delta: chatContent{Role: "assistant", Content: ptr("")}}},
			chatStart: &chatStart{PromptTokenIDs: c.promptIDs(i)},
		})
	}
	d := chatDelta{Index: i, FinishReason: end, TokenIDs: &ids}
	if len(s.text) > 0 {
		d.Delta.Content = ptr(string(s.text))
	}
	if end != nil {
		d.StopReason = &null{}
	}
	s.event(chunk{Choices: []any{d}, SystemFingerprint: s.fingerprint()})
}

// fingerprint is on the last event before the end.
func (s *sse) fingerprint() string {
	if !s.call.finished() || s.call.body.StreamOptions.IncludeUsage {
		return ""
	}
	return s.engine.fingerprint()
}

// end adds the usage if it was asked for, and the end mark.
func (s *sse) end() {
	if c := s.call; c.body.StreamOptions.IncludeUsage {
		sum := c.usage(s.engine)
		u := &streamUsage{PromptTokens: sum.PromptTokens, TotalTokens: sum.TotalTokens, CompletionTokens: sum.CompletionTokens}
		u.PromptTokensDetails.CachedTokens = sum.PromptTokensDetails.CachedTokens
		u.PromptTokensDetails.CreatedCacheTokens = sum.PromptTokensDetails.CreatedCacheTokens
		s.event(chunk{Choices: []any{}, Usage: u, SystemFingerprint: s.engine.fingerprint()})
	}
	s.buf = append(s.buf, "data: [DONE]\n\n"...)
}

func (s *sse) event(c chunk) {
	c.ID, c.Object, c.Created, c.Model = s.call.id, s.call.object, s.call.created, s.call.model
	b, err := json.Marshal(c)
	if err != nil {
		return // not possible for these types
	}
	s.buf = append(append(append(s.buf, "data: "...), b...), "\n\n"...)
}
