package eventsources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// path is where vLLM tells of its publishers.
const path = "/kv_event_sources"

// maxReply bounds a reply in bytes: 64 ranks take about 20 KiB.
const maxReply = 128 << 10

// ErrNotOffered says that the engine does not tell of its publishers, as vLLM before 0.31.
var ErrNotOffered = errors.New("engine does not offer " + path)

// Options of a Client. The zero value works.
type Options struct {
	// Timeout bounds one question, connecting included. Default 1 s.
	Timeout time.Duration
	// DialTLS connects to engines that speak TLS; nil stands for clear text.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// HTTP2 speaks HTTP/2, without DialTLS by prior knowledge.
	HTTP2 bool
}

// Client asks engines.
type Client struct {
	http    *http.Client
	scheme  string
	timeout time.Duration
}

// New makes a Client. Its requests follow no redirects, use no proxy and leave no connection open.
func New(o Options) *Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!o.HTTP2)
	protocols.SetHTTP2(o.HTTP2)
	protocols.SetUnencryptedHTTP2(o.HTTP2)
	c := &Client{scheme: "http", timeout: o.Timeout, http: &http.Client{
		Transport: &http.Transport{
			DialTLSContext: o.DialTLS, Protocols: protocols, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if o.DialTLS != nil {
		c.scheme = "https"
	}
	if c.timeout == 0 {
		c.timeout = time.Second
	}
	return c
}

// Ask returns the ranks of the engine at ip:port, by their number; there is at least one. The error is ErrNotOffered when the engine does not know the
// question; any other one may be another at the next try.
func (c *Client) Ask(ctx context.Context, endpoint string) ([]Rank, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.scheme+"://"+endpoint+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return nil, ErrNotOffered
	default:
		return nil, fmt.Errorf("GET %s: status %d", path, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if len(body) > maxReply {
		return nil, fmt.Errorf("GET %s: reply of more than %d bytes", path, maxReply)
	}
	ranks, err := parse(body)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return ranks, nil
}
