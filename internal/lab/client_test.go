package lab

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A stream as engines send it, event by event.
const (
	sseRole  = `data: {"id":"chatcmpl-r1","choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	sseHello = `data: {"id":"chatcmpl-r1","choices":[{"delta":{"content":"Hello"}}]}` + "\n\n"
	sseWorld = `data: {"id":"chatcmpl-r1","choices":[{"delta":{"content":" world"}}]}` + "\n\n"
	sseUsage = `data: {"id":"chatcmpl-r1","choices":[],"usage":{"prompt_tokens":130,"prompt_tokens_details":{"cached_tokens":128}}}` + "\n\n"
	sseDone  = "data: [DONE]\n\n"
)

func TestReadStream(t *testing.T) {
	whole := Reply{Text: "Hello world", PromptTokens: 130, CachedTokens: 128, RequestID: "r1"}
	for _, tt := range []struct {
		name, body string
		want       Reply
		err        string
	}{
		{"whole", sseRole + sseHello + sseWorld + sseUsage + sseDone, whole, ""},
		{"comments and other fields", ": ping\n\nevent: x\n" + sseRole + sseHello + sseWorld + sseUsage + sseDone, whole, ""},
		{"carriage returns", strings.ReplaceAll(sseHello+sseDone, "\n", "\r\n"), Reply{Text: "Hello", RequestID: "r1"}, ""},
		{"no usage", sseHello + sseDone, Reply{Text: "Hello", RequestID: "r1"}, ""},
		{"usage without details", `data: {"usage":{"prompt_tokens":7}}` + "\n\n" + sseDone, Reply{PromptTokens: 7}, ""},
		{"empty answer", sseDone, Reply{}, ""},
		{"nothing", "", Reply{}, "without [DONE]"},
		{"cut short", sseRole + sseHello, Reply{RequestID: "r1"}, "without [DONE]"},
		{"not JSON", sseHello + "data: {\n\n" + sseDone, Reply{RequestID: "r1"}, "read answer"},
		{"an error in the stream", sseHello + `data: {"error":{"message":"out of memory","code":500}}` + "\n\n" + sseDone, Reply{RequestID: "r1"}, "out of memory"},
		{"a line beyond the limit", "data: " + strings.Repeat("x", 5<<20), Reply{}, "too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got Reply
			err := got.readStream(strings.NewReader(tt.body), time.Now())
			switch {
			case tt.err == "" && err != nil:
				t.Fatal(err)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Fatalf("error %v, want one with %q", err, tt.err)
			}
			if (got.TTFT > 0) != strings.Contains(tt.body, "Hello") {
				t.Errorf("TTFT %v", got.TTFT)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Reply{}, "TTFT")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestChat(t *testing.T) {
	type seen struct {
		Method, Path, Host, Type, Extra string
		Body                            map[string]any
	}
	var last seen
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last = seen{Method: r.Method, Path: r.URL.Path, Host: r.Host, Type: r.Header.Get("Content-Type"), Extra: r.Header.Get("X-Extra")}
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &last.Body)
		switch r.URL.Path {
		case "/refused":
			http.Error(w, "no such model", http.StatusNotFound)
		case "/cut":
			_, _ = io.WriteString(w, sseHello)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			_, _ = io.WriteString(w, sseHello+sseUsage+sseDone)
		}
	}))
	defer server.Close()
	client := (&Site{URL: server.URL}).Client()
	defer client.Close()

	got := client.Chat(t.Context(), ChatRequest{
		Model: "sim", Messages: []Message{{"user", "Hi"}}, MaxTokens: 5, Host: "a.test", Header: map[string]string{"X-Extra": "1"},
	})
	if !got.OK() || got.Text != "Hello" || got.CachedTokens != 128 || got.TTFT <= 0 || got.Duration < got.TTFT {
		t.Errorf("reply %+v", got)
	}
	want := seen{http.MethodPost, "/v1/chat/completions", "a.test", "application/json", "1", map[string]any{
		"model": "sim", "messages": []any{map[string]any{"role": "user", "content": "Hi"}}, "max_tokens": 5.0,
		"stream": true, "stream_options": map[string]any{"include_usage": true},
	}}
	// What only steers a real engine's answer does not matter here.
	ignoreMore := cmpopts.IgnoreMapEntries(func(key string, _ any) bool { return key == "temperature" })
	if diff := cmp.Diff(want, last, ignoreMore); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}

	got = client.Chat(t.Context(), ChatRequest{Model: "other", Path: "/refused", Salt: "s"})
	if got.OK() || got.Err != nil || got.Status != http.StatusNotFound || !strings.Contains(got.Body, "no such model") {
		t.Errorf("refused: %+v", got)
	}
	if last.Body["cache_salt"] != "s" {
		t.Errorf("body %v lacks the salt", last.Body)
	}
	if got = client.Chat(t.Context(), ChatRequest{Path: "/cut"}); got.OK() || !errors.Is(got.Err, io.ErrUnexpectedEOF) {
		t.Errorf("cut short: %+v", got)
	}
	server.Close()
	if got = client.Chat(t.Context(), ChatRequest{}); got.OK() || got.Err == nil || got.Status != 0 {
		t.Errorf("nobody there: %+v", got)
	}
	if got = (&Client{URL: "http://bad host", HTTP: client.HTTP}).Chat(t.Context(), ChatRequest{}); got.Err == nil {
		t.Error("a bad URL gives no error")
	}
}
