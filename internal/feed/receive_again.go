package feed

import "time"

// Bounds of the pause before the blocks of a node are copied anew because a sink has dropped some.
const (
	recopyMin = 10 * time.Second
	recopyMax = 10 * time.Minute
	recopyOff = time.Hour // without a drop, after which pauses begin at the least again
)

// recopy paces the copies that dropped blocks ask for. What was dropped once is likely to be dropped again, and a copy brings all blocks of
// the node.
type recopy struct {
	tries int
	due   time.Time // of the next copy; zero while nothing is dropped
	last  time.Time // when something was dropped
}

// take takes note of whether something is dropped, and reports whether a copy is due.
func (p *recopy) take(dropped bool, now time.Time) bool {
	switch {
	case !dropped:
		p.due = time.Time{}
		return false
	case p.due.IsZero():
		if now.Sub(p.last) > recopyOff {
			p.tries = 0
		}
		p.due = now.Add(min(recopyMin<<min(p.tries, 20), recopyMax))
		p.tries++
	}
	p.last = now
	if now.Before(p.due) {
		return false
	}
	p.due = time.Time{}
	return true
}

// dropped asks all sinks whether they have dropped their blocks, so that each can look, and reports whether the node's blocks are to be copied anew at now.
func (r *inbox) dropped(now time.Time) bool {
	any := false
	for _, s := range r.held {
		if s.sink != nil && s.sink.Dropped() {
			any = true
		}
	}
	return r.recopy.take(any, now)
}
