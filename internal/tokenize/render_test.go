package tokenize

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/openai"
)

// rendering is an engine with a render endpoint. What it is asked stands in paths; render answers there, and /tokenize gives ids from 1000 on.
type rendering struct {
	render http.HandlerFunc

	mu     sync.Mutex
	paths  []string
	bodies []string
	keys   []string
}

func (e *rendering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.paths, e.bodies, e.keys = append(e.paths, r.URL.Path), append(e.bodies, string(body)), append(e.keys, r.Header.Get("Authorization"))
	e.mu.Unlock()
	if r.URL.Path == "/tokenize" {
		text(`{"count":1,"max_model_len":2048,"tokens":[1000]}`)(w, r)
		return
	}
	e.render(w, r)
}

func (e *rendering) asked() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	paths := e.paths
	e.paths = nil
	return paths
}

// refusal answers with a status and a body.
func refusal(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

const (
	rendered   = `[{"request_id":"cmpl-1","token_ids":[7,8],"token_offsets":null,"features":null,"cache_salt":null}]`
	pathText   = "/v1/completions/render"
	pathChat   = "/v1/chat/completions/render"
	missing    = `{"detail":"Not Found"}`
	noSuch     = `{"error":{"message":"The model ` + "`tiny`" + ` does not exist. Valid aliases: x.","type":"NotFoundError","param":"model","code":404}}`
	disallowed = `{"error":{"message":"Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.","type":"PermissionDeniedError","param":null,"code":403}}`
)

// parsed is the request of a body, or what a render endpoint can tell of it.
func parsed(t *testing.T, path, body string) *openai.Request {
	t.Helper()
	r := openai.Parse(openai.Meta{Method: "POST", Path: path}, []byte(body), openai.Limits{})
	if q, ok := r.Rendered(); ok {
		return q
	}
	if r.Reason != "" {
		t.Fatalf("reason %q", r.Reason)
	}
	return &r
}

func TestRenderAnswers(t *testing.T) {
	both := []string{pathText, "/tokenize"}
	for _, c := range []struct {
		name   string
		render http.HandlerFunc
		want   Outcome
		tokens []uint32
		first  []string // asked by a first prompt
		next   []string // asked by another prompt afterwards
	}{
		{"offered", text(rendered), OK, []uint32{7, 8}, []string{pathText}, []string{pathText}},
		{"forbidden", refusal(403, disallowed), OK, []uint32{1000}, both, []string{"/tokenize"}},
		{"no such path", refusal(404, missing), OK, []uint32{1000}, both, []string{"/tokenize"}},
		{"no such path, no text", refusal(404, ""), OK, []uint32{1000}, both, []string{"/tokenize"}},
		{"wants a key", refusal(401, `{"error":"Unauthorized"}`), OK, []uint32{1000}, both, []string{"/tokenize"}},
		{"no such method", refusal(405, ""), OK, []uint32{1000}, both, []string{"/tokenize"}},
		{"not implemented", refusal(501, ""), OK, []uint32{1000}, both, []string{"/tokenize"}},
		{"another form", text(`{"prompt":"x"}`), OK, []uint32{1000}, both, []string{"/tokenize"}},
		{"not JSON", text(`<html>`), OK, []uint32{1000}, both, []string{"/tokenize"}},
		{"broken", refusal(500, ""), OK, []uint32{1000}, both, both},
		{"a redirect", refusal(307, ""), OK, []uint32{1000}, both, both},
		{"unknown model", refusal(404, noSuch), Refused, nil, []string{pathText}, []string{pathText}},
		{"refused", refusal(400, `{}`), Refused, nil, []string{pathText}, []string{pathText}},
		{"unprocessable", refusal(422, `{}`), Refused, nil, []string{pathText}, []string{pathText}},
		{"images", text(`[{"token_ids":[1],"features":{"mm_hashes":{"image":["h"]}}}]`), Multimodal, nil, []string{pathText}, []string{pathText}},
		{"too many ids", text(`[{"token_ids":[` + strings.Repeat("1,", 100) + `1]}]`), TooLong, nil, []string{pathText}, []string{pathText}},
		{"too many bytes", text(`[{"token_ids":[1],"x":"` + strings.Repeat("x", 2*replySlack) + `"}]`), TooLong, nil, []string{pathText}, []string{pathText}},
		{"silent", silent, Timeout, nil, []string{pathText}, []string{pathText}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f fabric
				e := &rendering{render: c.render}
				f.engine(t, "a:1", e.ServeHTTP)
				z := f.tokenizer(t, Options{Render: true, MaxTokens: 100})
				ask := call(t, "a:1", "one")
				ask.APIKey = "key-1"
				r, err := z.Tokens(t.Context(), ask)
				if r.Outcome != c.want || !slices.Equal(r.Tokens, c.tokens) || (err == nil) != (c.tokens != nil) {
					t.Errorf("%v with %v, %v; want %v with %v", r.Outcome, r.Tokens, err, c.want, c.tokens)
				}
				if got := e.asked(); !slices.Equal(got, c.first) {
					t.Errorf("asked %q, want %q", got, c.first)
				}
				_, _ = z.Tokens(t.Context(), call(t, "a:1", "two"))
				// Asked without a key it is another question.
				if got := e.asked(); !slices.Equal(got, c.first) {
					t.Errorf("asked %q without the key, want %q", got, c.first)
				}
				_, _ = z.Tokens(t.Context(), call(t, "a:1", "three"))
				if got := e.asked(); !slices.Equal(got, c.next) {
					t.Errorf("asked %q afterwards, want %q", got, c.next)
				}
				if e.keys[0] != "Bearer key-1" || !strings.Contains(e.bodies[0], `"return_mm_kwargs":false`) || !strings.Contains(e.bodies[0], `"model":"tiny"`) {
					t.Errorf("asked with %q: %s", e.keys[0], e.bodies[0])
				}
			})
		})
	}
}

