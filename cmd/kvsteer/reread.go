package main

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/watch"
)

// rereads have a configuration file, and the files of keys that it names, read again.
type rereads struct {
	process string // router or node
	path    string
	keys    func() []keyFile // of the configuration in use
	apply   func() (report, error)
	hangup  func() // is called at each hangup, before the file is read
	log     *slog.Logger
	metrics *config.Metrics
}

// files are those that are read again.
func (r rereads) files() []string {
	files := []string{r.path}
	for _, k := range r.keys() {
		if k.path != "" {
			files = append(files, k.path)
		}
	}
	return files
}

// reload has what has changed taken over, and says so. asked says that somebody wants to hear of it even if that is nothing.
func (r rereads) reload(asked bool) {
	done, err := r.apply()
	switch {
	case err != nil:
		r.metrics.Refused()
		r.log.Error("the changed configuration is refused; the one before stays in use", "problems", strings.ReplaceAll(err.Error(), "\n", "; "))
	case done.empty() && !asked:
		return
	default:
		r.metrics.Applied(time.Now())
		done.log(r.log, r.process)
	}
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
