package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/watch"
)

// tokenFile is a token that is read again when its file changes.
type tokenFile struct {
	key, path string // key is what the configuration calls it
	watcher   *watch.Watcher
	log       *slog.Logger
	text      atomic.Pointer[string]
}

// newTokenFile reads the file. It returns nil for no path: no token.
func newTokenFile(key, path string, log *slog.Logger) (*tokenFile, error) {
	if path == "" {
		return nil, nil
	}
	w, err := watch.New(watch.Options{Paths: []string{path}, Log: log})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	t := &tokenFile{key: key, path: path, watcher: w, log: log}
	return t, t.read()
}

func (t *tokenFile) read() error {
	text, err := admin.ReadToken(t.path)
	if err != nil {
		return fmt.Errorf("%s: %w", t.key, err)
	}
	t.text.Store(&text)
	return nil
}

// current is the token, "" for none.
func (t *tokenFile) current() string {
	if t == nil {
		return ""
	}
	return *t.text.Load()
}

// run takes over a changed file until ctx ends.
func (t *tokenFile) run(ctx context.Context) error { return t.watcher.Run(ctx, t.reload) }

// reload reads the file again; what was in use stays if that is no token.
func (t *tokenFile) reload() {
	if t == nil {
		return
	}
	if err := t.read(); err != nil {
		t.log.Warn("the changed token file is refused; the old token stays in use", "error", err)
		return
	}
	t.log.Info("the token is read again", "key", t.key)
}
