package enginesim

import (
	"context"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestTiming runs the engine in fake time.
func TestTiming(t *testing.T) {
	type arrival struct {
		at             time.Duration
		prompt, answer int
	}
	type outcome struct{ First, Last time.Duration }
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		timing   Timing
		arrivals []arrival
		want     []outcome
	}{
		"no time passes": {Timing{}, []arrival{{0, 1000, 100}}, []outcome{{0, 0}}},
		"prefill then decode": {
			Timing{PrefillRate: 1000, DecodeRate: 100},
			[]arrival{{0, 500, 11}},
			[]outcome{{500 * ms, 600 * ms}},
		},
		"only uncached tokens take time": { // the second prompt is 32 of 40 tokens like the first
			Timing{PrefillRate: 1000},
			[]arrival{{0, 40, 1}, {100 * ms, 40, 1}},
			[]outcome{{40 * ms, 40 * ms}, {8 * ms, 8 * ms}},
		},
		"slowdown": { // two in decode take 1.5 times as long each; the second prefill delays the first answer
			Timing{PrefillRate: 1000, DecodeRate: 100, Slowdown: 0.5},
			[]arrival{{0, 10, 5}, {5 * ms, 3, 3}},
			[]outcome{{10 * ms, 10*ms + 13*ms + 2*15*ms + 10*ms}, {18 * ms, 18*ms + 2*15*ms}},
		},
		"queue": { // one at a time; the second finds 48 of its tokens
			Timing{PrefillRate: 1000, MaxRunning: 1},
			[]arrival{{0, 100, 1}, {1 * ms, 50, 1}},
			[]outcome{{100 * ms, 100 * ms}, {101 * ms, 101 * ms}},
		},
		"chunks": { // the second prompt shares the last step of the first, and hits what that one has computed
			Timing{PrefillRate: 1000, MaxStepTokens: 60},
			[]arrival{{0, 100, 1}, {10 * ms, 17, 1}},
			[]outcome{{100*ms + 1*ms, 101 * ms}, {91 * ms, 91 * ms}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, err := Options{Timing: tc.timing, BlockSize: 16}.withDefaults()
				if err != nil {
					t.Fatal(err)
				}
				var l *loop
				sched := scheduler{
					blockSize: 16, maxStepTokens: o.Timing.MaxStepTokens, maxRunning: o.Timing.MaxRunning, cache: newCache(o.Blocks, Map),
				}
				l = newLoop(sched, o.Timing, newMetrics(&o).rank(0), func(time.Time, []event) {})
				ctx, cancel := context.WithCancel(t.Context())
				go l.run(ctx)

				got := make([]outcome, len(tc.arrivals))
				done := make(chan struct{})
				for i, a := range tc.arrivals {
					go func() {
						defer func() { done <- struct{}{} }()
						<-time.After(a.at)
						tokens := make([]uint32, a.prompt)
						for j := range tokens {
							tokens[j] = uint32(j)
						}
						q := newSequence(&hasher{blockSize: 16}, nil, "", tokens, a.answer)
						q.next = func(int) uint32 { return 0 }
						start := time.Now()
						l.submit([]*sequence{q})
						for end := finish(""); end == ""; {
							<-q.out.wake
							var tokens []uint32
							tokens, _, end = q.out.take(nil)
							if len(tokens) > 0 && got[i].First == 0 {
								got[i].First = time.Since(start)
							}
						}
						got[i].Last = time.Since(start)
					}()
				}
				for range tc.arrivals {
					<-done
				}
				cancel()
				synctest.Wait()
				if d := cmp.Diff(tc.want, got); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// TestChunkInterval wants tokens within the interval to be merged, and a wake without news, which is left behind when tokens
// came between wake and take, to be harmless.
func TestChunkInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Options{Timing: Timing{ChunkInterval: 50 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		c, bad := e.prepare([]byte(`{"prompt":"Hello","max_tokens":100}`), "", "", false)
		if bad != nil {
			t.Fatal(bad.Message)
		}
		out, w := c.choices[0].seq.out, httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			e.stream(t.Context(), w, c)
			close(done)
		}()
		token := e.vocab.innerID[0]
		for range 4 {
			c.wake <- struct{}{}
			<-time.After(60 * time.Millisecond)
			for range 10 {
				out.put(0, "", token)
				<-time.After(time.Millisecond)
			}
		}
		out.put(0, finishLength, token)
		<-done
		// Each ten come as one at once and nine 50 ms later, with the last one among the last nine.
		var got []int
		for _, ch := range sseChunks(t, w.Body.Bytes()) {
			got = append(got, len(tokenize(nil, ch.Choices[0].Text)))
		}
		if d := cmp.Diff([]int{1, 9, 1, 9, 1, 9, 1, 10}, got); d != "" {
			t.Errorf("tokens in chunks:\n%s", d)
		}
	})
}
