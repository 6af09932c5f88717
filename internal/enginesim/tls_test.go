package enginesim

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestTLS serves both protocols over TLS, and nobody in clear text.
func TestTLS(t *testing.T) {
	a, err := lab.NewAuthority(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile, err := a.Issue("engine", "engine.test")
	if err != nil {
		t.Fatal(err)
	}
	e := start(t, Options{CertFile: certFile, KeyFile: keyFile})
	text, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	for _, want := range []int{1, 2} {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "engine.test", MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: want == 2,
		}}
		resp, err := client.Get("https://" + e.Addr() + "/health")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		client.CloseIdleConnections()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != want {
			t.Errorf("status %d in HTTP/%d, want 200 in HTTP/%d", resp.StatusCode, resp.ProtoMajor, want)
		}
	}
	resp, err := http.Get("http://" + e.Addr() + "/health")
	if err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("clear text is served")
		}
	}
}

func TestTLSWithoutCertificate(t *testing.T) {
	e, err := New(Options{CertFile: "none.pem", KeyFile: "none.key"})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Run(t.Context()); err == nil {
		t.Error("an engine without its certificate serves")
	}
}
