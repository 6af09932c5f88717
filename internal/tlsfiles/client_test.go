package tlsfiles

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestClient(t *testing.T) {
	ours, theirs := authority(t, "ours"), authority(t, "theirs")
	dir := rotate(t, ours, "first")
	cert, key := filepath.Join(dir, "router.pem"), filepath.Join(dir, "router.key")
	o := options(dir)
	o.ClientCAFile = ours.File
	server, err := New(o)
	check(t, err)
	tests := []struct {
		name string
		o    ClientOptions
		want string // in the error of the connection; "" for none
	}{
		{"mutual", ClientOptions{CAFile: ours.File, ServerName: "router.test", CertFile: cert, KeyFile: key}, ""},
		{"no client certificate", ClientOptions{CAFile: ours.File, ServerName: "router.test"}, "certificate"},
		{"another name", ClientOptions{CAFile: ours.File, ServerName: "other.test", CertFile: cert, KeyFile: key}, "not other.test"},
		{"another authority", ClientOptions{CAFile: theirs.File, ServerName: "router.test", CertFile: cert, KeyFile: key}, "unknown authority"},
		{"the system's authorities", ClientOptions{ServerName: "router.test", CertFile: cert, KeyFile: key}, "unknown authority"},
	}
	for _, tt := range tests {
		c, err := Client(tt.o)
		check(t, err)
		if c.MinVersion != tls.VersionTLS12 {
			t.Errorf("%s: TLS %x is let through", tt.name, c.MinVersion)
		}
		switch _, err := shake(t, server.Config(), c); {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestClientFiles(t *testing.T) {
	dir := t.TempDir()
	ours := authority(t, "ours")
	cert, key, err := ours.Issue("client", "client.test")
	check(t, err)
	long := filepath.Join(dir, "long.pem")
	check(t, os.WriteFile(long, make([]byte, maxFile+1), 0o600))
	for name, tt := range map[string]struct {
		o    ClientOptions
		want string
	}{
		"no such authorities":  {ClientOptions{CAFile: filepath.Join(dir, "none")}, "ca_file: "},
		"a folder":             {ClientOptions{CAFile: dir}, "ca_file: "},
		"too long":             {ClientOptions{CAFile: long}, "ca_file: "},
		"a key as authorities": {ClientOptions{CAFile: key}, "ca_file: "},
		"no key":               {ClientOptions{CertFile: cert}, "cert_file and key_file"},
		"no certificate":       {ClientOptions{KeyFile: key}, "cert_file and key_file"},
		"swapped":              {ClientOptions{CertFile: key, KeyFile: cert}, "cert_file: "},
		"nothing there":        {ClientOptions{Key: "e.tls", CAFile: "/none/ca", CertFile: "/none/cert", KeyFile: "/none/key"}, "e.tls.ca_file: stat /none/ca: no such file or directory\ne.tls.cert_file: stat /none/cert: no such file or directory\ne.tls.key_file: stat /none/key: "},
		"key of another":       {ClientOptions{CertFile: ours.File, KeyFile: key}, "key_file: "},
	} {
		if c, err := Client(tt.o); c != nil || err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestPin trusts one certificate by its file, at each handshake anew.
func TestPin(t *testing.T) {
	ours := authority(t, "ours")
	dir := rotate(t, ours, "first")
	server, err := New(options(dir))
	check(t, err)
	c, err := Client(ClientOptions{ServerName: "any.test"})
	check(t, err)
	own := filepath.Join(dir, "router.pem")
	Pin(c, own)
	if _, err := shake(t, server.Config(), c); err != nil {
		t.Error(err)
	}
	rotate(t, ours, "second")
	if _, err := shake(t, server.Config(), c); err == nil || !strings.Contains(err.Error(), "is not the one in") {
		t.Errorf("the certificate before: %v", err)
	}
	server.Reload()
	if _, err := shake(t, server.Config(), c); err != nil {
		t.Errorf("both have the new one: %v", err)
	}
	check(t, os.Remove(own))
	if _, err := shake(t, server.Config(), c); err == nil {
		t.Error("trusted without a file")
	}
}
