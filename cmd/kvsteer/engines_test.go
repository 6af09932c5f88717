package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/logtest"
	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/tokenize"
)

// startSecureEngine answers health checks and /tokenize over TLS to clients with a certificate of the authority.
func startSecureEngine(t *testing.T, a *lab.Authority, name string, http2 bool) (address string, probes *atomic.Int64) {
	t.Helper()
	probes = new(atomic.Int64)
	certFile, keyFile, err := a.Issue("engine", name)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(text)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(!http2)
	server.Protocols.SetHTTP2(http2)
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			probes.Add(1)
		case "/tokenize":
			_, _ = fmt.Fprintf(w, `{"tokens":[1,2,3],"count":3,"max_model_len":100}`)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeTLS(l, "", "")
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return l.Addr().String(), probes
}

// TestEnginesOverTLS probes an engine and asks it for tokens.
func TestEnginesOverTLS(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			dir := t.TempDir()
			a, err := lab.NewAuthority(dir, "ca")
			if err != nil {
				t.Fatal(err)
			}
			certFile, keyFile, err := a.Issue("router", "router.test")
			if err != nil {
				t.Fatal(err)
			}
			good, probes := startSecureEngine(t, a, "engine.test", http2)
			bad, _ := startSecureEngine(t, a, "other.test", http2)
			d, err := newDialTLS("engines.tls", config.ClientTLS{CAFile: a.File, ServerName: "engine.test", CertFile: certFile, KeyFile: keyFile}, map[bool]string{false: "http/1.1", true: "h2"}[http2], slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			dial := d.dialer()

			z, err := tokenize.New(tokenize.Options{Timeout: 10 * time.Second, DialTLS: dial, HTTP2: http2})
			if err != nil {
				t.Fatal(err)
			}
			defer z.Close()
			for address, want := range map[string]tokenize.Outcome{good: tokenize.OK, bad: tokenize.Unreachable} {
				r := openai.Parse(openai.Meta{Method: "POST", Path: "/v1/completions"}, []byte(`{"model":"m","prompt":"one two"}`), openai.Limits{})
				got, err := z.Tokens(t.Context(), tokenize.Call{Pool: address, Endpoint: address, Model: "m", Request: &r})
				if got.Outcome != want {
					t.Errorf("tokens: outcome %v, %v; want %v", got.Outcome, err, want)
				}
			}

			set, err := pool.New(pool.Options{
				Pools:         []pool.Config{{Name: "chat", Models: []string{"m"}, Endpoints: []string{good, bad}}},
				ProbeInterval: 20 * time.Millisecond, ProbeTimeout: 10 * time.Second, DialTLS: dial, HTTP2: http2,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = set.Run(ctx)
			}()
			defer func() { stop(); <-done }()
			up := func(i int) bool { return set.Pools()[0].Endpoints()[i].Healthy() }
			deadline := time.Now().Add(20 * time.Second)
			for tick := time.Tick(5 * time.Millisecond); probes.Load() < 3 || up(1); <-tick {
				if time.Now().After(deadline) {
					t.Fatalf("%d probes of the good engine, the bad one up: %v", probes.Load(), up(1))
				}
			}
			if !up(0) {
				t.Error("the good engine is down")
			}
		})
	}
}

func sizeOf(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// TestEngineDialer has it follow files that change, and keep what it has when they break.
func TestEngineDialer(t *testing.T) {
	dir := t.TempDir()
	before, err := lab.NewAuthority(dir, "before")
	if err != nil {
		t.Fatal(err)
	}
	after, err := lab.NewAuthority(dir, "after")
	if err != nil {
		t.Fatal(err)
	}
	ca, clientCert, clientKey := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	use := func(a *lab.Authority, at time.Time) {
		t.Helper()
		text, err := os.ReadFile(a.File)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(ca, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := a.Issue("client", "client.test"); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(ca, at, at); err != nil { // a clock of seconds would not tell the two apart
			t.Fatal(err)
		}
	}
	use(before, time.Unix(1, 0))
	files := config.ClientTLS{CAFile: ca, ServerName: "engine.test", CertFile: clientCert, KeyFile: clientKey}
	log := new(logtest.Buffer)
	d, err := newDialTLS("engines.tls", files, "http/1.1", slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	dial := d.dialer()
	old, _ := startSecureEngine(t, before, "engine.test", false)
	fresh, _ := startSecureEngine(t, after, "engine.test", false)
	connects := func(address string) error {
		c, err := dial(t.Context(), "tcp", address)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	if err := connects(old); err != nil {
		t.Error(err)
	}
	if connects(fresh) == nil {
		t.Error("an authority that is not configured is trusted")
	}
	use(after, time.Unix(2, 0))
	if err := connects(fresh); err != nil {
		t.Errorf("after the files changed: %v", err)
	}
	if err := os.WriteFile(ca, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := connects(fresh); err != nil {
			t.Errorf("after a file broke: %v", err)
		}
	}
	if n := strings.Count(log.String(), "are refused; the old ones stay in use"); n != 1 {
		t.Errorf("a broken file is said %d times, want once:\n%s", n, log)
	}
	// A file of the same size and time is read again when that is asked for.
	at := time.Unix(3, 0)
	use(after, at)
	if err := connects(fresh); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(ca, []byte(strings.Repeat("x", sizeOf(t, ca))), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(ca, at, at); err != nil {
		t.Fatal(err)
	}
	d.reload()
	if n := strings.Count(log.String(), "are refused; the old ones stay in use"); n != 2 {
		t.Errorf("said %d times, want twice:\n%s", n, log)
	}
	if none, err := newDialTLS("engines.tls", config.ClientTLS{}, "h2", nil); none.dialer() != nil || err != nil {
		t.Errorf("clear text: %v", err)
	}
	for name, bad := range map[string]config.ClientTLS{
		"no such file":        {CAFile: filepath.Join(dir, "none"), ServerName: "a"},
		"no certificate":      {CAFile: ca, ServerName: "a"},
		"key of another cert": {CAFile: before.File, ServerName: "a", CertFile: before.File, KeyFile: clientKey},
	} {
		if _, err := newDialTLS("engines.tls", bad, "http/1.1", nil); err == nil || !strings.HasPrefix(err.Error(), "engines.tls.") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
