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

// BenchmarkFold decodes and folds batches of one stored event of new blocks,
// and beside it the decoding alone, and a batch that removes as many old
// blocks before it stores, as a full cache sends it.
func BenchmarkFold(b *testing.B) {
	const payloads = 128
	for _, blocks := range []int{1, 64} {
		stores := turnover(payloads, blocks, false, true)
		removals := turnover(payloads, blocks, true, false)
		both := turnover(payloads, blocks, true, true)
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				mustFold(b, f, stores[i%payloads])
				if i++; i%payloads == 0 {
					b.StopTimer()
					for _, p := range removals {
						mustFold(b, f, p)
					}
					if f.mirror.present > 0 {
						b.Fatalf("%d blocks", f.mirror.present)
					}
					b.StartTimer()
				}
			}
		})
		b.Run(fmt.Sprintf("blocks=%d/turnover", blocks), func(b *testing.B) {
			f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				mustFold(b, f, both[i%payloads])
				i++
			}
		})
		b.Run(fmt.Sprintf("blocks=%d/turnover/demote", blocks), func(b *testing.B) {
			f := newFold(foldOptions{pool: "chat", sink: &nullSink{}, demote: time.Minute})
			f.mirror.keepGhosts = true
			now, i := time.Unix(1_000, 0), 0
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.fold(both[i%payloads], now); err != nil {
					b.Fatal(err)
				}
				now = now.Add(time.Second)
				f.tick(now)
				i++
			}
		})
		b.Run(fmt.Sprintf("blocks=%d/full", blocks), func(b *testing.B) { // each block makes room for one
			f := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: payloads * blocks / 2})
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				mustFold(b, f, stores[i%payloads])
				i++
			}
		})
		b.Run(fmt.Sprintf("blocks=%d/decode", blocks), func(b *testing.B) {
			d := newDecoder()
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.decode(stores[i%payloads], func(*event) {}); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

func mustFold(b *testing.B, f *fold, payload []byte) {
	if _, err := f.fold(payload, time.Time{}); err != nil {
		b.Fatal(err)
	}
}
