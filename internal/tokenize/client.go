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

// client makes single calls of an engine's APIs.
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
	rendered  bool // by the render endpoint
	whole     bool // the reply was read to its end
	noModel   bool // the refusal is about the model
	err       error
}

// request is one call.
type request struct {
	api      API
	endpoint string
	path     string
	apiKey   string
	body     []byte
}

// post makes the call, a second time on a fresh connection when a kept one turned out dead.
func (c *client) post(ctx context.Context, r request) answer {
	a, dead := c.try(ctx, c.reused, r)
	if dead && ctx.Err() == nil {
		a, _ = c.try(ctx, c.fresh, r)
	}
	a.rendered = r.api == APIRender
	return a
}

// try makes one attempt. dead reports that it failed on a kept connection before any answer.
func (c *client) try(ctx context.Context, via *http.Transport, r request) (a answer, dead bool) {
	var kept bool
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { a.connected, kept = true, i.Reused }}
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           &url.URL{Scheme: c.scheme, Host: r.endpoint, Path: r.path},
		Header:        http.Header{"Content-Type": {"application/json"}, "User-Agent": {"kvsteer"}},
		Body:          io.NopCloser(bytes.NewReader(r.body)),
		ContentLength: int64(len(r.body)),
	}).WithContext(httptrace.WithClientTrace(ctx, trace))
	if r.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+r.apiKey)
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
		c.read(resp.Body, r, &a)
		return a, false
	case resp.StatusCode == http.StatusNotFound && r.api == APIRender:
		a.outcome = Refused
		text, _ := io.ReadAll(io.LimitReader(resp.Body, drained))
		a.noModel = aboutModel(text)
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
func (c *client) read(body io.Reader, r request, a *answer) {
	buf := c.buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= keptBuffer {
			buf.Reset()
			c.buffers.Put(buf)
		}
	}()
	limit := int64(c.maxTokens)*replyToken + replySlack
	read := openai.ReadTokens
	if r.api == APIRender {
		read = openai.ReadRender
		limit += 2 * int64(len(r.body)) // it repeats sampling parameters, of which some are schemas or long lists
	}
	n, err := buf.ReadFrom(io.LimitReader(body, limit+1))
	switch {
	case err != nil:
		a.outcome, a.err = BadReply, fmt.Errorf("read reply: %w", err)
		return
	case n > limit:
		a.outcome = TooLong
		return
	}
	a.whole = true
	a.reply, err = read(buf.Bytes(), c.maxTokens)
	switch {
	case errors.Is(err, openai.ErrReplyLong):
		a.outcome = TooLong
	case err != nil:
		a.outcome, a.err = BadReply, err
	case a.reply.Features:
		a.outcome = Multimodal
	default:
		a.outcome = OK
	}
}
