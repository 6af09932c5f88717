package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
)

const (
	// callTimeout bounds a call of the admin listener. The listener itself gives up after 30 s.
	callTimeout = 40 * time.Second
	// maxAnswer bounds what is read of an answer: a bundle of the largest site is far smaller.
	maxAnswer = 256 << 20
)

// connection are the flags that say where a router's admin listener is. Flags go before what --config tells.
type connection struct {
	Admin     string `help:"URL of the admin listener of a router or a node; without --config http://127.0.0.1:9003." placeholder:"URL" group:"Where the router is:"`
	Config    string `help:"Its configuration file, on its host: tells the URL, the token file and the certificate." placeholder:"FILE" type:"path" group:"Where the router is:"`
	TokenFile string `help:"File with the admin listener's token." placeholder:"FILE" type:"path" group:"Where the router is:"`
	CAFile    string `help:"PEM file with the authorities that its certificate is checked against; default: the system's." placeholder:"FILE" type:"path" group:"Where the router is:"`
	CertFile  string `help:"PEM file with a client certificate, where the listener wants one." placeholder:"FILE" type:"path" group:"Where the router is:"`
	KeyFile   string `help:"PEM file with the key of --cert-file." placeholder:"FILE" type:"path" group:"Where the router is:"`
}

// client calls an admin listener.
type client struct {
	base  string // URL without a slash at its end
	token string
	http  *http.Client
}

func (c connection) client() (*client, error) {
	secured, err := tlsfiles.Client(tlsfiles.ClientOptions{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile})
	if err != nil {
		return nil, fmt.Errorf("TLS to the admin listener: %w", err)
	}
	base, tokenFile := c.Admin, c.TokenFile
	if base != "" {
		if err := checkURL("--admin", base); err != nil {
			return nil, err
		}
	}
	if c.Config != "" {
		listener, err := adminOf(c.Config)
		if err != nil {
			return nil, err
		}
		if base == "" {
			if base = adminURL(listener.Listen, listener.TLS.On()); base == "" {
				return nil, fmt.Errorf("%s: admin.listen %q does not tell the port: --admin does", c.Config, listener.Listen)
			}
			if listener.TLS.On() && c.CAFile == "" {
				tlsfiles.Pin(secured, listener.TLS.CertFile)
			}
		}
		if tokenFile == "" {
			tokenFile = listener.TokenFile
		}
	}
	if base == "" {
		base = adminURL(config.Default().Admin.Listen, false)
	}
	cl := &client{base: strings.TrimSuffix(base, "/")}
	if tokenFile != "" {
		if cl.token, err = admin.ReadToken(tokenFile); err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}
	}
	cl.http = &http.Client{
		Timeout: callTimeout,
		// Nobody between us and the router gets to see the token: no proxy, and no other address that an answer names.
		Transport:     &http.Transport{TLSClientConfig: secured, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return cl, nil
}

// adminOf is the admin listener of a router's or a node's configuration.
func adminOf(path string) (config.Admin, error) {
	if config.IsNode(path) {
		cfg, err := config.LoadNode(path)
		if err != nil {
			return config.Admin{}, err
		}
		return config.Admin(cfg.Admin), nil
	}
	cfg, err := config.Load(path)
	if err != nil {
		return config.Admin{}, err
	}
	return cfg.Admin, nil
}

// call sends a request, with a body if there is one, and reads the answer into out.
func (c *client) call(ctx context.Context, method, path string, body, out any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if body == nil {
		text = nil
	}
	resp, err := c.send(ctx, method, path, text)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("%s%s: the answer is not what a router says: %w", c.base, path, err)
	}
	return nil
}

// send returns a good answer, whose body the caller closes, or says for people what is wrong.
func (c *client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreached(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.refused(resp)
}

// unreached explains a call without an answer.
func (c *client) unreached(err error) error {
	if e := new(url.Error); errors.As(err, &e) {
		err = e.Err
	}
	hint := ""
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		hint = "; --admin or --config tells where it is"
	case errors.As(err, new(x509.HostnameError)):
		hint = "; the URL has to name the router as its certificate does"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		hint = "; --ca-file names the authorities to trust"
	case errors.As(err, new(tls.RecordHeaderError)):
		hint = "; does the listener speak TLS? If not, the URL starts with http://"
	}
	return fmt.Errorf("no answer from a router or node at %s: %w%s", c.base, err, hint)
}

// refused explains an answer that is not the wanted one.
func (c *client) refused(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", c.base, err)
	}
	var said struct {
		Error string   `json:"error"`
		Known []string `json:"known"`
	}
	if json.Unmarshal(text, &said) != nil || said.Error == "" {
		if bytes.Contains(text, []byte("HTTP request to an HTTPS server")) {
			return fmt.Errorf("%s: the listener speaks TLS; the URL starts with https://", c.base)
		}
		return fmt.Errorf("%s: answers %s: is it the admin listener of a router or node?", c.base, resp.Status)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s; --token-file or --config names it", said.Error)
	case len(said.Known) > 0:
		return fmt.Errorf("%s; there are %s", said.Error, strings.Join(said.Known, ", "))
	}
	return errors.New(said.Error)
}
