package main

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/kvsteer/kvsteer/internal/watch"
)

// rereads have a configuration file and the files that it names read again.
type rereads struct {
	log    *slog.Logger
	files  func() []string // which there are
	reload func(asked bool)
	hangup func() // is called at each hangup, before reload
}

// run has files read again when one of them changes, and at each hangup, until ctx ends.
func (r rereads) run(ctx context.Context, hangups <-chan os.Signal) error {
	changed := make(chan struct{}, 1)
	unwatch := func() {}
	defer func() { unwatch() }()
	var watched []string
	for {
		if files := r.files(); !slices.Equal(files, watched) {
			unwatch()
			var err error
			if unwatch, err = r.watch(ctx, files, changed); err != nil {
				return err
			}
			watched = files
			r.reload(false) // what has changed before it was watched
			continue
		}
		asked := false
		select {
		case <-changed:
		case <-hangups:
			asked = true
			r.hangup()
		case <-ctx.Done():
			return nil
		}
		r.reload(asked)
	}
}

// watch tells of changes of files until it is ended.
func (r rereads) watch(ctx context.Context, files []string, changed chan<- struct{}) (end func(), err error) {
	w, err := watch.New(watch.Options{Paths: files, Log: r.log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = w.Run(ctx, func() { nudge(changed) }) // its errors are only those of ctx
	})
	return func() { cancel(); wg.Wait() }, nil
}

// nudge fills a channel of capacity 1, which has somebody look. It never blocks.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // about to be looked at
	}
}
