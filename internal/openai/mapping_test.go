package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type recordedCase struct {
	Body   json.RawMessage `json:"body"`
	Engine struct {
		Status         int      `json:"status"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	} `json:"engine"`
	Verbatim struct {
		Equal bool `json:"equal"`
	} `json:"tokenize_verbatim"`
	Mapped struct {
		Request json.RawMessage `json:"request"`
		Equal   bool            `json:"equal"`
	} `json:"tokenize_mapped"`
}

func readJSON(t *testing.T, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "vllm-0.32.0", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// TestMappingAgainstEngine: every prompt that Parse calls exact maps to the body that gave the engine's own token ids, and no
// prompt is called exact for which /tokenize gives other ids.
func TestMappingAgainstEngine(t *testing.T) {
	var file struct{ Cases map[string]recordedCase }
	readJSON(t, "token_parity.json", &file)
	if len(file.Cases) < 40 {
		t.Fatalf("%d recorded cases", len(file.Cases))
	}
	inexact := map[string]Reason{
		"truncate_20": ReasonTruncation, "truncate_20_right": ReasonTruncation, "truncate_minus1": ReasonTruncation,
		"completion_truncate": ReasonTruncation, "completion_suffix": ReasonSuffix, "completion_empty": ReasonNoPrompt,
		"empty_messages": ReasonNoPrompt,
	}
	for name, c := range file.Cases {
		t.Run(name, func(t *testing.T) {
			path := chats
			if c.Mapped.Request == nil {
				path = completions
			}
			r := Parse(post(path), c.Body, Limits{})
			if r.Reason != inexact[name] {
				t.Fatalf("reason %q, want %q", r.Reason, inexact[name])
			}
			switch r.Form {
			case NoPrompt:
			case Tokens:
				if diff := cmp.Diff(c.Engine.PromptTokenIDs, r.Tokens); diff != "" {
					t.Error(diff)
				}
			case Messages:
				if diff := cmp.Diff(compact(c.Mapped.Request), compact(AppendTokenize(nil, r.Model, &r))); diff != "" {
					t.Error(diff)
				}
				if c.Engine.Status == 200 && !c.Mapped.Equal {
					t.Error("called exact, but the engine's ids differ")
				}
			case Text:
				// The recorded verbatim body holds model, prompt, add_special_tokens and fields that /tokenize does not read.
				got := compact(AppendTokenize(nil, r.Model, &r)).(map[string]any)
				verbatim := compact(c.Body).(map[string]any)
				for key, v := range got {
					if !cmp.Equal(verbatim[key], v) {
						t.Errorf("%s: %v, want %v", key, v, verbatim[key])
					}
				}
				if _, set := verbatim["add_special_tokens"]; set != (got["add_special_tokens"] != nil) || !c.Verbatim.Equal {
					t.Errorf("body %v, recorded equal %v", got, c.Verbatim.Equal)
				}
			}
		})
	}
}

func TestAppendTokenize(t *testing.T) {
	const m = `"messages":[{"content":"c"}]`
	for _, c := range []struct{ name, path, body, want string }{
		{"text", completions, `{"model":"m","prompt": "p\u0000" ,"max_tokens":3}`, `{"model":"asked","prompt":"p\u0000"}`},
		{"text in list", completions, `{"model":"m","prompt":["p"],"add_special_tokens":false}`, `{"model":"asked","prompt":"p","add_special_tokens":false}`},
		{"chat", chats, `{"stream":true,"model":"m",` + m + `}`, `{"model":"asked",` + m + `}`},
		{
			"effort into blank kwargs", chats, `{"model":"m",` + m + `,"reasoning_effort":"n\u006fne","chat_template_kwargs":{ }}`,
			`{"model":"asked",` + m + `,"chat_template_kwargs":{"reasoning_effort":"n\u006fne","enable_thinking":false}}`,
		},
		{
			"effort beside kwargs", chats, `{"model":"m",` + m + `,"reasoning_effort":"low","chat_template_kwargs":{ "a":1 }}`,
			`{"model":"asked",` + m + `,"chat_template_kwargs":{ "a":1 ,"reasoning_effort":"low","enable_thinking":true}}`,
		},
		{
			"effort wins over kwargs", chats, `{"model":"m",` + m + `,"reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high","enable_thinking":null}}`,
			`{"model":"asked",` + m + `,"chat_template_kwargs":{"reasoning_effort":"high","enable_thinking":null,"reasoning_effort":"low"}}`,
		},
		{"documents", chats, `{"model":"m",` + m + `,"documents":[1]}`, `{"model":"asked",` + m + `,"chat_template_kwargs":{"documents":[1]}}`},
		{"kwargs alone", chats, `{"model":"m",` + m + `,"chat_template_kwargs":{"a":1},"tool_choice":"none"}`, `{"model":"asked",` + m + `,"chat_template_kwargs":{"a":1}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Parse(post(c.path), []byte(c.body), Limits{})
			if got := string(AppendTokenize([]byte("x"), "asked", &r)); got != "x"+c.want {
				t.Errorf("got  %s\nwant x%s", got, c.want)
			}
		})
	}
}