// An absence lasts as long as the engine.
func TestAbsenceIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		e, other := &rendering{render: refusal(403, disallowed)}, &rendering{render: text(rendered)}
		f.engine(t, "a:1", e.ServeHTTP)
		f.engine(t, "b:1", other.ServeHTTP)
		z := f.tokenizer(t, Options{Render: true, CacheBytes: -1})
		ask := func(addr string, life uint64, version string) []string {
			t.Helper()
			c := call(t, addr, "p")
			c.Life, c.Version = life, version
			if _, err := z.Tokens(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			return append(e.asked(), other.asked()...)
		}
		both := []string{pathText, "/tokenize"}
		for _, st := range []struct {
			name    string
			addr    string
			life    uint64
			version string
			want    []string
		}{
			{"first", "a:1", 0, "0.32.0", both},
			{"again", "a:1", 0, "0.32.0", []string{"/tokenize"}},
			{"another endpoint", "b:1", 0, "0.32.0", []string{pathText}},
			{"another life", "a:1", 1, "0.32.0", both},
			{"again in it", "a:1", 1, "0.32.0", []string{"/tokenize"}},
			{"another release", "a:1", 1, "0.33.0", both},
			{"again with it", "a:1", 1, "0.33.0", []string{"/tokenize"}},
		} {
			if got := ask(st.addr, st.life, st.version); !slices.Equal(got, st.want) {
				t.Errorf("%s: asked %q, want %q", st.name, got, st.want)
			}
		}
		// The chat's endpoint is another one.
		c := call(t, "a:1", "x")
		c.Life, c.Version, c.Request = 1, "0.33.0", parsed(t, "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"c"}]}`)
		if _, err := z.Tokens(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if got := e.asked(); !slices.Equal(got, []string{pathChat, "/tokenize"}) {
			t.Errorf("chat: asked %q", got)
		}
		for i := range maxAbsences + 10 {
			z.absences.note(&Call{Endpoint: fmt.Sprint(i)}, pathText)
		}
		if n := len(z.absences.known); n > maxAbsences {
			t.Errorf("%d endpoints are remembered", n)
		}
	})
}

func TestRenderSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		e := &rendering{render: text(rendered)}
		f.engine(t, "a:1", e.ServeHTTP)
		z := f.tokenizer(t, Options{})
		if r, err := z.Tokens(t.Context(), call(t, "a:1", "p")); err != nil || r.MaxModelLen != 2048 {
			t.Errorf("%v, %v", r, err)
		}
		if got := e.asked(); !slices.Equal(got, []string{"/tokenize"}) {
			t.Errorf("asked %q", got)
		}
		c := call(t, "a:1", "x")
		c.Request = parsed(t, "/v1/completions", `{"model":"tiny","prompt":"p","truncate_prompt_tokens":1}`)
		if r, err := z.Tokens(t.Context(), c); r.Outcome != NotOffered || err == nil {
			t.Errorf("a truncated prompt: %v, %v", r.Outcome, err)
		}
		if got := e.asked(); len(got) > 0 {
			t.Errorf("a truncated prompt: asked %q", got)
		}
	})
}

