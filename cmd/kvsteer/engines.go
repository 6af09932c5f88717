package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
)

// dialTLS connects to engines as Envoy does, and to nodes: certificates are checked against the configured authorities and the one name that all
// carry, whatever their address.
type dialTLS struct {
	key   string // what the configuration calls it
	files config.ClientTLS
	alpn  string
	log   *slog.Logger

	mu     sync.Mutex
	config *tls.Config
	state  [3]fileState // of the files when they were last read
}

// fileState tells a file from the one that replaced it.
type fileState struct {
	modified time.Time
	size     int64
}

// newDialTLS gives nil for those that speak clear text. The files are read at once, so that a bad path is found at the start.
func newDialTLS(key string, files config.ClientTLS, alpn string, log *slog.Logger) (*dialTLS, error) {
	if !files.On() {
		return nil, nil
	}
	d := &dialTLS{key: key, files: files, alpn: alpn, log: log}
	d.state = d.look()
	var err error
	if d.config, err = d.read(); err != nil {
		return nil, err
	}
	return d, nil
}

// dialFunc opens a TLS connection; nil where engines speak clear text.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// dialer is nil for clear text.
func (d *dialTLS) dialer() dialFunc {
	if d == nil {
		return nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&tls.Dialer{Config: d.current()}).DialContext(ctx, network, address)
	}
}

// current reads the files again when one of them has changed.
func (d *dialTLS) current() *tls.Config {
	state := d.look()
	d.mu.Lock()
	defer d.mu.Unlock()
	if state != d.state {
		d.state = state
		d.take()
	}
	return d.config
}

// reload reads the files again whether they look changed or not.
func (d *dialTLS) reload() {
	state := d.look()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = state
	d.take()
}

// take puts the files to use, or logs why what was in use stays. The caller holds mu.
func (d *dialTLS) take() {
	c, err := d.read()
	if err != nil {
		d.log.Warn("changed TLS files are refused; the old ones stay in use", "key", d.key, "error", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	d.config = c
	d.log.Info("TLS files are read again", "key", d.key)
}

func (d *dialTLS) look() [3]fileState {
	var state [3]fileState
	for i, path := range []string{d.files.CAFile, d.files.CertFile, d.files.KeyFile} {
		if info, err := os.Stat(path); err == nil { // read says what is wrong with others
			state[i] = fileState{info.ModTime(), info.Size()}
		}
	}
	return state
}

func (d *dialTLS) read() (*tls.Config, error) {
	return tlsfiles.Client(tlsfiles.ClientOptions{
		Key: d.key, CAFile: d.files.CAFile, ServerName: d.files.ServerName, CertFile: d.files.CertFile, KeyFile: d.files.KeyFile, Protocols: []string{d.alpn},
	})
}
