package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/enginesim"
	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestNodeRestartUnnoticed holds that a router goes on matching all that it knows of a node's engine while the node is started anew, and that changes
// arrive after it.
func TestNodeRestartUnnoticed(t *testing.T) {
	site := newNodeSite(t)
	ports, err := lab.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	site.head = "warmup: 30s\n" + site.head
	site.write(fmt.Sprintf("address: \":%d\"", ports[0]))
	n := site.start()
	e, _ := engineAt(t, address, n.at(address))
	n.until("the engine is connected", func() bool { return n.engine(address).Ranks[0].Connected })
	r := startFleet(t, fmt.Sprintf("nodes: [{address: %q}]\nfeed: {stale_after: 1m}\n%s", site.listen, toldPool))
	complete(t, e, somePrompt)
	r.until("the router knows its blocks", func() bool { return r.endpoint(address).Matchable })
	r.until("all of them", func() bool { return r.endpoint(address).Blocks == n.engine(address).Ranks[0].Blocks })
	before := r.endpoint(address).Blocks

	least, unmatched := before, 0
	look := func() {
		s := r.endpoint(address)
		if least = min(least, s.Blocks); !s.Matchable {
			unmatched++
		}
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				look()
			}
		}
	}()
	streams := r.feed.Nodes()[0].Streams
	n.stop()
	n = site.start()
	r.until("it is watched again", func() bool {
		s := r.feed.Nodes()[0]
		return s.Connected && s.Streams > streams && s.Copies == 0
	})
	complete(t, e, strings.Repeat("five six seven eight ", 40))
	r.until("a change arrives", func() bool { return r.endpoint(address).Blocks > before })
	close(ended)
	<-watched
	if least < before || unmatched > 0 {
		t.Errorf("at the least %d of %d blocks were known, and the engine was not matchable %d times", least, before, unmatched)
	}
}

// TestNodeWaitsForEngines holds that routers wait for engines that are up, as long as the warmup, and not for those that are down.
func TestNodeWaitsForEngines(t *testing.T) {
	const said = "not all engines are connected; routers are served all the same"
	e, err := enginesim.New(enginesim.Options{}) // it publishes no events
	if err != nil {
		t.Fatal(err)
	}
	background(t, e.Run)
	ready(t, e)
	site := newNodeSite(t)
	site.head = "warmup: 300ms\n" + site.head
	site.write(fmt.Sprintf("address: %q", e.Addr()), `address: "127.0.0.1:9"`)
	begun := time.Now()
	n := site.start()
	if waited := time.Since(begun); waited < 300*time.Millisecond || !strings.Contains(n.log.String(), said) || !strings.Contains(n.log.String(), "settled=1 engines=2") {
		t.Errorf("after %v", waited)
	}
	n.stop()
	site.write(`address: "127.0.0.1:9"`)
	if n = site.start(); strings.Contains(n.log.String(), said) {
		t.Error("an engine that is down is waited for")
	}
}

// TestNodeAnnouncesBeforeItServes holds that no router is told of a node without engines, which would take from it those that it knew, because nobody has
// looked yet.
func TestNodeAnnouncesBeforeItServes(t *testing.T) {
	site := newNodeSite(t)
	site.write(`address: "127.0.0.1:9"`)
	cfg, err := config.LoadNode(site.path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNodeService(site.path, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.prepare(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.followers.release)
	l, err := net.Listen("tcp", site.listen)
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return n.serve(ctx, l, 0) })
	w := watchNode(t, site.listen)
	until(t, "it is told of engines", w.see(func() bool { return w.fewest < math.MaxInt }))
	if w.see(func() bool { return w.fewest != 1 })() {
		t.Errorf("the first it is told of is %d engines", w.fewest)
	}
}
