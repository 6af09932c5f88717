package subscriber

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

// ReplayLimit bounds the replays of several subscribers that are under way at a time. It is safe for concurrent use.
type ReplayLimit struct{ places chan struct{} }

// NewReplayLimit returns a limit of n replays at a time, at least one.
func NewReplayLimit(n int) *ReplayLimit {
	return &ReplayLimit{places: make(chan struct{}, max(n, 1))}
}

// errBusy says that other replays took all places for too long.
var errBusy = errors.New("too many replays under way")

// enter waits for a place, at most for the given time, and returns what gives it back.
func (l *ReplayLimit) enter(ctx context.Context, longest time.Duration) (leave func(), err error) {
	if l == nil {
		return func() {}, nil
	}
	t := time.NewTimer(longest)
	defer t.Stop()
	select {
	case l.places <- struct{}{}:
		return func() { <-l.places }, nil
	case <-t.C:
		return nil, errBusy
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// replay is one request to an engine's replay socket, on a connection of its own.
type replay struct {
	id   int // of the request
	from uint64
	stop context.CancelFunc

	messages chan zmq4.Msg // closed at the end
	asked    atomic.Bool   // the request is on its way
	session  *session      // set before the first message
	err      error         // why it ended, set before messages is closed

	// Of Run's goroutine.
	began, last time.Time // when it was first seen asked, and heard
	heard       bool      // a message since the last tick
}

// run asks and hands out the replies until ctx ends, the consumer having seen enough, or the connection does.
func (r *replay) run(ctx context.Context, after time.Duration, o Options, p pacing) {
	defer close(r.messages)
	r.err = r.work(ctx, after, o, p)
}

func (r *replay) work(ctx context.Context, after time.Duration, o Options, p pacing) error {
	if err := wait(ctx, after); err != nil {
		return err
	}
	leave, err := o.Replays.enter(ctx, p.queue)
	if err != nil {
		return err
	}
	defer leave()
	host, port, err := hostPort(o.Replay)
	if err != nil {
		return err
	}
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := (&net.Dialer{KeepAliveConfig: keepAlive()}).DialContext(dialCtx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	s, err := openAsker(ctx, c, o.Limits)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.conn.end(errStopped) })()
	r.session = s
	if err := s.ask(r.from); err != nil {
		s.close(err, false)
		return err
	}
	r.asked.Store(true)
	return s.pump(r.messages, ctx.Done())
}

// outcomeOf says what a replay that ended early came to.
func outcomeOf(err error) outcome {
	var v violation
	var late net.Error
	switch {
	case errors.Is(err, errBusy):
		return replayBusy
	case errors.As(err, &v) && v != slowHandshake && v != stalledPeer:
		return replayInvalid
	case errors.As(err, &v), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &late) && late.Timeout():
		return replayTimeout
	}
	return replayUnreachable
}

// overdue says that the engine takes too long to answer.
func (r *replay) overdue(now time.Time, p pacing) bool {
	switch {
	case !r.asked.Load():
		return false // the handshake has its own time
	case r.began.IsZero():
		r.began, r.last = now, now
	case r.heard:
		r.last = now
	}
	r.heard = false
	return now.Sub(r.last) >= p.reply || now.Sub(r.began) >= p.whole
}
