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

// BenchmarkDecideByText is one whole decision about a chat in a pool without events: a follow-up of what an endpoint was sent, whose new part is
// noted. The metric by-text is the share of the decision that matching by text takes, beside reading the body and pricing.
func BenchmarkDecideByText(b *testing.B) {
	for _, size := range []int{8 << 10, 32 << 10, 197 << 10} {
		for _, endpoints := range []int{8, 64} {
			b.Run(fmt.Sprintf("bytes=%d/endpoints=%d", size, endpoints), func(b *testing.B) {
				w := textual(b, Options{Now: time.Now}, endpoints)
				with, without := w, newWorld(b, Options{Now: time.Now}, chat(endpoints))
				before := []string{message("system", "You answer in one line. ", 40)}
				for n := 1; len(before)*1000 < size; n++ {
					before = append(before, message([]string{"user", "assistant"}[n%2], fmt.Sprintf("Line %d of many. ", n), 60))
				}
				with.r.Decide(b.Context(), chats("", before...))
				requests := make([]Request, 256)
				for i := range requests {
					requests[i] = chats("", append(before[:len(before):len(before)], message("user", fmt.Sprintf("Question %d? ", i), 60))...)
				}
				var all, bare time.Duration
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					start := time.Now()
					with.r.Decide(b.Context(), requests[i%len(requests)])
					middle := time.Now()
					without.r.Decide(b.Context(), requests[i%len(requests)])
					all += middle.Sub(start)
					bare += time.Since(middle)
					i++
				}
				b.ReportMetric(float64(all.Nanoseconds())/float64(b.N), "decide-ns/op")
				b.ReportMetric((all-bare).Seconds()/all.Seconds(), "by-text")
			})
		}
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

// nobody are Peers that do nothing.
type nobody struct{}

func (nobody) Charged(Charge)                  {}
func (nobody) Released(string, uint64)         {}
func (nobody) Pass(string, Completion) Passing { return NoWay }

// BenchmarkPlaceWithPeers is BenchmarkPlace where peers are told.
func BenchmarkPlaceWithPeers(b *testing.B) {
	w := newWorld(b, Options{Now: time.Now, Peers: nobody{}}, chat(64))
	b.ReportAllocs()
	for b.Loop() {
		w.r.Decide(b.Context(), Request{Unread: true})
	}
}

// BenchmarkForeignCharge is a charge of another router, and the release of one made open charges ago.
func BenchmarkForeignCharge(b *testing.B) {
	for _, open := range []int{1, 1000, 50_000} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			w := newWorld(b, Options{Now: time.Now}, chat(8))
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				if n >= open {
					w.r.Release("a", "chat", uint64(1+n-open))
				}
				w.r.Charge("a", charged(n%8, uint64(1+n), 100))
				n++
			}
		})
	}
}
