package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
)

// Engine is one simulated engine.
type Engine struct {
	*Process
	Pool    string
	Address string // ip:port of its HTTP server
	Relay   *Relay // nil unless PoolOptions.Relay

	lab    *Lab
	argv   []string
	scheme string       // "" for http
	client *http.Client // that trusts the engine
}

// URL is where the engine serves.
func (e *Engine) URL() string { return cmp.Or(e.scheme, "http") + "://" + e.Address }

// secure has the engine speak TLS; without an authority it does nothing.
func (e *Engine) secure(a *Authority) error {
	if a == nil {
		return nil
	}
	certFile, keyFile, err := a.Issue("engine-"+strings.ReplaceAll(e.Address, ":", "-"), EngineName)
	if err != nil {
		return err
	}
	e.argv = append(e.argv, "--tls-cert", certFile, "--tls-key", keyFile)
	e.scheme, e.client = "https", a.client(EngineName)
	return nil
}

// Restart starts an engine that was killed again, empty, at the same address.
func (e *Engine) Restart(ctx context.Context) error {
	p, err := e.lab.start(e.Name, e.argv...)
	if err != nil {
		return err
	}
	e.Process = p
	return e.untilHealthy(ctx)
}

func (e *Engine) untilHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %s", startTimeout))
	defer cancel()
	return e.until(ctx, "healthy", func() bool { return e.answers(ctx) })
}
