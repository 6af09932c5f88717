package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/engineargs"
)

type engineArgsCmd struct {
	Endpoint string `arg:"" optional:"" help:"Only the engine of this endpoint, as the configuration names it." placeholder:"IP:PORT"`

	Config  string `help:"kvsteer's configuration file." required:"" placeholder:"FILE" type:"path"`
	Engine  string `help:"What the engines are: vllm or sglang." enum:"vllm,sglang" default:"vllm"`
	Release string `name:"engine-version" help:"Release of the engines, such as 0.32.0; default: what every supported release takes." placeholder:"VERSION"`
	Format  string `help:"shell: a command to paste. container: args and env in YAML. json: for programs." enum:"shell,container,json" default:"shell"`
	Bind    bool   `help:"Also print the arguments of engines that bind their events port (events.dial). Such a port publishes the token ids of every prompt, without a password."`
	Replay  bool   `help:"Have engines open a port that repeats past batches, token ids included, to readers that missed some: that of events.replay, else one on their loopback." default:"true" negatable:""`
}

// Help is shown by kvsteer engine-args --help.
func (c *engineArgsCmd) Help() string {
	return `Prints how to start the engine of each endpoint, so that it answers at the endpoint's address, under the pool's model names, ` +
		`and sends its KV cache events where the router looks for them.`
}

// Run prints the arguments. What was refused is an error after the rest was printed.
func (c *engineArgsCmd) Run(out io.Writer) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	engines, err := engineargs.Plan(cfg, engineargs.Options{
		Kind: engineargs.Kind(c.Engine), Release: c.Release, Endpoint: c.Endpoint, Bind: c.Bind, Replay: c.Replay,
	})
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
