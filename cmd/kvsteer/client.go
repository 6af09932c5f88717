package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
)

const (
	// callTimeout bounds a call of the admin listener. The listener itself gives up after 30 s.
	callTimeout = 40 * time.Second
	// maxAnswer bounds what is read of an answer: a bundle of the largest site is far smaller.
	maxAnswer = 256 << 20
)

// connection are the flags that say where a router's admin listener is. Flags go before what --config tells.
type connection struct {
	Admin     string `help:"URL of the router's admin listener; without --config http://127.0.0.1:9003." placeholder:"URL" group:"Where the router is:"`
	Config    string `help:"The router's configuration file, on its host: tells the URL, the token file and the certificate." placeholder:"FILE" type:"path" group:"Where the router is:"`
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
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	base, tokenFile := c.Admin, c.TokenFile
	if c.Config != "" {
		cfg, err := config.Load(c.Config)
		if err != nil {
			return nil, err
		}
		if base == "" {
			base = adminURL(cfg.Admin)
			if cfg.Admin.TLS.On() && c.CAFile == "" {
				if err := pin(secured, cfg.Admin.TLS.CertFile); err != nil {
					return nil, fmt.Errorf("admin.tls.cert_file of %s: %w", c.Config, err)
				}
			}
		}
		if tokenFile == "" {
			tokenFile = cfg.Admin.TokenFile
		}
	}
	if base == "" {
		base = "http://" + config.Default().Admin.Listen
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("--admin: %q is not http://HOST:PORT or https://HOST:PORT", base)
	}
	cl := &client{base: strings.TrimSuffix(base, "/")}
	if tokenFile != "" {
		if cl.token, err = oneWord(tokenFile); err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}
	}
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		secured.RootCAs = x509.NewCertPool()
		if !secured.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca-file: %s holds no certificate", c.CAFile)
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("--cert-file and --key-file are both needed for a client certificate")
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--cert-file: %w", err)
		}
		secured.Certificates = []tls.Certificate{pair}
	}
	cl.http = &http.Client{
		Timeout: callTimeout,
		// Nobody between us and the router gets to see the token: no proxy, and no other address that an answer names.
		Transport:     &http.Transport{TLSClientConfig: secured, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return cl, nil
}

// adminURL is where a router of this configuration is reached from its own host.
func adminURL(a config.Admin) string {
	scheme := "http://"
	if a.TLS.On() {
		scheme = "https://"
	}
	addr, err := netip.ParseAddrPort(a.Listen)
	switch {
	case err != nil || !addr.Addr().IsUnspecified():
		return scheme + a.Listen
	case addr.Addr().Is4():
		return fmt.Sprintf("%s127.0.0.1:%d", scheme, addr.Port())
	}
	return fmt.Sprintf("%s[::1]:%d", scheme, addr.Port())
}

// pin trusts the listener's own certificate, under the first of its names: on the router's host its file says more than any authority.
func pin(c *tls.Config, certFile string) error {
	text, err := os.ReadFile(certFile)
	if err != nil {
		return err
	}
	c.RootCAs = x509.NewCertPool()
	c.RootCAs.AppendCertsFromPEM(text)
	block, _ := pem.Decode(text)
	if block == nil {
		return fmt.Errorf("%s holds no certificate", certFile)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", certFile, err)
	}
	switch {
	case len(cert.DNSNames) > 0:
		c.ServerName = strings.Replace(cert.DNSNames[0], "*", "any", 1)
	case len(cert.IPAddresses) > 0:
		c.ServerName = cert.IPAddresses[0].String()
	}
	return nil
}

// oneWord reads a token file.
func oneWord(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	word := strings.TrimSpace(string(text))
	if word == "" || strings.ContainsAny(word, " \t\r\n\x00") {
		return "", fmt.Errorf("%s does not hold one word", path)
	}
	return word, nil
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
	return fmt.Errorf("no answer from a router at %s: %w%s", c.base, err, hint)
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
		return fmt.Errorf("%s: answers %s: is it a router's admin listener?", c.base, resp.Status)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s; --token-file or --config names it", said.Error)
	case len(said.Known) > 0:
		return fmt.Errorf("%s; there are %s", said.Error, strings.Join(said.Known, ", "))
	}
	return errors.New(said.Error)
}
