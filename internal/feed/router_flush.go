package feed

import (
	"context"
	"slices"
	"time"
)

// Flush ends the streams with all nodes once these have read what other routers are to hear, and opens no more; it waits for that, at most until ctx ends. It
// is for a router that is about to stop, which takes no more records and makes no more decisions: the end of Run drops what waits then.
func (r *Router) Flush(ctx context.Context) {
	r.leaving.Store(true)
	poll := time.NewTicker(batchDelay)
	defer poll.Stop()
	for r.connected() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
}

// connected says whether a node is, and has each look whether there is something to send.
func (r *Router) connected() bool {
	r.mu.Lock()
	nodes := slices.Clone(r.nodes)
	r.mu.Unlock()
	some := false
	for _, n := range nodes {
		n.out.poke()
		some = n.status().Connected || some
	}
	return some
}
