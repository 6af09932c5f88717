package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
)

// dialTLS connects to engines as Envoy does: certificates are checked against the configured authorities and the one name that all
// engines carry, whatever their address.
type dialTLS struct {
	files config.ClientTLS
	alpn  string

	mu     sync.Mutex
	config *tls.Config
	state  [3]fileState // of the files that config was made from
}

// fileState tells a file from the one that replaced it.
type fileState struct {
	modified time.Time
	size     int64
}

// engineDialer gives nil for engines that speak clear text. The files are read at once, so that a bad path is found at the start.
func engineDialer(files config.ClientTLS, http2 bool) (func(ctx context.Context, network, address string) (net.Conn, error), error) {
	if !files.On() {
		return nil, nil
	}
	d := &dialTLS{files: files, alpn: "http/1.1"}
	if http2 {
		d.alpn = "h2"
	}
	if _, err := d.current(); err != nil {
		return nil, fmt.Errorf("engines.tls: %w", err)
	}
	return d.dial, nil
}

func (d *dialTLS) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.current()
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{Config: c}).DialContext(ctx, network, address)
}

// current reads the files again when one of them has changed. While they cannot be read the last good ones stay in use.
func (d *dialTLS) current() (*tls.Config, error) {
	var state [3]fileState
	for i, path := range []string{d.files.CAFile, d.files.CertFile, d.files.KeyFile} {
		if info, err := os.Stat(path); err == nil { // read says what is wrong with others
			state[i] = fileState{info.ModTime(), info.Size()}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.config != nil && state == d.state {
		return d.config, nil
	}
	c, err := d.read()
	if err != nil {
		if d.config != nil {
			return d.config, nil
		}
		return nil, err
	}
	d.config, d.state = c, state
	return c, nil
}

func (d *dialTLS) read() (*tls.Config, error) {
	text, err := os.ReadFile(d.files.CAFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file: %w", err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: d.files.ServerName, NextProtos: []string{d.alpn}, MinVersion: tls.VersionTLS12}
	if !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("ca_file: %s holds no certificate in PEM", d.files.CAFile)
	}
	if d.files.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(d.files.CertFile, d.files.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}
