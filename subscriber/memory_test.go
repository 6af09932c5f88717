package subscriber

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// mirrorBytes fills a mirror with sequences of 64 blocks of 16 tokens and returns the bytes that it keeps for each block.
func mirrorBytes(tb testing.TB, blocks int) float64 {
	tb.Helper()
	const run, size = 64, 16
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // the first ends what the sweeper had left
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	hashes, tokens := make([]uint64, run), make([]uint32, run*size)
	before := heap()
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
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
	bytes := float64(heap()-before) / float64(f.mirror.present)
	if f.mirror.orphans() > 0 {
		tb.Fatalf("%d orphans", f.mirror.orphans())
	}
	return bytes
}

// TestMirrorBytes holds a mirror to the memory that docs/operations.md promises.
func TestMirrorBytes(t *testing.T) {
	if got := mirrorBytes(t, 140_000); got > 250 {
		t.Errorf("%.0f bytes per block, want at most 250", got)
	}
}

// BenchmarkMirrorBytes reports the bytes per block of a mirror at several fills of its tables.
func BenchmarkMirrorBytes(b *testing.B) {
	for _, blocks := range []int{25_000, 50_000, 100_000, 140_000, 200_000, 280_000, 400_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			worst := 0.0
			for b.Loop() {
				worst = max(worst, mirrorBytes(b, blocks))
			}
			b.ReportMetric(worst, "bytes/block")
		})
	}
}
