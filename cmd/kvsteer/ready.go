package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
)

const (
	readyShare = 0.9 // of the event sources that must be settled
	readyPoll  = 20 * time.Millisecond
)

// readiness turns true once, and stays so: what has become known of the engines is not made worse by a reload, and Envoy has no better
// router to ask for the rest.
type readiness struct {
	router *router.Router
	pools  *pool.Set
	warmup time.Duration
	log    *slog.Logger
	ready  chan struct{} // closed when it is true
}

// run waits until enough event sources are settled or the warmup is over. It returns when ctx ends.
func (r *readiness) run(ctx context.Context) error {
	over := time.NewTimer(r.warmup)
	defer over.Stop()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for waiting := true; waiting && !enough(r.router.Sources()); {
		select {
		case <-poll.C:
		case <-over.C:
			waiting = false
		case <-ctx.Done():
			return nil
		}
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

// missing is what keeps the router from being ready, a line each.
func (r *readiness) missing() []string {
	select {
	case <-r.ready:
	default:
		settled, all := r.router.Sources()
		return []string{fmt.Sprintf("%d of %d event sources are connected, or down; waiting for the others until %v after the start", settled, all, r.warmup)}
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
