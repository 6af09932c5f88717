package subscriber

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// hurried is a pacing for tests that wait for what it paces.
func hurried() pacing {
	return pacing{
		tick: 2 * time.Millisecond, keep: time.Minute, silence: 4 * time.Millisecond, idle: 20 * time.Millisecond,
		retry: 10 * time.Millisecond, maxRetry: 50 * time.Millisecond,
		queue: 5 * time.Second, reply: 500 * time.Millisecond, whole: 5 * time.Second,
	}
}

// followEngine runs a Subscriber of e until the test ends or stop is called.
func followEngine(t testing.TB, e *testEngine, sink Sink, set func(*Subscriber)) (s *Subscriber, stop func()) {
	t.Helper()
	s, err := New(Options{
		Pool: "chat", Endpoint: "e", Dial: e.dial(), Replay: e.replay(), Sink: sink,
		BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.track.pacing = hurried()
	s.asks = pace{burst: 1 << 20, interval: time.Millisecond}
	if set != nil {
		set(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

// full waits until all that e holds is announced, and no more.
func full(t testing.TB, e *testEngine, sink *heldSink) {
	t.Helper()
	held := e.holds()
	connected, complete, lacks, exceeds := false, false, 0, 0
	late := time.Now().Add(patience)
	for !connected || !complete || lacks > 0 || exceeds > 0 {
		if time.Now().After(late) {
			t.Fatalf("connected %v, complete %v, lacks %d and exceeds by %d of %d", connected, complete, lacks, exceeds, len(held))
		}
		_ = wait(t.Context(), time.Millisecond)
		connected, complete, lacks, exceeds = sink.compare(held)
	}
}

// settled waits until the blocks of the event published last are announced, and holds that none is which e does not hold.
func settled(t testing.TB, e *testEngine, sink *heldSink, last any) {
	t.Helper()
	one := newCheckedSink(t)
	mustHold(t, newFold(foldOptions{pool: "chat", sink: one}), packBatch(last))
	eventually(t, "settled", func() bool {
		connected, _, lacks, _ := sink.compare(one.tiers[Device])
		return connected && lacks == 0
	})
	if _, _, _, exceeds := sink.compare(e.holds()); exceeds > 0 {
		t.Fatalf("%d blocks announced that the engine does not hold", exceeds)
	}
}

func TestReplay(t *testing.T) {
	outcomes := func(s *Subscriber, o outcome) float64 {
		return testutil.ToFloat64(s.o.Metrics.replays.WithLabelValues("chat", "e", "0", string(o)))
	}
	gaps := func(s *Subscriber, o string) float64 {
		return testutil.ToFloat64(s.o.Metrics.gaps.WithLabelValues("chat", "e", "0", o))
	}
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("topic=%v", !old), func(t *testing.T) {
			e := newTestEngine(t)
			e.set(func(e *testEngine) { e.old = old })
			cache := &cacheOf{rnd: rand.New(rand.NewPCG(1, 1))}
			publish := func(n int, lost bool) {
				for range n {
					e.publish(lost, cache.events()...)
				}
			}
			publish(300, false) // before anybody listens
			sink := newHeldSink(t)
			s, stop := followEngine(t, e, sink, nil)
			full(t, e, sink)
			if got := outcomes(s, replayComplete); got != 1 {
				t.Errorf("%v replays complete at the start, want 1", got)
			}

			publish(20, false)
			full(t, e, sink)
			eventually(t, "a gap repaired", func() bool { // unless the look for a lost tail was faster
				publish(5, true)
				publish(1, false)
				full(t, e, sink)
				return gaps(s, "repaired") > 0
			})
			publish(5, true) // a tail
			full(t, e, sink)

			e.cut()
			publish(30, false)
			full(t, e, sink)
			e.set(func(e *testEngine) {
				e.drop = func(i, n int) bool { return n > 100 && (i == 50 || i == 90) }
			})
			e.cut()
			publish(200, true)
			full(t, e, sink)
			if got := outcomes(s, replayHole); got == 0 {
				t.Errorf("no hole in a replay")
			}
			if got := sink.resetCount(); got != "map[]" {
				t.Errorf("resets: %s", got)
			}

			e.restart()
			cache.chains = nil
			publish(50, true)
			full(t, e, sink)
			if got := sink.resetCount(); got != "map[backwards:1]" {
				t.Errorf("resets: %s", got)
			}
			e.restart()
			cache.chains = nil
			publish(400, true) // beyond the last number
			full(t, e, sink)
			if got := sink.resetCount(); got != "map[backwards:2]" {
				t.Errorf("resets: %s", got)
			}
			if got := gaps(s, "reset"); got != 0 {
				t.Errorf("%v gaps not repaired", got)
			}
			stop()
			if len(sink.tiers[Any]) > 0 || sink.about.Connected {
				t.Errorf("after Run: %d announced, %+v", len(sink.tiers[Any]), sink.about)
			}
		})
	}
}

// TestReplayOneChange holds that a Sink hears of a replay in one net change: of blocks that came and went in it, nothing.
func TestReplayOneChange(t *testing.T) {
	e := newTestEngine(t)
	for i := range uint64(2000) {
		e.publish(false, storedEvent(nil, 2, []uint32{uint32(i), 7}, 1000+i))
		if i > 0 {
			e.publish(false, removedEvent(1000+i-1))
		}
	}
	sink := newHeldSink(t)
	followEngine(t, e, sink, nil)
	full(t, e, sink)
	if sink.calls != 2 {
		t.Errorf("%d calls, want one store for each tier", sink.calls)
	}
}

// TestReplayOverflow holds that live messages which do not fit while a replay is under way are asked for again.
func TestReplayOverflow(t *testing.T) {
	e := newTestEngine(t)
	cache := &cacheOf{rnd: rand.New(rand.NewPCG(1, 2))}
	sink := newHeldSink(t)
	e.set(func(e *testEngine) { e.silent = true })
	s, _ := followEngine(t, e, sink, func(s *Subscriber) {
		s.track.pending.limit = 2000
		s.track.pacing.reply = 200 * time.Millisecond
	})
	eventually(t, "subscribed and asked", func() bool {
		e.mu.Lock()
		asked := len(e.asked)
		e.mu.Unlock()
		return e.subscribed() && asked == 1
	})
	for range 100 {
		e.publish(false, cache.events()...)
	}
	e.set(func(e *testEngine) { e.silent = false })
	full(t, e, sink)
	if got := testutil.ToFloat64(s.o.Metrics.replays.WithLabelValues("chat", "e", "0", "timeout")); got != 1 {
		t.Errorf("%v timeouts, want 1", got)
	}
}

// TestReplayHostile holds that whatever a replay socket answers, live batches are followed as without one.
func TestReplayHostile(t *testing.T) {
	number := func(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }
	batch := string(packBatch())
	tests := []struct {
		name    string
		fault   func(e *testEngine)
		outcome outcome
	}{
		{"refused", func(e *testEngine) { e.deaf = true }, replayUnreachable},
		{"silent", func(e *testEngine) { e.silent = true }, replayTimeout},
		{"no ZMTP", func(e *testEngine) { e.garbage = []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, replayInvalid},
		{"huge frame", func(e *testEngine) { e.garbage = concat(frame(flagMore, ""), []byte{flagLong, 0, 0, 1, 0, 0, 0, 0, 0}) }, replayInvalid},
		{"many frames", func(e *testEngine) { e.garbage = message(strings.Split(strings.Repeat("x", 99), "")...) }, replayInvalid},
		{"one frame", func(e *testEngine) { e.garbage = message("x") }, replayInvalid},
		{"short number", func(e *testEngine) { e.garbage = message("", "1234567", batch) }, replayInvalid},
		{"numbers that go back", func(e *testEngine) {
			e.garbage = concat(message("", number(5), batch), message("", number(4), batch))
		}, replayInvalid},
		{"holes without end", func(e *testEngine) {
			e.garbage = concat(message("", number(0), batch), message("", number(2), batch))
		}, replayHole},
		{"cut off in a frame", func(e *testEngine) { e.garbage = frame(flagMore, "")[:1] }, replayTimeout},
		{"no end", func(e *testEngine) { e.garbage = message("", number(0), batch) }, replayTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newTestEngine(t)
			e.set(tt.fault)
			sink := newHeldSink(t)
			s, _ := followEngine(t, e, sink, func(s *Subscriber) {
				s.o.Limits.Stall, s.track.pacing.reply = 100*time.Millisecond, 50*time.Millisecond
				s.track.pacing.retry, s.track.pacing.maxRetry = time.Hour, time.Hour
			})
			connected := func() bool { c, _, _, _ := sink.compare(nil); return c }
			eventually(t, "followed", connected)
			eventually(t, string(tt.outcome), func() bool {
				return testutil.ToFloat64(s.o.Metrics.replays.WithLabelValues("chat", "e", "0", string(tt.outcome))) > 0
			})
			for round := range 3 {
				eventually(t, "subscribed", e.subscribed)
				n := uint64(1000 * round)
				eventually(t, "live batches applied", func() bool {
					n++
					e.publish(n%5 == 0, storedEvent(nil, 2, []uint32{uint32(n), 7}, n))
					sink.mu.Lock()
					defer sink.mu.Unlock()
					return len(sink.tiers[Device]) > 0
				})
				e.cut()
				eventually(t, "forgotten", func() bool { _, _, _, n := sink.compare(nil); return n == 0 })
			}
		})
	}
}

// TestReplayEndless holds a replay to its bounds.
func TestReplayEndless(t *testing.T) {
	tests := []struct {
		name    string
		replies func(tr *tracker)
		want    outcome
	}{
		{"batches", func(tr *tracker) {
			for i := range uint64(maxReplayed + 1) {
				tr.reply(i, nil)
			}
		}, replayTooLarge},
		{"bytes", func(tr *tracker) {
			payload := make([]byte, 1<<30)
			for i := range uint64(9) {
				tr.reply(i, payload)
			}
		}, replayTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &counter{}
			tr := &tracker{do: c, replays: true, pacing: newPacing(time.Minute), pending: pending{limit: 1}}
			tr.connect(time.Now())
			tt.replies(tr)
			if c.ended[tt.want] != 1 || tr.request.open || tr.mode != following {
				t.Errorf("ended %v, open %v, mode %v", c.ended, tr.request.open, tr.mode)
			}
		})
	}
	t.Run("holes", func(t *testing.T) {
		c := &counter{}
		tr := &tracker{do: c, replays: true, pacing: newPacing(time.Minute), pending: pending{limit: 1}}
		tr.connect(time.Now())
		for n := uint64(0); tr.request.open; n++ {
			if n > 0 {
				tr.reply(n-1, []byte{1})
			}
			tr.reply(n, []byte{1})
			tr.reply(n+2, []byte{1})
		}
		if c.ended[replayHole] != maxAsked || tr.mode != following {
			t.Errorf("ended %v, mode %v", c.ended, tr.mode)
		}
	})
}

// counter are hands that only count.
type counter struct{ ended map[outcome]int }

func (*counter) apply(uint64, []byte, bool) bool { return true }
func (*counter) reset(Cause)                     {}
func (*counter) online(bool)                     {}
func (*counter) quiet(bool)                      {}
func (*counter) history(bool)                    {}
func (*counter) gap(bool)                        {}
func (c *counter) replay(_ purpose, o outcome) {
	if c.ended == nil {
		c.ended = map[outcome]int{}
	}
	c.ended[o]++
}

func TestReplayLimit(t *testing.T) {
	l := NewReplayLimit(2)
	var leave []func()
	for range 2 {
		f, err := l.enter(t.Context(), patience)
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, f)
	}
	if _, err := l.enter(t.Context(), time.Millisecond); !errors.Is(err, errBusy) {
		t.Errorf("a third place: %v", err)
	}
	leave[0]()
	if _, err := l.enter(t.Context(), patience); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.enter(ctx, patience); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := (*ReplayLimit)(nil).enter(ctx, 0); err != nil {
		t.Errorf("no limit: %v", err)
	}
}

// TestReplayRestored starts with the mirror of an earlier Subscriber.
func TestReplayRestored(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same process=%v", same), func(t *testing.T) {
			e := newTestEngine(t)
			cache := &cacheOf{rnd: rand.New(rand.NewPCG(3, 1))}
			for range 50 {
				e.publish(false, cache.events()...)
			}
			// What a Subscriber would have kept.
			p := position{seq: 49, digest: digestOf(e.batches[49]), seen: true, complete: true}
			kept := append([][]byte(nil), e.batches...)
			if !same {
				e.restart()
				cache.chains = nil
			}
			for range 60 {
				e.publish(false, cache.events()...)
			}
			sink := newHeldSink(t)
			s, _ := followEngine(t, e, sink, func(s *Subscriber) {
				f := s.fold.(*fold)
				f.quiet(true)
				for _, b := range kept {
					if _, err := f.fold(b, time.Time{}); err != nil {
						t.Fatal(err)
					}
				}
				s.restore(p)
			})
			full(t, e, sink)
			replayed := testutil.ToFloat64(s.o.Metrics.replayed.WithLabelValues("chat", "e", "0"))
			want := map[bool]float64{true: 60, false: 60}[same]
			if replayed != want {
				t.Errorf("%v batches replayed, want %v", replayed, want)
			}
			asked := map[bool]string{true: "[49]", false: "[49 0]"}[same]
			e.mu.Lock()
			defer e.mu.Unlock()
			if got := fmt.Sprint(e.asked[:strings.Count(asked, " ")+1]); got != asked {
				t.Errorf("asked from %s, want %s", got, asked)
			}
		})
	}
}

