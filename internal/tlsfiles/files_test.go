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
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/kvsteer/kvsteer/internal/lab"
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
	a, err := lab.NewAuthority(name)
	check(t, err)
	return a
}

// site is a folder with router.crt and router.key of an authority, ca.crt being that of clients.
func site(t testing.TB, a *lab.Authority) string {
	t.Helper()
	dir := t.TempDir()
	check(t, a.IssueFiles(filepath.Join(dir, "router"), lab.Leaf{Name: "first", Hosts: []string{"router.test"}}))
	check(t, os.WriteFile(filepath.Join(dir, "ca.crt"), a.PEM, 0o600))
	return dir
}

func options(dir string) Options {
	return Options{
		Listener: "test", Key: "tls", CertFile: filepath.Join(dir, "router.crt"), KeyFile: filepath.Join(dir, "router.key"),
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
		name = certs[0].Subject.CommonName
	}
	raw.Close()
	return name, errors.Join(err, <-served)
}

// trusting is a client's configuration. pair is its certificate and key, if any.
func trusting(t testing.TB, a *lab.Authority, pair ...[]byte) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM)
	c := &tls.Config{RootCAs: roots, ServerName: "router.test"}
	if len(pair) > 0 {
		cert, err := tls.X509KeyPair(pair[0], pair[1])
		check(t, err)
		// Sent whatever authorities the server names.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return c
}

func issue(t testing.TB, a *lab.Authority, l lab.Leaf) [][]byte {
	t.Helper()
	cert, key, err := a.Issue(l)
	check(t, err)
	return [][]byte{cert, key}
}

