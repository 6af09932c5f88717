package envoy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kvsteer/kvsteer/internal/lab"
)

func authority(t testing.TB, dir, name string) *lab.Authority {
	t.Helper()
	a, err := lab.NewAuthority(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// issue gives a certificate and its files.
func issue(t testing.TB, a *lab.Authority, name string, hosts ...string) (cert tls.Certificate, certFile, keyFile string) {
	t.Helper()
	certFile, keyFile, err := a.Issue(name, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	cert, err = tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return cert, certFile, keyFile
}

// mutual is a server's side that wants a certificate of the authority.
func mutual(t testing.TB, a *lab.Authority, cert tls.Certificate) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(text)
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
}

// startTLSEngine speaks HTTP/1.1 or HTTP/2, and only that, to clients of the authority.
func startTLSEngine(t testing.TB, name string, config *tls.Config, http2 bool) *engine {
	t.Helper()
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetHTTP2(http2)
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	if http2 {
		config.NextProtos = []string{"h2"}
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	return serveEngine(t, name, l, p)
}

// TestTLS has a router and engines that refuse clear text, strangers and, on one side each, the other protocol.
func TestTLS(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
				dir := t.TempDir()
				a := authority(t, dir, "ca")
				routerCert, _, _ := issue(t, a, "router", "router.test")
				engineCert, _, _ := issue(t, a, "engine", "engine.test")
				_, certFile, keyFile := issue(t, a, "envoy", "envoy.test")
				router := startStub(t, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(mutual(t, a, routerCert))))
				one, two := startTLSEngine(t, "one", mutual(t, a, engineCert), http2), startTLSEngine(t, "two", mutual(t, a, engineCert), http2)
				o := Options{
					Routers: []string{router.addr}, MessageTimeout: 20 * time.Second, EngineHTTP2: http2,
					RouterTLS: TLS{CAFile: a.File, ServerName: "router.test", CertFile: certFile, KeyFile: keyFile},
					EngineTLS: TLS{CAFile: a.File, ServerName: "engine.test", CertFile: certFile, KeyFile: keyFile},
					Pools:     []Pool{{Name: "chat", Endpoints: []string{one.addr, two.addr}}},
				}
				p := startEnvoy(t, s, o)
				for range 4 {
					router.decide(two.addr, one.addr)
					p.want(t, call{}, 200, "two")
					router.decide(one.addr, "")
					p.want(t, call{body: make([]byte, 1<<20)}, 200, "one")
				}
				p.want(t, call{method: http.MethodGet, path: "/v1/models"}, 200, "")
				two.stop()
				router.decide(two.addr, one.addr)
				p.want(t, call{}, 200, "one")
				router.grpc.Stop()
				p.want(t, call{}, 200, "one")

				want := "HTTP/1.1"
				if http2 {
					want = "HTTP/2.0"
				}
				for _, r := range append(one.requests(), two.requests()...) {
					if r.server != "engine.test" || r.protocol != want {
						t.Errorf("an engine sees the server name %q and %s", r.server, r.protocol)
					}
				}
				if n := p.stat(t, "http.kvsteer.ext_proc.streams_started"); n != 10 {
					t.Errorf("%d streams to the router, want 10", n)
				}
			})
		}
	})
}

// TestHTTP2WithoutTLS speaks to engines by prior knowledge.
func TestHTTP2WithoutTLS(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		p := new(http.Protocols)
		p.SetUnencryptedHTTP2(true)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		e := serveEngine(t, "h2c", l, p)
		router := startStub(t, "127.0.0.1:0")
		envoy := startEnvoy(t, s, Options{
			Routers: []string{router.addr}, MessageTimeout: 20 * time.Second, EngineHTTP2: true,
			Pools: []Pool{{Name: "chat", Endpoints: []string{e.addr}}},
		})
		router.decide(e.addr, "")
		envoy.want(t, call{}, 200, "h2c")
		router.decide("", "")
		envoy.want(t, call{}, 200, "h2c")
		for _, r := range e.requests() {
			if r.protocol != "HTTP/2.0" {
				t.Errorf("the engine is spoken to in %s", r.protocol)
			}
		}
	})
}

