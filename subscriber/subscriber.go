package subscriber

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Subscriber follows the KV-cache events of one engine. New makes one.
type Subscriber struct {
	o    Options
	fold folder
	host string // host:port of Listen or Dial
	addr atomic.Pointer[string]

	witnesses *witnesses

	// Of the goroutine in Run.
	series *series
	seq    sequence
	// heard says that the fold had a batch since its last reset: it may hold blocks, and it knows things of the engine
	// that need not hold for another one. announced says that the Sink had a block since its last Reset.
	heard, announced bool
	restored         position

	linesMu sync.Mutex
	lines   map[string]*pace // log lines a peer can provoke, by text
}

// folder turns the batches of one engine into net changes on its Sink.
type folder interface {
	// fold applies one batch. An error says that it could not be read and that the mirror may have any part of it.
	fold(payload []byte, now time.Time) (foldStats, error)
	// reset empties the mirror and tells the Sink.
	reset(cause Cause)
	// witness takes a prompt that was routed to the engine.
	witness(p Prompt, now time.Time) foldStats
	// connected tells the Sink whether there is an engine at the other end.
	connected(yes bool)
	// quiet holds back what the Sink would hear, all but a Reset, until it is ended; then it is told the net change.
	quiet(on bool)
	// history tells the Sink whether everything that the engine published was applied. A reset makes it false.
	history(complete bool)
	// tick is called about once a second while Run lasts. It lets go of what is kept for a time.
	tick(now time.Time) foldStats
}

var (
	errReplaced = errors.New("replaced by a newer connection of the publisher")
	errStopped  = errors.New("subscriber stopped")
)

// New checks o and returns a Subscriber for it. It starts nothing: Run does.
func New(o Options) (*Subscriber, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("subscriber options: %w", err)
	}
	if err := register(); err != nil {
		return nil, fmt.Errorf("register transport: %w", err)
	}
	s := &Subscriber{o: o, lines: make(map[string]*pace), witnesses: newWitnesses()}
	host, port, err := hostPort(or(o.Listen, o.Dial))
	if err != nil {
		return nil, fmt.Errorf("subscriber options: %w", err)
	}
	if host == "*" {
		host = ""
	}
	s.host = net.JoinHostPort(host, port)
	s.fold = newFold(foldOptions{pool: o.Pool, endpoint: o.Endpoint, maxBlocks: o.MaxBlocks, sink: observer{s}, log: o.Log, hashSeed: o.HashSeed, wanted: s.witnesses.want})
	s.o.Log = o.Log.With("pool", o.Pool, "endpoint", o.Endpoint)
	return s, nil
}

// Addr returns the address that a publisher can connect to, "tcp://host:port", once a Subscriber with Listen has bound it;
// before that, and with Dial, it returns "". It may be called at any time.
func (s *Subscriber) Addr() string {
	if a := s.addr.Load(); a != nil {
		return *a
	}
	return ""
}

// Run follows the engine until ctx ends and returns nil then; it returns an error only when the Listen address cannot be
// bound. When it returns, everything announced has been withdrawn by a Reset, the Description says not connected, and all
// goroutines have ended. It must not be called twice at a time.
func (s *Subscriber) Run(ctx context.Context) error {
	s.series = s.o.Metrics.series(s.o.Pool, s.o.Endpoint, s.o.Rank)
	defer s.series.delete()
	open := func(ctx context.Context, c net.Conn) (*session, error) { return open(ctx, c, s.o.Topic, s.o.Limits) }

	var from connector
	if s.o.Dial != "" {
		from = &dialer{
			addr:    s.host,
			dial:    (&net.Dialer{KeepAliveConfig: keepAlive()}).DialContext,
			open:    open,
			tried:   func(err error) { s.refused("no connection with the engine", s.o.Dial, err) },
			backoff: newBackoff(s.o.BackoffMin, s.o.BackoffMax),
		}
	} else {
		ln, err := (&net.ListenConfig{KeepAliveConfig: keepAlive()}).Listen(ctx, "tcp", s.host)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen for the engine of %s: %w", s.o.Endpoint, err)
		}
		addr := "tcp://" + ln.Addr().String()
		s.addr.Store(&addr)
		defer s.addr.Store(nil)
		l := newListener(ln)
		l.open = open
		l.refused = func(peer net.Addr, err error) {
			s.refused("connection refused", peer.String(), err)
		}
		var accepting sync.WaitGroup
		accepting.Go(func() { l.run(ctx) })
		defer accepting.Wait()
		from = l
		s.o.Log.Info("waiting for the engine", "listen", addr)
	}
	for {
		c, err := from.next(ctx)
		if err != nil {
			return nil
		}
		s.consume(ctx, c)
	}
}

// restore says that the fold's mirror is at p: it was filled from what an earlier process of ours kept. It must be called before the first
// connection, from Run's goroutine or before Run. The Sink hears nothing of that mirror until a replay has proven that the
// engine is the same process still; what is not proven within Options.Keep is forgotten.
func (s *Subscriber) restore(p position) { s.restored = p }

// position returns how far the mirror is. It is for Run's goroutine.
func (s *Subscriber) position() position { return s.restored }

