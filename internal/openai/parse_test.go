package openai

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var requests = cmp.Options{cmp.AllowUnexported(Request{}), cmpopts.IgnoreFields(Request{}, "whole", "unordered", "inexact"), cmpopts.EquateEmpty()}

func post(path string) Meta { return Meta{Method: "POST", Path: path, ContentType: "application/json"} }

const (
	completions = "/v1/completions"
	chats       = "/v1/chat/completions"
)

func TestParseMeta(t *testing.T) {
	body := []byte(`{"model":"m","prompt":"p","messages":[{"role":"user","content":"c"}]}`)
	read := func(kind Kind, form Form) Request {
		r := Request{Kind: kind, Form: form, Model: "m"}
		if form == Text {
			r.Prompt = Raw(`"p"`)
		} else {
			r.Messages = Raw(`[{"role":"user","content":"c"}]`)
		}
		return r
	}
	refused := func(kind Kind, reason Reason) Request { return Request{Kind: kind, Reason: reason} }
	other := Request{Kind: Other, Reason: ReasonUnsupportedPath, Model: "m"}
	for _, c := range []struct {
		name string
		meta Meta
		want Request
	}{
		{"completion", post(completions), read(Completion, Text)},
		{"chat", post(chats), read(Chat, Messages)},
		{"query", post(chats + "?a=/v1/completions"), read(Chat, Messages)},
		{"prefix", post("/pool-a/v1/completions?x"), read(Completion, Text)},
		{"no content type", Meta{Method: "POST", Path: chats}, read(Chat, Messages)},
		{"charset", Meta{Method: "POST", Path: chats, ContentType: " Application/JSON ; charset=utf-8"}, read(Chat, Messages)},
		{"json suffix", Meta{Method: "POST", Path: chats, ContentType: "application/vnd.x+JSON"}, read(Chat, Messages)},
		{"identity", Meta{Method: "POST", Path: chats, ContentEncoding: "Identity"}, read(Chat, Messages)},
		{"render", post(chats + "/render"), other},
		{"slash", post(completions + "/"), other},
		{"escaped path", post("/v1/chat%2Fcompletions"), other},
		{"longer name", post("/v1/mycompletions"), other},
		{"responses", post("/v1/responses"), other},
		{"no path", post(""), other},
		{"get", Meta{Method: "GET", Path: "/v1/models"}, refused(None, ReasonNoBody)},
		{"get with body", Meta{Method: "GET", Path: chats}, refused(None, ReasonNoBody)},
		{"put", Meta{Method: "PUT", Path: chats}, refused(None, ReasonNoBody)},
		{"gzip", Meta{Method: "POST", Path: chats, ContentEncoding: "gzip"}, refused(Chat, ReasonCompressed)},
		{"gzip elsewhere", Meta{Method: "POST", Path: "/x", ContentEncoding: "gzip"}, refused(Other, ReasonCompressed)},
		{"multipart", Meta{Method: "POST", Path: "/v1/audio/transcriptions", ContentType: "Multipart/form-data; boundary=x"}, refused(Other, ReasonMultipart)},
		{"text", Meta{Method: "POST", Path: chats, ContentType: "text/plain"}, refused(Chat, ReasonContentType)},
		{"json elsewhere", Meta{Method: "POST", Path: chats, ContentType: "text/x+json"}, refused(Chat, ReasonContentType)},
		{"only suffix", Meta{Method: "POST", Path: chats, ContentType: "+json"}, refused(Chat, ReasonContentType)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Parse(c.meta, body, Limits{}), requests); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := Parse(post(chats), nil, Limits{}); got.Kind != None || got.Reason != ReasonNoBody {
		t.Errorf("no body: %+v", got)
	}
}

// bodies are inputs of the table test and seeds of the fuzz test: what Parse must make of each is checked against the slow model,
// and the reason also against the table.
var bodies = []struct {
	name   string
	path   string
	body   string
	reason Reason
}{
	{"text", completions, `{"model":"m","prompt":"hello \u00e9 \ud83d\ude00 é 😀"}`, ""},
	{"every order", completions, ` { "max_tokens" : -1.5e+3 , "prompt" : "p" , "cache_salt" : "s" , "n" : 2 , "model" : "m" } ` + "\r\n", ""},
	{"list of one text", completions, `{"model":"m","prompt":["p"]}`, ""},
	{"list of one list", completions, `{"model":"m","prompt":[ [1, 2] ]}`, ""},
	{"tokens", completions, `{"model":"m","prompt":[0, 1,4294967295 , 7]}`, ""},
	{"tokens of all lengths", completions, `{"model":"m","prompt":[0,12,345,6789,12345,678901,2345678,90123456,789012345,4294967295,1, 2,3 ,4,0, 0,9999999,10000000,5]}`, ""},
	{"special tokens", completions, `{"model":"m","prompt":"p","add_special_tokens":false}`, ""},
	{"escaped keys", completions, `{"mod\u0065l":"\u006d","pr\u006Fmpt":"p","cache\u005fsalt":"\n"}`, ""},
	{"last key counts", completions, `{"model":"a","prompt":["p","q"],"model":"m","prompt":[1],"suffix":"x","suffix":null,"prompt_embeds":1,"prompt_embeds":null}`, ""},
	{"last key counts in chat", chats, `{"model":"m","messages":[{"content":[{"type":"image_url"}]}],"messages":[{"content":1,"content":[{"type":"x","type":"text"}]}]}`, ""},
	{"last kwargs count", chats, `{"model":"m","messages":[{}],"chat_template_kwargs":{"enable_thinking":1,"chat_template":"x"},"chat_template_kwargs":{}}`, ""},
	{"last salt counts", chats, `{"model":"m","messages":[{}],"cache_salt":"","cache_salt":"s"}`, ""},
	{"null is absent", chats, `{"model":"m","messages":[{"content":null}],"tools":null,"documents":null,"reasoning_effort":null,"chat_template":null,"chat_template_kwargs":null,"truncate_prompt_tokens":null,"truncation_side":null,"cache_salt":null,"vllm_xargs":{"kv_cache_report_mode":null},"prompt_embeds":null,"media_io_kwargs":null,"mm_processor_kwargs":null}`, ""},
	{"everything", chats, `{"model":"m","messages":[{"role":"user","content":"c"}],"tools":[{}],"documents":[{}],"reasoning_effort":"low","chat_template_kwargs":{"a":{"chat_template":1}},"add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true,"media_io_kwargs":{},"mm_processor_kwargs":{},"vllm_xargs":{"kv_cache_report_mode":"incremental"},"prompt":[[1],[2]],"suffix":"x"}`, ""},
	{"thinking set", chats, `{"model":"m","messages":[{}],"chat_template_kwargs":{"enable_thinking":null}}`, ""},
	{"text parts", chats, `{"model":"m","messages":[{"content":["a",{"type":"text"},{"type":"refusal"},{"type":"input_text"},{"type":"output_text"},{"ty\u0070e":"thin\u006bing"}]}]}`, ""},
	{"foreign prompt", chats, `{"model":"m","prompt":7,"messages":[{}]}`, ""},
	{"foreign template", completions, `{"model":"m","prompt":"p","messages":[{"content":[{"type":"image_url"}]}],"chat_template":"x","reasoning_effort":1}`, ""},
	{"key of its own name", completions, `{"model":"m","prompt":"p","metadata":{"prompt":[1],"model":"x"}}`, ""},
	{"long model", completions, `{"model":"` + strings.Repeat("m", 1024) + `","prompt":"p"}`, ""},
	{"salt of any letters", completions, `{"model":"m","prompt":"p","cache_salt":"a@b/c\\d"}`, ""},

	{"other", "/v1/responses", `{"input":"x","model":"m"}`, ReasonUnsupportedPath},
	{"other without model", "/v1/responses", `{"input":"x"}`, ReasonNoModel},
	{"other invalid", "/v1/responses", `{"model":"m"`, ReasonNotJSON},

	{"empty", chats, ` `, ReasonNotJSON},
	{"array", chats, `[]`, ReasonNotJSON},
	{"null", chats, `null`, ReasonNotJSON},
	{"cut off", chats, `{"model":"m","messages":[{"content":"`, ReasonNotJSON},
	{"trailing text", chats, `{"model":"m","messages":[{}]} x`, ReasonNotJSON},
	{"two values", chats, `{"model":"m","messages":[{}]}{}`, ReasonNotJSON},
	{"trailing comma", chats, `{"model":"m","messages":[{}],}`, ReasonNotJSON},
	{"trailing comma inside", chats, `{"model":"m","messages":[{},]}`, ReasonNotJSON},
	{"single quotes", chats, `{'model':'m'}`, ReasonNotJSON},
	{"nan", chats, `{"model":"m","messages":[{}],"temperature":NaN}`, ReasonNotJSON},
	{"leading zero", completions, `{"model":"m","prompt":[01]}`, ReasonNotJSON},
	{"leading zero in a run", completions, `{"model":"m","prompt":[1,2,03,4,5,6,7,8,9]}`, ReasonNotJSON},
	{"empty element in a run", completions, `{"model":"m","prompt":[1,2,,4,5,6,7,8,9]}`, ReasonNotJSON},
	{"plus", completions, `{"model":"m","prompt":[1,+2]}`, ReasonNotJSON},
	{"bare point", completions, `{"model":"m","prompt":[1.]}`, ReasonNotJSON},
	{"missing colon", completions, `{"model" "m"}`, ReasonNotJSON},
	{"missing comma", completions, `{"model":"m" "prompt":"p"}`, ReasonNotJSON},
	{"wrong bracket", completions, `{"model":"m","x":[{]}}`, ReasonNotJSON},
	{"control character", completions, "{\"model\":\"m\",\"prompt\":\"a\nb\"}", ReasonNotJSON},
	{"bad escape", completions, `{"model":"m","prompt":"\x41"}`, ReasonNotJSON},
	{"short escape", completions, `{"model":"m","prompt":"\u00e"}`, ReasonNotJSON},
	{"byte order mark", completions, "\ufeff" + `{"model":"m","prompt":"p"}`, ReasonNotJSON},
	{"utf-16", completions, "{\x00\"\x00m\x00", ReasonNotJSON},

	{"bad utf-8", completions, "{\"prompt\":\"\xff\",\"model\":\"m\"}", ReasonBadUTF8},
	{"bad utf-8 in unknown field", completions, "{\"x\":[{\"y\xc3\":1}],\"prompt\":\"p\",\"model\":\"m\"}", ReasonBadUTF8},
	{"encoded surrogate", completions, "{\"prompt\":\"\xed\xa0\x80\",\"model\":\"m\"}", ReasonBadUTF8},
	{"overlong utf-8", completions, "{\"prompt\":\"\xc0\xaf\",\"model\":\"m\"}", ReasonBadUTF8},
	{"high surrogate", completions, `{"prompt":"\ud83d","model":"m"}`, ReasonLoneSurrogate},
	{"low surrogate", completions, `{"prompt":"\ude00","model":"m"}`, ReasonLoneSurrogate},
	{"two high surrogates", completions, `{"user":"\ud83d\ud83d\ude00","model":"m"}`, ReasonLoneSurrogate},
	{"split pair", completions, `{"prompt":"\ud83dx\ude00","model":"m"}`, ReasonLoneSurrogate},

	{"no model", completions, `{"prompt":"p"}`, ReasonNoModel},
	{"null model", completions, `{"prompt":"p","model":null}`, ReasonNoModel},
	{"empty model", completions, `{"prompt":"p","model":""}`, ReasonNoModel},
	{"number as model", completions, `{"prompt":"p","model":1}`, ReasonNoModel},
	{"overlong model", completions, `{"model":"` + strings.Repeat("m", 1025) + `","prompt":"p"}`, ReasonNoModel},

	{"report mode", completions, `{"model":"m","prompt":"p","vllm_xargs":{"kv_cache_report_mode":"full"}}`, ReasonReportMode},
	{"report mode of wrong type", completions, `{"model":"m","prompt":"p","vllm_xargs":{"a":1,"kv_cache_report_mode":1}}`, ReasonReportMode},
	{"embeddings", completions, `{"model":"m","prompt_embeds":"AAAA"}`, ReasonPromptEmbeds},
	{"embeddings part", chats, `{"model":"m","messages":[{"content":[{"type":"prompt_embeds"}]}]}`, ReasonPromptEmbeds},
	{"template", chats, `{"model":"m","messages":[{}],"chat_template":"x"}`, ReasonTemplate},
	{"template in kwargs", chats, `{"model":"m","messages":[{}],"chat_template_kwargs":{"chat_template":"x"}}`, ReasonTemplate},
	{"truncation", completions, `{"model":"m","prompt":"p","truncate_prompt_tokens":-1}`, ReasonTruncation},
	{"truncation side", chats, `{"model":"m","messages":[{}],"truncation_side":"left"}`, ReasonTruncation},
	{"prompt logprobs", completions, `{"model":"m","prompt":"p","prompt_logprobs":0}`, ReasonPromptLogprobs},
	{"prompt logprobs of a chat", chats, `{"model":"m","messages":[{"content":"c"}],"prompt_logprobs":1}`, ReasonPromptLogprobs},
	{"prompt logprobs by echo", completions, `{"model":"m","prompt":"p","logprobs":1,"echo":true}`, ReasonPromptLogprobs},
	{"prompt logprobs by echo of a chat", chats, `{"model":"m","messages":[{"content":"c"}],"echo":true}`, ReasonPromptLogprobs},
	{"echo without logprobs", completions, `{"model":"m","prompt":"p","echo":true,"logprobs":null,"prompt_logprobs":null}`, ""},
	{"logprobs without echo", completions, `{"model":"m","prompt":"p","echo":false,"logprobs":5}`, ""},
	{"last echo counts", completions, `{"model":"m","prompt":"p","echo":true,"logprobs":5,"echo":null}`, ""},
	{"suffix", completions, `{"model":"m","prompt":"p","suffix":"x"}`, ReasonSuffix},
	{"empty salt", completions, `{"model":"m","prompt":"p","cache_salt":""}`, ReasonBadSalt},
	{"number as salt", completions, `{"model":"m","prompt":"p","cache_salt":1}`, ReasonBadSalt},
	{"overlong salt", completions, `{"model":"m","prompt":"p","cache_salt":"` + strings.Repeat("é", 513) + `"}`, ReasonBadSalt},
	{"kwargs list", chats, `{"model":"m","messages":[{}],"chat_template_kwargs":[]}`, ReasonBadField},
	{"effort number", chats, `{"model":"m","messages":[{}],"reasoning_effort":3}`, ReasonBadField},
	{"prompt object", completions, `{"model":"m","prompt":{}}`, ReasonBadField},
	{"prompt number", completions, `{"model":"m","prompt":1}`, ReasonBadField},
	{"prompt list of null", completions, `{"model":"m","prompt":[null]}`, ReasonBadField},
	{"messages text", chats, `{"model":"m","messages":"x"}`, ReasonBadField},
	{"message text", chats, `{"model":"m","messages":["x"]}`, ReasonBadField},
	{"content number", chats, `{"model":"m","messages":[{"content":1}]}`, ReasonBadField},
	{"content part number", chats, `{"model":"m","messages":[{"content":[1]}]}`, ReasonBadField},
	{"no prompt", completions, `{"model":"m"}`, ReasonNoPrompt},
	{"null prompt", completions, `{"model":"m","prompt":"p","prompt":null}`, ReasonNoPrompt},
	{"empty prompt", completions, `{"model":"m","prompt":""}`, ReasonNoPrompt},
	{"empty list", completions, `{"model":"m","prompt":[ ]}`, ReasonNoPrompt},
	{"empty inner list", completions, `{"model":"m","prompt":[[ ]]}`, ReasonNoPrompt},
	{"empty text in list", completions, `{"model":"m","prompt":[""]}`, ReasonNoPrompt},
	{"no messages", chats, `{"model":"m","prompt":"p"}`, ReasonNoPrompt},
	{"empty messages", chats, `{"model":"m","messages":[]}`, ReasonNoPrompt},
	{"two texts", completions, `{"model":"m","prompt":["p","q"]}`, ReasonSeveralPrompts},
	{"two lists", completions, `{"model":"m","prompt":[[1],[2]]}`, ReasonSeveralPrompts},
	{"text and number", completions, `{"model":"m","prompt":["p",1]}`, ReasonSeveralPrompts},
	{"number and text", completions, `{"model":"m","prompt":[1,"p"]}`, ReasonBadTokens},
	{"negative", completions, `{"model":"m","prompt":[1,-2]}`, ReasonBadTokens},
	{"minus zero", completions, `{"model":"m","prompt":[-0]}`, ReasonBadTokens},
	{"float", completions, `{"model":"m","prompt":[1.0]}`, ReasonBadTokens},
	{"exponent", completions, `{"model":"m","prompt":[1e2]}`, ReasonBadTokens},
	{"fraction in a run", completions, `{"model":"m","prompt":[1,2,3.0,4,5,6,7,8,9]}`, ReasonBadTokens},
	{"negative in a run", completions, `{"model":"m","prompt":[1,2,-3,4,5,6,7,8,9]}`, ReasonBadTokens},
	{"2^32 in a run", completions, `{"model":"m","prompt":[1,2,4294967296,4,5,6,7,8,9]}`, ReasonBadTokens},
	{"2^32", completions, `{"model":"m","prompt":[4294967296]}`, ReasonBadTokens},
	{"thirty digits", completions, `{"model":"m","prompt":[123456789012345678901234567890]}`, ReasonBadTokens},
	{"bool among tokens", completions, `{"model":"m","prompt":[1,true]}`, ReasonBadTokens},
	{"list among tokens", completions, `{"model":"m","prompt":[1,[2],3]}`, ReasonBadTokens},
	{"text in inner list", completions, `{"model":"m","prompt":[["p"]]}`, ReasonBadTokens},
	{"image", chats, `{"model":"m","messages":[{"content":"a"},{"content":[{"type":"text"},{"type":"image_url","image_url":{"url":"data:"}}]}]}`, ReasonMultimodal},
	{"audio", chats, `{"model":"m","messages":[{"content":[{"type":"input_audio"}]}]}`, ReasonMultimodal},
	{"part without type", chats, `{"model":"m","messages":[{"content":[{"image_url":"x"}]}]}`, ReasonMultimodal},
	{"part with number type", chats, `{"model":"m","messages":[{"content":[{"type":"text","type":1}]}]}`, ReasonMultimodal},
	{"part of long type", chats, `{"model":"m","messages":[{"content":[{"type":"` + strings.Repeat(`t\u0065`, 100) + `"}]}]}`, ReasonMultimodal},
}

func TestParseBody(t *testing.T) {
	for _, c := range bodies {
		t.Run(c.name, func(t *testing.T) {
			got := Parse(post(c.path), []byte(c.body), Limits{})
			if got.Reason != c.reason {
				t.Errorf("reason %q, want %q", got.Reason, c.reason)
			}
			if diff := cmp.Diff(slowParse(kindOf(c.path), []byte(c.body), Limits{}), got, requests); diff != "" {
				t.Errorf("differs from the slow model:\n%s", diff)
			}
		})
	}
}

func TestParseReasonsAreCovered(t *testing.T) {
	seen := map[Reason]bool{ReasonNoBody: true, ReasonCompressed: true, ReasonMultipart: true, ReasonContentType: true, ReasonTooLarge: true, ReasonTooDeep: true, ReasonTooLong: true}
	for _, c := range bodies {
		seen[c.reason] = true
	}
	for _, r := range Reasons() {
		if !seen[r] {
			t.Errorf("no case for reason %q", r)
		}
		delete(seen, r)
	}
	delete(seen, "")
	if len(seen) > 0 {
		t.Errorf("reasons outside the set: %v", seen)
	}
}

func TestParseModelBesideFaults(t *testing.T) {
	deep := strings.Repeat(`[`, 500) + `"]\"",{}` + strings.Repeat(`]`, 500)
	for _, c := range []struct {
		name, body string
		reason     Reason
		model      string
	}{
		{"deep before the model", `{"messages":[{"content":"c"}],"x":` + deep + `,"model":"m"}`, ReasonTooDeep, "m"},
		{"deep inside messages", `{"messages":[{"x":` + deep + `}],"model":"m"}`, ReasonTooDeep, "m"},
		{"deep and cut off", `{"model":"m","x":` + strings.Repeat(`[`, 500), ReasonNotJSON, ""},
		{"bad utf-8 before the model", "{\"x\":\"\xff\",\"model\":\"m\"}", ReasonBadUTF8, "m"},
		{"lone surrogate in the model", `{"model":"m\ud800"}`, ReasonLoneSurrogate, "m\ufffd"},
		{"invalid after the model", `{"model":"m",}`, ReasonNotJSON, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := Request{Kind: Chat, Reason: c.reason, Model: c.model}
			if diff := cmp.Diff(want, Parse(post(chats), []byte(c.body), Limits{}), requests); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseLimits(t *testing.T) {
	nest := func(n int) string { // n levels in all
		return `{"model":"m","prompt":"p","x":` + strings.Repeat(`[`, n-1) + strings.Repeat(`]`, n-1) + `}`
	}
	tokens := `{"model":"m","prompt":[1,2,3]}`
	for _, c := range []struct {
		name   string
		body   string
		limits Limits
		reason Reason
	}{
		{"default depth", nest(256), Limits{}, ""},
		{"default depth exceeded", nest(257), Limits{}, ReasonTooDeep},
		{"least depth", nest(16), Limits{Depth: 1}, ""},
		{"least depth exceeded", nest(17), Limits{Depth: 1}, ReasonTooDeep},
		{"most depth", nest(1024), Limits{Depth: 1 << 20}, ""},
		{"most depth exceeded", nest(1025), Limits{Depth: 1 << 20}, ReasonTooDeep},
		{"body", tokens, Limits{Body: len(tokens)}, ""},
		{"body exceeded", tokens, Limits{Body: len(tokens) - 1}, ReasonTooLarge},
		{"tokens", tokens, Limits{PromptTokens: 3}, ""},
		{"tokens exceeded", tokens, Limits{PromptTokens: 2}, ReasonTooLong},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Parse(post(completions), []byte(c.body), c.limits).Reason; got != c.reason {
				t.Errorf("reason %q, want %q", got, c.reason)
			}
		})
	}
}

// TestStringLengths moves each kind of special byte through all positions of the eight-byte steps.
func TestStringLengths(t *testing.T) {
	for n := range 40 {
		for _, special := range []string{"", `\n`, "é", "😀", `\u00e9`, "\x7f", "\x01", "\xff", `\`} {
			text := strings.Repeat("a", n) + special + strings.Repeat("b", n%11)
			body := []byte(`{"model":"m","prompt":"` + text + `x"}`)
			want := slowParse(Completion, body, Limits{})
			if diff := cmp.Diff(want, Parse(post(completions), body, Limits{}), requests); diff != "" {
				t.Errorf("%q: %s", text, diff)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	paths := []string{completions, chats, "/v1/responses"}
	for _, c := range bodies {
		f.Add([]byte(c.body), uint8(slices.Index(paths, c.path)))
	}
	limits := Limits{Depth: 20, PromptTokens: 8}
	f.Fuzz(func(t *testing.T, body []byte, which uint8) {
		path := paths[int(which)%len(paths)]
		got := Parse(post(path), body, limits)
		want := slowParse(kindOf(path), body, limits)
		if slowDepth(body) > limits.Depth && want.Reason != ReasonNoBody {
			// What is too deep is not validated: not_json remains possible, a usable prompt is not.
			if got.Reason != ReasonTooDeep && got.Reason != ReasonNotJSON {
				t.Fatalf("deep body has reason %q", got.Reason)
			}
			return
		}
		if diff := cmp.Diff(want, got, requests); diff != "" {
			t.Fatalf("%q\n%s", body, diff)
		}
		if got.Form == Text || got.Form == Messages {
			mapped := AppendTokenize(nil, got.Model, &got)
			if diff := cmp.Diff(compact(slowMapped(got.Model, &got)), compact(mapped)); diff != "" {
				t.Fatalf("%q mapped to %q\n%s", body, mapped, diff)
			}
		}
	})
}

// chatBody is a conversation of about size bytes: paragraphs with escapes, some of it not ASCII.
func chatBody(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"tiny","stream":true,"temperature":0.7,"messages":[{"role":"system","content":"You answer in one line."}`)
	for turn := 0; b.Len() < size; turn++ {
		fmt.Fprintf(&b, `,{"role":%q,"content":"`, []string{"user", "assistant"}[turn%2])
		for i := range 12 {
			fmt.Fprintf(&b, `Paragraph %d of turn %d says that the naïve \"plan\" of %d units — in stock — holds.\n`, i, turn, i*turn)
		}
		b.WriteString(`"}`)
	}
	b.WriteString(`],"tools":[{"type":"function","function":{"name":"get_stock","parameters":{"type":"object","properties":{"part":{"type":"string"}}}}}]}`)
	return []byte(b.String())
}

func BenchmarkParse(b *testing.B) {
	for _, size := range []int{2 << 10, 32 << 10, 197 << 10, 1 << 20} {
		body := chatBody(size)
		b.Run(fmt.Sprintf("chat/bytes=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if r := Parse(post(chats), body, Limits{}); r.Reason != "" {
					b.Fatal(r.Reason)
				}
			}
		})
	}
	// Ids of a vocabulary of 150,000, as a tokenizer gives them: one to six digits.
	body := []byte(`{"model":"tiny","prompt":[`)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 32_767 {
		body = append(strconv.AppendInt(body, int64(rng.IntN(150_000)), 10), ',')
	}
	body = append(body, "1]}"...)
	b.Run("tokens=32768", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			if r := Parse(post(completions), body, Limits{}); len(r.Tokens) != 32_768 {
				b.Fatal(r.Reason)
			}
		}
	})
}
