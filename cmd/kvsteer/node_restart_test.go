package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
