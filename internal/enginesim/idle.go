package enginesim

import (
	"net"
	"os"
	"sync/atomic"
	"time"
)

// idleListener has connections behave as those of an event loop, which reads what has come before it looks at timers: a request that arrived while the
// whole process stood still is answered, although its connection has been idle for too long by the time it goes on.
type idleListener struct{ net.Listener }

func (l idleListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &idleConn{Conn: c}, nil
}

type idleConn struct {
	net.Conn
	ahead atomic.Bool // the deadline was in the future when it was set, which one that is to end a read at once is not
}

// SetReadDeadline implements net.Conn.
func (c *idleConn) SetReadDeadline(t time.Time) error {
	c.ahead.Store(time.Until(t) > 0)
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *idleConn) SetDeadline(t time.Time) error {
	c.ahead.Store(time.Until(t) > 0)
	return c.Conn.SetDeadline(t)
}

// Read implements net.Conn.
func (c *idleConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 || !os.IsTimeout(err) || !c.ahead.Load() {
		return n, err
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	if n, again := c.Conn.Read(p); n > 0 {
		return n, again
	}
	return 0, err
}
