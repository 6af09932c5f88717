package router

import (
	"errors"
	"testing"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/tokenize"
)

// TestRenderedPrompts decides for prompts that only a render endpoint can tell.
func TestRenderedPrompts(t *testing.T) {
	const text = "a prompt that is long enough for some blocks of sixteen tokens, and for one more"
	truncated := `"model":"llama","prompt":"` + text + `","truncate_prompt_tokens":500`
	tokens := tokensOf(`"` + text + `"`)
	notOffered := &tokenize.Error{Outcome: tokenize.NotOffered}
	tests := []struct {
		name   string
		render bool
		body   string
		salt   string // that the blocks are held by
		err    map[string]error
		reason Reason
		calls  int
	}{
		{"told", true, truncated, "", nil, ReasonPrefix, 1},
		{"switched off", false, truncated, "", nil, "truncation", 0},
		{"with a salt", true, truncated + `,"cache_salt":"s"`, "s", nil, ReasonPrefix, 1},
		{"with another salt", true, truncated + `,"cache_salt":"s"`, "", nil, ReasonNoMatch, 1},
		{"not offered anywhere", true, truncated, "", map[string]error{"": notOffered}, "truncation", 2},
		{"offered by the other", true, truncated, "", map[string]error{address(0): notOffered}, ReasonPrefix, 0},
		{"refused", true, truncated, "", map[string]error{"": &tokenize.Error{Outcome: tokenize.Refused}}, ReasonTokenizeRefused, 1},
		{"multimodal", true, truncated, "", map[string]error{"": &tokenize.Error{Outcome: tokenize.Multimodal}}, "multimodal", 1},
		{"another error", true, truncated, "", map[string]error{"": errors.New("x")}, ReasonTokenizeError, 2},
		{"unknown model", true, `"model":"nobody","prompt":"` + text + `","truncate_prompt_tokens":500`, "", nil, ReasonUnknownModel, 0},
		{"not for render", true, `"model":"llama","prompt":"` + text + `","suffix":"x"`, "", nil, "suffix", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{Render: tt.render}, chat(2))
			w.words.errs = tt.err
			for i := range 2 {
				w.hold(address(i), 16, blockhash.Namespace{Salt: tt.salt}, tokens)
			}
			d := w.r.Decide(t.Context(), completion(tt.body))
			if d.Reason != tt.reason || (d.Matched > 0) != (tt.reason == ReasonPrefix) {
				t.Errorf("reason %q, want %q; %d tokens matched", d.Reason, tt.reason, d.Matched)
			}
			if n := w.words.count(); tt.calls > 0 && n != tt.calls || tt.reason == ReasonUnknownModel && n != 0 {
				t.Errorf("%d calls, want %d", n, tt.calls)
			}
			if c := w.words.last; c.Endpoint != "" && c.Request.Reason != "" {
				t.Errorf("asked for a request with reason %q", c.Request.Reason)
			}
		})
	}
	// With one candidate, or nobody's blocks known, nothing is asked and the reason is the request's own.
	w := newWorld(t, Options{Render: true}, chat(1))
	w.hold(address(0), 16, blockhash.Namespace{}, tokens)
	if d := w.r.Decide(t.Context(), completion(truncated)); d.Reason != "truncation" || w.words.count() != 0 {
		t.Errorf("single: %q, %d calls", d.Reason, w.words.count())
	}
}
