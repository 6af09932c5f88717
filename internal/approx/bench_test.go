package approx

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/kvindex"
)

// BenchmarkLearn is one prompt noted for an endpoint whose list is full: known to it, or new and so dropping as much as it adds.
func BenchmarkLearn(b *testing.B) {
	for _, blocks := range []int{32, 128, 800} {
		for _, known := range []bool{true, false} {
			b.Run(fmt.Sprintf("blocks=%d/known=%v", blocks, known), func(b *testing.B) {
				x, err := New(Options{})
				if err != nil {
					b.Fatal(err)
				}
				e := x.Endpoint("chat", "e")
				l := Limits{Blocks: 6250, Lifetime: time.Hour}
				for i := range 8 {
					e.Learn(run(uint64(1+i*800), 800), 0, l, epoch)
				}
				keys := run(1_000_000, blocks)
				b.ReportAllocs()
				for b.Loop() {
					if !known {
						for i := range keys {
							keys[i] += uint64(blocks)
						}
					}
					e.Learn(keys, 0, l, epoch)
				}
			})
		}
	}
}

// BenchmarkMatch is one lookup of a prompt of which the endpoints hold different shares.
func BenchmarkMatch(b *testing.B) {
	for _, endpoints := range []int{8, 64} {
		b.Run(fmt.Sprintf("blocks=800/endpoints=%d", endpoints), func(b *testing.B) {
			x, err := New(Options{})
			if err != nil {
				b.Fatal(err)
			}
			l := Limits{Blocks: 6250, Lifetime: time.Hour}
			keys := run(1, 800)
			var all []*Endpoint
			for i := range endpoints {
				e := x.Endpoint("chat", fmt.Sprint(i))
				e.Learn(keys[:(i+1)*800/endpoints], 0, l, epoch)
				all = append(all, e)
			}
			var slots []kvindex.Slot
			held := make([]kvindex.Held, endpoints)
			b.ReportAllocs()
			for b.Loop() {
				slots = slots[:0]
				for _, e := range all {
					s, _ := e.Slot(0, l.Lifetime, epoch)
					slots = append(slots, s)
				}
				x.Match(keys, slots, held)
			}
			if held[endpoints-1].Any != 800 {
				b.Error(held)
			}
		})
	}
}

// BenchmarkMemory is what the blocks of many endpoints take, lists included.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		x, err := New(Options{})
		if err != nil {
			b.Fatal(err)
		}
		const endpoints, blocks = 32, 6250
		before := heap()
		l := Limits{Blocks: blocks, Lifetime: time.Hour}
		var all []*Endpoint
		for i := range uint64(endpoints) {
			e := x.Endpoint("chat", "e")
			for k := range uint64(blocks / 50) {
				e.Learn(run(i<<40+k*50+1, 50), 0, l, epoch)
			}
			all = append(all, e)
		}
		b.ReportMetric(float64(heap()-before)/(endpoints*blocks), "B/block")
		if all[0].Blocks() != blocks {
			b.Error(all[0].Blocks())
		}
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
