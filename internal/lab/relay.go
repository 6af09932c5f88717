package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Relay passes the connections that an engine makes for its events on to the router. While it is told to hide ends, the router's
// side of a connection stays open when the engine's ends: so it looks to a router when a host loses power.
type Relay struct {
	listener net.Listener
	to       string // ip:port
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // nil once closed
	hidden chan struct{}         // nil while ends are passed on; closed when they are again
	broken bool                  // no connection is let through
}

// newRelay listens on a free loopback port.
func newRelay(to string) (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("relay to %s: %w", to, err)
	}
	r := &Relay{listener: l, to: to, conns: map[net.Conn]struct{}{}}
	r.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(conn) })
		}
	})
	return r, nil
}

// Addr is where the engine connects.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// HideEnds keeps ends of connections from the router, until ShowEnds.
func (r *Relay) HideEnds() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hidden == nil {
		r.hidden = make(chan struct{})
	}
}

// ShowEnds passes ends on again, those of the time before included.
func (r *Relay) ShowEnds() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hidden != nil {
		close(r.hidden)
		r.hidden = nil
	}
}

// Cut ends all connections. The engine connects again.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

// Break ends all connections and lets none through until Mend.
func (r *Relay) Break() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = true
	for c := range r.conns {
		c.Close()
	}
}

// Mend lets connections through again.
func (r *Relay) Mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = false
}

// close ends all connections and returns when nothing of the relay is left.
func (r *Relay) close() {
	r.listener.Close()
	r.ShowEnds()
	r.mu.Lock()
	for c := range r.conns {
		c.Close()
	}
	r.conns = nil
	r.mu.Unlock()
	r.wg.Wait()
}

var (
	errRelayClosed = errors.New("relay is closed")
	errRelayBroken = errors.New("relay is broken")
)

func (r *Relay) serve(engine net.Conn) {
	defer r.forget(engine)
	if r.keep(engine) != nil {
		return
	}
	router, err := net.Dial("tcp", r.to)
	if err != nil {
		return // the engine tries again
	}
	defer r.forget(router)
	if r.keep(router) != nil {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(engine, router) // how a connection ended does not matter here
		engine.Close()
	}()
	_, _ = io.Copy(router, engine)
	r.mu.Lock()
	hidden := r.hidden
	r.mu.Unlock()
	if hidden != nil {
		<-hidden
	}
	router.Close()
	<-back
}

func (r *Relay) keep(c net.Conn) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.conns == nil:
		return errRelayClosed
	case r.broken:
		return errRelayBroken
	}
	r.conns[c] = struct{}{}
	return nil
}

func (r *Relay) forget(c net.Conn) {
	c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}
