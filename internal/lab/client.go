package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Message is one message of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ChatRequest is one turn of a conversation.
type ChatRequest struct {
	Model     string    `json:"model"`
	Messages  []Message `json:"messages"`
	MaxTokens int       `json:"max_tokens"`
	Salt      string    `json:"cache_salt,omitempty"`

	Temperature float64 `json:"temperature"` // 0 makes a real engine's answer repeatable
	IgnoreEOS   bool    `json:"ignore_eos,omitempty"`

	Host   string            `json:"-"` // Host header, "" for the URL's
	Path   string            `json:"-"` // default /v1/chat/completions
	Header map[string]string `json:"-"`
}

// Reply is what a client saw of one request.
type Reply struct {
	Err          error // transport error, or an answer cut short
	Status       int
	Body         string        // of an answer other than 200
	Text         string        // the assistant's answer
	TTFT         time.Duration // from sending the request to the first token
	Duration     time.Duration
	PromptTokens int
	CachedTokens int    // as the engine reports it
	RequestID    string // the id that Envoy gave the request: the engine's answer carries it
}

// OK reports whether the answer came whole.
func (r Reply) OK() bool { return r.Err == nil && r.Status == http.StatusOK }

// Client sends chat requests to one site.
type Client struct {
	URL    string
	HTTP   *http.Client
	Bearer string // token sent with each request, "" for none
}

// Client returns a client with its own connections.
func (s *Site) Client() *Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	if s.opt.HTTP2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	return &Client{URL: s.URL, HTTP: &http.Client{Transport: transport}, Bearer: s.opt.Bearer}
}

// Close drops the client's idle connections.
func (c *Client) Close() { c.HTTP.CloseIdleConnections() }

// Chat sends one turn, reads the streamed answer to its end and reports what came.
func (c *Client) Chat(ctx context.Context, r ChatRequest) Reply {
	body, err := json.Marshal(struct {
		ChatRequest
		Stream  bool            `json:"stream"`
		Options map[string]bool `json:"stream_options"`
	}{r, true, map[string]bool{"include_usage": true}})
	if err != nil {
		return Reply{Err: err}
	}
	path := r.Path
	if path == "" {
		path = "/v1/chat/completions"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return Reply{Err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	if c.Bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.Bearer)
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	req.Host = r.Host
	began := time.Now()
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return Reply{Err: err, Duration: time.Since(began)}
	}
	defer resp.Body.Close()
	reply := Reply{Status: resp.StatusCode}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		reply.Body = string(text)
	} else {
		reply.Err = reply.readStream(resp.Body, began)
	}
	reply.Duration = time.Since(began)
	return reply
}

// chunk is the part of a streamed answer that the client reads.
type chunk struct {
	ID      string          `json:"id"`
	Error   json.RawMessage `json:"error"` // an engine that fails after it began to answer says so in the stream
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens int `json:"prompt_tokens"`
		Details      *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

func (r *Reply) readStream(body io.Reader, began time.Time) error {
	var text strings.Builder
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 64<<10), 4<<20)
	done := false
	for lines.Scan() { // to the end of the body, for closing it before would end the connection, which Envoy takes for an abort
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			done = true
			continue
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("read answer: %w", err)
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return fmt.Errorf("read answer: the engine failed: %s", c.Error)
		}
		if r.RequestID == "" {
			r.RequestID = strings.TrimPrefix(c.ID, "chatcmpl-")
		}
		for _, choice := range c.Choices {
			if choice.Delta.Content != "" && r.TTFT == 0 {
				r.TTFT = time.Since(began)
			}
			text.WriteString(choice.Delta.Content)
		}
		if c.Usage != nil {
			r.PromptTokens = c.Usage.PromptTokens
			if c.Usage.Details != nil {
				r.CachedTokens = c.Usage.Details.CachedTokens
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if !done {
		return errors.New("read answer: it ended without [DONE]")
	}
	r.Text = text.String()
	return nil
}
