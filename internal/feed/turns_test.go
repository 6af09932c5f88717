package feed

import (
	"testing"
	"time"
)

func TestTurns(t *testing.T) {
	now := time.Unix(1000, 0)
	turns := newTurns(2, time.Second)
	var all []*stream
	for range 5 {
		all = append(all, &stream{wake: make(chan struct{}, 1), now: func() time.Time { return now }})
	}
	woken := func(i int) bool {
		select {
		case <-all[i].wake:
			return true
		default:
			return false
		}
	}
	expect := func(who int, want bool) {
		t.Helper()
		if got := turns.take(all[who], now); got != want {
			t.Errorf("turn of %d: %t", who, got)
		}
	}
	expect(0, true)
	now = now.Add(10 * time.Second)
	expect(0, true) // nobody waits
	expect(1, true)
	expect(2, false)
	expect(2, false)
	expect(3, false)
	expect(1, true)
	expect(0, false) // it has had more than its share: 2 is the next
	if !woken(2) || woken(3) {
		t.Error("not the first who waits is woken")
	}
	expect(2, true)
	turns.give(all[1])
	if !woken(3) {
		t.Error("the next is not woken")
	}
	expect(4, false)
	woken(0) // when it got its own turn
	now = now.Add(time.Second)
	turns.expire(now.Add(-time.Nanosecond))
	if woken(0) {
		t.Error("a turn ends early")
	}
	turns.expire(now) // 2 and 3 have had theirs, and 0 and 4 wait
	if !woken(0) || !woken(4) {
		t.Error("turns last for ever")
	}
	expect(3, false)
	turns.give(all[3]) // waits no more
	turns.give(all[0])
	turns.give(all[4])
	expect(3, true)
	turns.give(all[3])
	if copying, waiting := turns.counts(); copying+waiting != 0 {
		t.Errorf("%d copy, %d wait", copying, waiting)
	}
}
