package pool

import (
	"sync"
	"sync/atomic"
	"time"
)

// Endpoint is one engine's address and health.
type Endpoint struct {
	pool string
	addr string

	// What readers see.
	up       atomic.Bool
	life     atomic.Uint64
	suspect  atomic.Bool
	draining atomic.Bool

	born time.Time     // when it was first configured or found
	wake chan struct{} // capacity 1: asks the prober to probe at once
	ask  chan struct{} // capacity 1: asks for the models at once

	asking    atomic.Pointer[asking]
	listing   atomic.Pointer[listing] // nil: not told
	version   atomic.Pointer[string]
	refreshed atomic.Pointer[refreshOutcome] // of the last question
	announced atomic.Pointer[announcement]   // nil: nobody tells in its place

	configured bool // whether the configuration says that it drains; guarded by the Set's mu

	mu      sync.Mutex
	state   health
	asked   bool     // it is to drain, by the configuration or a call
	leaving bool     // it is to drain, whatever a call says
	m       *Metrics // nil while the endpoint is not probed: it has no series then
}

func newEndpoint(pool, addr string) *Endpoint {
	e := &Endpoint{pool: pool, addr: addr, born: time.Now(), wake: make(chan struct{}, 1), ask: make(chan struct{}, 1)}
	e.up.Store(true)
	return e
}

// Addr is the canonical ip:port.
func (e *Endpoint) Addr() string { return e.addr }

// Healthy says whether requests may be sent to the endpoint.
func (e *Endpoint) Healthy() bool { return e.up.Load() }

// Life numbers the lives of the endpoint's engine, as far as they can be told from outside: an engine that was down may have been started anew,
// with an empty cache, and one is drained in order to end it.
func (e *Endpoint) Life() uint64 { return e.life.Load() }

// Version is the engine's release as it says, "" when it does not.
func (e *Endpoint) Version() string {
	if a := e.announced.Load(); a != nil && a.version != "" {
		return a.version
	}
	if v := e.version.Load(); v != nil {
		return *v
	}
	return ""
}

// Serves reports whether the engine says that it serves a model name, in its present life; known is false when it has not said what it serves.
func (e *Endpoint) Serves(name string) (serves, known bool) {
	l := e.known()
	if l == nil {
		return false, false
	}
	_, ok := l.card(name)
	return ok, true
}

// AdapterPath is what the engine says it has loaded an adapter from; "" when it does not say.
func (e *Endpoint) AdapterPath(adapter string) string {
	if l := e.known(); l != nil {
		if c, ok := l.card(adapter); ok && c.adapts {
			return c.root
		}
	}
	return ""
}

// known is what the engine told of its models in its present life, or who tells in its place; nil when it has not.
func (e *Endpoint) known() *listing {
	if a := e.asking.Load(); a == nil || a.every == 0 {
		return nil
	}
	if a := e.announced.Load(); a != nil {
		return a.listing
	}
	if l := e.listing.Load(); l != nil && l.life == e.Life() {
		return l
	}
	return nil
}

// listen takes over what the configuration says about questions for models.
func (e *Endpoint) listen(a asking) {
	if before := e.asking.Swap(&a); before == nil || *before != a {
		e.askModels()
	}
}

// askModels asks for a question for models at once. It does nothing while Run is not running.
func (e *Endpoint) askModels() {
	select {
	case e.ask <- struct{}{}:
	default: // already asked
	}
}

// Suspect says that requests which were sent to the endpoint ran elsewhere or failed, and that nothing has shown it well since. Such an
// endpoint is the first choice only where all are suspect.
func (e *Endpoint) Suspect() bool { return e.suspect.Load() }

// Draining says that the endpoint is to get no more requests.
func (e *Endpoint) Draining() bool { return e.draining.Load() }

// Leaving says that the endpoint is to get no more requests, whatever a call says: see Config.Leaving.
func (e *Endpoint) Leaving() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leaving
}

// Drain lets the endpoint get no more requests, or lets it get them again unless it is leaving.
func (e *Endpoint) Drain(on bool) {
	e.drain(func() { e.asked = on })
}

// drain changes why the endpoint drains.
func (e *Endpoint) drain(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
	on := e.asked || e.leaving
	if was := e.draining.Swap(on); on && !was {
		e.life.Add(1)
		e.askModels()
	}
	e.publish()
}

// configure takes over what the configuration says. Where that is what it said before, what was asked for meanwhile stays. The caller holds the Set's
// mu, or is alone.
func (e *Endpoint) configure(drain, leaving bool) {
	e.drain(func() {
		if drain != e.configured {
			e.configured, e.asked = drain, drain
		}
		e.leaving = leaving
	})
}

// ReportConnectError tells that a connection to the endpoint could not be made: that counts as a failed check, and it is probed at once.
func (e *Endpoint) ReportConnectError() {
	e.change(health.unconnected)
	e.Recheck()
}

// ReportMissed tells that a request which was sent to the endpoint ran elsewhere: the endpoint is suspect, and probed at once.
func (e *Endpoint) ReportMissed() {
	e.change(health.missed)
	e.Recheck()
}

// ReportServerError tells that the endpoint answered a request with a server error, or broke off: it is probed at once, and suspect after
// several such answers without a good one between them.
func (e *Endpoint) ReportServerError() {
	now := time.Now()
	e.change(func(h health) health { return h.erred(now) })
	e.Recheck()
}

// ReportAnswer tells that the endpoint answered a request: its server errors before that do not count any more.
func (e *Endpoint) ReportAnswer() {
	e.mu.Lock()
	clean := e.state.errors == 0
	e.mu.Unlock()
	if !clean {
		e.change(health.answered)
	}
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
		e.life.Add(1)
	}
	e.up.Store(!e.state.down)
	e.suspect.Store(e.state.suspect())
	e.publish()
	return before, e.state
}

// show gives the endpoint its series; nil takes them away.
func (e *Endpoint) show(m *Metrics) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m == nil && e.m != nil {
		e.m.remove(e)
	}
	e.m = m
	e.publish()
}

// publish sets the series. The caller holds mu, so that no change brings them back once they are gone.
func (e *Endpoint) publish() {
	if e.m != nil {
		e.m.set(e)
	}
}
