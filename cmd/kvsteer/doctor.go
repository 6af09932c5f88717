package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/doctor"
)

type doctorCmd struct {
	Config     string        `help:"Configuration file of a router or of a node." required:"" placeholder:"FILE" type:"path"`
	Admin      string        `help:"The admin listener of the router or node, or none; default: admin.listen of the configuration." placeholder:"URL"`
	EnvoyAdmin string        `help:"Envoy's admin listener, or none; default: envoy.admin of the configuration. Not with the file of a node." placeholder:"URL"`
	TokenFile  string        `help:"File with the admin token; default: admin.token_file of the configuration." placeholder:"FILE" type:"path"`
	CAFile     string        `name:"ca-file" help:"Authorities of the admin certificate; default: the certificate that the configuration names." placeholder:"FILE" type:"path"`
	CertFile   string        `help:"PEM file with a client certificate, where the admin listener wants one." placeholder:"FILE" type:"path"`
	KeyFile    string        `help:"PEM file with the key of --cert-file." placeholder:"FILE" type:"path"`
	Probe      bool          `help:"Send each engine one completion of one token."`
	Ignore     []doctor.Code `help:"Leave findings with this code out; may be repeated." placeholder:"CODE"`
	JSON       bool          `name:"json" help:"Print one JSON object."`
	Timeout    time.Duration `help:"Longest time of one request." default:"5s"`
}

// Help is shown by kvsteer doctor --help.
func (c *doctorCmd) Help() string {
	return `Looks at the configuration, every engine, the router and Envoy, changes nothing, and prints what is misconfigured, each with a stable code. ` +
		`With the file of a node it looks at that, the node's engines and the node, as far as can be told from its host. ` +
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
	options := c.ofRouter
	if config.IsNode(c.Config) {
		options = c.ofNode
	}
	o, err := options()
	if err != nil {
		return cannotLook(err)
	}
	o.TokenFile, o.CAFile, o.CertFile, o.KeyFile, o.Probe, o.Ignore, o.Timeout = c.TokenFile, c.CAFile, c.CertFile, c.KeyFile, c.Probe, c.Ignore, c.Timeout
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

// ofRouter is where there is something to look at by a router's file.
func (c *doctorCmd) ofRouter() (o doctor.Options, err error) {
	if o.Config, err = config.Load(c.Config); err != nil {
		return o, err
	}
	if o.Admin, err = askedURL("--admin", c.Admin, o.Config.Admin.Listen, o.Config.Admin.TLS.On()); err != nil {
		return o, err
	}
	o.Envoy, err = askedURL("--envoy-admin", c.EnvoyAdmin, o.Config.Envoy.Admin, false)
	return o, err
}

// ofNode is where there is something to look at by a node's file.
func (c *doctorCmd) ofNode() (o doctor.Options, err error) {
	if c.EnvoyAdmin != "" && c.EnvoyAdmin != "none" {
		return o, errors.New("--envoy-admin: the file is one of a node, which has nothing to do with Envoy")
	}
	if o.Node, err = config.LoadNode(c.Config); err != nil {
		return o, err
	}
	o.Kept, o.KeptErr = keptPorts(o.Node)
	o.Admin, err = askedURL("--admin", c.Admin, o.Node.Admin.Listen, o.Node.Admin.TLS.On())
	return o, err
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
