package router

import (
	"sync"
	"sync/atomic"
)

// recentSize is the number of past decisions that are kept.
const recentSize = 1000

// recent keeps the last decisions. Each has a place of its own, so that decisions do not wait for each other: two meet in one place only when
// recentSize others were made between them.
type recent struct {
	last   atomic.Uint64 // number of the last decision; the first is 1
	places [recentSize]recentPlace
}

type recentPlace struct {
	mu     sync.Mutex
	number uint64 // 0: empty
	past   PastDecision
}

func (r *recent) add(past PastDecision) {
	n := r.last.Add(1)
	p := &r.places[n%recentSize]
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.number { // a slow writer does not replace what came later
		p.number, p.past = n, past
	}
}

// newest returns up to n decisions, newest first.
func (r *recent) newest(n int) []PastDecision {
	last := r.last.Load()
	past := make([]PastDecision, 0, max(0, min(n, recentSize, int(min(last, recentSize)))))
	for i := range uint64(cap(past)) {
		p := &r.places[(last-i)%recentSize]
		p.mu.Lock()
		if p.number == last-i { // else it is not written yet, or a later one is
			past = append(past, p.past)
		}
		p.mu.Unlock()
	}
	return past
}

// Recent returns the last n decisions, newest first; there are at most 1,000.
func (r *Router) Recent(n int) []PastDecision { return r.recent.newest(n) }
