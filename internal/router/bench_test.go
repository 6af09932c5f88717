package router

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkDecide is one whole decision about a prompt given as token ids, of which endpoints hold different shares. Most of its time goes into
// reading the body.
func BenchmarkDecide(b *testing.B) {
	for _, tokens := range []int{1 << 10, 32 << 10} {
		for _, endpoints := range []int{8, 64} {
			b.Run(fmt.Sprintf("tokens=%dk/endpoints=%d", tokens>>10, endpoints), func(b *testing.B) {
				w := newWorld(b, Options{Now: time.Now}, chat(endpoints))
				prompt := run(1, tokens)
				for i := range endpoints {
					w.hold(address(i), block, plain, prompt[:(i+1)*tokens/endpoints])
				}
				req := given("llama", prompt)
				b.ReportAllocs()
				for b.Loop() {
					if d := w.r.Decide(b.Context(), req); d.Reason != ReasonPrefix && d.Reason != ReasonLoad {
						b.Fatal(d.Reason)
					}
				}
			})
		}
	}
}

// BenchmarkPlace is what a decision costs without body and prompt.
func BenchmarkPlace(b *testing.B) {
	for _, endpoints := range []int{8, 64, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			w := newWorld(b, Options{Now: time.Now}, chat(endpoints))
			b.ReportAllocs()
			for b.Loop() {
				w.r.Decide(b.Context(), Request{Unread: true})
			}
		})
	}
}

// BenchmarkComplete is a decision without body and prompt, and the record of one made open decisions ago.
func BenchmarkComplete(b *testing.B) {
	for _, open := range []int{1, 1000, 50_000} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			w := newWorld(b, Options{Now: time.Now}, chat(8))
			decisions := make([]Decision, open)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if d := decisions[i]; d.ID != "" {
					w.r.Complete(answered(d, d.Endpoint))
				}
				decisions[i] = w.r.Decide(b.Context(), Request{Unread: true})
				i = (i + 1) % open
			}
		})
	}
}

// BenchmarkOff is what a request costs whose pool is off.
func BenchmarkOff(b *testing.B) {
	w := newWorld(b, Options{Now: time.Now}, chat(64))
	w.mode("chat", ModeOff, 100)
	req := given("llama", run(1, 32<<10))
	b.ReportAllocs()
	for b.Loop() {
		if d := w.r.Decide(b.Context(), req); d.Reason != ReasonOff {
			b.Fatal(d.Reason)
		}
	}
}
