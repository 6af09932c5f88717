package feed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// TestDroppedBlocksAreCopiedAgain: what a sink drops comes again on another stream, after pauses that double while it goes on being dropped.
func TestDroppedBlocksAreCopiedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(copyOf(1, 2)...)
		sink := s.fleet.sink(sinkName)
		set := func(dropped bool) {
			sink.mu.Lock()
			defer sink.mu.Unlock()
			sink.dropped = dropped
		}
		// again says how long it takes until another stream begins, 0 when that is more than a time.
		again := func(most time.Duration) time.Duration {
			for began := time.Now(); time.Since(began) < most; {
				select {
				case l = <-s.calls:
					l.say(helloOf(Protocol))
					l.say(copyOf(1, 2)...)
					return time.Since(began)
				case <-time.After(time.Second):
					l.say(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Alive{Alive: &feedpb.Alive{}}})
				}
			}
			return 0
		}
		if got := again(time.Minute); got != 0 {
			t.Errorf("another stream after %v, and nothing was dropped", got)
		}
		const slack = 10 * time.Second // the sink is asked each 3 s, and the streams' own pauses come on top
		set(true)
		for i, want := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
			if got := again(time.Hour); got < want*time.Second || got > want*time.Second+slack {
				t.Errorf("stream %d after %v, want %d s", i+2, got, want)
			}
		}
		set(false)
		if got := again(2 * time.Hour); got != 0 {
			t.Errorf("another stream after %v, and nothing is dropped any more", got)
		}
		set(true)
		if got := again(time.Hour); got < 10*time.Second || got > 10*time.Second+slack {
			t.Errorf("after hours without a drop: another stream after %v", got)
		}
		if diff := cmp.Diff([]uint64{1, 2}, s.matched()); diff != "" {
			t.Error(diff)
		}
	})
}
