package router

import (
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// headers make a request bring these headers, name and value in turn.
func headers(req Request, pairs ...string) Request {
	find := func(name string) (values []string) {
		for i := 0; i < len(pairs); i += 2 {
			if strings.EqualFold(pairs[i], name) {
				values = append(values, pairs[i+1])
			}
		}
		return values
	}
	req.Header = func(name string) string { return strings.Join(find(name)[:min(1, len(find(name)))], "") }
	req.Several = func(name string) bool { return len(find(name)) > 1 }
	return req
}

func TestSaltHeader(t *testing.T) {
	prompt := run(1, 200)
	salted := func(salt string) Request {
		r := given("llama", prompt)
		if salt != "" {
			r.Body = append(r.Body[:len(r.Body)-1], `,"cache_salt":"`+salt+`"}`...)
		}
		return r
	}
	tests := []struct {
		name   string
		header string // of the pool
		req    Request
		want   int // endpoint that holds the prompt by that salt; -1: none
		reason Reason
	}{
		{"no header configured", "", headers(salted("body"), "x-salt", "trusted"), 1, ReasonPrefix},
		{"header alone", "x-salt", headers(salted(""), "x-salt", "trusted"), 2, ReasonPrefix},
		{"header in another case", "X-Salt", headers(salted(""), "x-salt", "trusted"), 2, ReasonPrefix},
		{"header against body", "x-salt", headers(salted("body"), "x-salt", "trusted"), 2, ReasonPrefix},
		{"no such header", "x-salt", headers(salted("body"), "x-other", "trusted"), 1, ReasonPrefix},
		{"neither", "x-salt", headers(salted("")), 0, ReasonPrefix},
		{"an empty header", "x-salt", headers(salted("body"), "x-salt", ""), 1, ReasonPrefix},
		{"another salt", "x-salt", headers(salted("body"), "x-salt", "other"), -1, ReasonNoMatch},
		{"two copies", "x-salt", headers(salted("body"), "x-salt", "trusted", "X-Salt", "other"), -1, "bad_salt"},
		{"two equal copies", "x-salt", headers(salted("body"), "x-salt", "trusted", "x-salt", "trusted"), -1, "bad_salt"},
		{"overlong", "x-salt", headers(salted("body"), "x-salt", strings.Repeat("s", 1025)), -1, "bad_salt"},
		{"not UTF-8", "x-salt", headers(salted("body"), "x-salt", "\xff"), -1, "bad_salt"},
		{"without headers", "x-salt", salted("body"), 1, ReasonPrefix},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := chat(4)
			config.SaltHeader = tt.header
			w := newWorld(t, Options{}, config)
			w.hold(address(0), 16, blockhash.Namespace{}, prompt)
			w.hold(address(1), 16, blockhash.Namespace{Salt: "body"}, prompt)
			w.hold(address(2), 16, blockhash.Namespace{Salt: "trusted"}, prompt)
			w.hold(address(3), 16, blockhash.Namespace{Salt: "unrelated"}, run(1000, 200))
			d := w.r.Decide(t.Context(), tt.req)
			if d.Reason != tt.reason {
				t.Errorf("reason %q, want %q", d.Reason, tt.reason)
			}
			if tt.want >= 0 && (d.Endpoint != address(tt.want) || d.Matched != 192) || tt.want < 0 && d.Matched != 0 {
				t.Errorf("%d tokens at %s", d.Matched, d.Endpoint)
			}
		})
	}
}
