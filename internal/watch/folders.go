package watch

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	maxLinks = 40 // links on the way to a file, as the kernel allows
	rounds   = 3  // times that ways may change while their folders are being watched; then the poll has to do
)

// folders are the watched folders. Where the system gives no watcher, nothing ever stirs and the poll does all.
type folders struct {
	log     *slog.Logger
	poll    time.Duration
	watcher *fsnotify.Watcher // nil: none
	stirred chan struct{}     // has a token when something happened in a folder
	pump    sync.WaitGroup
	watched map[string]bool
	told    bool // that changes are not announced
}

func (w *Watcher) open() *folders {
	f := &folders{log: w.log, poll: w.poll, stirred: make(chan struct{}, 1), watched: map[string]bool{}}
	watcher, err := w.notify()
	if err != nil {
		f.deaf(err)
		return f
	}
	f.watcher = watcher
	f.pump.Go(f.listen)
	return f
}

// listen takes announcements as they come: the watcher may wait for a reader with a lock held that follow needs. Lost
// announcements, which come as errors, stir too.
func (f *folders) listen() {
	for {
		select {
		case _, ok := <-f.watcher.Events:
			if !ok {
				return
			}
		case _, ok := <-f.watcher.Errors:
			if !ok {
				return
			}
		}
		select {
		case f.stirred <- struct{}{}:
		default:
		}
	}
}

func (f *folders) close() {
	if f.watcher != nil {
		f.watcher.Close()
		f.pump.Wait()
	}
}

// deaf says once that changes are not announced.
func (f *folders) deaf(err error) {
	if !f.told {
		f.told = true
		f.log.Warn("the system does not announce changes of files; they are looked at from time to time", "every", f.poll, "error", err)
	}
}

// follow watches the folders on the ways to the files, and no others.
func (f *folders) follow(paths []string) {
	if f.watcher == nil {
		return
	}
	for range rounds {
		needed := map[string]bool{}
		for _, p := range paths {
			for _, dir := range way(p) {
				needed[dir] = true
			}
		}
		// Those that are watched are added too: a folder that was replaced has the old name and is another one. Otherwise it is no change.
		for dir := range needed {
			if err := f.watcher.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				f.deaf(err)
			}
		}
		for dir := range f.watched {
			if !needed[dir] {
				_ = f.watcher.Remove(dir) // of a deleted folder it is gone already
			}
		}
		same := maps.Equal(needed, f.watched)
		f.watched = needed
		if same {
			return
		}
		// A link that was replaced before its folder was watched has not been announced: go the ways again.
	}
}

// way lists the folders in which an entry decides what an absolute path means: that of the file, and that of each symbolic
// link on the way. Where the way ends early, the last folder is the one that lacks the next entry.
func way(path string) []string {
	const slash = string(filepath.Separator)
	var dirs []string
	dir, rest := slash, path
	for links := 0; rest != ""; {
		name, more, _ := strings.Cut(rest, slash)
		rest = more
		switch name {
		case "", ".":
			continue
		case "..":
			dir = filepath.Dir(dir) // dir has no links, so that its parent is what its name says
			continue
		}
		entry := filepath.Join(dir, name)
		info, err := os.Lstat(entry)
		switch {
		case err != nil:
			return append(dirs, dir)
		case info.Mode()&fs.ModeSymlink != 0:
			dirs = append(dirs, dir)
			target, err := os.Readlink(entry)
			if links++; err != nil || links > maxLinks {
				return dirs
			}
			if filepath.IsAbs(target) {
				dir = slash
			}
			rest = target + slash + more
		case !info.IsDir():
			return append(dirs, dir)
		default:
			dir = entry
		}
	}
	return append(dirs, dir)
}
