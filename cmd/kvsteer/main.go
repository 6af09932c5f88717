// Command kvsteer routes LLM requests behind Envoy to the engine replica that already holds most of their prompt.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// cli is the whole command line. Each command is a struct of its flags with a Run method in the file of its name.
type cli struct {
	Serve serveCmd `cmd:"" help:"Run the router: the ext_proc server that Envoy asks, fed by the engines' KV cache events."`
	Node  nodeCmd  `cmd:"" help:"Run a node: beside the engines of a host, it tells routers what they hold."`
	Envoy envoyCmd `cmd:"" help:"Print an Envoy configuration for a kvsteer configuration."`

	EngineArgs engineArgsCmd `cmd:"" help:"Print how to start the engines of a kvsteer configuration."`

	Doctor  doctorCmd  `cmd:"" help:"Find what is misconfigured: configuration, engines, router and Envoy."`
	Demo    demoCmd    `cmd:"" help:"Show kvsteer on a real Envoy with simulated engines, beside round robin."`
	Engine  engineCmd  `cmd:"" help:"Run a simulated engine, for demos and tests."`
	Mode    modeCmd    `cmd:"" help:"Show or set what becomes of a pool's decisions, in a running router."`
	Drain   drainCmd   `cmd:"" help:"Send no new requests to an endpoint."`
	Undrain undrainCmd `cmd:"" help:"Send requests to a drained endpoint again."`
	Reset   resetCmd   `cmd:"" help:"Forget which blocks an endpoint holds."`
	Debug   debugCmd   `cmd:"" help:"Find out what is wrong with a running router."`
	Version versionCmd `cmd:"" help:"Print the version."`

	VersionToo versionFlag `name:"version" help:"Print the version."`
}

const description = `kvsteer sends each LLM request to the engine replica that already holds most of its prompt in its KV cache.

It runs beside Envoy as an external processor: "kvsteer serve" decides, "kvsteer envoy" prints the Envoy side.`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit status: 0 done, 1 the command could not do its work, 2 the command line is wrong; the doctor has its own.
func run(args []string, stdout, stderr io.Writer) int {
	// The first signal asks the command to end; the default action is back for a second one.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	var c cli
	exit := -1
	parser, err := kong.New(&c, kong.Name("kvsteer"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }), kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.BindTo(stdout, (*io.Writer)(nil)),
		kong.Bind(slog.New(slog.NewTextHandler(stderr, nil))))
	if err != nil {
		fmt.Fprintln(stderr, "kvsteer:", err)
		return 2
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if exit >= 0 {
		return exit // --help was printed
	}
	if err != nil {
		fmt.Fprintf(stderr, "kvsteer: %v; see %s --help\n", err, called(err))
		return 2
	}
	err = parsed.Run()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return 130 // ended by a signal, as asked
	}
	status := 1
	if e := new(exitError); errors.As(err, &e) {
		if status = e.status; e.err == nil {
			return status
		}
	}
	fmt.Fprintln(stderr, "kvsteer:", err)
	return status
}

// called is the command whose line is wrong, as far as it could be told.
func called(err error) string {
	if e := new(kong.ParseError); errors.As(err, &e) && e.Context != nil && e.Context.Selected() != nil {
		return strings.TrimSuffix(e.Context.Selected().FullPath(), " ")
	}
	return "kvsteer"
}
