package feed

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// drain takes all that a stream is told, as its sender would.
func drain(st *stream) (bytes int) {
	for {
		copied := st.copy()
		m, peers, ok := st.next()
		bytes += len(m.data)
		if !copied && !peers && !ok {
			return bytes
		}
	}
}

// spread are keys as fingerprints are.
func spread(from, n int) []uint64 {
	keys := sequence(from, n)
	for i, k := range keys {
		keys[i] = k * 0x9e3779b97f4a7c15
	}
	return keys
}

// BenchmarkStore is a call of the sink, with its share of the window's end, into a ledger of that many blocks, half of which come and go.
func BenchmarkStore(b *testing.B) {
	for _, held := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", held), func(b *testing.B) {
			n := testNode(b, NodeOptions{})
			s := n.Source()
			keys := spread(1, held)
			for len(keys) > 0 {
				s.Store(subscriber.Any, keys[:4000])
				keys = keys[4000:]
			}
			s.close()
			const batch = 64
			next := held + 1
			b.ReportAllocs()
			for b.Loop() {
				keys := spread(next, batch)
				next += batch
				s.Store(subscriber.Any, keys)
				s.Store(subscriber.Device, keys)
				if next > held+100_000 {
					old := spread(next-100_000, batch)
					s.Remove(subscriber.Device, old)
					s.Remove(subscriber.Any, old)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/block")
		})
	}
}

// BenchmarkWindow is the end of a window of 4,096 blocks, and what it puts into the queues of streams.
func BenchmarkWindow(b *testing.B) {
	for _, streams := range []int{1, 8} {
		b.Run(fmt.Sprintf("blocks=4096/streams=%d", streams), func(b *testing.B) {
			n := testNode(b, NodeOptions{})
			s := n.Source()
			n.announceOne(s)
			for i := range streams {
				st := n.newStream(fmt.Sprint(i), "", "")
				n.join(st)
				defer st.end()
			}
			keys := spread(1, 4096)
			on, bytes := true, 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for _, st := range n.streams() {
					bytes += drain(st)
				}
				if on {
					s.Store(subscriber.Any, keys)
					s.Store(subscriber.Device, keys)
				} else {
					s.Remove(subscriber.Device, keys)
					s.Remove(subscriber.Any, keys)
				}
				on = !on
				b.StartTimer()
				s.close()
			}
			b.ReportMetric(float64(bytes)/float64(b.N)/float64(streams), "wire-bytes/stream")
		})
	}
}

// BenchmarkCopy is a router that joins a node with that many blocks, over a connection, until the end of the copy. What another router notices is
// how long changes take to reach it meanwhile, beside the window.
func BenchmarkCopy(b *testing.B) {
	for _, held := range []int{1_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", held), func(b *testing.B) {
			n := testNode(b, NodeOptions{})
			s := n.Source()
			for keys := spread(1, held); len(keys) > 0; keys = keys[4000:] {
				s.Store(subscriber.Any, keys[:4000])
				s.Store(subscriber.Device, keys[:4000])
			}
			s.close()
			n.announceOne(s)
			address := serve(b, n)
			ends := func(m *feedpb.NodeMessage) bool { return m.GetEnd() != nil }
			other, _ := watch(b, dial(b, address), "other")
			find(b, other, "end", ends)
			stop, stopped := make(chan struct{}), make(chan []time.Duration)
			go func() {
				var lags []time.Duration
				for key := range uint64(1 << 40) {
					select {
					case <-stop:
						stopped <- lags
						return
					default:
					}
					begun := time.Now()
					s.Store(subscriber.Any, []uint64{key})
					s.close()
					find(b, other, "delta", func(m *feedpb.NodeMessage) bool { return m.GetDelta() != nil })
					lags = append(lags, time.Since(begun))
				}
			}()
			client := dial(b, address)
			bytes := 0
			b.ReportAllocs()
			for b.Loop() {
				w, leave := watch(b, client, "a")
				find(b, w, "end", func(m *feedpb.NodeMessage) bool {
					bytes += proto.Size(m)
					return ends(m)
				})
				leave()
			}
			close(stop)
			lags := <-stopped
			slices.Sort(lags)
			b.ReportMetric(float64(lags[len(lags)/2].Microseconds()), "µs-median-lag-of-another")
			b.ReportMetric(float64(lags[len(lags)*99/100].Microseconds()), "µs-p99-lag-of-another")
			b.ReportMetric(float64(bytes)/float64(b.N)/float64(held), "wire-bytes/block")
			_, size := s.memory()
			b.ReportMetric(float64(size)/float64(held), "ledger-bytes/block")
		})
	}
}

// heap is what is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the first ends what the sweeper had left
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestLedgerBytes holds a ledger to the memory that docs/architecture.md tells, at the worst fills of its tables.
func TestLedgerBytes(t *testing.T) {
	for _, blocks := range []int{49_000, 50_000, 98_000, 99_000, 150_000} {
		before := heap()
		l := newLedger()
		for k := range uint64(blocks) {
			l.add(k*0x9e3779b97f4a7c15, tierBoth)
		}
		got := float64(heap()-before) / float64(blocks)
		if told := float64(l.bytes()) / float64(blocks); got > 33 || told < got*.95 || told > got*1.05 {
			t.Errorf("%d blocks: %.1f bytes each, told %.1f, want at most 33", blocks, got, told)
		}
		runtime.KeepAlive(l)
	}
	// Half of the blocks gone, here and there: gaps are closed.
	before := heap()
	l := newLedger()
	for k := range uint64(200_000) {
		l.add(k, tierBoth)
	}
	for k := range uint64(200_000) {
		if k%3 != 0 {
			at, _ := l.find(k)
			l.remove(k, at)
		}
		if k%4000 == 0 {
			l.tidy()
		}
	}
	for range 20 {
		l.tidy()
	}
	if got := float64(heap()-before) / float64(l.blocks); got > 80 {
		t.Errorf("%.1f bytes for each of the blocks that are left", got)
	}
	runtime.KeepAlive(l)
}
