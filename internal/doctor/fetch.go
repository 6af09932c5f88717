package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
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
	roots, err := readCerts(t.CAFile)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{RootCAs: roots, ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// routerTLS trusts CAFile or, without one, the listener's own certificate as the configuration names it, whatever name stands in it.
func routerTLS(o Options) (*tls.Config, error) {
	if o.CAFile != "" {
		roots, err := readCerts(o.CAFile)
		if err != nil {
			return nil, err
		}
		return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
	}
	own := o.Config.Admin.TLS.CertFile
	if own == "" {
		return nil, nil
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // the next function checks instead: the certificate must be the one in the file
		VerifyConnection: func(s tls.ConnectionState) error {
			text, err := readSmall(own)
			if err != nil {
				return err
			}
			if leaf := firstCert(text); leaf == nil || !leaf.Equal(s.PeerCertificates[0]) {
				return fmt.Errorf("the certificate is not the one in %s", own)
			}
			return nil
		},
	}, nil
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
func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > maxSecret {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, maxSecret)
	}
	return os.ReadFile(path)
}

func readCerts(path string) (*x509.CertPool, error) {
	text, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM form", path)
	}
	return pool, nil
}
