package openai

import (
	"fmt"
	"strings"
	"testing"
)

// recorder keeps a text readably: head, then text, a part that is not text as its JSON between angle brackets.
type recorder struct {
	t          testing.TB
	head, text strings.Builder
	opened     int
	begun      bool
}

func (r *recorder) Head(p []byte) {
	if r.begun {
		r.t.Error("Head is called after the text has begun")
	}
	r.head.Write(p)
}

func (r *recorder) Text(p []byte) {
	r.begun = true
	r.text.Write(p)
}

func (r *recorder) Media(p []byte) {
	r.begun = true
	fmt.Fprintf(&r.text, "\xff<%s>", p)
}

func (r *recorder) Opened() { r.opened = r.text.Len() }

// written is a request's text; ok is false when it has none.
func written(t testing.TB, path, body string) (r *recorder, ok bool) {
	t.Helper()
	req := Parse(post(path), []byte(body), Limits{PromptTokens: 8})
	r = &recorder{t: t}
	ok = req.WriteText(r, make([]byte, 1024))
	if !ok && r.head.Len()+r.text.Len() > 0 {
		t.Errorf("%q: no text, and some was written", body)
	}
	return r, ok
}

func chatOf(messages string) string { return `{"model":"m","messages":[` + messages + `]}` }

const (
	hello  = `{"role":"user","content":"hello"}`
	answer = `,{"role":"assistant","content":"hi"},{"role":"user","content":"more"}`
)

