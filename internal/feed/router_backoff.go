package feed

import (
	"context"
	"math/rand/v2"
	"time"
)

// retry paces the streams to one node. Before each a random time passes from a range that begins at zero and doubles up to max: the routers of a whole
// fleet that lose a node in one moment come back one after the other. A stream that lasted as long as stable starts over.
type retry struct {
	min, max, stable time.Duration
	random           func() float64 // in [0, 1)

	attempts int // since one was stable
}

// newRetry returns a pace between two bounds, where 0 stands for the default.
func newRetry(least, most time.Duration) retry {
	if least == 0 {
		least = 100 * time.Millisecond
	}
	if most == 0 {
		most = 5 * time.Second
	}
	return retry{min: least, max: max(least, most), stable: 5 * time.Second, random: rand.Float64}
}

// after returns how long to wait after a stream that lasted for a time, 0 when there was none.
func (b *retry) after(lasted time.Duration) time.Duration {
	if lasted >= b.stable {
		b.attempts = 0
	}
	span := b.max
	if shift := min(b.attempts, 30); b.min<<shift < b.max {
		span = b.min << shift
	}
	b.attempts++
	return time.Duration(b.random() * float64(span))
}

// pause returns after d or when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// bucket paces what a peer can cause: most at once, then one in every.
type bucket struct {
	most  int
	every time.Duration

	free time.Time // when all of most may be taken at once
}

// take takes one and returns how long to wait for it.
func (b *bucket) take(now time.Time) time.Duration {
	if b.free.Before(now) {
		b.free = now
	}
	b.free = b.free.Add(b.every)
	return max(0, b.free.Sub(now)-time.Duration(b.most)*b.every)
}
