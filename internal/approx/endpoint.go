package approx

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/kvindex"
)

// expireStep bounds the keys that one call drops because of their age.
const expireStep = 256

// Endpoint is what one endpoint was sent.
type Endpoint struct {
	index   *Index
	pool    string
	address string

	life   atomic.Uint64                // of the endpoint's engine, see Learn
	slot   atomic.Pointer[kvindex.Slot] // nil while nothing is held
	oldest atomic.Int64                 // last use of the list's last key, Unix nanoseconds; meaningful while slot is not nil
	blocks atomic.Int64                 // of list

	mu     sync.Mutex
	closed bool
	list   list
	places []int32  // of the keys of one prompt
	keys   []uint64 // of one write to the index
}

// Slot is where [Index.Match] finds the endpoint's keys; none when it holds nothing. It also drops some of what has expired. life is as for Learn.
func (e *Endpoint) Slot(life uint64, lifetime time.Duration, now time.Time) (kvindex.Slot, bool) {
	if e.slot.Load() == nil {
		return kvindex.Slot{}, false
	}
	before := now.Add(-lifetime).UnixNano()
	if e.life.Load() != life || e.oldest.Load() < before {
		e.tidy(life, before)
	}
	s := e.slot.Load()
	if s == nil || e.life.Load() != life {
		return kvindex.Slot{}, false
	}
	return *s, true
}

// tidy drops what is out of date, unless somebody else is at work on the list.
func (e *Endpoint) tidy(life uint64, before int64) {
	if !e.mu.TryLock() {
		return
	}
	defer e.mu.Unlock()
	e.renew(life)
	e.expire(before)
	e.settle()
}

// Learn notes that a prompt with these keys, first key first, is sent to the endpoint. life numbers the lives of its
// engine: whatever an earlier one held is forgotten, and a late call for an earlier one does nothing.
func (e *Endpoint) Learn(keys []uint64, life uint64, l Limits, now time.Time) {
	room, cause := l.Blocks, causeCapacity
	if share := e.index.share(); share < room {
		room, cause = share, causeBound
	}
	keys = keys[:max(0, min(len(keys), room))]
	if len(keys) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || !e.renew(life) {
		return
	}
	defer e.settle()
	if e.expire(now.Add(-l.Lifetime).UnixNano()); !e.open() {
		return
	}
	// The keys that are known leave the list meanwhile, so that room is made among the others.
	e.places = e.places[:0]
	for _, key := range keys {
		i, ok := e.list.at[key]
		if !ok {
			break
		}
		e.list.unlink(i)
		e.places = append(e.places, i)
	}
	fresh := keys[len(e.places):]
	e.drop(len(e.list.at)+len(fresh)-room, cause)
	if e.slot.Load() == nil {
		return
	}
	for _, key := range fresh {
		e.places = append(e.places, e.list.add(key))
	}
	for k := len(e.places) - 1; k >= 0; k-- {
		e.list.push(e.places[k], now.UnixNano())
	}
	if len(fresh) > 0 {
		e.written(e.index.blocks.Store(*e.slot.Load(), kvindex.Any, fresh))
	}
}

// Forget drops everything: the endpoint's cache is taken to be empty.
func (e *Endpoint) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clear()
}

// Close drops everything for good. The endpoint's series end.
func (e *Endpoint) Close() {
	e.mu.Lock()
	e.clear()
	e.closed = true
	e.mu.Unlock()
	e.index.remove(e)
}

// Blocks is how many keys are held.
func (e *Endpoint) Blocks() int { return int(e.blocks.Load()) }

// renew forgets what was sent in an earlier life, and reports whether life is the current one.
func (e *Endpoint) renew(life uint64) bool {
	if known := e.life.Load(); life > known {
		e.clear()
		e.life.Store(life)
	} else if life < known {
		return false
	}
	return true
}

// open takes a slot if there is none.
func (e *Endpoint) open() bool {
	if e.slot.Load() != nil {
		return true
	}
	s, err := e.index.blocks.Acquire()
	if err != nil {
		e.index.log.Debug("prompts of an endpoint are not remembered", "pool", e.pool, "endpoint", e.address, "error", err)
		return false
	}
	e.slot.Store(&s)
	return true
}

// expire drops some of the keys that were not used since before.
func (e *Endpoint) expire(before int64) {
	n := 0
	for i := e.list.last(); i != 0 && n < expireStep && e.list.entries[i].used < before; i = e.list.entries[i].prev {
		n++
	}
	e.drop(n, causeLifetime)
}

// drop drops the last n keys of the list.
func (e *Endpoint) drop(n int, cause cause) {
	if n <= 0 {
		return
	}
	e.keys = e.keys[:0]
	for range n {
		e.keys = append(e.keys, e.list.dropLast())
	}
	e.index.m.dropped(cause, n)
	e.written(e.index.blocks.Remove(*e.slot.Load(), kvindex.Any, e.keys))
}

// clear drops all keys, from the last on: a release without them sweeps the whole index.
func (e *Endpoint) clear() {
	s := e.slot.Load()
	if s == nil {
		return
	}
	e.slot.Store(nil)
	e.keys = e.keys[:0]
	for e.list.last() != 0 {
		e.keys = append(e.keys, e.list.dropLast())
	}
	e.index.m.dropped(causeForgotten, len(e.keys))
	_ = e.index.blocks.Remove(*s, kvindex.Any, e.keys) // what it cannot remove, the release does
	e.index.blocks.Release(*s)
	e.list = list{}
	e.keys = nil
	e.blocks.Store(0)
}

// written drops everything when the index has refused a write: what it holds is not known then.
func (e *Endpoint) written(err error) {
	if err != nil && e.slot.Load() != nil {
		e.index.log.Warn("what an endpoint was sent is forgotten", "pool", e.pool, "endpoint", e.address, "error", err)
		e.clear()
	}
}

// settle tells readers about the list.
func (e *Endpoint) settle() {
	e.blocks.Store(int64(len(e.list.at)))
	oldest := int64(math.MaxInt64)
	if i := e.list.last(); i != 0 {
		oldest = e.list.entries[i].used
	}
	e.oldest.Store(oldest)
}
