package pool

import (
	"sync"
	"sync/atomic"
)

// Endpoint is one engine's address and health.
type Endpoint struct {
	pool string
	addr string
	up   atomic.Bool   // what readers see of state
	down atomic.Uint64 // how often state has become down
	wake chan struct{} // capacity 1: asks the prober to probe at once

	mu    sync.Mutex
	state health
}

func newEndpoint(pool, addr string) *Endpoint {
	e := &Endpoint{pool: pool, addr: addr, wake: make(chan struct{}, 1)}
	e.up.Store(true)
	return e
}

// Addr is the canonical ip:port.
func (e *Endpoint) Addr() string { return e.addr }

// Healthy says whether requests may be sent to the endpoint.
func (e *Endpoint) Healthy() bool { return e.up.Load() }

// Downs is how often the endpoint has gone down so far: an engine that was down may have been started anew, with an empty cache.
func (e *Endpoint) Downs() uint64 { return e.down.Load() }

// ReportConnectError tells that a connection to the endpoint could not be made: the endpoint is suspected, and probed at once.
func (e *Endpoint) ReportConnectError() {
	e.change(health.suspected)
	e.Recheck()
}

// Recheck asks for a probe at once, without judging. It does nothing while Run is not running.
func (e *Endpoint) Recheck() {
	select {
	case e.wake <- struct{}{}:
	default: // already asked
	}
}

func (e *Endpoint) change(f func(health) health) (before, after health) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before = e.state
	e.state = f(before)
	if e.state.down && !before.down {
		e.down.Add(1)
	}
	e.up.Store(!e.state.down)
	return before, e.state
}
