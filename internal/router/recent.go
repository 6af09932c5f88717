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
	record Record
}

func (r *recent) add(record Record) {
	n := r.last.Add(1)
	p := &r.places[n%recentSize]
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.number { // a slow writer does not replace what came later
		p.number, p.record = n, record
	}
}

// newest returns up to n records, newest first.
func (r *recent) newest(n int) []Record {
	last := r.last.Load()
	records := make([]Record, 0, max(0, min(n, recentSize, int(min(last, recentSize)))))
	for i := range uint64(cap(records)) {
		p := &r.places[(last-i)%recentSize]
		p.mu.Lock()
		if p.number == last-i { // else it is not written yet, or a later one is
			records = append(records, p.record)
		}
		p.mu.Unlock()
	}
	return records
}

// Recent returns the last n decisions, newest first; there are at most 1,000.
func (r *Router) Recent(n int) []Record { return r.recent.newest(n) }
