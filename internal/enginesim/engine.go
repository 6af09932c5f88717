package enginesim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// shutdownTimeout bounds how long Run waits for handlers after its context ended; their requests are cut before.
const shutdownTimeout = 5 * time.Second

// Engine is one simulated engine. A restart is a new Engine: it begins with an empty cache and sequence number 0.
type Engine struct {
	opts     Options
	adapters []*adapter
	hasher   *hasher
	vocab    *vocab
	encoder  encoder
	loop     *loop
	metrics  *metrics
	pub      *publisher // nil without events
	created  int64      // Unix seconds
	ready    chan struct{}

	mu         sync.Mutex
	addr       net.Addr
	eventsAddr net.Addr
}

// New checks the options. Nothing listens before Run.
func New(opts Options) (*Engine, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("engine options: %w", err)
	}
	e := &Engine{
		opts:    o,
		hasher:  &hasher{blockSize: o.BlockSize, seed: blockhash.NoneHash(o.Seed), tagged: o.Events.Format == Map},
		vocab:   newVocab(),
		encoder: encoder{format: o.Events.Format, hashes: o.Events.Hashes},
		created: time.Now().Unix(),
		ready:   make(chan struct{}),
	}
	for i, a := range o.Adapters {
		e.adapters = append(e.adapters, &adapter{id: i + 1, name: a.Name, path: a.Path})
	}
	if o.Events.Bind != "" || o.Events.Connect != "" {
		e.pub = newPublisher(o.Events.Topic, o.Log)
	}
	sched := scheduler{
		blockSize: o.BlockSize, maxStepTokens: o.Timing.MaxStepTokens, maxRunning: o.Timing.MaxRunning,
		cache: newCache(o.Blocks, o.Events.Format),
	}
	e.loop = newLoop(sched, o.Timing, e.publish)
	e.metrics = newMetrics(&e.opts, e.loop.load)
	e.loop.metrics = e.metrics
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

	events, err := e.runEvents(ctx, &wg)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.addr, e.eventsAddr = l.Addr(), events
	e.mu.Unlock()
	close(e.ready)

	wg.Go(func() { e.loop.run(ctx) })
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
	if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("engine: serve %s: %w", l.Addr(), err)
	}
	return nil
}

// runEvents starts the publisher and returns its address if it binds.
func (e *Engine) runEvents(ctx context.Context, wg *sync.WaitGroup) (net.Addr, error) {
	switch o := e.opts.Events; {
	case o.Bind != "":
		addr, err := tcpAddress(o.Bind)
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("engine: bind events: %w", err)
		}
		wg.Go(func() { e.pub.accept(ctx, l) })
		return l.Addr(), nil
	case o.Connect != "":
		addr, err := tcpAddress(o.Connect)
		if err != nil {
			return nil, err
		}
		wg.Go(func() { e.pub.connect(ctx, addr) })
	}
	return nil, nil
}

// publish sends one step's events, numbered in order, as one message.
func (e *Engine) publish(at time.Time, events []event) {
	if e.pub != nil {
		e.pub.publish(e.encoder.batch(at, events))
	}
}

// Ready is closed when Run has bound its addresses.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Addr is the HTTP address once it is bound, "" before.
func (e *Engine) Addr() string { return e.address(&e.addr) }

// EventsAddr is the address subscribers connect to, "" before it is bound and for an engine that does not bind.
func (e *Engine) EventsAddr() string { return e.address(&e.eventsAddr) }

func (e *Engine) address(a *net.Addr) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if *a == nil {
		return ""
	}
	return (*a).String()
}