// consume applies the messages of one connection until it ends.
func (s *Subscriber) consume(ctx context.Context, c *session) {
	peer := c.conn.RemoteAddr().String()
	s.line(slog.LevelInfo, "engine connected", "peer", peer)
	s.series.connections.Inc()
	s.fold.connected(true)
	s.seq = sequence{}

	stop := context.AfterFunc(ctx, func() { _ = c.conn.end(errStopped) })
	var why error
	messages := make(chan zmq4.Msg)
	go func() {
		defer close(messages)
		for {
			m, err := c.recv()
			if err != nil {
				why = err
				return
			}
			messages <- m
		}
	}()
	ticker := time.NewTicker(time.Second)
	for open := true; open; {
		select {
		case m, ok := <-messages:
			if open = ok; ok && ctx.Err() == nil {
				s.message(c, m)
				c.release(m)
			}
		case <-s.witnesses.ready:
			s.witness()
		case <-ticker.C:
			s.series.healing(s.fold.tick(s.o.Now()))
		}
	}
	ticker.Stop()
	stop()
	c.close(why, true)

	s.fold.connected(false)
	s.reset(CauseDisconnect)
	var v violation
	switch {
	case errors.Is(why, errStopped):
	case errors.As(why, &v):
		s.refused("connection with the engine ended", peer, why)
	default:
		s.line(slog.LevelInfo, "engine disconnected", "peer", peer, "reason", why)
	}
}

// message applies one message.
func (s *Subscriber) message(c *session, m zmq4.Msg) {
	if m.Type == zmq4.CmdMsg {
		// A publisher with heartbeats on drops a peer that does not answer; zmq4 leaves that to its user.
		if len(m.Frames) == 1 {
			if answer, ok := pong(m.Frames[0]); ok {
				_, _ = c.conn.Write(answer) // an error ends the connection
			}
		}
		return
	}
	s.series.batches.Inc()
	seq, payload, err := parseMessage(m.Frames)
	if err != nil {
		s.seq = sequence{} // its number is unknown
		s.reset(CauseUnreadable)
		s.line(slog.LevelWarn, "message unreadable", "error", err)
		return
	}
	switch s.seq.observe(seq) {
	case gap:
		s.reset(CauseGap)
	case backwards:
		s.reset(CauseBackwards)
	}
	s.heard = true
	st, err := s.fold.fold(payload, s.o.Now())
	if err != nil {
		s.reset(CauseUnreadable)
		s.line(slog.LevelWarn, "batch unreadable", "seq", seq, "error", err)
		return
	}
	s.series.batch(st, s.o.Now())
}

// witness looks at one prompt of those that were routed to the engine, so that events do not wait for many.
func (s *Subscriber) witness() {
	p, ok, dropped := s.witnesses.take()
	s.series.witnesses[witnessDropped].Add(float64(dropped))
	if !ok {
		return
	}
	s.witnesses.again()
	s.series.healing(s.fold.witness(p, s.o.Now()))
}

// reset forgets all that is known of the engine, if there is anything.
func (s *Subscriber) reset(cause Cause) {
	if !s.heard {
		return
	}
	s.heard = false
	s.fold.reset(cause)
	if cause != CauseDisconnect { // which has its own line
		s.line(slog.LevelWarn, "cache of the engine forgotten", "cause", cause)
	}
}

// refused counts and logs a connection that ended by a rule of ours or did not come about. It is safe for concurrent use.
func (s *Subscriber) refused(text, peer string, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, errStopped) {
		return
	}
	var v violation
	if errors.As(err, &v) {
		s.series.refuse(v)
	}
	s.line(slog.LevelWarn, text, "peer", peer, "error", err)
}

// line writes a log line that a peer can provoke. Of each text a warning comes once in thirty seconds and says how many were
// left out; of changes, which are at Info, three come at once before that. It is safe for concurrent use.
func (s *Subscriber) line(level slog.Level, text string, args ...any) {
	s.linesMu.Lock()
	p := s.lines[text]
	if p == nil {
		p = &pace{burst: 1, interval: 30 * time.Second}
		if level < slog.LevelWarn {
			p.burst = 3
		}
		s.lines[text] = p
	}
	ok, missed, _ := p.take(time.Now())
	s.linesMu.Unlock()
	if !ok {
		return
	}
	if missed > 0 {
		args = append(args, "left_out", missed)
	}
	s.o.Log.Log(context.Background(), level, text, args...)
}

// observer stands between the fold and the Sink of a Subscriber. It keeps the metrics, and Resets of nothing from the Sink: a peer
// that sends rubbish only costs it nothing.
type observer struct{ s *Subscriber }

// Store implements Sink.
func (o observer) Store(tier Tier, keys []uint64) {
	o.s.announced = true
	o.s.o.Sink.Store(tier, keys)
}

// Remove implements Sink.
func (o observer) Remove(tier Tier, keys []uint64) { o.s.o.Sink.Remove(tier, keys) }

// Reset implements Sink.
func (o observer) Reset(cause Cause) {
	o.s.series.reset(cause)
	if o.s.announced {
		o.s.announced = false
		o.s.o.Sink.Reset(cause)
	}
}

// Describe implements Sink.
func (o observer) Describe(d Description) {
	o.s.series.describe(d)
	o.s.o.Sink.Describe(d)
}
