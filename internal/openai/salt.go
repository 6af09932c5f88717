package openai

import "unicode/utf8"

// TakeSalt gives the request a cache salt from elsewhere, which counts instead of the body's. It has the bounds of the body's.
func (r *Request) TakeSalt(salt string) {
	if salt == "" || len(salt) > maxText || !utf8.ValidString(salt) {
		r.RefuseSalt()
		return
	}
	r.Salt = salt
	if r.rendered != nil {
		rendered := *r.rendered
		rendered.Salt = salt
		r.rendered = &rendered
	}
	if r.inexact != nil {
		text := *r.inexact
		text.Salt = salt
		r.inexact = &text
	}
}

// RefuseSalt says that the salt is not known, so that the prompt is matched in no way. A reason that the request has already stays.
func (r *Request) RefuseSalt() {
	r.inexact, r.rendered = nil, nil
	if r.Reason == "" {
		*r = Request{Kind: r.Kind, Reason: ReasonBadSalt, Model: r.Model}
	}
}
