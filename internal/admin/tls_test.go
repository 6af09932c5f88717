package admin

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"testing"

	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
)

func TestTLS(t *testing.T) {
	a, err := lab.NewAuthority(t.TempDir(), "test")
	check(t, err)
	certFile, keyFile, err := a.Issue("admin", "127.0.0.1")
	check(t, err)
	files, err := tlsfiles.New(tlsfiles.Options{Listener: "admin", Key: "admin.tls", CertFile: certFile, KeyFile: keyFile, Protocols: []string{"http/1.1"}})
	check(t, err)
	authority, err := os.ReadFile(a.File)
	check(t, err)
	o := withToken(t, options(newFleet()), secret)
	o.TLS = files.Config()
	s, err := New(o)
	check(t, err)
	url := running(t, s, "https")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
	if status, body := get(t, trusting, url+"/api/v1/state", "Authorization", "Bearer "+secret); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := get(t, trusting, url+"/api/v1/state"); status != 401 {
		t.Errorf("without a token: %d", status)
	}
	if resp, err := oneShot().Get(url + "/healthz"); err == nil {
		resp.Body.Close()
		t.Error("a client that does not trust the authority is served")
	}
	// net/http answers clear text itself, without a look at the path.
	if status, _ := get(t, oneShot(), "http"+url[len("https"):]+"/metrics", "Authorization", "Bearer "+secret); status != 400 {
		t.Errorf("in clear text: %d", status)
	}
}
