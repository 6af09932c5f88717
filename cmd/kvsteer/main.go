// Command kvsteer steers requests for large language models to the engine that holds their prefix.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

type cli struct {
	Engine engineCmd `cmd:"" help:"Run a simulated engine."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	k := kong.Parse(&cli{}, kong.Name("kvsteer"), kong.UsageOnError(),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.BindTo(os.Stdout, (*io.Writer)(nil)),
		kong.Bind(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	k.FatalIfErrorf(k.Run())
}
