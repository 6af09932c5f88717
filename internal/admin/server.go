package admin

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvsteer/kvsteer/internal/router"
)

// maxConns bounds open connections. Further ones are closed at once.
const maxConns = 256

// Viewer tells what the router holds and has decided.
type Viewer interface {
	State() router.State
	// Recent returns at most n of the latest decisions, the newest first.
	Recent(n int) []router.PastDecision
	// Blocks returns what an endpoint is believed to hold, at most limit blocks of each rank.
	Blocks(endpoint string, limit int) ([]router.HeldBlocks, error)
}

// Control carries out commands. Its errors are for people.
type Control interface {
	SetMode(pool string, m router.Mode, percent int) error
	Drain(endpoint string, on bool) error
	Reset(endpoint string) error
}

// Options configures a Server. Gatherer is needed.
type Options struct {
	Gatherer prometheus.Gatherer
	Ready    func() []string       // what is missing for readiness, one line each; nil means always ready
	Viewer   Viewer                // nil: no state and no decisions
	Control  Control               // nil: commands are refused, whatever SetWrite says
	Write    bool                  // commands are carried out, until SetWrite says otherwise
	Config   func() json.Marshaler // the configuration in use, without secrets; nil: none
	// Node makes this the admin server of a node, whose state it tells: /api/v1/state answers with that, and of the rest there are no decisions and no
	// modes. Viewer has the node's engines as endpoints. nil: a router's.
	Node    func() any
	Version string // of the program, for the bundle

	TokenFile string        // "": no token is asked for, and requests must name a loopback host
	Poll      time.Duration // of the token file, as of package watch
	TLS       *tls.Config   // nil: clear text
	Metrics   *Metrics      // default: not exported
	Log       *slog.Logger  // default: discarded
	Now       func() time.Time
}

// Server answers the admin requests of one process.
type Server struct {
	o     Options
	token *token // nil: none is asked for
	http  *http.Server
	write atomic.Bool   // commands are carried out
	packs chan struct{} // has a token while a bundle or a list of blocks is being made
}

const nodeIndex = `kvsteer node
  /metrics             Prometheus metrics
  /healthz             200 while the process runs
  /readyz              200 when ready, else what is missing
  /api/v1/state        engines and the routers that watch
  /api/v1/config       the configuration in use
  /api/v1/bundle       all of it in one file
commands, by POST:
  /api/v1/endpoints/ADDRESS/drain, undrain or reset
`

const index = `kvsteer router
  /metrics             Prometheus metrics
  /healthz             200 while the process runs
  /readyz              200 when ready, else what is missing
  /api/v1/state        pools and endpoints
  /api/v1/decisions    the latest decisions
  /api/v1/config       the configuration in use
  /api/v1/bundle       all of it in one file
  /api/v1/endpoints/ADDRESS/blocks  fingerprints of the blocks that it is believed to hold
commands, by POST:
  /api/v1/pools/POOL/mode
  /api/v1/endpoints/ADDRESS/drain, undrain or reset
`

// New returns a server that Run starts. It reads the token file.
func New(o Options) (*Server, error) {
	if o.Gatherer == nil {
		return nil, errors.New("admin: a metrics gatherer is needed")
	}
	if o.Ready == nil {
		o.Ready = func() []string { return nil }
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{o: o, packs: make(chan struct{}, 1)}
	s.write.Store(o.Write)
	if o.TokenFile != "" {
		var err error
		if s.token, err = newToken(o.TokenFile, o.Poll, o.Log); err != nil {
			return nil, err
		}
	}
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	s.http = &http.Server{
		Handler:           s.handler(),
		Protocols:         http1,
		TLSConfig:         o.TLS,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// process is what kind of process this is, for people.
func (s *Server) process() string {
	if s.o.Node != nil {
		return "node"
	}
	return "router"
}

func (s *Server) index() string {
	if s.o.Node != nil {
		return nodeIndex
	}
	return index
}

// SetWrite allows commands or refuses them, from the next request on.
func (s *Server) SetWrite(on bool) { s.write.Store(on) }

// Reload reads the token file again, if there is one, and logs whether its token is in use.
func (s *Server) Reload() {
	if s.token != nil {
		s.token.reload()
	}
}

// handler is all paths with their guards: health first, which asks for nothing but a loopback host.
func (s *Server) handler() http.Handler {
	guarded := http.NewServeMux()
	guarded.Handle("GET /metrics", promhttp.HandlerFor(s.o.Gatherer, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelWarn)}))
	guarded.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s.index()) })
	guarded.HandleFunc("GET /api/v1/state", s.state)
	guarded.HandleFunc("GET /api/v1/config", s.config)
	guarded.HandleFunc("GET /api/v1/bundle", s.bundle)
	if s.o.Node == nil {
		guarded.HandleFunc("GET /api/v1/decisions", s.decisions)
		guarded.HandleFunc("GET /api/v1/endpoints/{address}/blocks", s.blocks)
		guarded.Handle("POST /api/v1/pools/{pool}/mode", s.command(s.setMode))
	}
	guarded.Handle("POST /api/v1/endpoints/{address}/drain", s.command(s.drain(true)))
	guarded.Handle("POST /api/v1/endpoints/{address}/undrain", s.command(s.drain(false)))
	guarded.Handle("POST /api/v1/endpoints/{address}/reset", s.command(s.reset))

	mux := http.NewServeMux()
	mux.Handle("/", s.authorized(s.routed(guarded)))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	return s.protected(mux)
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	missing := s.o.Ready()
	if len(missing) == 0 {
		_, _ = io.WriteString(w, "ready\n")
		return
	}
	if s.token != nil && !s.token.brought(r) {
		missing = []string{"not ready"} // what is missing names pools and endpoints
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, m := range missing {
		_, _ = io.WriteString(w, m+"\n")
	}
}

// Run serves on l until ctx ends and returns nil then; any other end is an error.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	if s.token != nil {
		watching.Go(func() { s.token.follow(ctx) })
	}
	l = &bounded{Listener: l, room: make(chan struct{}, maxConns)}
	serve := func() error { return s.http.Serve(l) }
	if s.o.TLS != nil {
		serve = func() error { return s.http.ServeTLS(l, "", "") }
	}
	failed := make(chan error, 1)
	go func() { failed <- serve() }()
	select {
	case err := <-failed:
		_ = s.http.Close()
		return fmt.Errorf("serve admin: %w", err)
	case <-ctx.Done():
	}
	grace, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer done()
	if err := s.http.Shutdown(grace); err != nil {
		_ = s.http.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin: %w", err)
	}
	return nil
}
