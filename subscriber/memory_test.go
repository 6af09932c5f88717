package subscriber

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// heapBytes returns the bytes in use.
func heapBytes() uint64 {
	runtime.GC()
	runtime.GC() // the first ends what the sweeper had left
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// filling says how a mirror is filled.
type filling struct {
	blocks  int
	run     int  // blocks of a sequence
	orphans bool // the first block of each sequence is missing
	host    bool // each block has a copy in host memory, too
	gone    bool // as many blocks were removed again
}

// fillMirror fills a mirror with sequences of blocks of 16 tokens and returns the bytes that it keeps for each block, by the heap and by its own account.
func fillMirror(tb testing.TB, fill filling) (heap, account float64) {
	tb.Helper()
	const size = 16
	hashes, tokens := make([]uint64, fill.run), make([]uint32, fill.run*size)
	before := heapBytes()
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
	f.heal.complete = true // what is kept for healing is not counted
	for n := 0; f.mirror.present < fill.blocks; n++ {
		for i := range hashes {
			hashes[i] = blockhash.Chain(uint64(n), uint64(i))
		}
		for i := range tokens {
			tokens[i] = uint32(n+i) % 128_000
		}
		var parent any
		if fill.orphans {
			parent = uint64(n) << 32
		}
		events := []any{storedEvent(parent, size, tokens, hashes...)}
		if fill.host {
			events = append(events, fields{{"type", "BlockStored"}, {"block_hashes", hashes}, {"token_ids", []uint32{}}, {"block_size", 0}, {"medium", "CPU"}, {"parent_block_hash", parent}})
		}
		if fill.gone && n%2 == 1 {
			events = append(events, removedEvent(hashes...))
		}
		if _, err := f.fold(packBatch(events...), time.Time{}); err != nil {
			tb.Fatal(err)
		}
	}
	inUse := heapBytes() - before
	if n := f.mirror.orphans(); n > 0 && !fill.orphans {
		tb.Fatalf("%d orphans", n)
	}
	return float64(inUse) / float64(f.mirror.present), float64(f.mirror.bytes()) / float64(f.mirror.present)
}

// mirrorBytes is the memory of a block in a mirror of sequences of 64.
func mirrorBytes(tb testing.TB, blocks int) float64 {
	heap, _ := fillMirror(tb, filling{blocks: blocks, run: 64})
	return heap
}

// TestMirrorBytes holds a mirror to the memory that docs/operations.md promises.
func TestMirrorBytes(t *testing.T) {
	if got := mirrorBytes(t, 140_000); got > 250 {
		t.Errorf("%.0f bytes per block, want at most 250", got)
	}
}

// TestMirrorAccount wants what a mirror says of its memory to be what it takes, within 15 %.
func TestMirrorAccount(t *testing.T) {
	for _, tt := range []struct {
		name string
		fill filling
	}{
		{"sequences of 64", filling{blocks: 100_000, run: 64}},
		{"tables just grown", filling{blocks: 180_000, run: 64}},
		{"first blocks alone", filling{blocks: 50_000, run: 1}},
		{"orphans, each of its own", filling{blocks: 50_000, run: 1, orphans: true}},
		{"orphans in runs", filling{blocks: 50_000, run: 8, orphans: true}},
		{"copies in host memory", filling{blocks: 50_000, run: 64, host: true}},
		{"ghosts", filling{blocks: 50_000, run: 64, host: true, gone: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			heap, account := fillMirror(t, tt.fill)
			t.Logf("%.0f bytes per block, %.0f by account", heap, account)
			if account < .85*heap || account > 1.15*heap {
				t.Errorf("%.0f bytes per block, %.0f by account", heap, account)
			}
		})
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
