package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/kvsteer/kvsteer/internal/config"
)

type serveCmd struct {
	Config string     `help:"Configuration file." required:"" placeholder:"FILE" type:"path"`
	Check  bool       `help:"Check the configuration, say what is wrong with it, and end."`
	Level  slog.Level `name:"log-level" help:"debug, info, warn or error." default:"info"`
	Format string     `name:"log-format" help:"text or json." enum:"text,json" default:"text"`
}

// Help is shown by kvsteer serve --help.
func (c *serveCmd) Help() string {
	return `Ends at SIGTERM and SIGINT, after the open streams or at the latest after drain. Reads its configuration, keys, certificates and tokens again when their ` +
		`files change, and at SIGHUP; a configuration with problems is refused, and the one before stays in use.`
}

// Run serves until a signal asks it to end.
func (c *serveCmd) Run(ctx context.Context, out io.Writer) error {
	cfg, err := config.Load(c.Config)
	if p := (config.Problem{}); c.Check && errors.As(err, &p) && p.Excerpt != "" {
		return fmt.Errorf("%w\n%s", err, p.Excerpt)
	}
	if err != nil {
		return err
	}
	log := slog.New(logHandler(c.Level, c.Format))
	s, err := newService(c.Config, cfg, log)
	if err != nil {
		return err
	}
	if c.Check {
		text := fmt.Sprintf("%s is good: %s\n", c.Config, summary(cfg))
		if why := connecting(cfg); why != "" {
			text += "note: " + why + "\n"
		}
		// A site may have an Envoy configuration of its own, so this is no error of the router's.
		if err := checkEnvoy(cfg); err != nil {
			text += fmt.Sprintf("note: kvsteer envoy cannot print an Envoy configuration for it:\n%v\n", err)
		}
		_, err := io.WriteString(out, text)
		return err
	}
	return s.run(ctx)
}

func logHandler(level slog.Level, format string) slog.Handler {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(os.Stderr, options)
	}
	return slog.NewTextHandler(os.Stderr, options)
}

func summary(cfg *config.Config) string {
	text := fmt.Sprintf("%s, %s", count(len(cfg.Pools), "pool"), count(cfg.Endpoints(), "endpoint"))
	if n := len(followedBy(cfg)); n > 0 {
		text += fmt.Sprintf(", %d of them with events", n)
	} else if len(cfg.Nodes) == 0 {
		text += ", none with events, so prompts are matched by their text"
	}
	if n := len(cfg.Nodes); n > 0 {
		text += fmt.Sprintf(", nodes: %d", n)
	}
	if names := namesOf(cfg); len(names) > 0 {
		text += fmt.Sprintf(", names that DNS is asked for: %d", len(names))
	}
	return text
}

// connecting says what is wrong where engines connect to a router that may not be the only one; "" for nothing.
func connecting(cfg *config.Config) string {
	why, certain := cfg.SeveralRouters()
	if why == "" || certain || !cfg.Listens() { // what is certain is refused
		return ""
	}
	return why + ": with more than one router, engines that connect (events.listen) need nodes, as each feeds exactly one subscriber"
}

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
