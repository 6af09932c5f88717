package ports

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const (
	fileName = "ports.json"
	lockName = "ports.lock"
	format   = 1 // of the file

	// maxFile bounds the file in bytes: far above what the bounds on engines make of it.
	maxFile = 4 << 20
	// lockWait is how long another process is waited for that writes the file.
	lockWait = 5 * time.Second
)

// Options of a Book. Dir, First and Last are needed.
type Options struct {
	Dir         string          // made if it is missing
	First, Last uint16          // ports to pick from
	Taken       map[uint16]bool // ports that others of the configuration have
	Busy        func(port uint16) bool
	Now         func() time.Time
}

// Book is the file of ports of one node.
type Book struct{ o Options }

// New makes a Book, and touches nothing.
func New(o Options) *Book {
	if o.Busy == nil {
		o.Busy = busy
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Book{o}
}

// busy says whether somebody listens on a port of loopback.
func busy(port uint16) bool {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return true
	}
	_ = l.Close()
	return false
}

// Path is the file.
func (b *Book) Path() string { return filepath.Join(b.o.Dir, fileName) }

// Pick gives the engines their ports, and remembers them. It writes only what has changed.
func (b *Book) Pick(wants []Want) (Picked, error) {
	r := rules{first: b.o.First, last: b.o.Last, taken: b.o.Taken, busy: b.o.Busy}
	// Who only wants to know what is kept needs no right to write.
	if before, err := b.read(); err == nil {
		if after, picked, err := pick(before, wants, r, b.o.Now()); err == nil && same(before, after) {
			return picked, nil
		}
	}
	if err := os.MkdirAll(b.o.Dir, 0o700); err != nil {
		return Picked{}, err
	}
	unlock, err := b.lock(lockWait)
	if err != nil {
		return Picked{}, err
	}
	defer unlock()
	before, err := b.read()
	var damaged error
	switch {
	case errors.Is(err, errDamaged):
		damaged = err
		if err := os.Rename(b.Path(), b.Path()+".damaged"); err != nil {
			return Picked{}, err
		}
	case err != nil:
		return Picked{}, err
	}
	after, picked, err := pick(before, wants, r, b.o.Now())
	if err != nil {
		return Picked{}, err
	}
	picked.Damaged = damaged
	return picked, b.write(after)
}

// Kept says what is kept for the engines, those that have nothing are left out, and writes nothing. What no longer suits the rules is not kept.
func (b *Book) Kept(wants []Want) (map[string]Ports, error) {
	entries, err := b.read()
	if err != nil {
		return nil, err
	}
	r := rules{first: b.o.First, last: b.o.Last, taken: b.o.Taken}
	kept := map[string]Ports{}
	for _, w := range wants {
		i := slices.IndexFunc(entries, func(e entry) bool { return e.Engine == w.Engine && e.Ranks >= w.Ranks })
		if i < 0 {
			continue
		}
		var p Ports
		if w.Events && r.fits(entries[i].Events, entries[i].Ranks, false) {
			p.Events = entries[i].Events
		}
		if w.Replay && r.fits(entries[i].Replay, entries[i].Ranks, false) {
			p.Replay = entries[i].Replay
		}
		if (p.Events != 0) == w.Events && (p.Replay != 0) == w.Replay {
			kept[w.Engine] = p
		}
	}
	return kept, nil
}

func same(before, after []entry) bool {
	return len(before) == len(after) && (len(before) == 0 || reflect.DeepEqual(sorted(before), sorted(after)))
}

// content is the file's.
type content struct {
	Version int     `json:"version"`
	Engines []entry `json:"engines"`
}

// errDamaged is the error of a file that cannot be understood.
var errDamaged = errors.New("not a file of ports as this release writes it")

// read returns nothing where there is no file.
func (b *Book) read() ([]entry, error) {
	f, err := os.Open(b.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	var file content
	if len(text) > maxFile || json.Unmarshal(text, &file) != nil {
		return nil, errDamaged
	}
	if file.Version != format {
		return nil, fmt.Errorf("%w: version %d, want %d", errDamaged, file.Version, format)
	}
	if err := check(file.Engines); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return file.Engines, nil
}

// write replaces the file. A reader finds all of it or what was there before.
func (b *Book) write(entries []entry) (err error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	if err := enc.Encode(content{format, sorted(entries)}); err != nil {
		return err
	}
	part, err := os.CreateTemp(b.o.Dir, fileName+".*.part")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part.Name())
		}
	}()
	_, err = part.Write(text.Bytes())
	if err := errors.Join(err, b.own(part), part.Sync(), part.Close()); err != nil {
		return err
	}
	if err := os.Rename(part.Name(), b.Path()); err != nil {
		return err
	}
	dir, err := os.Open(b.o.Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// own gives a file that root makes to the folder's owner: the node, which may run as another user than a command.
func (b *Book) own(f *os.File) error {
	info, err := os.Stat(b.o.Dir)
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		return f.Chown(int(s.Uid), int(s.Gid))
	}
	return nil
}

// lock keeps other processes from the file until unlock. The kernel ends a lock with its process.
func (b *Book) lock(wait time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(b.o.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := b.own(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(wait); ; <-tick.C {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil, errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS): // file systems without locks are used unlocked
			return func() { _ = f.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end):
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