// TestWrongCertificates has servers that the configuration must not trust: of another authority, and of another name.
func TestWrongCertificates(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		dir := t.TempDir()
		a, other := authority(t, dir, "ca"), authority(t, dir, "other")
		good, _, _ := issue(t, a, "good", "engine.test")
		otherName, _, _ := issue(t, a, "name", "other.test")
		otherCA, _, _ := issue(t, other, "stranger", "engine.test")
		serve := func(name string, c tls.Certificate) *engine {
			return startTLSEngine(t, name, &tls.Config{Certificates: []tls.Certificate{c}, MinVersion: tls.VersionTLS12}, false)
		}
		right, wrongName, wrongCA := serve("right", good), serve("name", otherName), serve("authority", otherCA)
		router := startStub(t, "127.0.0.1:0")
		p := startEnvoy(t, s, Options{
			Routers: []string{router.addr}, MessageTimeout: 20 * time.Second, EngineTLS: TLS{CAFile: a.File, ServerName: "engine.test"},
			Pools: []Pool{{Name: "chat", Endpoints: []string{right.addr, wrongName.addr, wrongCA.addr}}},
		})
		for _, wrong := range []*engine{wrongName, wrongCA} {
			router.decide(wrong.addr, right.addr)
			for range 4 {
				p.want(t, call{}, 200, "right") // the handshake fails, which is a failure to connect
			}
			if n := len(wrong.requests()); n != 0 {
				t.Errorf("engine %s got %d requests", wrong.name, n)
			}
		}

		// A router that cannot show its name is asked nothing.
		imposter := startStub(t, "127.0.0.1:0", grpc.Creds(credentials.NewServerTLSFromCert(&otherName)))
		p = startEnvoy(t, s, Options{
			Routers: []string{imposter.addr}, MessageTimeout: 20 * time.Second, RouterTLS: TLS{CAFile: a.File, ServerName: "router.test"},
			EngineTLS: TLS{CAFile: a.File, ServerName: "engine.test"}, Pools: []Pool{{Name: "chat", Endpoints: []string{right.addr}}},
		})
		p.want(t, call{}, 200, "right")
		if n := len(imposter.asked()); n != 0 {
			t.Errorf("the imposter was asked %d times", n)
		}
	})
}

// TestCertificatesAreReplaced changes every file under a running Envoy: authority, client certificate and key.
func TestCertificatesAreReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		dir := t.TempDir()
		live := filepath.Join(dir, "live")
		if err := os.Mkdir(live, 0o755); err != nil {
			t.Fatal(err)
		}
		before, after := authority(t, dir, "before"), authority(t, dir, "after")
		inUse := TLS{CAFile: filepath.Join(live, "ca.pem"), ServerName: "engine.test", CertFile: filepath.Join(live, "envoy.pem"), KeyFile: filepath.Join(live, "envoy.key")}
		use := func(a *lab.Authority) {
			t.Helper()
			_, certFile, keyFile := issue(t, a, "envoy", "envoy.test")
			for from, to := range map[string]string{a.File: inUse.CAFile, certFile: inUse.CertFile, keyFile: inUse.KeyFile} {
				text, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(to+".new", text, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(to+".new", to); err != nil {
					t.Fatal(err)
				}
			}
		}
		use(before)
		oldCert, _, _ := issue(t, before, "old", "engine.test")
		newCert, _, _ := issue(t, after, "new", "engine.test")
		old, fresh := startTLSEngine(t, "old", mutual(t, before, oldCert), false), startTLSEngine(t, "fresh", mutual(t, after, newCert), false)
		router := startStub(t, "127.0.0.1:0")
		o := Options{
			Routers: []string{router.addr}, MessageTimeout: 20 * time.Second, EngineTLS: inUse, SecretsDir: filepath.Join(dir, "secrets"),
			Pools: []Pool{{Name: "chat", Endpoints: []string{old.addr, fresh.addr}}},
		}
		writeSecrets(t, o)
		p := startEnvoy(t, s, o)
		router.decide(old.addr, "")
		p.want(t, call{}, 200, "old")
		router.decide(fresh.addr, "")
		eventually(t, "health checks see that only the old one is trusted", func() error {
			if got := p.do(t, call{}); got.code != 200 || got.body != "old" {
				return fmt.Errorf("%d %q", got.code, got.body)
			}
			return nil
		})

		use(after)
		eventually(t, "the new files are in use", func() error {
			if got := p.do(t, call{}); got.code != 200 || got.body != "fresh" {
				return fmt.Errorf("%d %q", got.code, got.body)
			}
			return nil
		})
		p.want(t, call{}, 200, "fresh")
	})
}

func writeSecrets(t testing.TB, o Options) {
	t.Helper()
	files, err := Secrets(o)
	if err != nil || len(files) == 0 {
		t.Fatalf("%d secrets: %v", len(files), err)
	}
	if err := os.MkdirAll(o.SecretsDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.Contains(string(f.Text), "PRIVATE KEY") {
			t.Errorf("%s holds a key", f.Name)
		}
		if err := os.WriteFile(filepath.Join(o.SecretsDir, f.Name), f.Text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