func TestHandshakes(t *testing.T) {
	ours, theirs := authority(t, "ours"), authority(t, "theirs")
	dir := site(t, ours)
	mutual := options(dir)
	mutual.ClientCAFile = filepath.Join(dir, "ca.crt")
	old := trusting(t, ours)
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	other := trusting(t, ours)
	other.NextProtos = []string{"irc"}
	tests := []struct {
		name   string
		o      Options
		client *tls.Config
		want   string // in the error; "" for none
	}{
		{"server's certificate only", options(dir), trusting(t, ours), ""},
		{"a client that trusts others", options(dir), trusting(t, theirs), "unknown authority"},
		{"an old version", options(dir), old, "protocol version"},
		{"another application protocol", options(dir), other, "application protocol"},
		{"mutual", mutual, trusting(t, ours, issue(t, ours, lab.Leaf{Name: "envoy"})...), ""},
		{"mutual, no certificate", mutual, trusting(t, ours), "didn't provide a certificate"},
		{"mutual, of another authority", mutual, trusting(t, ours, issue(t, theirs, lab.Leaf{Name: "envoy"})...), "unknown authority"},
		{"mutual, expired", mutual, trusting(t, ours, issue(t, ours, lab.Leaf{Name: "envoy", Life: -time.Hour})...), "expired"},
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
		{"no certificate", func(dir string, _ *Options) error { return os.Remove(dir + "/router.crt") }, []string{"tls.cert_file: ", "router.crt: no such file"}},
		{"no key", func(dir string, _ *Options) error { return os.Remove(dir + "/router.key") }, []string{"tls.key_file: ", "router.key: no such file"}},
		{"no authorities", func(dir string, o *Options) error { o.ClientCAFile = dir + "/none"; return nil }, []string{"tls.client_ca_file: ", "none: no such file"}},
		{"a folder", func(dir string, o *Options) error { o.CertFile = dir; return nil }, []string{"tls.cert_file: ", "is not a regular file"}},
		{
			"no PEM", func(dir string, _ *Options) error { return os.WriteFile(dir+"/router.crt", []byte("text"), 0o600) },
			[]string{"tls.cert_file: ", "router.crt", "no PEM block of type CERTIFICATE"},
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
				_, key, err := a.Issue(lab.Leaf{Name: "other"})
				return errors.Join(err, os.WriteFile(dir+"/router.key", key, 0o600))
			},
			[]string{"tls.key_file: ", "router.key", "private key does not match public key"},
		},
		{
			"expired", func(dir string, _ *Options) error {
				return a.IssueFiles(dir+"/router", lab.Leaf{Name: "late", Life: -time.Hour})
			},
			[]string{"tls.cert_file: ", "router.crt", "has expired on 20"},
		},
		{
			"half an authority", func(dir string, o *Options) error {
				o.ClientCAFile = dir + "/ca.crt"
				return os.WriteFile(o.ClientCAFile, append(a.PEM, encoded("CERTIFICATE", "short")...), 0o600)
			},
			[]string{"tls.client_ca_file: ", "ca.crt", "certificate 2: "},
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
			dir := site(t, a)
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

func encoded(kind, text string) string {
	return "-----BEGIN " + kind + "-----\n" + "c2hvcnQ=" + "\n-----END " + kind + "-----\n" + text
}

// lines collects log lines.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
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
	dir := site(t, ours)
	o := options(dir)
	o.ClientCAFile = filepath.Join(dir, "ca.crt")
	log, reg := new(lines), prometheus.NewRegistry()
	o.Log, o.Metrics = slog.New(slog.NewTextHandler(log, nil)), NewMetrics(reg)
	f, err := New(o)
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()

	client := trusting(t, ours, issue(t, ours, lab.Leaf{Name: "envoy"})...)
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

	check(t, ours.IssueFiles(dir+"/router", lab.Leaf{Name: "second", Hosts: []string{"router.test"}, Life: 40 * time.Hour}))
	eventually(t, "the second certificate is not taken over", func() bool { return name() == "second" })
	if later := testutil.ToFloat64(o.Metrics.expiry.WithLabelValues("test")); later < expiry+15*3600 {
		t.Errorf("expiry is %v after the change, %v before", later, expiry)
	}

	// A bad file is refused once, and the second certificate stays.
	refused := count("refused")
	warned := strings.Count(log.String(), "refused")
	check(t, os.WriteFile(dir+"/router.crt", []byte("half a fi"), 0o600))
	eventually(t, "the bad certificate is not refused", func() bool { return count("refused") == refused+1 })
	if got := name(); got != "second" {
		t.Errorf("serves %q", got)
	}
	eventually(t, "the refusal is not said", func() bool { return strings.Count(log.String(), "refused") == warned+1 })
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "tls.cert_file") || !strings.Contains(got, "router.crt") {
		t.Errorf("log:\n%s", got)
	}

	// The authority of clients is replaced: the old client is out.
	check(t, ours.IssueFiles(dir+"/router", lab.Leaf{Name: "third", Hosts: []string{"router.test"}}))
	eventually(t, "the third certificate is not taken over", func() bool { return name() == "third" })
	check(t, os.WriteFile(dir+"/ca.crt", next.PEM, 0o600))
	eventually(t, "the old authority still lets clients in", func() bool { return strings.Contains(name(), "unknown authority") })
	if got, err := shake(t, f.Config(), trusting(t, ours, issue(t, next, lab.Leaf{Name: "envoy"})...)); err != nil || got != "third" {
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
	dir := site(t, ours)
	now := time.Now()
	o := options(dir)
	o.Now = func() time.Time { return now }
	f, err := New(o)
	check(t, err)
	check(t, ours.IssueFiles(dir+"/router", lab.Leaf{Name: "second", Hosts: []string{"router.test"}}))
	check(t, f.Reload())
	if got, err := shake(t, f.Config(), trusting(t, ours)); err != nil || got != "second" {
		t.Errorf("serves %q, %v", got, err)
	}
	now = now.Add(48 * time.Hour)
	if err := f.Reload(); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Errorf("an expired certificate: %v", err)
	}
	if got, err := shake(t, f.Config(), trusting(t, ours)); err != nil || got != "second" {
		t.Errorf("serves %q, %v", got, err)
	}
}

// TestNoResumption holds that no session passes by the authorities of today.
func TestNoResumption(t *testing.T) {
	ours := authority(t, "ours")
	f, err := New(options(site(t, ours)))
	check(t, err)
	client := trusting(t, ours)
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
