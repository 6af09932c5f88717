package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/kvsteer/kvsteer/subscriber"
)

// prepare makes ready what is saved. It is to be called before run, and release after it.
func (f *followers) prepare(all []followed) error {
	if err := f.state.Prepare(); err != nil {
		return noStateDir(err)
	}
	if err := f.retain(all); err != nil {
		f.release()
		return err
	}
	return nil
}

// noStateDir says of a folder that cannot be had what to do about it. One that is in use says so itself.
func noStateDir(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return fmt.Errorf("state_dir: %w: let kvsteer's user own this folder and write to it, or name another one", err)
	}
	return fmt.Errorf("state_dir: %w", err)
}

// release gives the folder of what is saved free for another router.
func (f *followers) release() {
	if err := f.state.Release(); err != nil {
		f.log.Warn("state_dir cannot be released", "error", err)
	}
}

// retain removes what is saved of endpoints that are not followed.
func (f *followers) retain(all []followed) error {
	var sources []subscriber.Source
	for _, what := range all {
		for rank := range max(what.events.Ranks, 1) {
			sources = append(sources, subscriber.Source{Pool: what.pool, Endpoint: what.endpoint, Rank: rank})
		}
	}
	if err := f.state.Retain(sources); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	return nil
}

// forget removes what is saved of an endpoint.
func (f *followers) forget(what followed) {
	for rank := range max(what.events.Ranks, 1) {
		if err := f.state.Forget(what.pool, what.endpoint, rank); err != nil {
			f.log.Warn("a saved mirror cannot be removed", "pool", what.pool, "endpoint", what.endpoint, "rank", rank, "error", err)
		}
	}
}
