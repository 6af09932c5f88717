package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRenderAgainstEngine: every request that is called exact, or exact with a render endpoint, was answered by the engine's own
// token ids there, and the body that is sent there is the request's own.
func TestRenderAgainstEngine(t *testing.T) {
	type recorded struct {
		recordedCase
		Render struct {
			Status int  `json:"status"`
			Equal  bool `json:"equal"`
		} `json:"render"`
	}
	rendered := 0
	for _, name := range []string{"token_parity.json", "token_parity_server_flags.json"} {
		var file struct{ Cases map[string]recorded }
		readJSON(t, name, &file)
		if len(file.Cases) < 5 {
			t.Fatalf("%s: %d recorded cases", name, len(file.Cases))
		}
		for name, c := range file.Cases {
			t.Run(name, func(t *testing.T) {
				path := chats
				if c.Mapped.Request == nil && !strings.Contains(string(c.Body), `"messages"`) {
					path = completions
				}
				r := Parse(post(path), c.Body, Limits{})
				q := &r
				if r.Reason != "" {
					var ok bool
					if q, ok = r.Rendered(); !ok {
						return
					}
					if !q.RenderOnly() {
						t.Error("a request with a reason is not for the render endpoint only")
					}
					rendered++
				}
				if q.RenderPath() == "" {
					return // token ids
				}
				if q.RenderPath() != path+"/render" {
					t.Errorf("path %q", q.RenderPath())
				}
				if c.Engine.Status == 200 && !c.Render.Equal {
					t.Error("called exact, but the render endpoint's ids differ")
				}
				body := AppendRender([]byte("x"), r.Model, q)
				if len(body)-1 > q.RenderSize(r.Model) {
					t.Errorf("%d bytes, said to be at most %d", len(body)-1, q.RenderSize(r.Model))
				}
				want := compact(c.Body).(map[string]any)
				want["return_mm_kwargs"] = false
				if diff := cmp.Diff(any(want), compact(body[1:])); diff != "" {
					t.Errorf("body, -want +got:\n%s", diff)
				}
				if !c.Verbatim.Equal && !c.Mapped.Equal && c.Engine.Status == 200 && !q.RenderOnly() && !q.ByServer() {
					t.Error("the answers of both APIs differ, and would share a key")
				}
			})
		}
	}
	if rendered < 5 {
		t.Errorf("%d recorded requests for the render endpoint only", rendered)
	}
}

