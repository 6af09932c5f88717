// Command vllm-cpu shows kvsteer on two real vLLM engines and a real Envoy; "make demo-vllm" runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/kvsteer/kvsteer/internal/vllmdemo"
)

func main() {
	// The first signal ends the demo and its processes; the default action is back for a second one.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "vllm-cpu:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := vllmdemo.Options{Out: os.Stdout}
	flag.StringVar(&o.Kvsteer, "kvsteer", "bin/kvsteer", "kvsteer binary")
	flag.StringVar(&o.Envoy, "envoy", os.Getenv("ENVOY"), "Envoy binary, 1.37 or newer; default: $ENVOY")
	flag.StringVar(&o.Example, "example", "examples/vllm-cpu", "folder with kvsteer.yaml, ranks.yaml and engine.sh")
	flag.StringVar(&o.JSON, "json", "", "also write the figures to this file")
	flag.IntVar(&o.Size, "conversations", 75, "conversations of 4 turns; fewer end sooner and show less")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if _, err := exec.LookPath("vllm"); err != nil || os.Getenv("MODEL") == "" {
		return errors.New(`vllm is not on PATH, or MODEL is not set: run "make demo-vllm", or first eval "$(examples/vllm-cpu/setup.sh)"`)
	}
	if o.Envoy == "" {
		return errors.New(`no Envoy: set ENVOY to an Envoy binary, such as "$(scripts/envoy.sh)" prints`)
	}
	return vllmdemo.Run(ctx, o)
}
