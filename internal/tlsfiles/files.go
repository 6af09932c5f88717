package tlsfiles

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/internal/watch"
)

// Options of Files. CertFile and KeyFile are needed.
type Options struct {
	Listener     string   // label of metrics and logs
	Key          string   // where the configuration names the files, such as "tls" or "admin.tls"
	CertFile     string   // PEM: the chain, the listener's own certificate first
	KeyFile      string   // PEM: the key of that certificate
	ClientCAFile string   // PEM: authorities of client certificates; "": clients need none
	Protocols    []string // application protocols (ALPN), the preferred one first. Default h2

	Poll    time.Duration // as of package watch
	Settle  time.Duration // as of package watch
	Log     *slog.Logger  // default: discarded
	Metrics *Metrics      // default: not exported
	Now     func() time.Time
}

// Files are a listener's certificate, key and client authorities.
type Files struct {
	o       Options
	watcher *watch.Watcher
	inUse   atomic.Pointer[tls.Config]
	config  *tls.Config

	mu sync.Mutex // held while files are read and taken over
}

// New reads the files. Its error joins all that is wrong with them.
func New(o Options) (*Files, error) {
	if o.CertFile == "" || o.KeyFile == "" {
		return nil, fmt.Errorf("%s: cert_file and key_file are both needed", o.Key)
	}
	if len(o.Protocols) == 0 {
		o.Protocols = []string{"h2"}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	paths := []string{o.CertFile, o.KeyFile}
	if o.ClientCAFile != "" {
		paths = append(paths, o.ClientCAFile)
	}
	watcher, err := watch.New(watch.Options{Paths: paths, Poll: o.Poll, Settle: o.Settle, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	f := &Files{o: o, watcher: watcher}
	if err := f.take(); err != nil {
		return nil, err
	}
	o.Metrics.expect(o.Listener)
	f.config = &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             slices.Clone(o.Protocols),
		SessionTicketsDisabled: true,
		GetConfigForClient:     func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.inUse.Load(), nil },
	}
	return f, nil
}

// Config is for one or more listeners. It must not be changed.
func (f *Files) Config() *tls.Config { return f.config }

// Run takes over changed files until ctx ends.
func (f *Files) Run(ctx context.Context) error {
	return f.watcher.Run(ctx, f.Reload)
}

// Reload reads the files and takes them over if they are good; otherwise what was in use stays. It logs and counts which of the two.
func (f *Files) Reload() {
	err := f.take()
	f.o.Metrics.reloaded(f.o.Listener, err)
	if err != nil {
		f.o.Log.Warn("changed TLS files are refused; the old ones stay in use", "listener", f.o.Listener, "error", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	expiry := expiry(f.inUse.Load().Certificates[0])
	f.o.Log.Info("TLS files are read again", "listener", f.o.Listener, "expires", expiry.UTC().Format(time.RFC3339))
}

// take reads the files and puts them to use.
func (f *Files) take() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	cert, err := f.certificate()
	errs := []error{err}
	c := &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             f.o.Protocols,
		SessionTicketsDisabled: true,
		Certificates:           []tls.Certificate{cert},
	}
	if f.o.ClientCAFile != "" {
		c.ClientAuth = tls.RequireAndVerifyClientCert
		if c.ClientCAs, err = authorities(f.o.ClientCAFile); err != nil {
			errs = append(errs, fmt.Errorf("%s.client_ca_file: %w", f.o.Key, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	f.inUse.Store(c)
	f.o.Metrics.expires(f.o.Listener, expiry(cert))
	return nil
}

func (f *Files) certificate() (cert tls.Certificate, err error) {
	if cert, err = keyPair(f.o.Key+".", f.o.CertFile, f.o.KeyFile); err != nil {
		return cert, err
	}
	if end := cert.Leaf.NotAfter; f.o.Now().After(end) {
		return cert, fmt.Errorf("%s.cert_file: %q has expired on %s", f.o.Key, f.o.CertFile, end.UTC().Format(time.RFC3339))
	}
	return cert, nil
}

// keyPair reads a certificate chain and its key. Its error joins what is wrong with each of them, with prefix and the file's key.
func keyPair(prefix, certFile, keyFile string) (cert tls.Certificate, err error) {
	chain, certErr := readPEM(certFile)
	if certErr == nil {
		_, certErr = certificates(certFile, chain)
	}
	if certErr != nil {
		certErr = fmt.Errorf("%scert_file: %w", prefix, certErr)
	}
	private, keyErr := readPEM(keyFile)
	if keyErr != nil {
		keyErr = fmt.Errorf("%skey_file: %w", prefix, keyErr)
	}
	if err := errors.Join(certErr, keyErr); err != nil {
		return cert, err
	}
	// The certificate is known to be good, so that an error is about the key.
	if cert, err = tls.X509KeyPair(chain, private); err != nil {
		return cert, fmt.Errorf("%skey_file: %q: %w", prefix, keyFile, plain(err))
	}
	return cert, nil
}

// plain leaves out that the error is one of TLS, which its reader knows.
func plain(err error) error {
	if text, ok := strings.CutPrefix(err.Error(), "tls: "); ok {
		return errors.New(text)
	}
	return err
}
