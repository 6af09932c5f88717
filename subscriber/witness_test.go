package subscriber

import (
	"context"
	"sync"
	"testing"
)

func TestWitnessQueue(t *testing.T) {
	some := witness{Prompt: Prompt{Tokens: make([]uint32, 10)}}
	for _, tt := range []struct {
		name    string
		do      func(w *witnesses)
		left    int
		dropped int
	}{
		{"not wanted", func(w *witnesses) { w.put(some) }, 0, 0},
		{"wanted", func(w *witnesses) { w.want(true); w.put(some) }, 1, 0},
		{"not wanted any more", func(w *witnesses) { w.want(true); w.put(some); w.want(false); w.put(some) }, 0, 0},
		{"too many", func(w *witnesses) {
			w.want(true)
			for range queuePrompts + 3 {
				w.put(some)
			}
		}, queuePrompts, 3},
		{"too many tokens", func(w *witnesses) {
			w.want(true)
			for range 5 {
				w.put(witness{Prompt: Prompt{Tokens: make([]uint32, queueTokens/4)}})
			}
		}, 4, 1},
		{"one too long", func(w *witnesses) {
			w.want(true)
			w.put(some)
			w.put(witness{Prompt: Prompt{Tokens: make([]uint32, queueTokens+1)}})
		}, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWitnesses()
			tt.do(w)
			left, all := 0, 0
			for {
				_, ok, dropped := w.take()
				all += dropped
				if !ok {
					break
				}
				left++
			}
			if left != tt.left || all != tt.dropped || w.queue.tokens != 0 {
				t.Errorf("%d left, %d dropped, want %d and %d; %d tokens", left, all, tt.left, tt.dropped, w.queue.tokens)
			}
		})
	}
}

// TestWitnessWhileRunning: prompts from several goroutines reach the mirror of a Subscriber that runs, which wants them only between its engine's
// connection and the clearing of its cache.
func TestWitnessWhileRunning(t *testing.T) {
	b := newBench(t, Prompt{})
	sink := newHeldSink(t)
	s, err := New(Options{Pool: "chat", Endpoint: "10.0.0.1:8000", Listen: "tcp://127.0.0.1:0", Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	if s.Wants() {
		t.Error("wanted before Run")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	p := dialPublisher(t, s)
	p.handshake()
	eventually(t, "prompts are wanted", s.Wants)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				s.Witness(b.p)
			}
		})
	}
	wg.Wait()
	p.write(live(7, string(packBatch(b.event))))
	want := map[uint64]bool{}
	for _, k := range b.keys {
		want[k] = true
	}
	eventually(t, "the prompt's blocks are announced", func() bool {
		_, _, lacks, exceeds := sink.compare(want)
		return lacks+exceeds == 0
	})
	p.write(live(8, string(packBatch(clearedEvent()))))
	eventually(t, "prompts are not wanted", func() bool { return !s.Wants() })
	s.Witness(b.p)
}