func TestRendered(t *testing.T) {
	for _, c := range []struct {
		name, path, body string
		want             bool
	}{
		{"truncated text", completions, `{"model":"m","prompt":"p","truncate_prompt_tokens":5}`, true},
		{"truncated chat", chats, `{"model":"m","messages":[{}],"truncate_prompt_tokens":-1,"truncation_side":"left"}`, true},
		{"template", chats, `{"model":"m","messages":[{}],"chat_template":"x"}`, true},
		{"both", chats, `{"model":"m","messages":[{}],"chat_template":"x","truncate_prompt_tokens":5}`, true},
		{"exact", chats, `{"model":"m","messages":[{}]}`, false},
		{"truncated ids", completions, `{"model":"m","prompt":[1,2],"truncate_prompt_tokens":1}`, false},
		{"template in kwargs", chats, `{"model":"m","messages":[{}],"chat_template_kwargs":{"chat_template":"x"}}`, false},
		{"template in both", chats, `{"model":"m","messages":[{}],"chat_template":"x","chat_template_kwargs":{"chat_template":"x"}}`, false},
		{"truncated with a suffix", completions, `{"model":"m","prompt":"p","suffix":"s","truncate_prompt_tokens":5}`, false},
		{"truncated with a bad salt", completions, `{"model":"m","prompt":"p","cache_salt":"","truncate_prompt_tokens":5}`, false},
		{"several truncated", completions, `{"model":"m","prompt":["p","q"],"truncate_prompt_tokens":5}`, false},
		{"image with a template", chats, `{"model":"m","messages":[{"content":[{"type":"image_url"}]}],"chat_template":"x"}`, false},
		{"logprobs of a truncated prompt", completions, `{"model":"m","prompt":"p","prompt_logprobs":1,"truncate_prompt_tokens":5}`, false},
		{"other path", "/v1/responses", `{"model":"m","input":"p","truncate_prompt_tokens":5}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Parse(post(c.path), []byte(c.body), Limits{})
			q, ok := r.Rendered()
			if ok != c.want {
				t.Fatalf("rendered %v, want %v (reason %q)", ok, c.want, r.Reason)
			}
			if ok && (q.Reason != "" || q.Model != "m") {
				t.Errorf("%+v", q)
			}
		})
	}
}

func TestReadRender(t *testing.T) {
	var file map[string]struct {
		Response struct {
			Status int
			Body   json.RawMessage
		}
	}
	readJSON(t, "render.json", &file)
	recorded := func(name string) string {
		body := file[name].Response.Body
		if len(body) == 0 {
			t.Fatalf("no recording %q", name)
		}
		return string(body)
	}
	for _, c := range []struct {
		name, body string
		want       Reply
		err        error
	}{
		{"recorded completion", recorded("completions_render"), Reply{Tokens: []uint32{976, 1886, 15, 778, 86, 268, 202}}, nil},
		{"recorded ids", recorded("completions_render_ids"), Reply{Tokens: []uint32{5, 6, 7}}, nil},
		{"recorded, two prompts", recorded("completions_render_two"), Reply{}, ErrReply},
		{"recorded error", recorded("chat_render_bad"), Reply{}, ErrReply},
		{"features", `{"token_ids":[1],"features":{"mm_hashes":{"image":["a"]}}}`, Reply{Tokens: []uint32{1}, Features: true}, nil},
		{"no features", ` {"features":null,"token_ids":[1]} `, Reply{Tokens: []uint32{1}}, nil},
		{"a deep schema", `{"token_ids":[1],"sampling_params":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`, Reply{Tokens: []uint32{1}}, nil},
		{"deeper than that", `{"token_ids":[1],"sampling_params":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, Reply{}, ErrReply},
		{"last ids count", `{"token_ids":[1],"token_ids":[2]}`, Reply{Tokens: []uint32{2}}, nil},
		{"ids of two kinds", `{"token_ids":[1],"token_ids":"x"}`, Reply{}, ErrReply},
		{"too many", `{"token_ids":[1,2,3,4,5,6,7,8,9]}`, Reply{}, ErrReplyLong},
		{"too many in a list", `[{"token_ids":[1,2,3,4,5,6,7,8,9]}]`, Reply{}, ErrReplyLong},
		{"negative", `{"token_ids":[-1]}`, Reply{}, ErrReply},
		{"2^32", `{"token_ids":[4294967296]}`, Reply{}, ErrReply},
		{"none", `{"tokens":[1]}`, Reply{}, ErrReply},
		{"empty list", `[]`, Reply{}, ErrReply},
		{"list of a list", `[[{"token_ids":[1]}]]`, Reply{}, ErrReply},
		{"list of ids", `[1,2]`, Reply{}, ErrReply},
		{"two objects", `{"token_ids":[1]}{}`, Reply{}, ErrReply},
		{"list not closed", `[{"token_ids":[1]}`, Reply{}, ErrReply},
		{"comma at the end", `[{"token_ids":[1]},]`, Reply{}, ErrReply},
		{"broken off", `{"token_ids":[1,`, Reply{}, ErrReply},
		{"nothing", ``, Reply{}, ErrReply},
		{"text", `"token_ids"`, Reply{}, ErrReply},
	} {
		t.Run(c.name, func(t *testing.T) {
			limit := 8
			got, err := ReadRender([]byte(c.body), limit)
			if !errors.Is(err, c.err) || err != nil && c.err == nil {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got, err := ReadRender([]byte(recorded("chat_render")), 1000); err != nil || len(got.Tokens) != 131 {
		t.Errorf("recorded chat: %d ids, %v", len(got.Tokens), err)
	}
}

func FuzzReadRender(f *testing.F) {
	f.Add([]byte(`[{"token_ids":[1,2],"features":null}]`))
	f.Add([]byte(`{"token_ids":[7],"features":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := ReadRender(body, 8)
		if err != nil {
			if got.Tokens != nil {
				t.Error("ids beside an error")
			}
			return
		}
		type reply struct {
			IDs []uint32 `json:"token_ids"`
		}
		var one reply
		if list := []reply(nil); json.Unmarshal(body, &list) == nil && len(list) == 1 {
			one = list[0]
		} else if json.Unmarshal(body, &one) != nil {
			t.Fatalf("%q is read, and is no answer", body)
		}
		if len(got.Tokens) > 8 || !strings.Contains(strings.ToLower(string(body)), "token_ids") && !strings.Contains(string(body), `\`) {
			t.Errorf("%q gives %v", body, got.Tokens)
		}
	})
}

func TestTakeSalt(t *testing.T) {
	const chat = `{"model":"m","cache_salt":"body","messages":[{"content":"c"}]`
	for _, c := range []struct {
		name, body, salt string
		reason           Reason
		text             bool
	}{
		{"instead of the body's", chat + `}`, "trusted", "", true},
		{"where the body has none", `{"model":"m","messages":[{"content":"c"}]}`, "trusted", "", true},
		{"longest", chat + `}`, strings.Repeat("s", 1024), "", true},
		{"overlong", chat + `}`, strings.Repeat("s", 1025), ReasonBadSalt, false},
		{"not UTF-8", chat + `}`, "\xff", ReasonBadSalt, false},
		{"empty", chat + `}`, "", ReasonBadSalt, false},
		{"beside a bad one", `{"model":"m","cache_salt":1,"messages":[{"content":"c"}]}`, "trusted", ReasonBadSalt, false},
		{"of a prompt with a template", chat + `,"chat_template":"t"}`, "trusted", ReasonTemplate, true},
		{"bad, of a prompt with a template", chat + `,"chat_template":"t"}`, "\xff", ReasonTemplate, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Parse(post(chats), []byte(c.body), Limits{})
			r.TakeSalt(c.salt)
			if r.Reason != c.reason || r.Model != "m" {
				t.Errorf("reason %q, want %q; model %q", r.Reason, c.reason, r.Model)
			}
			if r.Reason == "" && r.Salt != c.salt {
				t.Errorf("salt %q", r.Salt)
			}
			if q, ok := r.Rendered(); ok && q.Salt != c.salt {
				t.Errorf("rendered salt %q", q.Salt)
			}
			w := &texts{}
			if got := r.WriteText(w, make([]byte, 0, 1024)); got != c.text || got && !strings.Contains(w.head, c.salt) || strings.Contains(w.head, "body") {
				t.Errorf("text %v, head %q", got, w.head)
			}
		})
	}
}

// texts keeps the head of a text.
type texts struct{ head string }

func (w *texts) Head(p []byte) { w.head += string(p) }
func (w *texts) Text([]byte)   {}
func (w *texts) Media([]byte)  {}
func (w *texts) Opened()       {}
