package tlsfiles

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 20 * time.Second

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func authority(t testing.TB, name string) *lab.Authority {
	t.Helper()
	a, err := lab.NewAuthority(t.TempDir(), name)
	check(t, err)
	return a
}

// rotate writes router.pem and router.key beside the authority's own certificate. The last of the certificate's names tells which it is.
func rotate(t testing.TB, a *lab.Authority, which string) (dir string) {
	t.Helper()
	_, _, err := a.Issue("router", "router.test", which)
	check(t, err)
	return filepath.Dir(a.File)
}

func options(dir string) Options {
	return Options{
		Listener: "test", Key: "tls", CertFile: filepath.Join(dir, "router.pem"), KeyFile: filepath.Join(dir, "router.key"),
		Poll: time.Hour, Settle: 10 * time.Millisecond,
	}
}

// shake makes one connection and returns the server's name and what either side says.
func shake(t testing.TB, server, client *tls.Config) (name string, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer conn.Close()
		check := conn.SetDeadline(time.Now().Add(deadline))
		_, err = tls.Server(conn, server).Write([]byte("."))
		served <- errors.Join(check, err)
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	defer raw.Close()
	check(t, raw.SetDeadline(time.Now().Add(deadline)))
	conn := tls.Client(raw, client)
	// A TLS 1.3 client learns with its first read that it is refused.
	_, err = io.ReadFull(conn, make([]byte, 1))
	if certs := conn.ConnectionState().PeerCertificates; len(certs) > 0 {
		name = certs[0].DNSNames[len(certs[0].DNSNames)-1]
	}
	raw.Close()
	return name, errors.Join(err, <-served)
}

