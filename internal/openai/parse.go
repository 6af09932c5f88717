package openai

import (
	"net/http"
	"strings"
)

// Parse reads a request. It never fails: what it cannot read or key has a Reason.
func Parse(m Meta, body []byte, limits Limits) Request {
	limits = limits.withDefaults()
	if m.Method != http.MethodPost || len(body) == 0 {
		return Request{Reason: ReasonNoBody}
	}
	kind := kindOf(m.Path)
	if reason := unreadable(m, len(body), limits); reason != "" {
		return Request{Kind: kind, Reason: reason}
	}
	p := parser{scanner: scanner{data: body, max: limits.Depth}, limit: limits.PromptTokens}
	p.r.Kind = kind
	p.body()
	p.r.whole.data, p.r.whole.long = body, p.long
	p.r.Reason = p.reason()
	if p.r.Reason == "" {
		return p.r
	}
	if p.broken {
		p.r.Model = "" // an invalid body has no model, whatever its start looks like
	}
	return Request{Kind: kind, Reason: p.r.Reason, Model: p.r.Model, inexact: p.inexact(), rendered: p.render()}
}

func kindOf(path string) Kind {
	if i := strings.IndexByte(path, '?'); i >= 0 {
		path = path[:i]
	}
	switch {
	case strings.HasSuffix(path, "/v1/chat/completions"):
		return Chat
	case strings.HasSuffix(path, "/v1/completions"):
		return Completion
	}
	return Other
}

// unreadable names what keeps a body from being looked at at all.
func unreadable(m Meta, size int, limits Limits) Reason {
	if reason := Unreadable(m); reason != "" {
		return reason
	}
	if size > limits.Body {
		return ReasonTooLarge
	}
	return ""
}

// Unreadable names what keeps any body that comes with such headers from being looked at, "" when nothing does.
func Unreadable(m Meta) Reason {
	media, _, _ := strings.Cut(m.ContentType, ";")
	media = strings.TrimSpace(media)
	encoding := strings.TrimSpace(m.ContentEncoding)
	switch {
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		return ReasonCompressed
	case foldPrefix(media, "multipart/"):
		return ReasonMultipart
	case media != "" && !jsonMedia(media):
		return ReasonContentType
	}
	return ""
}

func jsonMedia(media string) bool {
	const suffix = "+json"
	return strings.EqualFold(media, "application/json") ||
		foldPrefix(media, "application/") && len(media) > len(suffix) && strings.EqualFold(media[len(media)-len(suffix):], suffix)
}

func foldPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
