package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/doctor"
)

type doctorCmd struct {
	Config     string        `help:"Configuration file." required:"" placeholder:"FILE" type:"path"`
	Admin      string        `help:"The router's admin listener, or none; default: admin.listen of the configuration." placeholder:"URL"`
	EnvoyAdmin string        `help:"Envoy's admin listener, or none; default: envoy.admin of the configuration." placeholder:"URL"`
	TokenFile  string        `help:"File with the router's admin token; default: admin.token_file of the configuration." placeholder:"FILE" type:"path"`
	CAFile     string        `name:"ca-file" help:"Authorities of the router's admin certificate; default: the certificate that the configuration names." placeholder:"FILE" type:"path"`
	CertFile   string        `help:"PEM file with a client certificate, where the router's admin listener wants one." placeholder:"FILE" type:"path"`
	KeyFile    string        `help:"PEM file with the key of --cert-file." placeholder:"FILE" type:"path"`
	Probe      bool          `help:"Send each engine one completion of one token."`
	Ignore     []doctor.Code `help:"Leave findings with this code out; may be repeated." placeholder:"CODE"`
	JSON       bool          `name:"json" help:"Print one JSON object."`
	Timeout    time.Duration `help:"Longest time of one request." default:"5s"`
}

// Help is shown by kvsteer doctor --help.
func (c *doctorCmd) Help() string {
	return `Looks at the configuration, every engine, the router and Envoy, changes nothing, and prints what is misconfigured, each with a stable code. ` +
		`Exit status: 0 neither errors nor warnings, 1 some, 2 it could not look (the configuration or the command line is wrong).`
}

// exitError ends a command with a status of its own.
type exitError struct {
	status int
	err    error // nil when the command has said everything itself
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }
func (e *exitError) Unwrap() error { return e.err }

// Exit statuses of the doctor beside 0.
const (
	exitFindings   = 1
	exitCannotLook = 2
)

// Run looks once.
func (c *doctorCmd) Run(ctx context.Context, out io.Writer) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return cannotLook(err)
	}
	o := doctor.Options{
		Config: cfg, TokenFile: c.TokenFile, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
		Probe: c.Probe, Ignore: c.Ignore, Timeout: c.Timeout,
	}
	if o.Router, err = askedURL("--admin", c.Admin, cfg.Admin.Listen, cfg.Admin.TLS.On()); err != nil {
		return cannotLook(err)
	}
	if o.Envoy, err = askedURL("--envoy-admin", c.EnvoyAdmin, cfg.Envoy.Admin, false); err != nil {
		return cannotLook(err)
	}
	d, err := doctor.New(o)
	if err != nil {
		return cannotLook(err)
	}
	report, err := d.Run(ctx)
	if err != nil {
		return err
	}
	write := report.WriteTable
	if c.JSON {
		write = report.WriteJSON
	}
	if err := write(out); err != nil {
		return cannotLook(err) // not the status of findings
	}
	if !report.Sound() {
		return &exitError{exitFindings, nil}
	}
	return nil
}

func cannotLook(err error) error { return &exitError{exitCannotLook, err} }

// askedURL is where an admin listener is asked: given, or that of the configuration; "" when it is not to be asked or cannot be told.
func askedURL(flag, given, listen string, tls bool) (string, error) {
	switch given {
	case "":
		return adminURL(listen, tls), nil
	case "none":
		return "", nil
	}
	if err := checkURL(flag, given); err != nil {
		return "", fmt.Errorf("%w, nor none", err)
	}
	return given, nil
}