// TestReplayRecorded replays what engines answered, and compares with the batches folded by hand.
func TestReplayRecorded(t *testing.T) {
	for _, file := range append(
		goldenFiles(t, filepath.Join("testdata", "events", "*", "20_*.json")),
		goldenFiles(t, filepath.Join("testdata", "events", "*", "38_*.json"))...) {
		t.Run(filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file), func(t *testing.T) {
			var r recording
			readJSON(t, file, &r)
			messages := r.fromZero(t)
			first := binary.BigEndian.Uint64(unhex(t, messages[0].Frames[len(messages[0].Frames)-2]))
			var want script
			oracle := newFold(foldOptions{pool: "chat", sink: &want})
			oracle.quiet(true)
			oracle.online = true
			oracle.complete = first == 0
			var answer []byte
			for _, m := range messages {
				if _, err := oracle.fold(m.payload(t), time.Time{}); err != nil {
					t.Fatal(err)
				}
				answer = append(answer, onWire(t, m)...)
			}
			oracle.quiet(false)
			answer = append(answer, onWire(t, r.endMarker(t))...)

			e := newTestEngine(t)
			e.set(func(e *testEngine) { e.garbage = answer })
			var got script
			followEngine(t, e, &got, func(s *Subscriber) { s.track.pacing.silence = time.Hour })
			eventually(t, "connected", func() bool {
				all := got.have()
				return len(all) > 0 && strings.Contains(all[len(all)-1], "Connected:true")
			})
			last := want.calls[0] // the oracle is connected before it stores, the subscriber after
			diff(t, "changes", want.calls[1:], got.have()[1:len(got.have())-1])
			diff(t, "description", last, got.have()[len(got.have())-1])
		})
	}
}

