package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
)

// secured are the TLS sides of the service's two listeners; nil: clear text.
type secured struct{ extproc, admin *tlsfiles.Files }

func newSecured(cfg *config.Config, reg prometheus.Registerer, log *slog.Logger) (s secured, err error) {
	open := opener(reg, log)
	var adminErr error
	s.extproc, err = open("extproc", "tls", cfg.TLS, "h2")
	s.admin, adminErr = open("admin", "admin.tls", cfg.Admin.TLS, "http/1.1")
	return s, errors.Join(err, adminErr)
}

// opener returns what opens the files of a process' listeners.
func opener(reg prometheus.Registerer, log *slog.Logger) func(listener, key string, t config.ServerTLS, protocol string) (*tlsfiles.Files, error) {
	metrics := tlsfiles.NewMetrics(reg)
	return func(listener, key string, t config.ServerTLS, protocol string) (*tlsfiles.Files, error) {
		if !t.On() {
			return nil, nil
		}
		return tlsfiles.New(tlsfiles.Options{
			Listener: listener, Key: key, CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.ClientCAFile,
			Protocols: []string{protocol}, Log: log.With("component", "tls"), Metrics: metrics,
		})
	}
}

// tlsOf is what a listener speaks; nil: clear text.
func tlsOf(f *tlsfiles.Files) *tls.Config {
	if f == nil {
		return nil
	}
	return f.Config()
}

// run takes over changed files until ctx ends.
func (s secured) run(part func(name string, run func(context.Context) error)) {
	for _, f := range []*tlsfiles.Files{s.extproc, s.admin} {
		if f != nil {
			part("tls", f.Run)
		}
	}
}

// reread reads certificates, keys, authorities and the admin token again, and logs what becomes of them. Each of them is followed anyway;
// this is for who does not want to wait.
func (s *service) reread() {
	for _, f := range []*tlsfiles.Files{s.tls.extproc, s.tls.admin} {
		if f != nil {
			f.Reload()
		}
	}
	for _, t := range []*dialTLS{s.engineTLS, s.feedTLS} {
		if t != nil {
			t.reload()
		}
	}
	s.feedToken.reload()
	s.admin.Reload()
}

// newAdmin makes the admin server of a service whose other parts are there.
func (s *service) newAdmin(cfg *config.Config, reg *prometheus.Registry) (*admin.Server, error) {
	o := admin.Options{
		Gatherer: reg, Ready: s.readiness.missing, Viewer: viewer{s}, Version: version,
		Config:    func() json.Marshaler { return s.reloads.config() },
		TokenFile: cfg.Admin.TokenFile, TLS: tlsOf(s.tls.admin), Metrics: admin.NewMetrics(reg), Log: s.log.With("component", "admin"),
	}
	o.Control, o.Write = control{s.router, s.followers, s.feed}, cfg.Admin.Write
	return admin.New(o)
}
