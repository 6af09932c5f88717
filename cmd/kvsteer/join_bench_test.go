package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/router"
)

// BenchmarkRouterJoins is the time from a router's start to watch a node until all blocks of the node's engine are matched. The index begins empty. Bytes are
// those of the stream, without HTTP/2's own.
func BenchmarkRouterJoins(b *testing.B) {
	const blocks = 1_000_000
	n := startNode(b, "n")
	keys := make([]uint64, blocks)
	for i := range keys {
		keys[i] = uint64(i+1) * 0x9e3779b97f4a7c15 // spread as fingerprints are
	}
	source := n.source(keys...)
	n.Announce([]feed.Replica{{Endpoint: "127.0.0.1:8001", Pool: "chat", Models: []string{"tiny"}, Sources: []uint32{source.Number()}}})
	path := filepath.Join(b.TempDir(), "kvsteer.yaml")
	if err := os.WriteFile(path, []byte("probe: {interval: 1h}\n"+nodes(n)+toldPool), 0o600); err != nil {
		b.Fatal(err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
		bytes := uint64(0)
		for b.Loop() {
			b.StopTimer()
			s, err := newService(path, cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			var parts sync.WaitGroup
			b.StartTimer()
			for _, run := range []func(context.Context) error{s.feed.Run, s.keeper.run} {
				parts.Go(func() { _ = run(ctx) })
			}
			for end := time.Now().Add(time.Minute); !matches(s.router, blocks); time.Sleep(200 * time.Microsecond) {
				if time.Now().After(end) {
					b.Fatal("not within a minute: all blocks are matched")
				}
			}
			b.StopTimer()
			bytes += s.feed.Nodes()[0].Bytes
			cancel()
			parts.Wait()
			b.StartTimer()
		}
		b.ReportMetric(float64(bytes)/float64(b.N)/blocks, "wire-bytes/block")
	})
}

// matches reports whether so many blocks of the only endpoint are matched.
func matches(r *router.Router, blocks int) bool {
	for _, e := range r.State().Pools[0].Endpoints {
		if e.Matchable && e.DeviceBlocks == blocks {
			return true
		}
	}
	return false
}
