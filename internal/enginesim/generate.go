package enginesim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// call is one request to a generating endpoint.
type call struct {
	body    *requestBody
	chat    bool
	id      string
	object  string // of chunks; replies drop the suffix of chat chunks
	created int64
	model   string
	choices []choice
	wake    chan struct{} // holds a value after one of the choices has news
}

// choice is one sequence and what came out of it.
type choice struct {
	seq    *sequence
	prompt []uint32
	begun  bool // its first chunk was sent
	tokens int  // generated so far
	cached int
	finish finish
}

// prepare checks a request and makes its sequences. salt counts instead of the body's, if it is not empty.
func (e *Engine) prepare(raw []byte, requestID, salt string, chat bool) (*call, *apiError) {
	b, bad := decodeBody(raw)
	if bad != nil {
		return nil, bad
	}
	adapter, bad := e.adapterOf(b.Model)
	if bad != nil {
		return nil, bad
	}
	if bad := checkSalt(b.CacheSalt); bad != nil {
		return nil, bad
	}
	var prompts []prompt
	if chat {
		text, fresh, bad := chatText(b, true)
		if bad != nil {
			return nil, bad
		}
		prompts = []prompt{{tokens: tokenize(nil, text), fresh: fresh}}
	} else if prompts, bad = completionPrompts(b.Prompt); bad != nil {
		return nil, bad
	}
	n := 1
	if b.N != nil {
		n = *b.N
	}
	if n < 1 || n > maxChoices || n*len(prompts) > maxChoices {
		return nil, badRequest("n", "n must be at least 1 and give at most %d choices, got %d.", maxChoices, n)
	}

	c := &call{body: b, chat: chat, created: time.Now().Unix(), model: e.opts.Models[0], wake: make(chan struct{}, 1)}
	if requestID == "" {
		requestID = newID()
	}
	c.id, c.object = "cmpl-"+requestID, "text_completion"
	if chat {
		c.id, c.object = "chatcmpl-"+requestID, "chat.completion.chunk"
	}
	if adapter != nil {
		c.model = adapter.name
	}
	if salt == "" && b.CacheSalt != nil {
		salt = *b.CacheSalt
	}
	for _, p := range prompts {
		p.tokens = truncated(p.tokens, b.TruncatePromptTokens, e.opts.MaxModelLen)
		if len(p.tokens) == 0 {
			return nil, badRequest("prompt", "The decoder prompt cannot be empty")
		}
		limit, stop, bad := e.bounds(b, chat, len(p.tokens))
		if bad != nil {
			return nil, bad
		}
		for range n {
			q := newSequence(e.hasher, adapter, salt, p.tokens, limit)
			q.stop, q.next, q.out.wake = stop, e.vocab.answer(p.tokens, p.fresh, stop), c.wake
			c.choices = append(c.choices, choice{seq: q, prompt: p.tokens})
		}
	}
	return c, nil
}

func newID() string { return fmt.Sprintf("%016x", rand.Uint64()) }

func (c *call) sequences() []*sequence {
	seqs := make([]*sequence, len(c.choices))
	for i := range c.choices {
		seqs[i] = c.choices[i].seq
	}
	return seqs
}

// generate runs a call on one rank to its end and writes the reply.
func (e *Engine) generate(w http.ResponseWriter, r *http.Request, on *rank, c *call) {
	seqs := c.sequences()
	if !on.loop.submit(seqs) {
		fail(w, &apiError{Status: http.StatusServiceUnavailable, Type: "ServiceUnavailableError", Message: "The request queue is full."})
		return
	}
	defer on.loop.abort(seqs) // no-op for those that have ended
	if c.body.Stream {
		e.stream(r.Context(), w, c)
		return
	}
	texts, ids := make([][]byte, len(c.choices)), make([][]uint32, len(c.choices))
	for !c.finished() {
		if !c.wait(r.Context()) {
			panic(http.ErrAbortHandler)
		}
		for i := range c.choices {
			tokens := c.choices[i].take(nil)
			texts[i] = e.vocab.detokenize(texts[i], tokens)
			if c.body.ReturnTokenIDs {
				ids[i] = append(ids[i], tokens...)
			}
		}
	}
	var reply any
	if c.chat {
		reply = c.chatReply(e, texts, ids)
	} else {
		reply = c.completionReply(e, texts, ids)
	}
	writeJSON(w, http.StatusOK, reply)
}

// wait returns true when there is news, false when ctx has ended.
func (c *call) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c.wake:
		return true
	}
}

func (c *call) finished() bool {
	for i := range c.choices {
		if c.choices[i].finish == "" {
			return false
		}
	}
	return true
}

// take returns the tokens since the last call.
func (c *choice) take(dst []uint32) []uint32 {
	tokens, cached, finish := c.seq.out.take(dst)
	c.tokens += len(tokens) - len(dst)
	c.cached, c.finish = cached, finish
	return tokens
}

// usage sums up the choices: a prompt counts once however many choices it has, and of cached tokens the last choice speaks.
func (c *call) usage(e *Engine) usage {
	n := 1
	if c.body.N != nil {
		n = *c.body.N
	}
	var u usage
	for i, ch := range c.choices {
		if i%n == 0 {
			u.PromptTokens += len(ch.prompt)
		}
		u.CompletionTokens += ch.tokens
		u.PromptTokensDetails.CachedTokens = ch.cached
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if c.chat {
		last := c.choices[len(c.choices)-1]
		u.PromptTokensDetails.CreatedCacheTokens = ptr(len(last.prompt)/e.opts.BlockSize*e.opts.BlockSize - last.cached)
	}
	return u
}

func (c *call) completionReply(e *Engine, texts [][]byte, ids [][]uint32) completionReply {
	r := completionReply{
		ID: c.id, Object: c.object, Created: c.created, Model: c.model, SystemFingerprint: e.fingerprint(), Usage: c.usage(e),
	}
	for i, ch := range c.choices {
		r.Choices = append(r.Choices, completionChoice{
			Index: i, Text: string(texts[i]), FinishReason: ch.finish, TokenIDs: ids[i], PromptTokenIDs: c.promptIDs(i),
		})
	}
	return r
}

func (c *call) chatReply(e *Engine, texts [][]byte, ids [][]uint32) chatReply {
	r := chatReply{
		ID: c.id, Object: "chat.completion", Created: c.created, Model: c.model, SystemFingerprint: e.fingerprint(), Usage: c.usage(e),
		PromptTokenIDs: c.promptIDs(0),
	}
	for i, ch := range c.choices {
		choice := chatChoice{Index: i, FinishReason: ch.finish, TokenIDs: ids[i]}
		choice.Message.Role, choice.Message.Content = "assistant", string(texts[i])
		r.Choices = append(r.Choices, choice)
	}
	return r
}

// promptIDs are the prompt's tokens if the client wants them.
func (c *call) promptIDs(i int) []uint32 {
	if !c.body.ReturnTokenIDs {
		return nil
	}
	return c.choices[i].prompt
}

func (e *Engine) fingerprint() string { return "vllm-" + e.opts.Events.Format.release() + "-simulated" }

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may have gone
}
