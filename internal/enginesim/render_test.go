package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGoldenRender compares with what the real engine's render endpoints replied: the same status, and no key that is not there.
func TestGoldenRender(t *testing.T) {
	data, err := os.ReadFile("testdata/render.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]struct {
		Request struct {
			Path string
			Body json.RawMessage
		}
		Response struct {
			Status int
			Body   json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil || len(golden) < 6 {
		t.Fatalf("%d exchanges, %v", len(golden), err)
	}
	with, without := start(t, Options{Render: true, MaxModelLen: 2048}), start(t, Options{MaxModelLen: 2048})
	c := newClient(t)
	for name, g := range golden {
		t.Run(name, func(t *testing.T) {
			e := with
			if strings.HasSuffix(name, "without_flag") {
				e = without
			}
			status, body := postJSON(t, c, e, g.Request.Path, string(g.Request.Body))
			if status != g.Response.Status {
				t.Fatalf("status %d, want %d: %s", status, g.Response.Status, body)
			}
			want := shape(t, g.Response.Body)
			for _, key := range shape(t, body) {
				if !slices.Contains(want, key) {
					t.Errorf("key %q, which the engine has not", key)
				}
			}
			if name == "completions_render_without_flag" {
				if diff := cmp.Diff(decode(t, g.Response.Body), decode(t, body)); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func decode(t *testing.T, raw []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestRenderSaysWhatIsUsed compares rendered tokens with those of the request itself.
func TestRenderSaysWhatIsUsed(t *testing.T) {
	e := start(t, Options{Render: true})
	c := newClient(t)
	type rendered struct {
		TokenIDs []uint32 `json:"token_ids"`
		Salt     *string  `json:"cache_salt"`
	}
	for _, tc := range []struct{ name, path, body string }{
		{"text", "/v1/completions", `{"prompt":"One two three."}`},
		{"truncated", "/v1/completions", `{"prompt":"One two three.","truncate_prompt_tokens":2}`},
		{"ids", "/v1/completions", `{"prompt":[5,6,7],"cache_salt":"s"}`},
		{"several", "/v1/completions", `{"prompt":["One two.","three"],"n":2}`},
		{"chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"stream":false}`},
		{"chat with an effort", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"none","documents":[{"a":1}]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := postJSON(t, c, e, tc.path+"/render", tc.body[:len(tc.body)-1]+`,"return_mm_kwargs":false}`)
			if status != http.StatusOK {
				t.Fatalf("status %d: %s", status, body)
			}
			var list []rendered
			if strings.Contains(tc.path, "chat") {
				list = make([]rendered, 1)
				if err := json.Unmarshal(body, &list[0]); err != nil {
					t.Fatal(err)
				}
			} else if err := json.Unmarshal(body, &list); err != nil {
				t.Fatal(err)
			}
			_, used := postJSON(t, c, e, tc.path, tc.body[:len(tc.body)-1]+`,"return_token_ids":true,"max_tokens":1}`)
			var reply struct {
				PromptTokenIDs []uint32 `json:"prompt_token_ids"`
				Choices        []struct {
					PromptTokenIDs []uint32 `json:"prompt_token_ids"`
				}
			}
			if err := json.Unmarshal(used, &reply); err != nil {
				t.Fatal(err)
			}
			var want [][]uint32
			for _, choice := range reply.Choices {
				ids := choice.PromptTokenIDs
				if reply.PromptTokenIDs != nil {
					ids = reply.PromptTokenIDs
				}
				if len(want) == 0 || !slices.Equal(want[len(want)-1], ids) {
					want = append(want, ids)
				}
			}
			var got [][]uint32
			for _, r := range list {
				got = append(got, r.TokenIDs)
			}
			if diff := cmp.Diff(want, got); diff != "" || len(got[0]) == 0 {
				t.Errorf("-used +rendered:\n%s", diff)
			}
		})
	}
	for _, f := range []Format{Array, OldArray} {
		old := start(t, Options{Events: Events{Format: f}})
		if status, body := postJSON(t, c, old, "/v1/completions/render", `{"prompt":"x"}`); status != http.StatusNotFound {
			t.Errorf("%s: status %d: %s", f, status, body)
		}
	}
}

func TestAdaptersAtRuntime(t *testing.T) {
	e := start(t, Options{Adapters: []Adapter{{Name: "first", Path: "x"}}, APIKey: "k"})
	c := newClient(t)
	key := []string{"Authorization", "Bearer k"}
	served := func() (names []string) {
		for _, m := range e.models().Data {
			names = append(names, m.ID)
		}
		return names
	}
	for _, step := range []struct {
		name, call, body string
		status           int
		served           []string
	}{
		{"loaded", "load", `{"lora_name":"second","lora_path":"y"}`, 200, []string{"tiny", "first", "second"}},
		{"loaded twice", "load", `{"lora_name":"second","lora_path":"z"}`, 400, []string{"tiny", "first", "second"}},
		{"named as the model", "load", `{"lora_name":"tiny","lora_path":"z"}`, 400, []string{"tiny", "first", "second"}},
		{"no path", "load", `{"lora_name":"third"}`, 400, []string{"tiny", "first", "second"}},
		{"not JSON", "load", `x`, 400, []string{"tiny", "first", "second"}},
		{"unloaded", "unload", `{"lora_name":"first"}`, 200, []string{"tiny", "second"}},
		{"unloaded twice", "unload", `{"lora_name":"first"}`, 404, []string{"tiny", "second"}},
		{"no name", "unload", `{}`, 400, []string{"tiny", "second"}},
		{"loaded again", "load", `{"lora_name":"first","lora_path":"x"}`, 200, []string{"tiny", "second", "first"}},
	} {
		t.Run(step.name, func(t *testing.T) {
			path := fmt.Sprintf("/v1/%s_lora_adapter", step.call)
			if status, body := postJSON(t, c, e, path, step.body, key...); status != step.status {
				t.Errorf("status %d: %s", status, body)
			}
			if got := served(); !slices.Equal(got, step.served) {
				t.Errorf("served %q, want %q", got, step.served)
			}
		})
	}
	if status, _ := postJSON(t, c, e, "/v1/load_lora_adapter", `{"lora_name":"third","lora_path":"x"}`); status != http.StatusUnauthorized {
		t.Errorf("without the key: status %d", status)
	}
	for model, want := range map[string]int{"second": 200, "third": 404} {
		if status, body := postJSON(t, c, e, "/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":1}`, key...); status != want {
			t.Errorf("%s: status %d: %s", model, status, body)
		}
	}
	for i, a := range e.all() {
		if want := []int{2, 3}[i]; a.id != want {
			t.Errorf("adapter %q has id %d, want %d", a.name, a.id, want)
		}
	}
}

func TestSaltHeader(t *testing.T) {
	e := start(t, Options{SaltHeader: "x-cache-salt"})
	c := newClient(t)
	for _, step := range []struct {
		name, header, body string
		cached             int
	}{
		{"without", "", "", 0},
		{"a header", "a", "", 0},
		{"the same in the body", "", "a", 96},
		{"another body", "a", "b", 96},
		{"without again", "", "", 96},
	} {
		body := `{"max_tokens":1,"prompt":` + tokenList(100, 5)
		if step.body != "" {
			body += `,"cache_salt":"` + step.body + `"`
		}
		status, got := postJSON(t, c, e, "/v1/completions", body+"}", "X-Cache-Salt", step.header)
		if status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", step.name, status, got)
		}
		if n := decodeReply(t, got).Usage.Details.Cached; n != step.cached {
			t.Errorf("%s: %d tokens cached, want %d", step.name, n, step.cached)
		}
	}
}
