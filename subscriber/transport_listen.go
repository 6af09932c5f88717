package subscriber

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// maxPending bounds the connections that are in their handshake. An engine needs milliseconds for it, so the oldest one
	// gives way to a newcomer.
	maxPending = 32
	// A connection is accepted every acceptInterval after a burst of acceptBurst; others wait in the kernel's backlog. An engine
	// behind 1,000 others is accepted in 2 s and has 64 ms for its handshake, while a flood costs some hundredths of a core.
	acceptInterval = 2 * time.Millisecond
	acceptBurst    = 16
	// Bounds of the time in which a replaced publisher is kept from replacing back; see succession.
	shortestHold = time.Second
	longestHold  = 30 * time.Second
)

// listener accepts an engine that connects. A handshake runs in its own goroutine, so a peer that stays silent keeps nobody
// waiting. There is one live session; the newest established connection wins, as far as succession lets it.
type listener struct {
	ln      net.Listener
	open    func(ctx context.Context, c net.Conn) (*session, error)
	refused func(peer net.Addr, err error) // told about each connection that came to nothing; for concurrent use

	wake chan struct{} // of capacity 1: ready was set

	mu         sync.Mutex
	pending    []*peer  // in their handshake, oldest first
	ready      *session // established, not yet asked for
	current    *session // handed out by next
	succession succession
}

// peer is a connection in its handshake.
type peer struct {
	conn   net.Conn
	cancel context.CancelCauseFunc // ends its handshake
}

func newListener(ln net.Listener) *listener {
	return &listener{
		ln:         ln,
		wake:       make(chan struct{}, 1),
		succession: succession{shortest: shortestHold, longest: longestHold},
	}
}

// next implements connector.
func (l *listener) next(ctx context.Context) (*session, error) {
	l.mu.Lock()
	l.current = nil
	l.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.wake:
		}
		l.mu.Lock()
		s := l.ready
		l.ready, l.current = nil, s
		l.mu.Unlock()
		if s != nil {
			return s, nil
		}
	}
}

// run accepts until ctx ends, then waits for the handshakes and closes what nobody asked for.
func (l *listener) run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = l.ln.Close() })()
	var handshakes sync.WaitGroup
	accepts := pace{burst: acceptBurst, interval: acceptInterval}
	again := newBackoff(10*time.Millisecond, time.Second)
	for {
		c, err := l.ln.Accept()
		if err != nil {
			// Out of file descriptors, or the end.
			if wait(ctx, again.after(0)) != nil {
				break
			}
			continue
		}
		again.delay = 0
		own, cancel := context.WithCancelCause(ctx)
		p := &peer{conn: c, cancel: cancel}
		l.enter(p)
		handshakes.Go(func() {
			defer cancel(nil)
			if err := l.handshake(own, p); err != nil && ctx.Err() == nil {
				l.refused(c.RemoteAddr(), err)
			}
		})
		for {
			ok, _, after := accepts.take(time.Now())
			if ok || wait(ctx, after) != nil {
				break
			}
		}
	}
	handshakes.Wait()
	l.mu.Lock()
	s := l.ready
	l.ready = nil
	l.mu.Unlock()
	if s != nil {
		s.close(ctx.Err(), false)
	}
}

// handshake makes p the next session, or says why it is not.
func (l *listener) handshake(ctx context.Context, p *peer) error {
	s, err := l.open(ctx, p.conn)
	l.leave(p)
	if err != nil {
		return err
	}
	return l.offer(s)
}

// enter adds p to the pending connections; the oldest ones make room.
func (l *listener) enter(p *peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) >= maxPending {
		l.pending[0].cancel(tooManyPeers)
		l.pending = l.pending[1:]
	}
	l.pending = append(l.pending, p)
}

func (l *listener) leave(p *peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.pending {
		if l.pending[i] == p {
			l.pending = append(l.pending[:i:i], l.pending[i+1:]...)
			return
		}
	}
}

// offer makes s the next session, or closes it and says why not.
func (l *listener) offer(s *session) error {
	l.mu.Lock()
	loser, why := l.ready, errReplaced
	switch {
	case l.current == nil || l.ready != nil || l.current.conn.over():
		l.ready = s
	case l.succession.allow(time.Now()):
		_ = l.current.conn.end(errReplaced) // its consumer closes it
		l.ready = s
	default:
		loser, why = s, secondPeer
	}
	l.mu.Unlock()
	if loser != nil {
		loser.close(why, false)
	}
	if loser == s {
		return why
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}
