package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/kvsteer/kvsteer/internal/config"
)

type nodeCmd struct {
	Config string     `help:"The node's configuration file." required:"" placeholder:"FILE" type:"path"`
	Check  bool       `help:"Check the configuration, say what is wrong with it, and end."`
	Level  slog.Level `name:"log-level" help:"debug, info, warn or error." default:"info"`
	Format string     `name:"log-format" help:"text or json." enum:"text,json" default:"text"`
}

// Help is shown by kvsteer node --help.
func (c *nodeCmd) Help() string {
	return `Runs beside the engines of a host, keeps what each of them holds by their KV cache events, and serves that and their load to any number of routers, whose ` +
		`configuration lists the node under nodes. "kvsteer engine-args" prints from the same file how to start the engines. ` +
		`Ends at SIGTERM and SIGINT. Reads its configuration, keys, certificates and tokens again when their files change, and at SIGHUP; a configuration with problems is ` +
		`refused, and the one before stays in use.`
}

// Run follows engines until a signal asks it to end.
func (c *nodeCmd) Run(ctx context.Context, out io.Writer) error {
	cfg, err := config.LoadNode(c.Config)
	if p := (config.Problem{}); c.Check && errors.As(err, &p) && p.Excerpt != "" {
		return fmt.Errorf("%w\n%s", err, p.Excerpt)
	}
	if err != nil {
		return err
	}
	n, err := newNodeService(c.Config, cfg, slog.New(logHandler(c.Level, c.Format)))
	if err != nil {
		return err
	}
	if c.Check {
		_, err := fmt.Fprintf(out, "%s is good: node %s, %s, %s\n", c.Config, cfg.Name, count(len(cfg.Pools), "pool"), count(cfg.EngineCount(), "engine"))
		return err
	}
	return n.run(ctx)
}
