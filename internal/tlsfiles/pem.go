package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/kvsteer/kvsteer/internal/watch"
)

// maxFile bounds a PEM file: the authorities of all public certificates take a quarter of it.
const maxFile = 1 << 20

func readPEM(path string) ([]byte, error) { return watch.ReadFile(path, maxFile) }

// certificates are all of a file's. Each must be readable: one that is passed over would be missed much later, by a client.
func certificates(path string, data []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%q: certificate %d: %w", path, len(all)+1, err)
		}
		all = append(all, cert)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%q: %w", path, errNoCertificate)
	}
	return all, nil
}

var errNoCertificate = errors.New("no PEM block of type CERTIFICATE")

// readCertificates reads a file of certificates.
func readCertificates(path string) ([]*x509.Certificate, error) {
	data, err := readPEM(path)
	if err != nil {
		return nil, err
	}
	return certificates(path, data)
}

func authorities(path string) (*x509.CertPool, error) {
	all, err := readCertificates(path)
	if err != nil {
		return nil, err
	}
	set := x509.NewCertPool()
	for _, cert := range all {
		set.AddCert(cert)
	}
	return set, nil
}

// expiry is the earliest end of a chain: when clients begin to refuse it.
func expiry(cert tls.Certificate) time.Time {
	end := cert.Leaf.NotAfter
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil && c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}
