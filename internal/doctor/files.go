package doctor

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
)

// files looks at every file that the configuration names, and returns the engines' keys by pool.
func (d *Doctor) files(c *collector) map[string]string {
	cfg := d.opt.Config
	keys := map[string]string{}
	look := func(key, path string, check func([]byte) error) {
		if path == "" {
			return
		}
		text, err := readSmall(path)
		if err == nil && check != nil {
			err = check(text)
		}
		if err != nil {
			c.found(FileUnreadable, "config", "%s: %v", key, err)
		}
	}
	certs := func(text []byte) error {
		if firstCert(text) == nil {
			return errors.New("no certificate in PEM form is in it")
		}
		return nil
	}
	line := func(text []byte) error {
		if line := strings.TrimSpace(string(text)); line == "" || strings.ContainsAny(line, "\r\n\x00") {
			return errors.New("it does not hold one line of text")
		}
		return nil
	}
	for i, p := range cfg.Pools {
		look(fmt.Sprintf("pools[%d].api_key_file", i), p.APIKeyFile, func(text []byte) error {
			err := line(text)
			if err == nil {
				keys[p.Name] = strings.TrimSpace(string(text))
			}
			return err
		})
	}
	look("admin.token_file", cfg.Admin.TokenFile, line)
	if d.opt.Node != nil {
		look("token_file", d.opt.Node.TokenFile, line)
	}
	look("feed.token_file", cfg.Feed.TokenFile, line)
	for _, t := range []struct {
		key string
		tls config.ServerTLS
	}{{"tls", cfg.TLS}, {"admin.tls", cfg.Admin.TLS}} {
		look(t.key+".cert_file", t.tls.CertFile, certs)
		look(t.key+".key_file", t.tls.KeyFile, nil)
		look(t.key+".client_ca_file", t.tls.ClientCAFile, certs)
		pair(c, t.key, t.tls.CertFile, t.tls.KeyFile)
	}
	for _, t := range []struct {
		key string
		tls config.ClientTLS
	}{{"engines.tls", cfg.Engines.TLS}, {"feed.tls", cfg.Feed.TLS}} {
		look(t.key+".ca_file", t.tls.CAFile, certs)
		look(t.key+".cert_file", t.tls.CertFile, certs)
		look(t.key+".key_file", t.tls.KeyFile, nil)
		pair(c, t.key, t.tls.CertFile, t.tls.KeyFile)
	}
	return keys
}

// pair says when a certificate and a key that can both be read do not belong together.
func pair(c *collector, key, certFile, keyFile string) {
	if certFile == "" || keyFile == "" {
		return
	}
	cert, err := readSmall(certFile)
	if err != nil {
		return
	}
	private, err := readSmall(keyFile)
	if err != nil {
		return
	}
	if _, err := tls.X509KeyPair(cert, private); err != nil {
		c.found(FileUnreadable, "config", "%s: %s", key, strings.TrimPrefix(err.Error(), "tls: "))
	}
}

// firstCert is the first certificate of a PEM file, nil when there is none.
func firstCert(text []byte) *x509.Certificate {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil
		}
		if block.Type == "CERTIFICATE" {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil
			}
			return cert
		}
	}
}

// token reads the admin token; what cannot be read was found by files.
func (d *Doctor) token() string {
	path := d.opt.TokenFile
	if path == "" {
		path = d.opt.Config.Admin.TokenFile
	}
	if path == "" {
		return ""
	}
	text, err := readSmall(path)
	if err != nil || bytes.ContainsAny(bytes.TrimSpace(text), "\r\n\x00") {
		return ""
	}
	return string(bytes.TrimSpace(text))
}
