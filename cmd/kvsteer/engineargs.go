package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/engineargs"
)

type engineArgsCmd struct {
	Endpoint string `arg:"" optional:"" help:"Only the engine of this endpoint, as the configuration names it." placeholder:"IP:PORT"`

	Config  string  `help:"Configuration file of a router or of a node." required:"" placeholder:"FILE" type:"path"`
	Engine  *string `help:"What the engines are: vllm or sglang. Default: what a node's file says, else vllm." enum:"vllm,sglang"`
	Release string  `name:"engine-version" help:"Release of the engines, such as 0.32.0; default: what every supported release takes." placeholder:"VERSION"`
	Format  string  `help:"shell: a command to paste. container: args and env in YAML. json: for programs." enum:"shell,container,json" default:"shell"`
	Bind    bool    `help:"Also print the arguments of engines that bind their events port (events.dial). Such a port publishes the token ids of every prompt, without a password."`
	Replay  bool    `help:"Have engines open a port that repeats past batches, token ids included, to readers that missed some: that of events.replay, else one on their loopback." default:"true" negatable:""`
}

// Help is shown by kvsteer engine-args --help.
func (c *engineArgsCmd) Help() string {
	return `Prints how to start the engine of each endpoint, so that it answers at the endpoint's address, under the pool's model names, ` +
		`and sends its KV cache events where the router or the node looks for them. For engines of a node with events.listen: auto it picks their ports in state_dir ` +
		`as the node does: both have the same ones, whoever comes first.`
}

// Run prints the arguments. What was refused is an error after the rest was printed.
func (c *engineArgsCmd) Run(out io.Writer, log *slog.Logger) error {
	options := engineargs.Options{Release: c.Release, Endpoint: c.Endpoint, Bind: c.Bind, Replay: c.Replay}
	if c.Engine != nil {
		options.Kind = engineargs.Kind(*c.Engine)
	}
	load := config.Load
	if config.IsNode(c.Config) {
		load = func(path string) (*config.Config, error) { return enginesOfNode(path, &options, log) }
	}
	cfg, err := load(c.Config)
	if err != nil {
		return err
	}
	options.Nodes = len(cfg.Nodes) > 0
	engines, err := engineargs.Plan(cfg, options)
	if err != nil {
		return err
	}
	print := map[string]func(io.Writer, []engineargs.Engine) error{
		"shell": engineargs.Shell, "container": engineargs.Container, "json": engineargs.JSON,
	}[c.Format]
	if err := print(out, engines); err != nil {
		return err
	}
	return missing(engines)
}

// noPorts says of ports that cannot be picked who can.
func noPorts(err error, stateDir string) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: until ports are picked this takes a user who may write to state_dir (%s), such as the node's, and afterwards one who may read it", err, stateDir)
	}
	return err
}

// enginesOfNode are the engines of a node's file as endpoints of a router's, with their ports, which are picked where they are not yet.
func enginesOfNode(path string, o *engineargs.Options, log *slog.Logger) (*config.Config, error) {
	node, err := config.LoadNode(path)
	if err != nil {
		return nil, err
	}
	// The node may be running, and then it is who listens there.
	picked, err := pickPorts(node, func(string) bool { return false })
	if err != nil {
		return nil, noPorts(err, node.StateDir)
	}
	tellPicked(log, node, picked)
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = node.Listen, node.Admin.Listen
	o.Node, o.Kinds = true, map[string]engineargs.Kind{}
	for _, p := range node.Pools {
		o.Kinds[p.Name] = engineargs.Kind(p.Engine)
		pool := config.Pool{Name: p.Name, Models: p.Models, HashSeed: p.HashSeed}
		for _, e := range p.Engines {
			pool.Endpoints = append(pool.Endpoints, config.Endpoint{Address: e.Address, Events: eventsOf(e, picked)})
		}
		cfg.Pools = append(cfg.Pools, pool)
	}
	return cfg, nil
}

// missing is the error for engines whose arguments were not printed: those that were refused, or all of them.
func missing(engines []engineargs.Engine) error {
	var refused, all []string
	for _, e := range engines {
		if e.Missing == "" {
			continue
		}
		text := fmt.Sprintf("%s: %s", e.Endpoint, e.Missing)
		all = append(all, text)
		if e.Refused {
			refused = append(refused, text)
		}
	}
	switch {
	case len(all) == len(engines):
		return errors.New("there are no arguments to print:\n  " + strings.Join(all, "\n  "))
	case len(refused) > 0:
		return errors.New("not all arguments were printed:\n  " + strings.Join(refused, "\n  "))
	}
	return nil
}
