package subscriber

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"
)

// Endings of the files of a state directory.
const (
	savedSuffix   = ".mirror"
	partialSuffix = savedSuffix + ".part"    // being written
	damagedSuffix = savedSuffix + ".damaged" // set aside
)

// maxReadable bounds the part of a file's name that is for people.
const maxReadable = 80

// savedFile is the file of one mirror. A reader finds what a whole write left or what was there before it, never a part of it.
type savedFile struct {
	dir, name string // without the ending
	// create opens a file for writing that must not be there; for tests.
	create func(path string) (syncWriter, error)
}

// syncWriter is what writing takes of a file.
type syncWriter interface {
	io.WriteCloser
	Sync() error
}

func newSavedFile(dir string, id identity) savedFile {
	return savedFile{dir: dir, name: savedName(id.pool, id.endpoint, id.rank), create: func(path string) (syncWriter, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}}
}

// savedName names a mirror's file: what people can read of it, and a hash of what it stands for.
func savedName(pool, endpoint string, rank int) string {
	readable := strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '.') {
			return r
		}
		return '_'
	}, fmt.Sprintf("%s_%s_%d", pool, endpoint, rank))
	readable = strings.TrimLeft(readable[:min(len(readable), maxReadable)], ".")
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %d %s %d", len(pool), pool, len(endpoint), endpoint, rank))
	return readable + "-" + hex.EncodeToString(sum[:8])
}

func (f savedFile) path() string { return filepath.Join(f.dir, f.name+savedSuffix) }

// write replaces the file.
func (f savedFile) write(s snapshot) (err error) {
	part := filepath.Join(f.dir, f.name+partialSuffix)
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that ended in the middle
		return err
	}
	w, err := f.create(part)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	sum := sha256.New()
	for _, b := range s {
		sum.Write(b)
		if _, err := w.Write(b); err != nil {
			_ = w.Close()
			return err
		}
	}
	if _, err := w.Write(sum.Sum(nil)); err != nil {
		_ = w.Close()
		return err
	}
	if err := errors.Join(w.Sync(), w.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, f.path()); err != nil {
		return err
	}
	return syncDir(f.dir)
}

// syncDir makes a rename last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// open returns the file and its size. The error is fs.ErrNotExist when there is none.
func (f savedFile) open() (*os.File, int64, error) {
	r, err := os.Open(f.path())
	if err != nil {
		return nil, 0, err
	}
	info, err := r.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: not a regular file", f.path())
	}
	if err != nil {
		_ = r.Close()
		return nil, 0, err
	}
	return r, info.Size(), nil
}

// setAside takes the file out of use. One is kept for a look at it.
func (f savedFile) setAside() error {
	return os.Rename(f.path(), filepath.Join(f.dir, f.name+damagedSuffix))
}

// StateDir is a folder in which subscribers save mirrors: one file for each pool, endpoint and rank. It belongs to one process at a time.
// A nil StateDir saves nothing.
type StateDir struct {
	path  string
	slots chan struct{} // snapshots that may be in memory or being written at one time
	held  *os.File      // the folder, locked from Prepare to Release
}

// savesAtOnce bounds the snapshots of a process: each takes some 20 bytes for a block of its mirror.
const savesAtOnce = 2

// NewStateDir names a folder; it returns nil for "". Before the first subscriber runs, Prepare is to be called.
func NewStateDir(path string) *StateDir {
	if path == "" {
		return nil
	}
	return &StateDir{path: path, slots: make(chan struct{}, savesAtOnce)}
}

// Prepare makes the folder if it is missing, for its owner alone, checks that files can be written there, and holds the folder until
// Release: two routers would remove each other's files.
func (d *StateDir) Prepare() error {
	if d == nil {
		return nil
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return err
	}
	if err := d.hold(); err != nil {
		return err
	}
	probe, err := os.CreateTemp(d.path, "probe-*")
	if err != nil {
		return err
	}
	_, err = probe.WriteString(saveMagic)
	return errors.Join(err, probe.Close(), os.Remove(probe.Name()))
}

// hold locks the folder. The kernel ends the lock with the process, however that ends.
func (d *StateDir) hold() error {
	if d.held != nil {
		return nil
	}
	folder, err := os.Open(d.path)
	if err != nil {
		return err
	}
	// File systems without locks (some network file systems) are used unlocked.
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		_ = folder.Close()
		return fmt.Errorf("%s: in use by another router or node", d.path)
	}
	d.held = folder
	return nil
}

// Release lets another process use the folder. It is to be called when no subscriber runs any more.
func (d *StateDir) Release() error {
	if d == nil || d.held == nil {
		return nil
	}
	err := d.held.Close()
	d.held = nil
	return err
}

// Forget removes what is saved of an endpoint's rank.
func (d *StateDir) Forget(pool, endpoint string, rank int) error {
	if d == nil {
		return nil
	}
	return d.remove(savedName(pool, endpoint, rank))
}

// Source names one mirror of a StateDir.
type Source struct {
	Pool, Endpoint string
	Rank           int
}

// Retain removes the mirrors of all other sources. Files that are no saved mirrors stay.
func (d *StateDir) Retain(sources []Source) error {
	if d == nil {
		return nil
	}
	kept := make(map[string]bool, len(sources))
	for _, s := range sources {
		kept[savedName(s.Pool, s.Endpoint, s.Rank)] = true
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), savedSuffix)
		if !ok || kept[name] || !e.Type().IsRegular() || !isSaved(filepath.Join(d.path, e.Name())) {
			continue
		}
		errs = append(errs, d.remove(name))
	}
	return errors.Join(errs...)
}

func isSaved(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, len(saveMagic))
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == saveMagic
}

func (d *StateDir) remove(name string) error {
	var errs []error
	for _, suffix := range []string{savedSuffix, partialSuffix, damagedSuffix} {
		if err := os.Remove(filepath.Join(d.path, name+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
