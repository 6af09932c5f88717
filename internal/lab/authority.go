package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Authority issues certificates, to try TLS with. Its key never leaves the process.
type Authority struct {
	PEM []byte // its own certificate

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Leaf is a certificate to be issued, for servers and clients alike.
type Leaf struct {
	Name  string        // common name
	Hosts []string      // DNS names and IP addresses
	Life  time.Duration // from now on; default 24 h, negative: expired
}

// NewAuthority makes an authority that signs its own certificate.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", name, err)
	}
	cert, err := certificate(name)
	if err != nil {
		return nil, err
	}
	cert.NotAfter = time.Now().Add(10 * 365 * 24 * time.Hour)
	cert.IsCA, cert.BasicConstraintsValid, cert.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", name, err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("authority %s: %w", name, err)
	}
	return &Authority{PEM: encode("CERTIFICATE", der), cert: cert, key: key}, nil
}

// Issue makes a certificate and its key, both as PEM.
func (a *Authority) Issue(l Leaf) (cert, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("issue %s: %w", l.Name, err)
	}
	c, err := certificate(l.Name)
	if err != nil {
		return nil, nil, err
	}
	if l.Life == 0 {
		l.Life = 24 * time.Hour
	}
	c.NotAfter = time.Now().Add(l.Life)
	c.NotBefore = c.NotAfter.Add(-48 * time.Hour)
	c.KeyUsage = x509.KeyUsageDigitalSignature
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, h := range l.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, own.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue %s: %w", l.Name, err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		return nil, nil, fmt.Errorf("issue %s: %w", l.Name, err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs), nil
}

// IssueFiles writes a certificate and its key to base.crt and base.key, each by a rename, so that a reader never sees half a file.
func (a *Authority) IssueFiles(base string, l Leaf) error {
	cert, key, err := a.Issue(l)
	if err != nil {
		return err
	}
	if err := replace(base+".crt", cert); err != nil {
		return err
	}
	return replace(base+".key", key)
}

func replace(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path))
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func certificate(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour)}, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
