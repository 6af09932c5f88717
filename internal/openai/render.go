package openai

import "bytes"

// RenderOnly reports whether only an engine's render endpoint can tell the tokens of the prompt: the request asks for truncation or brings its own
// template, which /tokenize ignores or refuses. The Parse of such a request has a Reason; see [Request.Rendered].
func (r *Request) RenderOnly() bool { return r.renderOnly }

// Rendered returns a request that has a Reason as a render endpoint can tell its tokens; ok is false when none can, or when the request has
// no Reason, or another one than Parse gave it.
func (r *Request) Rendered() (q *Request, ok bool) {
	if r.Reason != ReasonTruncation && r.Reason != ReasonTemplate {
		return nil, false
	}
	return r.rendered, r.rendered != nil
}

// ByServer reports whether the engine's settings decide if its render endpoint and /tokenize give the same tokens. vLLM applies
// --exclude-tools-when-tool-choice-none and what reasoning_effort does to --default-chat-template-kwargs to requests, and not to /tokenize.
func (r *Request) ByServer() bool { return r.ReasoningEffort != nil || r.toolsOff && r.Tools != nil }

// RenderPath is the path of the render endpoint for the request, "" when there is none that is known to be exact.
func (r *Request) RenderPath() string {
	switch {
	case r.Form != Text && r.Form != Messages:
	case r.Kind == Completion:
		return "/v1/completions/render"
	case r.Kind == Chat:
		return "/v1/chat/completions/render"
	}
	return ""
}

// AppendRender appends the body for the render endpoint: the request's own, and with it model, the served name to ask with, and that no
// tensors of images are wanted. r is what Parse or Rendered gave, without a Reason.
func AppendRender(dst []byte, model string, r *Request) []byte {
	body := r.whole.data
	dst = append(dst, body[:bytes.LastIndexByte(body, '}')]...)
	if model != r.Model {
		dst = append(dst, `,"model":`...)
		dst = appendString(dst, model)
	}
	return append(dst, `,"return_mm_kwargs":false}`...) // of two equal keys the last counts
}

// AppendByServer appends what may change the tokens by the engine's settings alone and does not stand in what AppendTokenize appends.
func AppendByServer(dst []byte, r *Request) []byte {
	if r.toolsOff {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// RenderSize is how many bytes AppendRender appends at most.
func (r *Request) RenderSize(model string) int { return len(r.whole.data) + 6*len(model) + 40 }

// render finds what Rendered returns: a request whose only reason is one of those that recordings show a render endpoint to be exact for. Token ids that are
// truncated are not among them.
func (p *parser) render() *Request {
	if p.r.Reason != ReasonTruncation && p.r.Reason != ReasonTemplate {
		return nil
	}
	q := *p
	q.faults &^= faultTruncate | faultTruncateSide | faultTemplate
	if q.reason() != "" {
		return nil
	}
	r := q.r
	r.Reason, r.renderOnly = "", true
	if r.RenderPath() == "" {
		return nil
	}
	return &r
}

// ReadRender reads the answer of a render endpoint: of completions a list with one object per prompt, of which there is one here, of chat the object
// itself, {"token_ids", "features", …}. More than limit token ids give ErrReplyLong. The result shares nothing with body.
func ReadRender(body []byte, limit int) (Reply, error) {
	s := scanner{data: body, max: maxDepth}
	var (
		r           Reply
		found, long bool
		valid       bool
	)
	list := s.space() == '['
	if list {
		s.enter('[')
		first := true
		if !s.next(&first, ']') {
			return Reply{}, ErrReply
		}
	}
	s.enter('{')
	for first := true; s.next(&first, '}'); {
		switch string(s.key()) {
		case "token_ids":
			found = true
			r.Tokens, valid, long = nil, false, false
			if s.space() == '[' {
				r.Tokens, valid, long = s.tokens(limit)
			} else {
				s.skip()
			}
		case "features":
			r.Features = string(s.skip()) != "null"
		default:
			s.skip()
		}
	}
	if list {
		if first := false; s.next(&first, ']') {
			return Reply{}, ErrReply // several prompts
		}
	}
	switch {
	case s.broken || s.deep || s.space() != 0 || s.pos != len(body):
		return Reply{}, ErrReply
	case long:
		return Reply{}, ErrReplyLong
	case !found || !valid:
		return Reply{}, ErrReply
	}
	return r, nil
}
