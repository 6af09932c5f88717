package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/feed"
)

// filesEvery is how often offered files are looked at.
const filesEvery = 30 * time.Second

// modelFiles are the tokenizer files that a node offers, by the hash of their content. It is a feed.FileSource.
type modelFiles struct {
	log     *slog.Logger
	changed func()        // never blocks
	wake    chan struct{} // capacity 1: has run look

	mu    sync.Mutex
	dirs  map[string]config.Tokenizer // by pool
	pools map[string][]offered        // what they hold, in the order of names
}

// offered is a file as it was when it was hashed.
type offered struct {
	feed.File
	path     string
	modified time.Time
}

// newModelFiles reads the files that a configuration offers.
func newModelFiles(cfg *config.Node, log *slog.Logger) (*modelFiles, error) {
	m := &modelFiles{log: log, changed: func() {}, wake: make(chan struct{}, 1), dirs: tokenizerDirs(cfg)}
	var errs []error
	for i, p := range cfg.Pools {
		if t, ok := m.dirs[p.Name]; ok {
			if info, err := os.Stat(t.Dir); err != nil {
				errs = append(errs, fmt.Errorf("pools[%d].tokenizer.dir: %w", i, err))
			} else if !info.IsDir() {
				errs = append(errs, fmt.Errorf("pools[%d].tokenizer.dir: %s is no folder", i, t.Dir))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	m.pools = m.look(m.dirs, nil)
	return m, nil
}

func tokenizerDirs(cfg *config.Node) map[string]config.Tokenizer {
	dirs := map[string]config.Tokenizer{}
	for _, p := range cfg.Pools {
		if p.Tokenizer.Dir != "" {
			dirs[p.Name] = p.Tokenizer
		}
	}
	return dirs
}

// set takes over which folders are offered. What they hold is offered when run has read it.
func (m *modelFiles) set(cfg *config.Node) {
	m.mu.Lock()
	m.dirs = tokenizerDirs(cfg)
	m.mu.Unlock()
	nudge(m.wake)
}

// again looks at all files, and reads those that look changed. It is for one goroutine: what another one has read of other folders would come last.
func (m *modelFiles) again() {
	m.mu.Lock()
	dirs, before := m.dirs, m.pools
	m.mu.Unlock()
	pools := m.look(dirs, before)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pools = pools
	m.changed()
}

// run looks at the files from time to time until ctx ends.
func (m *modelFiles) run(ctx context.Context) error {
	tick := time.NewTicker(filesEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.wake:
		case <-ctx.Done():
			return nil
		}
		m.again()
	}
}

// look hashes the files of all folders, but for those that look as they did before.
func (m *modelFiles) look(dirs map[string]config.Tokenizer, before map[string][]offered) map[string][]offered {
	pools := map[string][]offered{}
	for pool, t := range dirs {
		for _, name := range config.TokenizerFiles() {
			path := filepath.Join(t.Dir, name)
			info, err := os.Stat(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if i := slices.IndexFunc(before[pool], func(o offered) bool { return o.path == path }); err == nil && i >= 0 {
				if o := before[pool][i]; o.modified.Equal(info.ModTime()) && o.Size == info.Size() && o.Size <= t.MaxSize.Bytes() {
					pools[pool] = append(pools[pool], o)
					continue
				}
			}
			o, err := hash(path, name, t.MaxSize.Bytes())
			if err != nil {
				m.log.Warn("a file of the tokenizer is not offered", "pool", pool, "file", path, "error", err)
				continue
			}
			pools[pool] = append(pools[pool], o)
		}
	}
	return pools
}

// openRegular opens a regular file. Another one is not waited for: the open of a named pipe would take until somebody writes to it.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func hash(path, name string, limit int64) (o offered, err error) {
	f, info, err := openRegular(path)
	if err != nil {
		return o, err
	}
	defer f.Close()
	if info.Size() > limit {
		return o, fmt.Errorf("%s, more than tokenizer.max_size (%s)", config.Size(info.Size()), config.Size(limit))
	}
	sum := sha256.New()
	if n, err := io.Copy(sum, io.LimitReader(f, limit+1)); err != nil || n != info.Size() {
		return o, errors.Join(err, errors.New("it changes while it is read"))
	}
	return offered{feed.File{Name: name, SHA256: [sha256.Size]byte(sum.Sum(nil)), Size: info.Size()}, path, info.ModTime()}, nil
}

// offered are the files of a pool.
func (m *modelFiles) offered(pool string) []feed.File {
	m.mu.Lock()
	defer m.mu.Unlock()
	var files []feed.File
	for _, o := range m.pools[pool] {
		files = append(files, o.File)
	}
	return files
}

// Open implements feed.FileSource. A file that looks changed is not opened.
func (m *modelFiles) Open(sum [sha256.Size]byte) (io.ReadCloser, int64, bool) {
	m.mu.Lock()
	var found *offered
	for _, files := range m.pools {
		for i := range files {
			if files[i].SHA256 == sum {
				found = &files[i]
			}
		}
	}
	m.mu.Unlock()
	if found == nil {
		return nil, 0, false
	}
	f, info, err := openRegular(found.path)
	if err != nil {
		return nil, 0, false
	}
	if info.Size() != found.Size || !info.ModTime().Equal(found.modified) {
		_ = f.Close()
		return nil, 0, false
	}
	return f, found.Size, true
}
