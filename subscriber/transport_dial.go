package subscriber

import (
	"context"
	"math/rand/v2"
	"net"
	"time"
)

// connector yields the connections of one endpoint, one after the other. next returns when a session is established or
// with an error when ctx ends; the session before it must have been closed.
type connector interface {
	next(ctx context.Context) (*session, error)
}

// Keepalive finds a peer whose host vanished: 10 s of silence, then a probe every 5 s, three of them.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// dialTimeout bounds one attempt to connect.
const dialTimeout = 5 * time.Second

// dialer connects to an engine that binds, for ever.
type dialer struct {
	addr  string
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
	open  func(ctx context.Context, c net.Conn) (*session, error)
	tried func(err error) // told about each attempt that failed

	backoff backoff
	since   time.Time // when the last session began, zero before the first
}

// next implements connector.
func (d *dialer) next(ctx context.Context) (*session, error) {
	if !d.since.IsZero() {
		if err := wait(ctx, d.backoff.after(time.Since(d.since))); err != nil {
			return nil, err
		}
	}
	for {
		s, err := d.attempt(ctx)
		if ctx.Err() != nil {
			if s != nil {
				s.close(ctx.Err(), false)
			}
			return nil, ctx.Err()
		}
		if err == nil {
			d.since = time.Now()
			return s, nil
		}
		d.tried(err)
		if err := wait(ctx, d.backoff.after(0)); err != nil {
			return nil, err
		}
	}
}

func (d *dialer) attempt(ctx context.Context) (*session, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := d.dial(dialCtx, "tcp", d.addr)
	if err != nil {
		return nil, err
	}
	return d.open(ctx, c)
}

// backoff paces attempts: each delay is twice the one before, from min to max, and a random half of it is left out so that
// subscribers of a restarted host do not come in step. A connection that lived as long as stable starts over.
//
// max is short because a subscriber that comes late has missed batches that nobody repeats, and a refused connect costs nothing.
type backoff struct {
	min, max, stable time.Duration
	random           func() float64 // in [0, 1)

	delay time.Duration // the last one before jitter
}

func newBackoff(shortest, longest time.Duration) backoff {
	return backoff{min: shortest, max: longest, stable: 5 * longest, random: rand.Float64}
}

// after returns how long to wait after an attempt whose connection lived for the given time, 0 when there was none.
func (b *backoff) after(lived time.Duration) time.Duration {
	if lived >= b.stable {
		b.delay = 0
	}
	b.delay = min(max(2*b.delay, b.min), b.max)
	return b.delay - time.Duration(b.random()*float64(b.delay)/2)
}

// wait returns after d, or with an error as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
