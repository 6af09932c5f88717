package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/config"
)

type envoyCmd struct {
	Config       string `help:"kvsteer's configuration file." required:"" placeholder:"FILE" type:"path"`
	EnvoyVersion string `help:"Release of the Envoy that will read it, such as 1.40.0; default: envoy.version of the configuration, else the layout for 1.37 and newer." placeholder:"VERSION"`
	AccessLog    string `help:"Access log file; default: Envoy's standard output." placeholder:"FILE" type:"path"`
	AllPaths     bool   `help:"Route every path to the engines, as envoy.all_paths: true in the configuration does. Engines serve metrics and administration on the same port."`
	Balance      string `help:"How Envoy spreads requests that come without a decision: least_request or round_robin." enum:"least_request,round_robin" default:"least_request"`
}

// Run prints the configuration.
func (c *envoyCmd) Run(out io.Writer) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	text, err := envoy.Render(c.options(cfg))
	if err != nil {
		return fmt.Errorf("%s cannot become an Envoy configuration:\n%w", c.Config, plain(err))
	}
	_, err = out.Write(text)
	return err
}

func (c *envoyCmd) options(cfg *config.Config) envoy.Options {
	o := envoy.Options{
		Router: cfg.Listen, Listen: cfg.Envoy.Listen, Admin: cfg.Envoy.Admin, Version: c.EnvoyVersion,
		MessageTimeout: cfg.Envoy.MessageTimeout.Std(), MaxBody: cfg.Limits.Body.Bytes(), AllPaths: cfg.Envoy.AllPaths || c.AllPaths,
		AccessLog: c.AccessLog, Balance: envoy.Balance(c.Balance),
	}
	if o.Version == "" {
		o.Version = cfg.Envoy.Version
	}
	// Envoy runs in a folder of its own.
	if path, ok := strings.CutPrefix(cfg.Listen, "unix:"); ok {
		if full, err := filepath.Abs(path); err == nil {
			o.Router = "unix:" + full
		}
	}
	for _, p := range cfg.Pools {
		pool := envoy.Pool{
			Name: p.Name, Fallback: envoy.Fallback(p.Fallback.To),
			Match: envoy.Match{Host: p.Match.Host, PathPrefix: p.Match.PathPrefix, HeaderName: p.Match.Header.Name, HeaderValue: p.Match.Header.Value},
		}
		for _, e := range p.Endpoints {
			pool.Endpoints = append(pool.Endpoints, e.Address)
		}
		o.Pools = append(o.Pools, pool)
	}
	return o
}

// configKey maps keys of envoy's options to those of the configuration file, where they differ.
var configKey = map[string]string{"router": "listen", "listen": "envoy.listen", "admin": "envoy.admin", "version": "envoy.version (or --envoy-version)"}

// plain rewrites option errors into the terms of the configuration file.
func plain(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var all []error
	for _, e := range joined.Unwrap() {
		if option := new(envoy.OptionError); errors.As(e, &option) {
			key := option.Key
			if name, ok := configKey[key]; ok {
				key = name
			}
			e = fmt.Errorf("  %s: %q: want %s", key, option.Value, option.Want)
		}
		all = append(all, e)
	}
	return errors.Join(all...)
}
