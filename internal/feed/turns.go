package feed

import (
	"slices"
	"sync"
	"time"
)

// turns bounds how many streams copy at a time. The others wait in the order in which they asked. Who has had a turn for a quantum gives it to the
// next that waits, whether done or not, and is told so when it asks again: a stream whose router does not read keeps nobody waiting.
type turns struct {
	most    int
	quantum time.Duration

	mu      sync.Mutex
	holders map[*stream]time.Time // since when
	waiting []*stream
}

func newTurns(most int, quantum time.Duration) *turns {
	return &turns{most: most, quantum: quantum, holders: make(map[*stream]time.Time)}
}

// take reports whether it is the stream's turn. If it is not, the stream waits and is woken.
func (t *turns) take(st *stream, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, mine := t.holders[st]
	if mine && (len(t.waiting) == 0 || now.Sub(since) < t.quantum) {
		return true
	}
	if mine {
		delete(t.holders, st)
	}
	if !slices.Contains(t.waiting, st) {
		t.waiting = append(t.waiting, st)
	}
	t.grant(now)
	_, mine = t.holders[st]
	return mine
}

// give ends a stream's turn, or its waiting for one.
func (t *turns) give(st *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, mine := t.holders[st]; !mine && len(t.waiting) == 0 {
		return
	}
	delete(t.holders, st)
	t.waiting = slices.DeleteFunc(t.waiting, func(w *stream) bool { return w == st })
	t.grant(st.now())
}

// expire ends turns that have lasted, as far as others wait.
func (t *turns) expire(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	over := 0
	for st, since := range t.holders {
		if over < len(t.waiting) && now.Sub(since) >= t.quantum {
			delete(t.holders, st)
			over++
		}
	}
	t.grant(now)
}

// grant gives free turns to those who wait.
func (t *turns) grant(now time.Time) {
	for len(t.holders) < t.most && len(t.waiting) > 0 {
		st := t.waiting[0]
		t.waiting = slices.Delete(t.waiting, 0, 1)
		t.holders[st] = now
		st.signal()
	}
}

// counts are the streams that copy and those that wait.
func (t *turns) counts() (copying, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.holders), len(t.waiting)
}