// How two requests' texts stand to each other.
func TestTextOfTwo(t *testing.T) {
	const (
		equal   = "equal"
		extends = "extends" // the second text begins with the first
		other   = "other"   // the heads differ: nothing is shared
		forks   = "forks"   // one head, and neither text begins with the other
	)
	tool := func(name string) string { return `{"type":"function","function":{"name":"` + name + `"}}` }
	with := func(fields string) string {
		return `{"model":"m",` + fields + `,"messages":[` + hello + `]}`
	}
	image := func(url string) string {
		return `{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"` + url + `"}}]}`
	}
	tests := []struct {
		name, path, a, b, want string
	}{
		{"the same", chats, chatOf(hello), chatOf(hello), equal},
		{"follow-up turn", chats, chatOf(hello), chatOf(hello + answer), extends},
		{"follow-up turn with fields that arrive with answers", chats, chatOf(hello), chatOf(hello + `,{"role":"assistant","content":"hi","refusal":null,"annotations":[],"audio":null}`), extends},
		{"another question", chats, chatOf(hello), chatOf(`{"role":"user","content":"bye"}`), forks},
		{"another role", chats, chatOf(hello), chatOf(`{"role":"system","content":"hello"}`), forks},
		{"a longer word is no further message", chats, chatOf(hello), chatOf(`{"role":"user","content":"hello there"}`), extends},
		{"text cannot look like a message", chats, chatOf(hello + answer), chatOf(`{"role":"user","content":"hello\u00f9\u00f8hi"}`), forks},
		{"order of fields", chats, chatOf(hello), chatOf(`{"content":"hello","role":"user"}`), equal},
		{"order of fields, one of two messages", chats, chatOf(hello + answer), chatOf(hello + `,{"content":"hi","role":"assistant"},{"role":"user","content":"more"}`), equal},
		{"a field twice", chats, chatOf(hello), chatOf(`{"role":"system","content":"x","role":"user","content":"hello"}`), equal},
		{"white space", chats, chatOf(hello), "{ \"messages\" : [ { \"role\" : \"user\" ,\n \"content\" : \"hello\" } ] , \"model\" : \"m\" }", equal},
		{"spelling of characters", chats, chatOf(`{"role":"user","content":"é/\n\"\t😀\u0001"}`), chatOf(`{"role":"user","content":"\u00e9\/\u000A\u0022\u0009\ud83d\ude00\u0001"}`), equal},
		{"spelling of a field's name", chats, chatOf(hello), chatOf(`{"r\u006fle":"user","conten\u0074":"hello"}`), equal},
		{"spelling of a field's name, another content", chats, chatOf(`{"role":"user","conten\u0074":"hello"}`), chatOf(`{"role":"user","conten\u0074":"bye"}`), forks},
		{"spelling of a part's field's name", chats, chatOf(hello), chatOf(`{"role":"user","content":[{"\u0074ype":"text","te\u0078t":"hello"}]}`), equal},
		{"a backslash before u is no escape", chats, chatOf(`{"role":"user","content":"\\u00e9"}`), chatOf(`{"role":"user","content":"é"}`), forks},
		{"list of one text part", chats, chatOf(hello), chatOf(`{"role":"user","content":[{"type":"text","text":"hello"}]}`), equal},
		{"list of text parts", chats, chatOf(`{"role":"user","content":"a\nb\nc"}`), chatOf(`{"role":"user","content":[{"text":"a","type":"text"},"b",{"type":"input_text","text":"c"}]}`), equal},
		{"refusal and thinking", chats, chatOf(`{"role":"assistant","content":"no\nhm"}`), chatOf(`{"role":"assistant","content":[{"type":"refusal","refusal":"no"},{"type":"thinking","thinking":"hm"}]}`), equal},
		{"null fields", chats, chatOf(hello), chatOf(`{"role":"user","content":"hello","name":null,"tool_calls":null}`), equal},
		{"unknown fields", chats, chatOf(hello), chatOf(`{"role":"user","content":"hello","id":"x17","audio":{}}`), equal},
		{"name", chats, chatOf(hello), chatOf(`{"role":"user","content":"hello","name":"eve"}`), forks},
		{"tool call", chats, chatOf(`{"role":"assistant","content":"hi"}`), chatOf(`{"role":"assistant","content":"hi","tool_calls":[{"id":"1"}]}`), extends},
		{"another tool call", chats, chatOf(`{"role":"assistant","tool_calls":[{"id":"1"}]}`), chatOf(`{"role":"assistant","tool_calls":[{"id":"2"}]}`), forks},
		{"reasoning", chats, chatOf(`{"role":"assistant","reasoning":"r"}`), chatOf(`{"role":"assistant","reasoning_content":"r"}`), equal},

		{"generation prompt stands at the end", chats, with(`"add_generation_prompt":false`), with(`"continue_final_message":true`), equal},
		{"sampling", chats, with(`"temperature":0.1,"max_tokens":9`), with(`"stream":true,"user":"u"`), equal},
		{"model is not part of the text", chats, chatOf(hello), strings.Replace(chatOf(hello), `"m"`, `"n"`, 1), equal},
		{"salt", chats, chatOf(hello), with(`"cache_salt":"s"`), other},
		{"another salt", chats, with(`"cache_salt":"r"`), with(`"cache_salt":"s"`), other},
		{"tools", chats, chatOf(hello), with(`"tools":[` + tool("a") + `]`), other},
		{"one more tool", chats, with(`"tools":[` + tool("a") + `]`), with(`"tools":[` + tool("a") + `,` + tool("b") + `]`), other},
		{"white space and spelling in tools", chats, with(`"tools":[{"type":"function","d":"é x"}]`), with("\"tools\": [ {\"type\" :\n\"function\", \"d\":\"\\u00e9 x\"} ]"), equal},
		{"white space in a tool's string", chats, with(`"tools":[{"d":"a b"}]`), with(`"tools":[{"d":"ab"}]`), other},
		{"order of keys in tools is printed", chats, with(`"tools":[{"a":1,"b":2}]`), with(`"tools":[{"b":2,"a":1}]`), other},
		{"tools null", chats, chatOf(hello), with(`"tools":null`), equal},
		{"tools are no documents", chats, with(`"tools":[1]`), with(`"documents":[1]`), other},
		{"template arguments", chats, chatOf(hello), with(`"chat_template_kwargs":{"enable_thinking":false}`), other},
		{"effort", chats, with(`"reasoning_effort":"low"`), with(`"reasoning_effort":"high"`), other},
		{"order of fields of the request", chats, with(`"tools":[1],"documents":[2]`), with(`"documents":[2],"tools":[1]`), equal},
		{"template", chats, with(`"chat_template":"t"`), with(`"chat_template":"u"`), other},
		{"report mode changes no prompt", chats, chatOf(hello), with(`"vllm_xargs":{"kv_cache_report_mode":"full"}`), equal},

		{"image, follow-up", chats, chatOf(image("a")), chatOf(image("a") + answer), extends},
		{"another image", chats, chatOf(image("a")), chatOf(image("b")), forks},
		{"text before the image", chats, chatOf(`{"role":"user","content":"see"}`), chatOf(image("a")), extends},
		{"no part type", chats, chatOf(`{"role":"user","content":[{"text":"a"}]}`), chatOf(`{"role":"user","content":[{"text":"b"}]}`), forks},

		{"completion, longer", completions, `{"model":"m","prompt":"once"}`, `{"prompt":"once upon","model":"m"}`, extends},
		{"completion, list of one", completions, `{"model":"m","prompt":"once"}`, `{"model":"m","prompt":["once"]}`, equal},
		{"completion, salt", completions, `{"model":"m","prompt":"once"}`, `{"model":"m","prompt":"once","cache_salt":"s"}`, other},
		{"completion, special tokens", completions, `{"model":"m","prompt":"once"}`, `{"model":"m","prompt":"once","add_special_tokens":false}`, other},
		{"token ids", completions, `{"model":"m","prompt":[1,2]}`, `{"model":"m","prompt":[[1, 2, 3]]}`, extends},
		{"other token ids", completions, `{"model":"m","prompt":[1,2]}`, `{"model":"m","prompt":[1,3]}`, forks},
		{"token ids are no text", completions, `{"model":"m","prompt":[1633771873]}`, `{"model":"m","prompt":"aaaa"}`, other},
		{"several prompts", completions, `{"model":"m","prompt":["a","b"]}`, `{"model":"m","prompt":["a","b","c"]}`, extends},
		{"several prompts are not one", completions, `{"model":"m","prompt":["a","b"]}`, `{"model":"m","prompt":["ab","c"]}`, forks},
		{"several prompts of ids", completions, `{"model":"m","prompt":[[1,2],[3]]}`, `{"model":"m","prompt":[[1,2],[3,4]]}`, extends},
		{"lists within prompts", completions, `{"model":"m","prompt":["a",[[1,[2]],"b"]]}`, `{"model":"m","prompt":["a",[[1,[2]],"b"],[[]]]}`, extends},
		{"more ids than the limit", completions, `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}`, `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10]}`, extends},
		{"suffix", completions, `{"model":"m","prompt":"a","suffix":"z"}`, `{"model":"m","prompt":"ab","suffix":"z"}`, extends},
		{"another suffix", completions, `{"model":"m","prompt":"a","suffix":"z"}`, `{"model":"m","prompt":"a","suffix":"y"}`, other},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, okA := written(t, tt.path, tt.a)
			b, okB := written(t, tt.path, tt.b)
			if !okA || !okB {
				t.Fatalf("texts are there: %v, %v", okA, okB)
			}
			got := forks
			switch {
			case a.head.String() != b.head.String():
				got = other
			case a.text.String() == b.text.String():
				got = equal
			case strings.HasPrefix(b.text.String(), a.text.String()):
				got = extends
			}
			if got != tt.want {
				t.Errorf("%s, want %s\n%q %q\n%q %q", got, tt.want, a.head.String(), a.text.String(), b.head.String(), b.text.String())
			}
		})
	}
}

