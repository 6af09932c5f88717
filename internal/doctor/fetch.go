package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
	"github.com/kvsteer/kvsteer/internal/watch"
)

// Bounds of what is read.
const (
	maxReply  = 4 << 20  // of an engine or the router
	maxDump   = 64 << 20 // of Envoy's configuration
	maxSecret = 64 << 10 // of a file with a key, a token or certificates
)

// client asks one kind of server.
type client struct {
	http    *http.Client
	timeout time.Duration
}

type clients struct{ engines, router, envoy client }

func (c *clients) close() {
	for _, one := range []client{c.engines, c.router, c.envoy} {
		one.http.CloseIdleConnections()
	}
}

func newClients(o Options) (clients, error) {
	var c clients
	newClient := func(t *tls.Config) client {
		return client{timeout: o.Timeout, http: &http.Client{
			Transport: &http.Transport{DialContext: o.Dial, TLSClientConfig: t, MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 2},
			// An answer from elsewhere says nothing about who was asked.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}
	}
	// TLS files that cannot be read are a finding of their own; without them the connections fail, which is one too.
	engines, err := engineTLS(o.Config.Engines.TLS)
	if err != nil {
		engines = nil
	}
	router, err := routerTLS(o)
	if err != nil {
		return c, err
	}
	c.engines, c.router, c.envoy = newClient(engines), newClient(router), newClient(nil)
	return c, nil
}

func engineTLS(t config.ClientTLS) (*tls.Config, error) {
	if !t.On() {
		return nil, nil
	}
	return tlsfiles.Client(tlsfiles.ClientOptions{CAFile: t.CAFile, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile})
}

// routerTLS trusts CAFile or, without one, the listener's own certificate as the configuration names it, whatever name stands in it.
func routerTLS(o Options) (*tls.Config, error) {
	c, err := tlsfiles.Client(tlsfiles.ClientOptions{CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile})
	if err != nil {
		return nil, fmt.Errorf("TLS to the admin listener: %w", err)
	}
	if own := o.Config.Admin.TLS.CertFile; o.CAFile == "" && own != "" {
		tlsfiles.Pin(c, own)
	}
	return c, nil
}

// get reads a URL, at most limit bytes of it.
func (c client) get(ctx context.Context, url, key string, limit int64) reply {
	return c.do(ctx, http.MethodGet, url, key, nil, limit)
}

func (c client) post(ctx context.Context, url, key string, body []byte) reply {
	return c.do(ctx, http.MethodPost, url, key, body, maxReply)
}

// reply is what one request brought. The zero reply was never asked for.
type reply struct {
	asked  bool
	status int
	body   []byte
	err    error // no answer, or not within the bounds
}

func (r reply) ok() bool { return r.err == nil && r.status == http.StatusOK }

// says is one line about a reply that is not ok. An engine may repeat a request in its errors, so no body is in it.
func (r reply) says() string {
	if r.err != nil {
		return r.err.Error()
	}
	return fmt.Sprintf("status %d", r.status)
}

func (r reply) tree() tree {
	if !r.ok() {
		return tree{}
	}
	t, err := parseTree(r.body)
	if err != nil {
		return tree{}
	}
	return t
}

func (c client) do(ctx context.Context, method, url, key string, body []byte, limit int64) reply {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %s", c.timeout))
	defer cancel()
	r := reply{asked: true}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		r.err = err
		return r
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		r.err = plainError(ctx, err)
		return r
	}
	defer resp.Body.Close()
	r.status = resp.StatusCode
	r.body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		r.err = plainError(ctx, err)
	case int64(len(r.body)) > limit:
		r.err = fmt.Errorf("the answer is longer than %d bytes", limit)
	}
	return r
}

// plainError leaves out the method and URL, which the finding names.
func plainError(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		if strings.HasPrefix(err.Error(), "Get ") || strings.HasPrefix(err.Error(), "Post ") {
			err = inner
		}
	}
	return err
}

// readSmall reads a file of at most maxSecret bytes.
func readSmall(path string) ([]byte, error) { return watch.ReadFile(path, maxSecret) }
