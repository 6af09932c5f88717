package feed

import (
	"context"
	"sync"
	"time"
)

// windows are those that wait for their end, the earliest first: all have one length.
type windows struct {
	length time.Duration
	wake   chan struct{}

	mu   sync.Mutex
	open []openWindow
}

type openWindow struct {
	source *Source
	end    time.Time
}

func newWindows(length time.Duration) *windows {
	return &windows{length: length, wake: make(chan struct{}, 1)}
}

// add is called with the source's mutex held, by each source at most once until its close.
func (w *windows) add(s *Source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = append(w.open, openWindow{s, time.Now().Add(w.length)})
	if len(w.open) == 1 {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// ended takes a window whose end has come, or tells how long the first one still has. Without any, wait is 0.
func (w *windows) ended(now time.Time) (s *Source, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) == 0 {
		return nil, 0
	}
	if wait = w.open[0].end.Sub(now); wait > 0 {
		return nil, wait
	}
	s = w.open[0].source
	w.open[0] = openWindow{}
	w.open = w.open[1:]
	return s, 0
}

// run closes windows until ctx ends.
func (w *windows) run(ctx context.Context) {
	timer := time.NewTimer(w.length)
	defer timer.Stop()
	for {
		s, wait := w.ended(time.Now())
		if s != nil {
			s.close()
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-due:
		}
	}
}
