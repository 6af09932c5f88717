package enginesim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// start runs an engine until the test ends. The client keeps no idle connections, so that no goroutine outlives the test.
func start(t *testing.T, o Options) *Engine {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	stop := runEngine(t, e)
	t.Cleanup(stop)
	return e
}

// runEngine starts an engine and returns the function that stops it.
func runEngine(t *testing.T, e *Engine) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	select {
	case <-e.Ready():
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func newClient(t *testing.T) *http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// post sends JSON and returns status and body.
func postJSON(t *testing.T, c *http.Client, e *Engine, path, body string, header ...string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+e.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b
}

func getBody(t *testing.T, c *http.Client, e *Engine, path string) (int, string) {
	t.Helper()
	resp, err := c.Get("http://" + e.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// reply is what tests read of both kinds of replies and chunks.
type reply struct {
	Model   string
	Choices []struct {
		Text    string
		Message struct{ Role, Content string }
		Delta   struct {
			Role    string
			Content *string
		}
		FinishReason   string   `json:"finish_reason"`
		TokenIDs       []uint32 `json:"token_ids"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	}
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	Usage          *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		TotalTokens      int `json:"total_tokens"`
		Details          struct {
			Cached  int  `json:"cached_tokens"`
			Created *int `json:"created_cache_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error struct {
		Message, Type string
		Param         *string
		Code          int
	}
}

func decodeReply(t *testing.T, b []byte) reply {
	t.Helper()
	var r reply
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return r
}

// events splits a stream into its chunks and wants the end mark to be the last.
func sseChunks(t *testing.T, body []byte) []reply {
	t.Helper()
	var out []reply
	done := false
	sc := bufio.NewScanner(bytes.NewReader(body))
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		switch {
		case sc.Text() == "" && !done:
		case sc.Text() == "":
			return out
		case !ok || done:
			t.Fatalf("unexpected line %q", sc.Text())
		case data == "[DONE]":
			done = true
		default:
			out = append(out, decodeReply(t, []byte(data)))
		}
	}
	t.Fatalf("stream without end: %s", body)
	return nil
}

// eventually polls a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
		<-tick.C
	}
}
