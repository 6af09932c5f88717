package enginesim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestPieces(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"empty":              {"", nil},
		"words":              {"Hello there, you.", []string{"Hello", " there", ",", " you", "."}},
		"long word":          {"internationally", []string{"intern", "ationa", "lly"}},
		"digits":             {"12345 7", []string{"123", "45", " ", "7"}},
		"spaces":             {"a   b  ", []string{"a", "  ", " b", "  "}},
		"newlines":           {"a\n\n b\n", []string{"a", "\n\n", " b", "\n"}},
		"accents":            {"déjà vu", []string{"déjà", " vu"}},
		"no spaces":          {"東京", []string{"東", "京"}},
		"special":            {"a<|im_end|>b<|im_x|>", []string{"a", "<|im_end|>", "b", "<", "|", "im", "_", "x", "|", ">"}},
		"not UTF-8":          {"a\xff\xfeb", []string{"a", "\xff", "\xfe", "b"}},
		"replacement letter": {"\ufffd", []string{"\ufffd"}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, pieces(tc.text)); d != "" {
				t.Error(d)
			}
			if got := len(tokenize(nil, tc.text)); got != len(tc.want) {
				t.Errorf("%d tokens, want %d", got, len(tc.want))
			}
		})
	}
}

// TestVocab wants enough different words, each one piece.
func TestVocab(t *testing.T) {
	v := newVocab()
	if len(v.inner) < 200 || len(v.first) < 200 {
		t.Errorf("%d and %d words", len(v.inner), len(v.first))
	}
	for _, w := range append(slices.Clone(v.inner), v.first...) {
		if got := pieces(w); len(got) != 1 {
			t.Errorf("%q is %d pieces", w, len(got))
		}
	}
}

// TestConversationExtends wants every prompt of a conversation to begin with the previous prompt and its generated tokens.
func TestConversationExtends(t *testing.T) {
	v := newVocab()
	rng := rand.New(rand.NewPCG(5, 6))
	for _, stop := range []int{0, 30} {
		var messages []map[string]string
		say := func(role, text string) {
			messages = append(messages, map[string]string{"role": role, "content": text})
		}
		say("system", "You are a terse assistant.\n\nNever invent part numbers.")
		var before []uint32
		for turn := range 8 {
			say("user", fmt.Sprintf("Question %d:\n is %d a part? ", turn, rng.IntN(1e6)))
			raw, _ := json.Marshal(messages)
			text, fresh, bad := chatText(&requestBody{Messages: raw, Tools: []json.RawMessage{json.RawMessage(`{"a": 1}`)}}, true)
			if bad != nil {
				t.Fatal(bad.Message)
			}
			prompt := tokenize(nil, text)
			if !slices.Equal(prompt[:min(len(before), len(prompt))], before) {
				t.Fatalf("turn %d does not begin with turn %d and its answer", turn, turn-1)
			}
			next := v.answer(prompt, fresh, stop)
			var answer []uint32
			for i := range 30 {
				answer = append(answer, next(i))
			}
			before = append(prompt, answer...)
			say("assistant", string(v.detokenize(nil, answer)))
		}
	}
}

// FuzzTokenize wants the pieces to make up the text, and an answer after any text to be the same tokens again.
func FuzzTokenize(f *testing.F) {
	for _, s := range []string{"", "a", "Hello there ", "a\n", "12", "<|im_start|>user\nx", " ", "é", "\xff", "  \n \t"} {
		f.Add(s, uint8(3))
	}
	v := newVocab()
	f.Fuzz(func(t *testing.T, text string, n uint8) {
		if got := strings.Join(pieces(text), ""); got != text {
			t.Fatalf("pieces join to %q, want %q", got, text)
		}
		prompt := tokenize(nil, text)
		if len(prompt) > len(text) {
			t.Fatalf("%d tokens for %d bytes", len(prompt), len(text))
		}
		for _, id := range prompt {
			if id >= vocabulary {
				t.Fatalf("id %d", id)
			}
		}
		next := v.answer(prompt, false, 0)
		var answer []uint32
		for i := range int(n) {
			answer = append(answer, next(i))
		}
		whole := tokenize(nil, text+string(v.detokenize(nil, answer)))
		if want := append(prompt, answer...); utf8.ValidString(text) && !slices.Equal(whole, want) {
			t.Fatalf("%q and its answer are %v, want %v", text, whole, want)
		}
	})
}

func BenchmarkTokenize(b *testing.B) {
	text := strings.Repeat("The quick brown fox jumps over 12 lazy dogs.\n", 1000)
	dst := make([]uint32, 0, len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		dst = tokenize(dst[:0], text)
	}
}
