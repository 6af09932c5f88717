package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/config"
)

type envoyCmd struct {
	Config       string `help:"kvsteer's configuration file." required:"" placeholder:"FILE" type:"path"`
	EnvoyVersion string `help:"Release of the Envoy that will read it, such as 1.40.0; default: envoy.version of the configuration, else the layout for 1.37 and newer, unless envoy.layout names one." placeholder:"VERSION"`
	FilterOnly   bool   `help:"Print the pieces to add to an Envoy configuration of your own instead of a whole one."`
	Secrets      string `help:"Write small files into this folder that make Envoy take certificates that are replaced, and refer to them. The folder must stand at the same path for Envoy." placeholder:"DIR" type:"path"`
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
	o := c.options(cfg)
	render := envoy.Render
	if c.FilterOnly {
		render = envoy.RenderFilter
	}
	text, err := render(o)
	if err := errors.Join(plain(err), routerTLS(cfg), pickerList(cfg)); err != nil {
		return fmt.Errorf("%s cannot become an Envoy configuration:\n%w", c.Config, err)
	}
	if err := c.writeSecrets(o); err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// writeSecrets puts each file in its place at once, as Envoy may be running with the one before.
func (c *envoyCmd) writeSecrets(o envoy.Options) error {
	files, err := envoy.Secrets(o)
	if err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	for _, f := range files {
		path := filepath.Join(c.Secrets, f.Name)
		if err := os.WriteFile(path+".new", f.Text, 0o644); err != nil {
			return fmt.Errorf("secrets: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("secrets: %w", err)
		}
	}
	return nil
}

// checkEnvoy reports why no Envoy configuration can be printed, nil when one can.
func checkEnvoy(cfg *config.Config) error {
	c := &envoyCmd{}
	o := c.options(cfg)
	err := o.Validate()
	for _, p := range o.Pools {
		if p.Cluster != "" {
			err = o.ValidateFilter()
		}
	}
	return errors.Join(plain(err), routerTLS(cfg), pickerList(cfg))
}

// pickerList finds a list of endpoints where the printed clusters dial one address.
func pickerList(cfg *config.Config) error {
	if cfg.Headers == "gaie" && cfg.GAIE.List && !lists(cfg) {
		return errors.New("  gaie.list: want false, or envoy.layout: override_host: the clusters of the other layouts dial one address, not a list")
	}
	return nil
}

// routerTLS finds a listener and an Envoy that would not understand each other.
func routerTLS(cfg *config.Config) error {
	has := cfg.Envoy.RouterTLS
	switch {
	case cfg.TLS.On() && !has.On():
		return errors.New("  envoy.router_tls: want ca_file and server_name: the listener speaks TLS (tls.cert_file), and Envoy must check its certificate")
	case cfg.TLS.ClientCAFile != "" && has.CertFile == "":
		return errors.New("  envoy.router_tls: want cert_file and key_file: the listener refuses clients without a certificate (tls.client_ca_file)")
	case has.On() && !cfg.TLS.On() && len(cfg.Envoy.Routers) == 0:
		return errors.New("  envoy.router_tls: want tls.cert_file and tls.key_file beside it: the listener speaks clear text")
	}
	return nil
}

func (c *envoyCmd) options(cfg *config.Config) envoy.Options {
	o := envoy.Options{
		Routers: cfg.Envoy.Routers, RouterTLS: envoyTLS(cfg.Envoy.RouterTLS), EngineTLS: envoyTLS(cfg.Engines.TLS), EngineHTTP2: cfg.Engines.HTTP2,
		SecretsDir: c.Secrets, AccessLogService: cfg.Envoy.AccessLogService, DecisionHeader: cfg.Envoy.DecisionHeader,
		Listen: cfg.Envoy.Listen, Admin: cfg.Envoy.Admin, Version: c.EnvoyVersion,
		MessageTimeout: cfg.Envoy.MessageTimeout.Std(), MaxBody: cfg.Limits.Body.Bytes(), AllPaths: cfg.Envoy.AllPaths || c.AllPaths,
		AccessLog: c.AccessLog, Balance: envoy.Balance(c.Balance), Layout: envoy.Layout(cfg.Envoy.Layout), Body: envoy.Body(cfg.Envoy.Body),
		Headers: envoy.Headers(cfg.Headers), Served: cfg.GAIE.Served,
	}
	if o.Version == "" {
		o.Version = cfg.Envoy.Version
	}
	if len(o.Routers) == 0 {
		o.Routers = []string{cfg.Listen}
		if path, ok := strings.CutPrefix(cfg.Listen, "unix:"); ok {
			o.Routers[0] = "unix:" + absolute(path)
		}
	}
	for _, p := range cfg.Pools {
		o.RankHeader = o.RankHeader || p.PinRank
		if name := strings.ToLower(p.SaltHeader); name != "" && !slices.Contains(o.StripHeaders, name) {
			o.StripHeaders = append(o.StripHeaders, name)
		}
		pool := envoy.Pool{
			Name: p.Name, Fallback: envoy.Fallback(p.Fallback.To), Cluster: p.Fallback.Cluster, DNS: p.DNS,
			Match: envoy.Match{Host: p.Match.Host, PathPrefix: p.Match.PathPrefix, HeaderName: p.Match.Header.Name, HeaderValue: p.Match.Header.Value},
		}
		if pool.Cluster != "" {
			pool.Fallback = ""
		}
		for _, e := range p.Endpoints {
			pool.Endpoints = append(pool.Endpoints, e.Address)
		}
		o.Pools = append(o.Pools, pool)
	}
	return o
}

// envoyTLS takes the paths for those of Envoy's host.
func envoyTLS(t config.ClientTLS) envoy.TLS {
	return envoy.TLS{CAFile: absolute(t.CAFile), ServerName: t.ServerName, CertFile: absolute(t.CertFile), KeyFile: absolute(t.KeyFile)}
}

// absolute makes a path hold in other folders too: Envoy runs in one of its own.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

// configKey maps keys of envoy's options to those of the configuration file, where they differ.
var configKey = map[string]string{
	"listen": "envoy.listen", "admin": "envoy.admin", "version": "envoy.version (or --envoy-version)", "secrets_dir": "--secrets",
	"layout": "envoy.layout", "body": "envoy.body", "router_tls": "envoy.router_tls", "engine_tls": "engines.tls", "routers": "envoy.routers",
	"strip_headers": "pools.salt_header",
}

// plain rewrites option errors into the terms of the configuration file.
func plain(err error) error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var all []error
	for _, e := range joined.Unwrap() {
		if option := new(envoy.OptionError); errors.As(e, &option) {
			key := option.Key
			// The first part of a key is the one that differs.
			end := strings.IndexAny(key+".", ".[")
			if name, ok := configKey[key[:end]]; ok {
				key = name + key[end:]
			}
			e = fmt.Errorf("  %s: %q: want %s", key, option.Value, option.Want)
		}
		all = append(all, e)
	}
	return errors.Join(all...)
}
