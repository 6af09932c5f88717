package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
)

const (
	readyShare = 0.9 // of the event sources, and of the nodes, that must be settled
	readyPoll  = 20 * time.Millisecond
)

// readiness turns true once, and stays so: what has become known of the engines is not made worse by a reload, and Envoy has no better
// router to ask for the rest.
type readiness struct {
	router *router.Router
	nodes  func() (settled, all int)
	names  func() []string // that DNS has not answered for
	pools  *pool.Set
	warmup time.Duration
	log    *slog.Logger
	ready  chan struct{} // closed when it is true
}

// run waits until enough event sources and nodes are settled or the warmup is over. It returns when ctx ends.
func (r *readiness) run(ctx context.Context) error {
	over := time.NewTimer(r.warmup)
	defer over.Stop()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for waiting := true; waiting && len(r.unsettled()) > 0; {
		select {
		case <-poll.C:
		case <-over.C:
			waiting = false
		case <-ctx.Done():
			return nil
		}
	}
	if names := r.names(); len(names) > 0 {
		r.log.Warn("DNS has not answered for all names; serving all the same", "names", strings.Join(names, " "))
	}
	if settled, all := r.nodes(); !enough(settled, all) {
		r.log.Warn("not all nodes are connected and copied; serving all the same", "settled", settled, "nodes", all)
	}
	if settled, all := r.router.Sources(); !enough(settled, all) {
		r.log.Warn("not all event sources are settled; serving all the same", "settled", settled, "sources", all)
	}
	close(r.ready)
	<-ctx.Done()
	return nil
}

// enough says whether of all event sources enough are settled.
func enough(settled, all int) bool { return float64(settled) >= readyShare*float64(all) }

// unsettled is what there is to wait for, a line each.
func (r *readiness) unsettled() (lines []string) {
	if names := r.names(); len(names) > 0 {
		lines = append(lines, "no answer of DNS for "+strings.Join(names, ", "))
	}
	if settled, all := r.nodes(); !enough(settled, all) {
		lines = append(lines, fmt.Sprintf("%d of %d nodes are connected and have told what their engines hold", settled, all))
	}
	if settled, all := r.router.Sources(); !enough(settled, all) {
		lines = append(lines, fmt.Sprintf("%d of %d event sources are connected, or down", settled, all))
	}
	return lines
}

// missing is what keeps the router from being ready, a line each.
func (r *readiness) missing() []string {
	select {
	case <-r.ready:
	default:
		lines := r.unsettled()
		for i := range lines {
			lines[i] += fmt.Sprintf("; waiting for the others until %v after the start", r.warmup)
		}
		if len(lines) == 0 {
			return []string{"about to serve"}
		}
		return lines
	}
	for _, p := range r.pools.Pools() {
		for _, e := range p.Endpoints() {
			if e.Healthy() {
				return nil
			}
		}
	}
	return []string{"no endpoint is up"}
}
