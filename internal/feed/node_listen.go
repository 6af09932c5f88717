package feed

import (
	"net"
	"sync"
)

// guard bounds the connections of a listener, of which gRPC takes any number.
type guard struct {
	net.Listener
	node *Node

	mu   sync.Mutex
	all  int
	from map[string]int
}

func newGuard(l net.Listener, n *Node) *guard {
	return &guard{Listener: l, node: n, from: make(map[string]int)}
}

// Accept closes what is too much at once.
func (g *guard) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := host(c.RemoteAddr().String())
		if why := g.enter(from); why != "" {
			g.node.o.Metrics.refused[why].Inc()
			c.Close()
			continue
		}
		return &guarded{Conn: c, guard: g, from: from}, nil
	}
}

func (g *guard) enter(from string) refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.all >= 2*g.node.o.MaxStreams:
		return refusedTooMany
	case g.from[from] >= 2*g.node.o.MaxPerAddress:
		return refusedTooClose
	}
	g.all++
	g.from[from]++
	return ""
}

func (g *guard) leave(from string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.from[from]--; g.from[from] == 0 {
		delete(g.from, from)
	}
}

// guarded is a connection that counts.
type guarded struct {
	net.Conn
	guard *guard
	from  string
	once  sync.Once
}

func (c *guarded) Close() error {
	c.once.Do(func() { c.guard.leave(c.from) })
	return c.Conn.Close()
}
