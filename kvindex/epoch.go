package kvindex

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// epochs tells when every match that began before some moment has ended, so that what those matches may still read is
// not reused under them. A match counts itself in under the current epoch. The epoch may advance from e to e+1 once no
// match of e−1 is left; something retired in e is out of reach from e+2 on:
//
//	a match of e or before may have seen it; the step to e+2 waited for the last of those
//	a match of e+1 read the epoch after it had become e+1, so after the retiring writer read e, so after that writer
//	had put the last reference away
type epochs struct {
	current atomic.Uint64
	stripes []stripe

	mu sync.Mutex // held by whoever tries to advance
}

// stripe counts the matches of the last two epochs, by the parity of their epoch. Matches are spread over stripes so
// that cores do not share the counters' cache lines.
type stripe struct {
	matches [2]atomic.Int64
	_       [112]byte
}

func (e *epochs) init() {
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < 64 {
		n *= 2
	}
	e.stripes = make([]stripe, n)
}

// enter counts a match in and returns its epoch, for exit.
func (e *epochs) enter(s *stripe) uint64 {
	for {
		now := e.current.Load()
		s.matches[now&1].Add(1)
		if e.current.Load() == now {
			return now
		}
		// The epoch moved in between: the count could stand under an epoch that is already taken for empty.
		s.matches[now&1].Add(-1)
	}
}

func (e *epochs) exit(s *stripe, epoch uint64) { s.matches[epoch&1].Add(-1) }

// advance moves to the next epoch if no match of the last one is left, and returns the current epoch.
func (e *epochs) advance() uint64 {
	if !e.mu.TryLock() {
		return e.current.Load()
	}
	defer e.mu.Unlock()
	now := e.current.Load()
	for i := range e.stripes {
		if e.stripes[i].matches[(now+1)&1].Load() != 0 {
			return now
		}
	}
	e.current.Store(now + 1)
	return now + 1
}

// passed reports whether every match that may have seen something retired in epoch retired has ended.
func passed(retired, now uint64) bool { return now >= retired+2 }
