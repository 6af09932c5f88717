package enginesim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// shutdownTimeout bounds how long Run waits for handlers after its context ended; their requests are cut before.
const shutdownTimeout = 5 * time.Second

// Engine is one simulated engine. A restart is a new Engine: it begins with an empty cache and sequence number 0.
type Engine struct {
	opts    Options
	hasher  *hasher
	vocab   *vocab
	metrics *metrics
	ranks   []*rank
	created int64 // Unix seconds
	ready   chan struct{}
	turn    atomic.Uint32 // rank to begin with in search of the least loaded

	mu         sync.Mutex
	adapters   []*adapter // replaced, never changed
	loaded     int        // adapters in all, those that are gone too
	addr       net.Addr
	eventsAddr net.Addr // of rank 0, as replayAddr
	replayAddr net.Addr
}

// New checks the options. Nothing listens before Run.
func New(opts Options) (*Engine, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("engine options: %w", err)
	}
	e := &Engine{
		opts:    o,
		hasher:  newHasher(&o),
		vocab:   newVocab(),
		metrics: newMetrics(&o),
		created: time.Now().Unix(),
		ready:   make(chan struct{}),
	}
	for i, a := range o.Adapters {
		e.adapters = append(e.adapters, &adapter{id: i + 1, name: a.Name, path: a.Path})
	}
	e.loaded = len(e.adapters)
	for i := range o.Ranks {
		r := newRank(&o, i, e.metrics.rank(i))
		e.metrics.register(&o, i, r.loop.load)
		e.ranks = append(e.ranks, r)
	}
	return e, nil
}

// Run serves until ctx ends, then cuts the requests in flight. It returns when everything it started has ended: nil when
// that was because of ctx, else what went wrong.
func (e *Engine) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", e.opts.Listen)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	events, replay, err := e.runEvents(ctx, &wg)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.addr, e.eventsAddr, e.replayAddr = l.Addr(), events, replay
	e.mu.Unlock()
	close(e.ready)

	for _, r := range e.ranks {
		wg.Go(func() { r.loop.run(ctx) })
	}
	server := &http.Server{
		Handler:           e.handler(),
		IdleTimeout:       keepAlive,
		ReadHeaderTimeout: 30 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(e.opts.Log.Handler(), slog.LevelDebug),
	}
	wg.Go(func() {
		<-ctx.Done()
		grace, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer done()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	})
	serve := server.Serve
	if e.opts.CertFile != "" {
		serve = func(l net.Listener) error { return server.ServeTLS(l, e.opts.CertFile, e.opts.KeyFile) }
	}
	if err := serve(idleListener{l}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("engine: serve %s: %w", l.Addr(), err)
	}
	return nil
}

// runEvents starts the sockets of all ranks and returns the addresses of rank 0's, nil for what does not bind.
func (e *Engine) runEvents(ctx context.Context, wg *sync.WaitGroup) (events, replay net.Addr, err error) {
	o := e.opts.Events
	pubs, err := bindAll(o.Bind, len(e.ranks))
	if err != nil {
		return nil, nil, fmt.Errorf("engine: bind events: %w", err)
	}
	routers, err := bindAll(o.Replay, len(e.ranks))
	if err != nil {
		closeAll(pubs)
		return nil, nil, fmt.Errorf("engine: bind replay: %w", err)
	}
	for i, l := range pubs {
		wg.Go(func() { e.ranks[i].pub.accept(ctx, l) })
	}
	for i, l := range routers {
		wg.Go(func() { e.ranks[i].replayer.accept(ctx, l) })
	}
	if o.Connect != "" {
		for i, r := range e.ranks {
			addr, err := tcpAddress(o.Connect, i)
			if err != nil {
				return nil, nil, err
			}
			wg.Go(func() { r.pub.connect(ctx, addr) })
		}
	}
	return firstAddr(pubs), firstAddr(routers), nil
}

// LoseBatches has the next n batches of a rank use up their numbers without reaching a subscriber. They can be replayed.
func (e *Engine) LoseBatches(rank, n int) {
	if pub := e.ranks[rank].pub; pub != nil {
		pub.loseNext(n)
	}
}

// CutConnections closes the connections of a rank's event and replay sockets. Who was connected may connect again at once.
func (e *Engine) CutConnections(rank int) {
	if r := e.ranks[rank]; r.pub != nil {
		r.pub.cut()
		r.replayer.cut()
	}
}

// Ready is closed when Run has bound its addresses.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Addr is the HTTP address once it is bound, "" before.
func (e *Engine) Addr() string { return e.address(&e.addr) }

// EventsAddr is the address subscribers of rank 0 connect to, "" before it is bound and for an engine that does not bind.
func (e *Engine) EventsAddr() string { return e.address(&e.eventsAddr) }

// ReplayAddr is the address of rank 0's replay socket, "" before it is bound and for an engine without one.
func (e *Engine) ReplayAddr() string { return e.address(&e.replayAddr) }

func (e *Engine) address(a *net.Addr) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if *a == nil {
		return ""
	}
	return (*a).String()
}
