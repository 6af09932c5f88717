package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestMutualTLS has Envoy and the router show each other certificates, replaces the router's under load, and has Envoy come back to the
// new one: no request goes without a decision.
func TestMutualTLS(t *testing.T) {
	a, err := lab.NewAuthority(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name, host string) (certFile, keyFile string) {
		t.Helper()
		certFile, keyFile, err := a.Issue(name, host)
		if err != nil {
			t.Fatal(err)
		}
		return certFile, keyFile
	}
	routerCert, routerKey := issue("router", "router.test")
	envoyCert, envoyKey := issue("envoy", "envoy.test")
	site := startSite(t, envoyNewest, lab.SiteOptions{
		Pools:        []lab.PoolOptions{{Name: "chat", Model: "tiny", Engines: 2, Args: steady}},
		RouterConfig: fmt.Sprintf("tls: {cert_file: %q, key_file: %q, client_ca_file: %q}", routerCert, routerKey, a.File),
		EnvoyConfig:  fmt.Sprintf("router_tls: {ca_file: %q, server_name: router.test, cert_file: %q, key_file: %q}", a.File, envoyCert, envoyKey),
	})
	l := startLoad(t, site, audience{"chat", 2, lab.ChatRequest{Model: "tiny", MaxTokens: 5}})
	w := startWatch(t, site)
	served := func(what string) {
		t.Helper()
		begin := time.Now()
		eventually(t, what, func() bool { return len(w.since(begin)) >= 10 })
	}
	value := func(name string, labels ...string) float64 {
		t.Helper()
		return metric(t, site.RouterAdmin+"/metrics", name, labels...)
	}
	served("requests are served")
	handshakes := metric(t, site.EnvoyAdmin+"/stats/prometheus?filter=ssl.handshake", "envoy_cluster_ssl_handshake", `envoy_cluster_name="kvsteer_router"`)
	if handshakes < 1 {
		t.Errorf("%v TLS handshakes of Envoy with the router", handshakes)
	}
	for range 3 {
		applied := value("kvsteer_tls_reloads_total", `result="applied"`)
		issue("router", "router.test")
		eventually(t, "the certificate is taken over", func() bool { return value("kvsteer_tls_reloads_total", `result="applied"`) > applied })
		served("requests are served after a change")
	}
	if refused := value("kvsteer_extproc_refused_connections_total"); refused != 0 {
		t.Errorf("%v connections refused", refused)
	}
	done := l.end()
	for _, s := range done {
		if !s.reply.OK() {
			t.Errorf("status %d %s, error %v", s.reply.Status, s.reply.Body, s.reply.Err)
		}
	}
	undecided := 0
	for _, e := range w.all(len(done)) {
		if e.DecisionID == "" {
			undecided++
		}
	}
	if undecided > 0 {
		t.Errorf("%d of %d requests are undecided", undecided, len(done))
	}
	t.Logf("%d requests, %d undecided, 3 changes of the certificate", len(done), undecided)
}
