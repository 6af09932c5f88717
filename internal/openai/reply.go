package openai

import (
	"errors"
	"math"
	"strconv"
)

// Errors of ReadTokens and ReadRender. They carry nothing of the reply.
var (
	ErrReply     = errors.New("reply of the engine's tokenizer has not the form of one, with a list of token ids")
	ErrReplyLong = errors.New("reply of the engine's tokenizer has too many token ids")
)

// Reply is the engine's answer to POST /tokenize, or to a render endpoint.
type Reply struct {
	Tokens      []uint32
	MaxModelLen int  // longest prompt and answer the model takes, in tokens; 0 when the engine names none, or an absurd one
	Features    bool // the prompt has parts that are not text, which its tokens do not tell apart
}

// ReadTokens reads the answer of POST /tokenize: {"count", "max_model_len", "tokens"}, of vLLM or SGLang, in any order. More
// than limit token ids give ErrReplyLong. The result shares nothing with body.
func ReadTokens(body []byte, limit int) (Reply, error) {
	var (
		s           = scanner{data: body, max: minDepth}
		r           Reply
		count       = -1
		found, long bool
		valid       bool
	)
	s.enter('{')
	for first := true; s.next(&first, '}'); {
		switch string(s.key()) {
		case "tokens":
			found = true
			r.Tokens, valid, long = nil, false, false
			if s.space() == '[' {
				r.Tokens, valid, long = s.tokens(limit)
			} else {
				s.skip()
			}
		case "count":
			count = integer(s.skip())
		case "max_model_len":
			r.MaxModelLen = max(integer(s.skip()), 0)
		default:
			s.skip()
		}
	}
	switch {
	case s.broken || s.deep || s.space() != 0 || s.pos != len(body):
		return Reply{}, ErrReply
	case long:
		return Reply{}, ErrReplyLong
	case !found || !valid || count >= 0 && count != len(r.Tokens):
		return Reply{}, ErrReply
	}
	return r, nil
}

// integer returns a JSON integer in 0…2³¹−1, −1 for everything else: engines without a bound of their own send the tokenizer's,
// which may have thirty digits or be negative.
func integer(raw Raw) int {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return -1
	}
	return int(n)
}
