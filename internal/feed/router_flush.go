package feed

import (
	"context"
	"slices"
	"time"
)

// flushed is how long what was handed to a connection may take to leave.
const flushed = 20 * time.Millisecond

// Flush waits until what other routers are to hear has been sent to the nodes that are connected, at most until ctx ends. It is for a router that is about to
// stop, which takes no more records and makes no more decisions: the end of Run drops what waits then.
func (r *Router) Flush(ctx context.Context) {
	poll := time.NewTicker(batchDelay)
	defer poll.Stop()
	for r.waits() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
	pause(ctx, flushed)
}

// waits says whether something waits for a node that is connected.
func (r *Router) waits() bool {
	r.mu.Lock()
	nodes := slices.Clone(r.nodes)
	r.mu.Unlock()
	return slices.ContainsFunc(nodes, func(n *watched) bool {
		charges, records := n.out.waiting()
		return (charges > 0 || records) && n.status().Connected
	})
}
