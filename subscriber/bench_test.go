package subscriber

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// nullSink takes everything and does nothing.
type nullSink struct{ keys int }

func (s *nullSink) Store(_ Tier, keys []uint64)  { s.keys += len(keys) }
func (s *nullSink) Remove(_ Tier, keys []uint64) { s.keys += len(keys) }
func (s *nullSink) Reset(Cause)                  {}
func (s *nullSink) Describe(Description)         {}

// turnover builds payloads for a mirror in its steady state: payload i removes
// the sequence that payload i−half stored, children first, and stores another.
// Every sequence has 64-bit hashes, token ids of up to 17 bits, 16 per block.
func turnover(payloads, blocks int, remove, store bool) [][]byte {
	out := make([][]byte, payloads)
	hash := func(seq, i int) uint64 { return blockhash.Chain(uint64(seq), uint64(i)) }
	for p := range out {
		var hashes, old []uint64
		var tokens []uint32
		for i := range blocks {
			hashes = append(hashes, hash(p, i))
			old = append(old, hash((p+payloads/2)%payloads, blocks-1-i))
			for j := range 16 {
				tokens = append(tokens, uint32((p*31+i*16+j)*7919%128000))
			}
		}
		var events []any
		if remove {
			events = append(events, removedEvent(old...))
		}
		if store {
			events = append(events, storedEvent(nil, 16, tokens, hashes...))
		}
		out[p] = packBatch(events...)
	}
	return out
}

// BenchmarkFold decodes and folds batches of one stored event.
//
//   - blocks=64 also holds the removal of as many older blocks, as a full
//     cache sends it; the mirror holds 32,768 blocks.
//   - decode is its decoding alone.
func BenchmarkFold(b *testing.B) {
	for _, blocks := range []int{1, 64} {
		payloads := turnover(1024, blocks, true, true)
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
			i := 0
			fold := func() {
				if _, err := f.fold(payloads[i%len(payloads)], time.Time{}); err != nil {
					b.Fatal(err)
				}
				i++
			}
			for range payloads {
				fold()
			}
			b.ReportAllocs()
			for b.Loop() {
				fold()
			}
			if f.mirror.present != blocks*len(payloads)/2 {
				b.Fatalf("%d blocks", f.mirror.present)
			}
		})
		b.Run(fmt.Sprintf("blocks=%d/decode", blocks), func(b *testing.B) {
			d := newDecoder()
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.decode(payloads[i%len(payloads)], func(*event) {}); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