func TestAppendString(t *testing.T) {
	text := "a\"b\\c\n\x00\x1fé😀/"
	var back string
	if err := json.Unmarshal(appendString(nil, text), &back); err != nil || back != text {
		t.Errorf("%q came back as %q: %v", text, back, err)
	}
}

func TestReadTokens(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       Reply
		err        error
	}{
		{"vllm", `{"count":2,"max_model_len":2048,"tokens":[1,2],"token_strs":null}`, Reply{Tokens: []uint32{1, 2}, MaxModelLen: 2048}, nil},
		{"with strings", `{"count":1,"tokens":[1],"token_strs":["Ġ\"]"]}`, Reply{Tokens: []uint32{1}}, nil},
		{"no tokens", `{"count":0,"tokens":[]}`, Reply{}, nil},
		{"no count", ` {"tokens" : [ 4294967295 ] } `, Reply{Tokens: []uint32{1<<32 - 1}}, nil},
		{"huge model length", `{"tokens":[1],"max_model_len":1000000000000000019884624838656}`, Reply{Tokens: []uint32{1}}, nil},
		{"negative model length", `{"tokens":[1],"max_model_len":-1}`, Reply{Tokens: []uint32{1}}, nil},
		{"limit", `{"tokens":[1,2,3]}`, Reply{Tokens: []uint32{1, 2, 3}}, nil},
		{"above the limit", `{"tokens":[1,2,3,4]}`, Reply{}, ErrReplyLong},
		{"count differs", `{"count":3,"tokens":[1,2]}`, Reply{}, ErrReply},
		{"cut off", `{"count":2,"tokens":[1,2`, Reply{}, ErrReply},
		{"no list", `{"tokens":null}`, Reply{}, ErrReply},
		{"several prompts", `{"tokens":[[1],[2]]}`, Reply{}, ErrReply},
		{"float", `{"tokens":[1.5]}`, Reply{}, ErrReply},
		{"negative", `{"tokens":[-1]}`, Reply{}, ErrReply},
		{"error body", `{"error":{"message":"x","code":400}}`, Reply{}, ErrReply},
		{"text", `Internal Server Error`, Reply{}, ErrReply},
		{"list", `[1,2]`, Reply{}, ErrReply},
		{"nothing", ``, Reply{}, ErrReply},
		{"trailing text", `{"tokens":[1]}x`, Reply{}, ErrReply},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ReadTokens([]byte(c.body), 3)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if diff := cmp.Diff(c.want, got, requests); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadTokensOfEngine(t *testing.T) {
	var file struct {
		Exchanges map[string]struct {
			Request  struct{ Path string }
			Response struct {
				Status int
				Body   json.RawMessage
			}
		}
	}
	readJSON(t, "exchanges.json", &file)
	n := 0
	for name, x := range file.Exchanges {
		if x.Request.Path != "/tokenize" || name == "tokenize_too_long" { // its list is abridged in the recording
			continue
		}
		n++
		got, err := ReadTokens(x.Response.Body, 1000)
		if x.Response.Status != 200 {
			if !errors.Is(err, ErrReply) {
				t.Errorf("%s: error %v", name, err)
			}
			continue
		}
		var want struct {
			Tokens []uint32
			Max    int `json:"max_model_len"`
		}
		if err := json.Unmarshal(x.Response.Body, &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Reply{Tokens: want.Tokens, MaxModelLen: want.Max}, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	if n < 15 {
		t.Fatalf("%d recorded exchanges", n)
	}
}

func FuzzReadTokens(f *testing.F) {
	f.Add([]byte(`{"count":2,"max_model_len":2048,"tokens":[1,2],"token_strs":null}`))
	f.Add([]byte(`{"tokens":[ 1 ,4294967295],"count":2,"t\u006fkens":[3]}`))
	f.Add([]byte(`{"tokens":[1,2,3,4,5],"x":[{}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := ReadTokens(body, 4)
		if slowDepth(body) > minDepth {
			if err == nil {
				t.Fatal("deep reply was accepted")
			}
			return
		}
		want, wantErr := slowReply(body, 4)
		if !errors.Is(err, wantErr) {
			t.Fatalf("%q: error %v, want %v", body, err, wantErr)
		}
		if diff := cmp.Diff(want, got, requests); diff != "" {
			t.Fatalf("%q\n%s", body, diff)
		}
	})
}

func ExampleParse() {
	body := []byte(`{"model": "tiny", "prompt": [5, 6, 7], "cache_salt": "tenant-1"}`)
	r := Parse(Meta{Method: "POST", Path: "/v1/completions"}, body, Limits{})
	fmt.Println(r.Model, r.Salt, r.Tokens)

	body = []byte(`{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low", "n": 2}`)
	r = Parse(Meta{Method: "POST", Path: "/v1/chat/completions"}, body, Limits{})
	fmt.Printf("%s\n", AppendTokenize(nil, r.Model, &r))
	// Output:
	// tiny tenant-1 [5 6 7]
	// {"model":"tiny","messages":[{"role": "user", "content": "hi"}],"chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":true}}
}
