package tokenize

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/openai"
)

const (
	// idleTimeout stays below the 5 s after which uvicorn closes an idle connection.
	idleTimeout = 3 * time.Second
	// replySlack is what a reply may take besides its token ids. An id takes at most replyToken bytes: ten digits, comma, space.
	replySlack = 64 << 10
	replyToken = 12
	// keptBuffer is the largest buffer that is kept for the next reply or body.
	keptBuffer = 1 << 20
	// drained is how much of an error's body is read so that its connection can be reused.
	drained = 16 << 10
)

// client makes single calls of /tokenize.
type client struct {
	maxTokens int
	scheme    string
	reused    *http.Transport // keeps connections
	fresh     *http.Transport // dials for each call
	buffers   sync.Pool       // of *bytes.Buffer, for replies
}

func newClient(o Options) *client {
	dialer := &net.Dialer{Timeout: o.Timeout, KeepAlive: -1}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!o.HTTP2)
	protocols.SetHTTP2(o.HTTP2)
	protocols.SetUnencryptedHTTP2(o.HTTP2)
	transport := func() *http.Transport {
		return &http.Transport{
			// No proxy: endpoints are addresses of the own network.
			DialContext:            dialer.DialContext,
			DialTLSContext:         o.DialTLS,
			Protocols:              protocols,
			MaxIdleConns:           4 * o.Concurrency,
			MaxIdleConnsPerHost:    o.Concurrency,
			IdleConnTimeout:        idleTimeout,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		}
	}
	c := &client{maxTokens: o.MaxTokens, scheme: "http", reused: transport(), fresh: transport()}
	if o.DialTLS != nil {
		c.scheme = "https"
	}
	c.fresh.DisableKeepAlives = true
	c.buffers.New = func() any { return new(bytes.Buffer) }
	return c
}

func (c *client) close() {
	c.reused.CloseIdleConnections()
	c.fresh.CloseIdleConnections()
}

// answer is what one call came to.
type answer struct {
	reply     openai.Reply
	outcome   Outcome
	status    int
	connected bool // a connection to the endpoint stood
	err       error
}

// post makes the call, a second time on a fresh connection when a kept one turned out dead.
func (c *client) post(ctx context.Context, endpoint, apiKey string, body []byte) answer {
	a, dead := c.try(ctx, c.reused, endpoint, apiKey, body)
	if dead && ctx.Err() == nil {
		a, _ = c.try(ctx, c.fresh, endpoint, apiKey, body)
	}
	return a
}

// try makes one attempt. dead reports that it failed on a kept connection before any answer.
func (c *client) try(ctx context.Context, via *http.Transport, endpoint, apiKey string, body []byte) (a answer, dead bool) {
	var kept bool
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { a.connected, kept = true, i.Reused }}
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           &url.URL{Scheme: c.scheme, Host: endpoint, Path: "/tokenize"},
		Header:        http.Header{"Content-Type": {"application/json"}, "User-Agent": {"kvsteer"}},
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
	}).WithContext(httptrace.WithClientTrace(ctx, trace))
	if apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+apiKey)
	}
	// RoundTrip, not a Client: no redirects, no cookies.
	resp, err := via.RoundTrip(req)
	if err != nil {
		a.outcome, a.err = Unreachable, err
		return a, kept
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	switch {
	case resp.StatusCode == http.StatusOK:
		a.reply, a.outcome, a.err = c.read(resp.Body)
		return a, false
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		a.outcome = Refused
	default:
		a.outcome = Failed
	}
	_, _ = io.CopyN(io.Discard, resp.Body, drained)
	return a, false
}

// read reads a reply to its end, so that its connection can be reused.
func (c *client) read(body io.Reader) (openai.Reply, Outcome, error) {
	buf := c.buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= keptBuffer {
			buf.Reset()
			c.buffers.Put(buf)
		}
	}()
	limit := int64(c.maxTokens)*replyToken + replySlack
	n, err := buf.ReadFrom(io.LimitReader(body, limit+1))
	switch {
	case err != nil:
		return openai.Reply{}, BadReply, fmt.Errorf("read reply: %w", err)
	case n > limit:
		return openai.Reply{}, TooLong, nil
	}
	reply, err := openai.ReadTokens(buf.Bytes(), c.maxTokens)
	switch {
	case errors.Is(err, openai.ErrReplyLong):
		return openai.Reply{}, TooLong, nil
	case err != nil:
		return openai.Reply{}, BadReply, err
	}
	return reply, OK, nil
}
