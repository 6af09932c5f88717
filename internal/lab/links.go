package lab

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
)

// Links are the TCP connections that one side has dialled. They can be cut, and held up. The zero Links is ready for use.
type Links struct {
	mu   sync.Mutex
	open map[*link]bool
	held chan struct{} // closed when reading may go on; nil while it may
}

type link struct {
	net.Conn
	of     *Links
	closed chan struct{}
	once   sync.Once
}

// Dial connects to an ip:port.
func (l *Links) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*link]bool{}
	}
	x := &link{Conn: c, of: l, closed: make(chan struct{})}
	l.open[x] = true
	return x, nil
}

// Read waits while the links are held.
func (x *link) Read(b []byte) (int, error) {
	x.of.mu.Lock()
	held := x.of.held
	x.of.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-x.closed:
		}
	}
	return x.Conn.Read(b)
}

func (x *link) Close() error {
	x.once.Do(func() {
		close(x.closed)
		x.of.mu.Lock()
		delete(x.of.open, x)
		x.of.mu.Unlock()
	})
	return x.Conn.Close()
}

// Cut ends all connections.
func (l *Links) Cut() {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, x := range all {
		x.Close()
	}
}

// Hold has the dialling side read nothing more than what it is reading, or lets it go on.
func (l *Links) Hold(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case on && l.held == nil:
		l.held = make(chan struct{})
	case !on && l.held != nil:
		close(l.held)
		l.held = nil
	}
}