// trusting is a client's configuration. from has issued its certificate, valid until the end; nil: it has none.
func trusting(t testing.TB, a, from *lab.Authority, end time.Time) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(a.File)
	check(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	c := &tls.Config{RootCAs: roots, ServerName: "router.test"}
	if from != nil {
		certFile, keyFile, err := from.IssueUntil(end, "envoy")
		check(t, err)
		cert, err := tls.LoadX509KeyPair(certFile, keyFile)
		check(t, err)
		// Sent whatever authorities the server names.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return c
}

func TestHandshakes(t *testing.T) {
	ours, theirs := authority(t, "ours"), authority(t, "theirs")
	dir, later := rotate(t, ours, "first"), time.Now().Add(time.Hour)
	mutual := options(dir)
	mutual.ClientCAFile = ours.File
	old := trusting(t, ours, nil, later)
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	other := trusting(t, ours, nil, later)
	other.NextProtos = []string{"irc"}
	tests := []struct {
		name   string
		o      Options
		client *tls.Config
		want   string // in the error; "" for none
	}{
		{"server's certificate only", options(dir), trusting(t, ours, nil, later), ""},
		{"a client that trusts others", options(dir), trusting(t, theirs, nil, later), "unknown authority"},
		{"an old version", options(dir), old, "protocol version"},
		{"another application protocol", options(dir), other, "application protocol"},
		{"mutual", mutual, trusting(t, ours, ours, later), ""},
		{"mutual, no certificate", mutual, trusting(t, ours, nil, later), "didn't provide a certificate"},
		{"mutual, of another authority", mutual, trusting(t, ours, theirs, later), "unknown authority"},
		{"mutual, expired", mutual, trusting(t, ours, ours, time.Now().Add(-time.Hour)), "expired"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := New(tt.o)
			check(t, err)
			_, err = shake(t, f.Config(), tt.client)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	a := authority(t, "ours")
	tests := []struct {
		name  string
		spoil func(dir string, o *Options) error
		want  []string
	}{
		{"no key given", func(_ string, o *Options) error { o.KeyFile = ""; return nil }, []string{"tls: cert_file and key_file are both needed"}},
		{"no certificate", func(dir string, _ *Options) error { return os.Remove(dir + "/router.pem") }, []string{"tls.cert_file: ", "router.pem: no such file"}},
		{"no key", func(dir string, _ *Options) error { return os.Remove(dir + "/router.key") }, []string{"tls.key_file: ", "router.key: no such file"}},
		{"no authorities", func(dir string, o *Options) error { o.ClientCAFile = dir + "/none"; return nil }, []string{"tls.client_ca_file: ", "none: no such file"}},
		{
			"nothing there", func(dir string, o *Options) error {
				o.ClientCAFile = dir + "/none"
				return errors.Join(os.Remove(dir+"/router.pem"), os.Remove(dir+"/router.key"))
			},
			[]string{"tls.cert_file: ", "\ntls.key_file: ", "\ntls.client_ca_file: "},
		},
		{"a folder", func(dir string, o *Options) error { o.CertFile = dir; return nil }, []string{"tls.cert_file: ", "is not a regular file"}},
		{
			"no PEM", func(dir string, _ *Options) error { return os.WriteFile(dir+"/router.pem", []byte("text"), 0o600) },
			[]string{"tls.cert_file: ", "router.pem", "no PEM block of type CERTIFICATE"},
		},
		{
			"the files exchanged", func(_ string, o *Options) error { o.CertFile, o.KeyFile = o.KeyFile, o.CertFile; return nil },
			[]string{"tls.cert_file: ", "router.key", "no PEM block of type CERTIFICATE"},
		},
		{
			"the certificate twice", func(_ string, o *Options) error { o.KeyFile = o.CertFile; return nil },
			[]string{"tls.key_file: ", "found a certificate rather than a key"},
		},
		{
			"another key", func(dir string, _ *Options) error {
				_, key, err := a.Issue("other")
				return errors.Join(err, os.Rename(key, dir+"/router.key"))
			},
			[]string{"tls.key_file: ", "router.key", "private key does not match public key"},
		},
		{
			"expired", func(string, *Options) error {
				_, _, err := a.IssueUntil(time.Now().Add(-time.Hour), "router", "router.test")
				return err
			},
			[]string{"tls.cert_file: ", "router.pem", "has expired on 20"},
		},
		{
			"half an authority", func(dir string, o *Options) error {
				o.ClientCAFile = dir + "/two.pem"
				text, err := os.ReadFile(a.File)
				return errors.Join(err, os.WriteFile(o.ClientCAFile, append(text, notACertificate...), 0o600))
			},
			[]string{"tls.client_ca_file: ", "two.pem", "certificate 2: "},
		},
		{
			"an authority that is a key", func(dir string, o *Options) error { o.ClientCAFile = dir + "/router.key"; return nil },
			[]string{"tls.client_ca_file: ", "router.key", "no PEM block of type CERTIFICATE"},
		},
		{
			"far too long", func(dir string, _ *Options) error {
				return os.WriteFile(dir+"/router.key", bytes.Repeat([]byte{'a'}, maxFile+1), 0o600)
			},
			[]string{"tls.key_file: ", "is longer than 1048576 bytes"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := rotate(t, a, "first")
			o := options(dir)
			check(t, tt.spoil(dir, &o))
			_, err := New(o)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

const notACertificate = "-----BEGIN CERTIFICATE-----\nc2hvcnQ=\n-----END CERTIFICATE-----\n"

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	check(t, err)
	check(t, os.WriteFile(to, text, 0o600))
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); !is(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestRotation replaces files under a running listener, good and bad ones.
func TestRotation(t *testing.T) {
	ours, next := authority(t, "ours"), authority(t, "next")
	dir := rotate(t, ours, "first")
	o := options(dir)
	o.ClientCAFile = filepath.Join(dir, "clients.pem")
	copyFile(t, ours.File, o.ClientCAFile)
	log, reg := new(logtest.Buffer), prometheus.NewRegistry()
	o.Log, o.Metrics = slog.New(slog.NewTextHandler(log, nil)), NewMetrics(reg)
	f, err := New(o)
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()

	client := trusting(t, ours, ours, time.Now().Add(time.Hour))
	name := func() string {
		got, err := shake(t, f.Config(), client)
		if err != nil {
			return err.Error()
		}
		return got
	}
	count := func(result string) float64 {
		return testutil.ToFloat64(o.Metrics.reloads.WithLabelValues("test", result))
	}
	if got := name(); got != "first" {
		t.Fatalf("serves %q", got)
	}
	expiry := testutil.ToFloat64(o.Metrics.expiry.WithLabelValues("test"))
	if left := time.Until(time.Unix(int64(expiry), 0)); left < 23*time.Hour || left > 25*time.Hour {
		t.Errorf("the certificate expires in %v", left)
	}

	_, _, err = ours.IssueUntil(time.Now().Add(40*time.Hour), "router", "router.test", "second")
	check(t, err)
	eventually(t, "the second certificate is not taken over", func() bool { return name() == "second" })
	if later := testutil.ToFloat64(o.Metrics.expiry.WithLabelValues("test")); later < expiry+15*3600 {
		t.Errorf("expiry is %v after the change, %v before", later, expiry)
	}

	// A bad file is refused once, and the second certificate stays.
	refused := count("refused")
	warned := strings.Count(log.String(), "refused")
	check(t, os.WriteFile(dir+"/router.pem", []byte("half a fi"), 0o600))
	eventually(t, "the bad certificate is not refused", func() bool { return count("refused") == refused+1 })
	if got := name(); got != "second" {
		t.Errorf("serves %q", got)
	}
	eventually(t, "the refusal is not said", func() bool { return strings.Count(log.String(), "refused") == warned+1 })
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "tls.cert_file") || !strings.Contains(got, "router.pem") {
		t.Errorf("log:\n%s", got)
	}

	// The authority of clients is replaced: the old client is out.
	rotate(t, ours, "third")
	eventually(t, "the third certificate is not taken over", func() bool { return name() == "third" })
	copyFile(t, next.File, o.ClientCAFile)
	eventually(t, "the old authority still lets clients in", func() bool { return strings.Contains(name(), "unknown authority") })
	if got, err := shake(t, f.Config(), trusting(t, ours, next, time.Now().Add(time.Hour))); err != nil || got != "third" {
		t.Errorf("the new client: %q, %v", got, err)
	}
	if strings.Contains(log.String(), "BEGIN") || strings.Contains(log.String(), "half a fi") {
		t.Errorf("log quotes files:\n%s", log)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

// TestReload needs no watcher: a signal's handler may call it.
func TestReload(t *testing.T) {
	ours := authority(t, "ours")
	now := time.Now()
	o := options(rotate(t, ours, "first"))
	o.Now = func() time.Time { return now }
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	f, err := New(o)
	check(t, err)
	rotate(t, ours, "second")
	f.Reload()
	if !strings.Contains(log.String(), "TLS files are read again") {
		t.Errorf("log: %s", &log)
	}
	if got, err := shake(t, f.Config(), trusting(t, ours, nil, now)); err != nil || got != "second" {
		t.Errorf("serves %q, %v", got, err)
	}
	now = now.Add(48 * time.Hour)
	if f.Reload(); !strings.Contains(log.String(), "has expired") {
		t.Errorf("an expired certificate: %s", &log)
	}
	if got, err := shake(t, f.Config(), trusting(t, ours, nil, now)); err != nil || got != "second" {
		t.Errorf("serves %q, %v", got, err)
	}
}

// TestNoResumption holds that no session passes by the authorities of today.
func TestNoResumption(t *testing.T) {
	ours := authority(t, "ours")
	f, err := New(options(rotate(t, ours, "first")))
	check(t, err)
	client := trusting(t, ours, nil, time.Time{})
	client.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		client.MaxVersion = version
		for range 2 {
			resumed := false
			client.VerifyConnection = func(s tls.ConnectionState) error { resumed = s.DidResume; return nil }
			if _, err := shake(t, f.Config(), client); err != nil || resumed {
				t.Errorf("version %x: resumed %v, error %v", version, resumed, err)
			}
		}
	}
}
