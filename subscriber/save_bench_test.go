package subscriber

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// filledFold holds sequences of 64 blocks of 16 tokens.
func filledFold(tb testing.TB, blocks int) *fold {
	tb.Helper()
	const run, size = 64, 16
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
	hashes, tokens := make([]uint64, run), make([]uint32, run*size)
	for n := 0; f.mirror.present < blocks; n++ {
		for i := range hashes {
			hashes[i] = blockhash.Chain(uint64(n), uint64(i))
		}
		for i := range tokens {
			tokens[i] = uint32(n+i) % 128_000
		}
		if _, err := f.fold(packBatch(storedEvent(nil, size, tokens, hashes...)), time.Time{}); err != nil {
			tb.Fatal(err)
		}
	}
	return f
}

// BenchmarkSave measures for how long a save holds up events: the copy of the mirror. The file is written by another goroutine.
func BenchmarkSave(b *testing.B) {
	for _, blocks := range []int{100_000, 2_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			f := filledFold(b, blocks)
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				size = 0
				for _, c := range f.snapshot(savedIdentity(), samplePosition(), time.Time{}) {
					size += len(c)
				}
			}
			b.ReportMetric(float64(size)/float64(f.mirror.present), "file-bytes/block")
		})
	}
}

// BenchmarkLoad measures what a restored mirror delays the first connection by.
func BenchmarkLoad(b *testing.B) {
	for _, blocks := range []int{100_000, 2_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			file := filledFold(b, blocks).snapshot(savedIdentity(), samplePosition(), time.Time{}).file()
			b.ReportAllocs()
			for b.Loop() {
				g := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: 2 * blocks})
				if _, err := g.load(bytes.NewReader(file), int64(len(file)), savedIdentity()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
