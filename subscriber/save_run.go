package subscriber

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	firstSave = 5 * time.Second  // from the beginning of Run to the first save
	saveEvery = time.Minute      // between two, a quarter more or less so that subscribers do not write all at once
	lastSave  = 10 * time.Second // the longest wait for a turn at the end of Run
)

// restored says what became of a saved mirror. It is a label of kvsteer_subscriber_restores_total.
type restored string

const (
	restoreResumed   restored = "resumed"    // the engine is the same process: what it did since was replayed
	restoreNotProven restored = "not_proven" // it is another one, or it does not keep the batch that would show it
	restoreDamaged   restored = "damaged"    // the file is not what was written
	restoreForeign   restored = "foreign"    // of another endpoint, or with other settings
	restoreVersion   restored = "version"    // of another version of kvsteer
	restoreFailed    restored = "failed"     // it cannot be read
	restoreNone      restored = "none"       // there is no file
)

func restores() []restored {
	return []restored{restoreResumed, restoreNotProven, restoreDamaged, restoreForeign, restoreVersion, restoreFailed, restoreNone}
}

// keeper is a folder whose mirror can be saved and restored.
type keeper interface {
	snapshot(id identity, p position, now time.Time) snapshot
	load(r io.Reader, size int64, id identity) (savedHead, error)
}

// saver saves the mirror of a Subscriber and restores it. It is of Run's goroutine, but for what is written.
type saver struct {
	mirror keeper
	file   savedFile
	id     identity
	slots  chan struct{}

	due     time.Time
	last    position   // of the file
	next    position   // of the write under way
	writing chan error // tells its end; nil without one
	proving bool       // the mirror is restored, and not proven yet
}

// newSaver returns nil where nothing is to be saved: without a replay socket no restored mirror could be proven.
func newSaver(o Options, rules foldOptions, mirror keeper) *saver {
	if o.StateDir == nil || o.Replay == "" {
		return nil
	}
	id := identity{pool: o.Pool, endpoint: o.Endpoint, rank: o.Rank, settings: rules.digest()}
	return &saver{mirror: mirror, file: newSavedFile(o.StateDir.path, id), id: id, slots: o.StateDir.slots}
}

// digest stands for all that decides what a mirror makes of events, but for its bound.
func (o foldOptions) digest() uint64 {
	h := sha256.New()
	fmt.Fprintf(h, "demote %d\n", o.demote)
	for _, name := range slices.Sorted(maps.Keys(o.media)) {
		fmt.Fprintf(h, "medium %q %d %d\n", name, o.media[name].Medium, o.media[name].Lifetime)
	}
	for _, id := range slices.Sorted(maps.Keys(o.adapters)) {
		fmt.Fprintf(h, "adapter %d %q\n", id, o.adapters[id])
	}
	return binary.LittleEndian.Uint64(h.Sum(nil))
}

// loadSaved fills the mirror from its file, at the beginning of Run. The Sink hears nothing of it before it is proven.
func (s *Subscriber) loadSaved() {
	k := s.saver
	if k == nil {
		return
	}
	now := s.o.Now()
	k.due, k.last, k.proving = now.Add(firstSave), position{}, false
	f, size, err := k.file.open()
	if err != nil {
		outcome := restoreFailed
		if errors.Is(err, fs.ErrNotExist) {
			outcome = restoreNone
		} else {
			s.o.Log.Warn("the saved mirror cannot be read", "file", k.file.path(), "error", err)
		}
		s.series.restores[outcome].Inc()
		return
	}
	head, err := k.mirror.load(f, size, k.id)
	_ = f.Close()
	if err != nil {
		outcome := restoreDamaged
		switch {
		case errors.Is(err, errVersion):
			outcome = restoreVersion
		case errors.Is(err, errForeign):
			outcome = restoreForeign
		}
		s.series.restores[outcome].Inc()
		args := []any{"file", k.file.path(), "error", err}
		if err := k.file.setAside(); err != nil {
			args = append(args, "set_aside", err)
		}
		s.o.Log.Warn("the saved mirror is set aside; the engine's cache is learned anew", args...)
		return
	}
	k.last, k.proving = head.position, true
	s.o.Log.Info("mirror restored, to be proven by a replay", "blocks", head.blocks, "seq", head.position.seq, "age", now.Sub(head.saved).Round(time.Second))
	s.restore(head.position)
}

// proven says whether a restored mirror was taken over.
func (s *Subscriber) proven(yes bool) {
	if s.saver == nil || !s.saver.proving {
		return
	}
	s.saver.proving = false
	outcome := restoreNotProven
	if yes {
		outcome = restoreResumed
	}
	s.series.restores[outcome].Inc()
}

// save saves the mirror when it is time and something has changed. The mirror is copied here and written by another goroutine.
func (s *Subscriber) save(wg *sync.WaitGroup) {
	k := s.saver
	if k == nil {
		return
	}
	if k.writing != nil {
		select {
		case err := <-k.writing:
			s.saved(err)
		default:
			return
		}
	}
	now := s.o.Now()
	if now.Before(k.due) {
		return
	}
	p := s.position()
	if !p.seen || p == k.last {
		return
	}
	select {
	case k.slots <- struct{}{}:
	default:
		return // at the next tick
	}
	k.due = now.Add(saveEvery*3/4 + rand.N(saveEvery/2))
	k.next = p
	content, file, done := k.mirror.snapshot(k.id, p, now), k.file, make(chan error, 1)
	k.writing = done
	wg.Go(func() {
		defer func() { <-k.slots }()
		done <- file.write(content)
	})
}

// saveLast saves the mirror at the end of Run, where it has changed.
func (s *Subscriber) saveLast() {
	k := s.saver
	if k == nil {
		return
	}
	if k.writing != nil {
		s.saved(<-k.writing)
	}
	p := s.position()
	if !p.seen || p == k.last {
		return
	}
	turn := time.NewTimer(lastSave)
	defer turn.Stop()
	select {
	case k.slots <- struct{}{}:
	case <-turn.C:
		s.saved(errNoTurn)
		return
	}
	k.next = p
	s.saved(k.file.write(k.mirror.snapshot(k.id, p, s.o.Now())))
	<-k.slots
}

// errNoTurn says that the files of others took too long to write.
var errNoTurn = errors.New("too many mirrors to be saved before")

// saved notes how a write ended.
func (s *Subscriber) saved(err error) {
	k := s.saver
	k.writing = nil
	if err != nil {
		s.line(slog.LevelWarn, "the mirror cannot be saved", "file", k.file.path(), "error", err)
		s.series.saveFailed.Inc()
		return
	}
	k.last = k.next
	s.series.saves.Inc()
}