func TestNoText(t *testing.T) {
	for _, tt := range []struct{ name, path, body string }{
		{"no prompt", chats, `{"model":"m"}`},
		{"not JSON", chats, chatOf(hello) + "]"},
		{"bad UTF-8", chats, chatOf("{\"role\":\"user\",\"content\":\"\xff\"}")},
		{"half a pair", chats, chatOf(`{"role":"user","content":"\ud800"}`)},
		{"too deep", chats, chatOf(`{"role":"user","content":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`)},
		{"no model", chats, `{"messages":[` + hello + `]}`},
		{"other path", "/v1/embeddings", `{"model":"m","input":"a"}`},
		{"truncated", chats, `{"model":"m","truncate_prompt_tokens":5,"messages":[` + hello + `]}`},
		{"truncated, and an image", chats, `{"model":"m","truncate_prompt_tokens":5,"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`},
		{"log probabilities", completions, `{"model":"m","prompt":"a","prompt_logprobs":1}`},
		{"embeddings", completions, `{"model":"m","prompt":"a","prompt_embeds":"QQ=="}`},
		{"embeddings among parts", chats, chatOf(`{"role":"user","content":[{"type":"prompt_embeds"}]}`)},
		{"bad salt", chats, `{"model":"m","cache_salt":"","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`},
		{"no messages, and a template", chats, `{"model":"m","chat_template":"t"}`},
		{"bad ids", completions, `{"model":"m","prompt":[1,-2]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if r, ok := written(t, tt.path, tt.body); ok {
				t.Errorf("a text: %q %q", r.head.String(), r.text.String())
			}
		})
	}
}

func TestTextOpened(t *testing.T) {
	one, _ := written(t, chats, chatOf(hello))
	two, _ := written(t, chats, chatOf(hello+answer))
	if one.opened != one.text.Len() || two.opened != one.opened {
		t.Errorf("the first message ends at %d of %d and at %d of %d", one.opened, one.text.Len(), two.opened, two.text.Len())
	}
	if text, _ := written(t, completions, `{"model":"m","prompt":"a"}`); text.opened != 0 {
		t.Errorf("a completion has a first message that ends at %d", text.opened)
	}
}

// The text does not depend on the memory it is written with.
func TestTextInPieces(t *testing.T) {
	body := chatBody(40 << 10)
	req := Parse(post(chats), body, Limits{})
	var want string
	for _, size := range []int{1 << 10, 1500, 64 << 10} {
		r := &recorder{t: t}
		if !req.WriteText(r, make([]byte, size)) {
			t.Fatal("no text")
		}
		got := r.head.String() + "|" + r.text.String()
		if want == "" {
			want = got
		}
		if got != want || r.text.Len() < len(body)*9/10 {
			t.Errorf("with %d bytes of memory the text differs, or has only %d bytes", size, r.text.Len())
		}
	}
}

// Whatever the body, a text is written or not, the same one again, and white space and the order of a message's fields change nothing.
func FuzzWriteText(f *testing.F) {
	paths := []string{completions, chats}
	for _, c := range bodies {
		if c.path == completions || c.path == chats {
			f.Add([]byte(c.body), c.path == chats)
		}
	}
	f.Add([]byte(chatOf(`{"content":[{"type":"image_url"},"\u00e9"],"role":"user"}`)), true)
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		path := paths[0]
		if chat {
			path = paths[1]
		}
		a, ok := written(t, path, string(body))
		b, again := written(t, path, string(spaced(body)))
		if ok != again || a.head.String() != b.head.String() || !strings.Contains(a.text.String(), "\xff<") && a.text.String() != b.text.String() {
			t.Errorf("%q: with white space %q %q, without %q %q", body, b.head.String(), b.text.String(), a.head.String(), a.text.String())
		}
	})
}

// spaced adds white space around the parts of a JSON text.
func spaced(body []byte) []byte {
	var out []byte
	inString := false
	for i := 0; i < len(body); i++ {
		c := body[i]
		switch {
		case inString && c == '\\' && i+1 < len(body):
			out = append(out, c, body[i+1])
			i++
			continue
		case c == '"':
			inString = !inString
		case !inString && strings.IndexByte("{}[],:", c) >= 0:
			out = append(out, ' ', c, '\n')
			continue
		}
		out = append(out, c)
	}
	return out
}
