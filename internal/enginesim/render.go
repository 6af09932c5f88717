package enginesim

import "net/http"

// renderReply is the answer of the render endpoints as vLLM 0.32 writes it, of the sampling parameters only some.
type renderReply struct {
	RequestID      string   `json:"request_id"`
	TokenIDs       []uint32 `json:"token_ids"`
	TokenOffsets   null     `json:"token_offsets"`
	Features       null     `json:"features"`
	ContentParts   null     `json:"content_parts"`
	SamplingParams struct {
		MaxTokens int `json:"max_tokens"`
	} `json:"sampling_params"`
	Model     string  `json:"model"`
	Stream    bool    `json:"stream"`
	CacheSalt *string `json:"cache_salt"`
}

// render tells the tokens of a request that it does not serve: of a chat one object, of a completion one for each prompt.
func (e *Engine) render(w http.ResponseWriter, r *http.Request, body []byte, chat bool) {
	if !e.opts.Render {
		if e.opts.Events.Format == Map {
			fail(w, &apiError{
				Status: http.StatusForbidden, Type: "PermissionDeniedError",
				Message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
			})
		} else {
			detail(w, http.StatusNotFound)
		}
		return
	}
	c, bad := e.prepare(body, r.Header.Get("X-Request-Id"), "", chat)
	if bad != nil {
		fail(w, bad)
		return
	}
	var replies []renderReply
	for i := range c.choices {
		reply := renderReply{RequestID: c.id, TokenIDs: c.choices[i].prompt, Model: c.model, Stream: c.body.Stream, CacheSalt: c.body.CacheSalt}
		reply.SamplingParams.MaxTokens = c.choices[i].seq.limit
		replies = append(replies, reply)
	}
	if chat {
		writeJSON(w, http.StatusOK, replies[0])
		return
	}
	n := 1
	if c.body.N != nil {
		n = *c.body.N
	}
	var prompts []renderReply
	for i := 0; i < len(replies); i += n { // the answers to one prompt stand together
		prompts = append(prompts, replies[i])
	}
	writeJSON(w, http.StatusOK, prompts)
}
