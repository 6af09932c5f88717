package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var sameScript = cmp.AllowUnexported(conversation{}, turn{})

func TestScriptIsDeterministic(t *testing.T) {
	w := defaultWorkload
	first := w.script()
	if diff := cmp.Diff(first, w.script(), sameScript); diff != "" {
		t.Errorf("two scripts of one seed differ:\n%.2000s", diff)
	}
	w.Seed++
	if cmp.Equal(first, w.script(), sameScript) {
		t.Error("two seeds give one script")
	}
}

// All arms and everybody's machine send the same: the figures of two demos can be compared.
func TestDefaultWorkload(t *testing.T) {
	w := defaultWorkload
	tokens, chars := 0, 0
	for _, c := range w.script() {
		for _, turn := range c.turns {
			tokens += turn.answer
			chars += len(c.system) + len(turn.user)
		}
	}
	type figures struct{ Requests, AnswerTokens, Chars int }
	if got, want := (figures{w.requests(), tokens, chars}), (figures{220, 13450, 2373959}); got != want {
		t.Errorf("the default workload is %+v, want %+v", got, want)
	}
}

func TestScript(t *testing.T) {
	for _, tt := range []struct {
		name string
		w    Workload
	}{
		{"default", defaultWorkload},
		{"one of each", Workload{Tenants: 1, Conversations: 1, Turns: 1}},
		{"two turns at most", Workload{Seed: 3, Tenants: 2, SystemWords: 10, Conversations: 50, Turns: 2, UserWords: 4, AnswerTokens: 8, Span: time.Second}},
		{"no conversation", Workload{Tenants: 3, Turns: 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := tt.w
			script := w.script()
			if len(script) != w.Conversations {
				t.Fatalf("%d conversations, want %d", len(script), w.Conversations)
			}
			between := func(what string, n, mean int) {
				t.Helper()
				if n < max(1, mean/2) || n > max(1, 2*mean) {
					t.Errorf("%s of %d, want half to twice %d", what, n, mean)
				}
			}
			requests, longest := 0, 0
			systems := map[string]bool{}
			for i, c := range script {
				requests += len(c.turns)
				longest = max(longest, len(c.turns))
				systems[c.system] = true
				if c.start < 0 || c.start > w.Span {
					t.Errorf("conversation %d starts at %v, want within %v", i, c.start, w.Span)
				}
				if len(c.turns) < min(2, w.Turns) || len(c.turns) > w.Turns {
					t.Errorf("conversation %d has %d turns, want %d to %d", i, len(c.turns), min(2, w.Turns), w.Turns)
				}
				between("system prompt", len(strings.Fields(c.system))-5, w.SystemWords) // 5: You answer for tenant n.
				for _, turn := range c.turns {
					between("message", len(strings.Fields(turn.user)), w.UserWords)
					between("answer", turn.answer, w.AnswerTokens)
					if turn.think < 0 {
						t.Errorf("a pause of %v", turn.think)
					}
				}
			}
			if w.requests() != requests {
				t.Errorf("%d requests are told, %d are in the script", w.requests(), requests)
			}
			if w.Conversations > 20 && (len(systems) != w.Tenants || longest != w.Turns) {
				t.Errorf("%d tenants, at most %d turns; want %d and %d", len(systems), longest, w.Tenants, w.Turns)
			}
		})
	}
}
