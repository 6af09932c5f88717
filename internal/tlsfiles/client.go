package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// ClientOptions name the files of the side that connects. The zero value trusts the system's authorities.
type ClientOptions struct {
	Key        string   // where a configuration names the files, such as "engines.tls"; "": nowhere
	CAFile     string   // PEM: authorities of the server's certificate; "": the system's
	ServerName string   // sent as SNI and looked for in that certificate; "": the host that is connected to
	CertFile   string   // PEM: a client certificate with its chain; "": none
	KeyFile    string   // PEM: its key
	Protocols  []string // application protocols (ALPN), the preferred one first
}

// Client reads the files once. Its error joins all that is wrong, each with the key of its file, such as "ca_file: ".
func Client(o ClientOptions) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName, NextProtos: slices.Clone(o.Protocols)}
	prefix := ""
	if o.Key != "" {
		prefix = o.Key + "."
	}
	var errs []error
	if o.CAFile != "" {
		var err error
		if c.RootCAs, err = authorities(o.CAFile); err != nil {
			errs = append(errs, fmt.Errorf("%sca_file: %w", prefix, err))
		}
	}
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		errs = append(errs, fmt.Errorf("%scert_file and %skey_file are both needed for a client certificate", prefix, prefix))
	case o.CertFile != "":
		cert, err := keyPair(prefix, o.CertFile, o.KeyFile)
		errs = append(errs, err)
		c.Certificates = []tls.Certificate{cert}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// Pin has c trust the one certificate that certFile holds at the time of each handshake, whatever its names and authority: on the
// server's own host the file says more than both.
func Pin(c *tls.Config, certFile string) {
	c.InsecureSkipVerify = true // the next function checks instead
	c.VerifyConnection = func(s tls.ConnectionState) error {
		own, err := leaf(certFile)
		if err != nil {
			return err
		}
		if !own.Equal(s.PeerCertificates[0]) {
			return fmt.Errorf("the server's certificate is not the one in %q", certFile)
		}
		return nil
	}
}

// leaf is the first certificate of a file.
func leaf(path string) (*x509.Certificate, error) {
	all, err := readCertificates(path)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}