// TestRenderKeys: answers that cannot differ share an entry, others never do.
func TestRenderKeys(t *testing.T) {
	const chat = `{"model":"tiny","messages":[{"role":"user","content":"c"}]`
	for _, c := range []struct {
		name        string
		path        string
		first, then string
		shared      bool // the second finds the first one's answer
		tokenize    bool // what an endpoint without render answers, asked first, is found for one with it
	}{
		{"the same", "/v1/chat/completions", chat + `}`, chat + `}`, true, true},
		{"other sampling", "/v1/chat/completions", chat + `,"seed":1}`, chat + `,"seed":2,"stream":true,"cache_salt":"s"}`, true, true},
		{"an effort", "/v1/chat/completions", chat + `,"reasoning_effort":"low"}`, chat + `,"reasoning_effort":"low","seed":3}`, true, false},
		{"another effort", "/v1/chat/completions", chat + `,"reasoning_effort":"low"}`, chat + `,"reasoning_effort":"high"}`, false, false},
		{"tools", "/v1/chat/completions", chat + `,"tools":[1]}`, chat + `,"tools":[1],"tool_choice":"auto"}`, true, true},
		{"tools that are switched off", "/v1/chat/completions", chat + `,"tools":[1]}`, chat + `,"tools":[1],"tool_choice":"none"}`, false, false},
		{"effort and tools", "/v1/chat/completions", chat + `,"reasoning_effort":"low","tools":[1],"tool_choice":"none"}`, chat + `,"reasoning_effort":"low","tools":[1]}`, false, false},
		{"a template", "/v1/chat/completions", chat + `,"chat_template":"a"}`, chat + `,"chat_template":"b"}`, false, false},
		{"truncation", "/v1/completions", `{"model":"tiny","prompt":"p","truncate_prompt_tokens":1}`, `{"model":"tiny","prompt":"p","truncate_prompt_tokens":2}`, false, false},
		{"truncated and not", "/v1/completions", `{"model":"tiny","prompt":"p"}`, `{"model":"tiny","prompt":"p","truncate_prompt_tokens":2}`, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := text(rendered)
				if c.path != "/v1/completions" {
					answer = text(strings.Trim(rendered, "[]"))
				}
				var f fabric
				with, without := &rendering{render: answer}, &rendering{render: refusal(404, missing)}
				f.engine(t, "a:1", with.ServeHTTP)
				f.engine(t, "b:1", without.ServeHTTP)
				z := f.tokenizer(t, Options{Render: true})
				ask := func(addr, body string) Outcome {
					r, _ := z.Tokens(t.Context(), Call{Pool: "chat", Endpoint: addr, Model: "tiny", Request: parsed(t, c.path, body)})
					return r.Outcome
				}
				if o := ask("a:1", c.first); o != OK {
					t.Fatalf("first: %v", o)
				}
				if o := ask("a:1", c.then); (o == Cached) != c.shared {
					t.Errorf("then: %v, want shared %v", o, c.shared)
				}
				// The other way round, at an endpoint without render.
				z = f.tokenizer(t, Options{Render: true})
				if parsed(t, c.path, c.then).RenderOnly() {
					return
				}
				if o := ask("b:1", c.then); o != OK {
					t.Fatalf("without render: %v", o)
				}
				if o := ask("a:1", c.then); (o == Cached) != c.tokenize {
					t.Errorf("after /tokenize: %v, want shared %v", o, c.tokenize)
				}
				if o := ask("b:1", c.then); o != Cached {
					t.Errorf("again without render: %v", o)
				}
			})
		})
	}
}

func TestCallsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		var f fabric
		e := &rendering{render: refusal(403, disallowed)}
		f.engine(t, "a:1", e.ServeHTTP)
		z := f.tokenizer(t, Options{Render: true, Metrics: NewMetrics(reg)})
		for _, p := range []string{"one", "two", "two"} {
			if _, err := z.Tokens(t.Context(), call(t, "a:1", p)); err != nil {
				t.Fatal(err)
			}
		}
		want := `
# HELP kvsteer_tokenize_calls_total Calls of engines for token ids, by api (tokenize, render) and outcome; where a render endpoint is not_offered, /tokenize is asked as well.
# TYPE kvsteer_tokenize_calls_total counter
kvsteer_tokenize_calls_total{api="render",outcome="not_offered"} 1
kvsteer_tokenize_calls_total{api="tokenize",outcome="ok"} 2
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvsteer_tokenize_calls_total"); err != nil {
			t.Error(err)
		}
	})
}

// TestSGLang: its /tokenize reads one text, the newer ones messages too; it has no render endpoint.
func TestSGLang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sglang := func(messages bool) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				var body map[string]json.RawMessage
				_ = json.NewDecoder(r.Body).Decode(&body)
				switch {
				case r.URL.Path != "/tokenize":
					refusal(404, missing)(w, r)
				case body["messages"] != nil && !messages:
					refusal(422, `{"detail":[{"type":"missing","loc":["body","prompt"],"msg":"Field required"}]}`)(w, r)
				default:
					text(`{"tokens":[1,2,3],"count":3,"max_model_len":1000000000000000019884624838656}`)(w, r)
				}
			}
		}
		var f fabric
		f.engine(t, "old:1", sglang(false))
		f.engine(t, "new:1", sglang(true))
		z := f.tokenizer(t, Options{Render: true, CacheBytes: -1})
		const chat = `{"model":"tiny","messages":[{"role":"user","content":"c"}]}`
		for _, c := range []struct {
			name, endpoint, path, body string
			want                       Outcome
		}{
			{"text, old", "old:1", "/v1/completions", `{"model":"tiny","prompt":"p"}`, OK},
			{"text, new", "new:1", "/v1/completions", `{"model":"tiny","prompt":"p"}`, OK},
			{"chat, old", "old:1", "/v1/chat/completions", chat, Refused},
			{"chat, new", "new:1", "/v1/chat/completions", chat, OK},
		} {
			r, err := z.Tokens(t.Context(), Call{Pool: "chat", Endpoint: c.endpoint, Model: "tiny", Request: parsed(t, c.path, c.body)})
			if r.Outcome != c.want || r.MaxModelLen != 0 || (err == nil) != (len(r.Tokens) == 3) {
				t.Errorf("%s: %v with %v, %v", c.name, r.Outcome, r.Tokens, err)
			}
		}
	})
}
