package admin

import (
	"net"
	"sync"
)

// bounded is a listener with a bound on open connections: those beyond it are closed at once, so that a client learns of it.
type bounded struct {
	net.Listener
	room chan struct{} // holds a token for each open connection
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.room <- struct{}{}:
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { <-b.room })}, nil
		default:
			conn.Close()
		}
	}
}

// counted gives its room back when it is closed.
type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
