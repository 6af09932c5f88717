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
	track  tracker
	asks   pace   // of replays
	saver  *saver // nil: nothing is saved
	// heard says that the fold had a batch since its last reset: it may hold blocks, and it knows things of the engine
	// that need not hold for another one. announced says that the Sink had a block since its last Reset.
	heard, announced bool
	restored         position // where the mirror is when Run begins

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
	// hashed takes the hashes of one.
	hashed(p *Hashes, now time.Time) foldStats
	// connected tells the Sink whether there is an engine at the other end.
	connected(yes bool)
	// quiet holds back what the Sink would hear, all but a Reset, until it is ended; then it is told the net change.
	quiet(on bool)
	// history says whether everything that the engine published was applied, which the Sink is told with the next call. A reset
	// makes it false.
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
	f := newFold(foldOptions{
		pool: o.Pool, endpoint: o.Endpoint, maxBlocks: o.MaxBlocks, media: o.Media, demote: o.Demote, adapters: o.Adapters,
		hashSeed: o.HashSeed, sink: observer{s}, log: o.Log,
		wanted: func(w Want) {
			s.witnesses.want(w.Yes)
			if o.Wanted != nil {
				o.Wanted(w)
			}
		},
	})
	s.fold, s.saver = f, newSaver(o, f.o, f)
	s.track = tracker{do: hand{s}, replays: o.Replay != "", pacing: newPacing(o.Keep), pending: pending{limit: o.Limits.Buffered}}
	s.asks = pace{burst: askBurst, interval: askInterval}
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
	var wg sync.WaitGroup
	defer wg.Wait()
	from, err := s.connector(ctx, &wg)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	defer s.addr.Store(nil)
	s.follow(ctx, from, &wg)
	return nil
}

// connector begins to dial or to listen. Its goroutines end with ctx and are counted in wg.
func (s *Subscriber) connector(ctx context.Context, wg *sync.WaitGroup) (connector, error) {
	open := func(ctx context.Context, c net.Conn) (*session, error) { return open(ctx, c, s.o.Topic, s.o.Limits) }
	if s.o.Dial != "" {
		return &dialer{
			addr:    s.host,
			dial:    (&net.Dialer{KeepAliveConfig: keepAlive()}).DialContext,
			open:    open,
			tried:   func(err error) { s.refused("no connection with the engine", s.o.Dial, err) },
			backoff: newBackoff(s.o.BackoffMin, s.o.BackoffMax),
		}, nil
	}
	ln, err := (&net.ListenConfig{KeepAliveConfig: keepAlive()}).Listen(ctx, "tcp", s.host)
	if err != nil {
		return nil, fmt.Errorf("listen for the engine of %s: %w", s.o.Endpoint, err)
	}
	addr := "tcp://" + ln.Addr().String()
	s.addr.Store(&addr)
	l := newListener(ln)
	l.open = open
	l.refused = func(peer net.Addr, err error) {
		s.refused("connection refused", peer.String(), err)
	}
	wg.Go(func() { l.run(ctx) })
	s.o.Log.Info("waiting for the engine", "listen", addr)
	return l, nil
}

// reset forgets all that is known of the engine, if there is anything.
func (s *Subscriber) reset(cause Cause) {
	if !s.heard {
		return
	}
	s.heard = false
	s.proven(false)
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
