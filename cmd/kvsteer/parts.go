package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// parts are what a service runs side by side. When one of them ends, the service does.
type parts struct {
	group   errgroup.Group
	serving context.Context // ends with the context of the service, or with a part
	stop    context.CancelFunc
	ctx     context.Context // of the parts: outlives serving until last is over
	end     context.CancelFunc
}

func newParts(ctx context.Context) *parts {
	p := &parts{}
	p.serving, p.stop = context.WithCancel(ctx)
	p.ctx, p.end = context.WithCancel(context.WithoutCancel(ctx))
	return p
}

// run starts a part.
func (p *parts) run(name string, run func(context.Context) error) {
	p.group.Go(func() error {
		defer p.stop()
		if err := run(p.ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// last runs what ends when the service is to, in its own time, then ends the parts. It returns when all have ended, with the first error.
func (p *parts) last(serve func(serving context.Context) error) error {
	p.group.Go(func() error {
		defer p.end()
		return serve(p.serving)
	})
	err := p.group.Wait()
	p.stop()
	return err
}
