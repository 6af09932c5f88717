package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// patience bounds how long a folder that never gets quiet can put off a change, in units of Options.Settle.
const patience = 10

// Options of a Watcher. Paths is needed.
type Options struct {
	Paths  []string      // the files; they need not exist yet
	Poll   time.Duration // time between two looks at all files, whatever the system announces. Default 10 s
	Settle time.Duration // quiet time before a change is told. Default 200 ms
	Log    *slog.Logger  // default: discarded
}

// Watcher tells when files change.
type Watcher struct {
	paths  []string // absolute
	poll   time.Duration
	settle time.Duration
	log    *slog.Logger
	notify func() (*fsnotify.Watcher, error)

	seen map[string]state // by path; Run's alone
}

// New reads the files once: Run tells of changes since then. It starts nothing.
func New(o Options) (*Watcher, error) {
	if len(o.Paths) == 0 {
		return nil, errors.New("watch: no files given")
	}
	if o.Poll < 0 || o.Settle < 0 {
		return nil, fmt.Errorf("watch: poll %v and settle %v, want more than 0", o.Poll, o.Settle)
	}
	if o.Poll == 0 {
		o.Poll = 10 * time.Second
	}
	if o.Settle == 0 {
		o.Settle = 200 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{poll: o.Poll, settle: o.Settle, log: o.Log, notify: fsnotify.NewWatcher, seen: map[string]state{}}
	for _, p := range o.Paths {
		if p == "" {
			return nil, errors.New("watch: an empty path")
		}
		full, err := filepath.Abs(p)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", p, err)
		}
		if _, ok := w.seen[full]; ok {
			continue
		}
		w.paths = append(w.paths, full)
		w.seen[full] = read(full, state{})
	}
	return w, nil
}

// Run calls changed after each change, until ctx ends.
func (w *Watcher) Run(ctx context.Context, changed func()) error {
	f := w.open()
	defer f.close()
	f.follow(w.paths)
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	settled := time.NewTimer(0) // the first look: what changed since New
	defer settled.Stop()
	var since time.Time // of the first announcement that was not followed by a look; zero when there is none
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.stirred:
			if since.IsZero() {
				since = time.Now()
			}
			settled.Reset(min(w.settle, max(0, patience*w.settle-time.Since(since))))
			continue
		case <-settled.C:
		case <-poll.C:
		}
		since = time.Time{}
		f.follow(w.paths)
		if w.look() {
			changed()
		}
	}
}

// look reads all files and reports whether the content of any has changed.
func (w *Watcher) look() bool {
	changed := false
	for _, p := range w.paths {
		was := w.seen[p]
		is := read(p, was)
		w.seen[p] = is
		switch {
		case is.problem == "":
			changed = changed || is.sum != was.sum
		case was.problem == "":
			w.log.Warn("a file cannot be read; what it held stays in use", "file", p, "problem", is.problem)
		}
	}
	return changed
}