// TestReplayRandom plays an engine's life of 10^5 events and more through real sockets: lost batches, lost connections, restarts, holes in replays,
// replays that are refused, silent or limited to the latest batches. At rest the announced blocks are those that the engine
// holds whenever all of its batches can be replayed, and never others.
func TestReplayRandom(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 9))
			e := newTestEngine(t)
			e.set(func(e *testEngine) { e.old = rnd.IntN(2) == 0 })
			cache := &cacheOf{rnd: rnd}
			sink := newHeldSink(t)
			s, _ := followEngine(t, e, sink, func(s *Subscriber) { s.track.pacing.reply = 200 * time.Millisecond })
			restarted := func() {
				e.restart()
				cache.chains = nil
				if rnd.IntN(3) == 0 {
					cache.next = 0 // the same prompts again
				}
			}
			events, whole := 0, 0
			for round := range 60 {
				limited := rnd.IntN(4) == 0
				e.set(func(e *testEngine) {
					e.keep, e.deaf, e.silent, e.drop = 0, rnd.IntN(8) == 0, rnd.IntN(12) == 0, nil
					if limited {
						e.keep = 1 + rnd.IntN(30)
					}
					if holes := rand.New(rand.NewPCG(seed, uint64(round))); rnd.IntN(2) == 0 {
						e.drop = func(i, n int) bool { return i > 40 && holes.IntN(n) < 1 }
					}
				})
				for range 1 + rnd.IntN(8) {
					switch rnd.IntN(10) {
					case 0, 1:
						e.cut()
					case 2:
						restarted()
					}
					lost := 0.0
					if rnd.IntN(2) == 0 {
						lost = rnd.Float64() / 10
					}
					for range rnd.IntN(100) {
						all := cache.events()
						events += len(all)
						e.publish(rnd.Float64() < lost, all...)
					}
				}
				e.set(func(e *testEngine) { e.deaf, e.silent = false, false })
				if limited {
					// The subscriber connects anew only once it has read the end of the connection before: until then it may apply what a process that is
					// gone has sent, behind a replay of the next one. From then on, once a block is announced that was stored last, all before it is applied.
					eventually(t, "connected with the process", e.subscribed)
					mark := storedEvent(nil, 2, []uint32{1 << 20, uint32(round)}, 1<<40+uint64(round))
					e.publish(false, mark)
					settled(t, e, sink, mark)
					continue
				}
				whole++
				if !sink.complete() {
					restarted() // else it would lack what was not replayed in an earlier round
				}
				full(t, e, sink)
			}
			if events < 20_000 || whole < 20 {
				t.Errorf("%d events, %d times all of them replayed", events, whole)
			}
			t.Logf("%d events, %s resets, %v batches replayed", events, sink.resetCount(),
				testutil.ToFloat64(s.o.Metrics.replayed.WithLabelValues("chat", "e", "0")))
		})
	}
}
