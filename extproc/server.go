package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/kvsteer/kvsteer/internal/router"
)

const (
	// slack is what a message may hold beside a body of MaxBody: headers (Envoy's default limit is 60 KiB) and attributes.
	slack = 1 << 20
	// maxStreams is the number of streams of one connection. Envoy opens another connection beyond it.
	maxStreams = 10_000
	// streamWorkers is the number of goroutines kept for streams; when all are busy, a stream gets one of its own. An access log stream
	// keeps its worker for as long as it lives.
	streamWorkers = 256
	// streamWindow is what a stream may send before its message is asked for; with a message asked for, gRPC opens the window to its
	// whole length. 64 KiB is gRPC's least.
	streamWindow = 64 << 10
	// connWindow bounds the bytes in flight on one connection; gRPC gives it back as they arrive.
	connWindow = 4 << 20
	// lastGrace is what decisions that are under way get when the drain is over, beside the budget.
	lastGrace = 500 * time.Millisecond
	// panicLogEvery is the least time between two log lines about panics.
	panicLogEvery = time.Minute
)

// Decider decides where a request goes. It is called from many goroutines; the request is not valid after it returns.
type Decider interface {
	Decide(ctx context.Context, req router.Request) router.Decision
}

// Passer is a Decider that can tell by the headers alone that it will decide nothing for a request. Its body is then not asked for.
type Passer interface {
	Passes(req router.Request) bool
}

// Options configure a Server. All but Decider have defaults.
type Options struct {
	// Decider decides each request. Required. It may be a [Passer] too.
	Decider Decider

	// Completer takes the records of Envoy's gRPC access log, and is told of decisions that could not be sent. Default: the access log
	// service is not offered.
	Completer Completer

	// MaxBody is the longest request body that is read, in bytes; longer ones are decided without it. Envoy's buffer limit should not be
	// higher: a longer body of undeclared length is then refused by gRPC rather than decided. Default 32 MiB, 1 byte to 1 GiB.
	MaxBody int64

	// MaxTotal bounds the bytes that all streams hold, headers and bodies. Default 1 GiB, at least MaxBody + 1 MiB.
	MaxTotal int64

	// Budget is the time for one decision, from the message that completes the request. It must be shorter than the filter's
	// message_timeout. Default 400 ms.
	Budget time.Duration

	// BodyWait is how long a stream waits for a body that is large (above 64 KiB or MaxBody/32) or of undeclared length while a client is
	// sending it; then the request goes on unrouted. Smaller ones have the time that Envoy gives the client. Default 60 s.
	BodyWait time.Duration

	// Notice is how long health checks answer NOT_SERVING before connections are closed at shutdown, so that an Envoy that has other
	// routers moves away first: with checks every 2 s and unhealthy_threshold 2, 5 s. Default 0: no other router.
	Notice time.Duration

	// Drain is how long open streams have to end at shutdown. Default 5 s.
	Drain time.Duration

	// Gateway makes the server speak the endpoint-picker protocol of the Gateway API inference extension. Default: our own headers.
	Gateway Gateway

	// Ranked puts a list of up to 8 endpoints, by cost, into the metadata of each decision that is to be obeyed.
	Ranked bool

	// Ready is closed when health checks may answer SERVING; before, they answer NOT_SERVING while everything is served. It stays so whatever
	// comes. Default nil: from the start.
	Ready <-chan struct{}

	// Reflection serves gRPC reflection too, which describes the services to whoever reaches the listener. Default: not.
	Reflection bool

	// TLS is what connections must speak, as package tlsfiles makes it. Default: clear text, for Unix sockets and loopback.
	TLS *tls.Config

	// Log gets one line per mode that is not routed, and panics and refused connections, at most one of each a minute. Default: discarded.
	Log *slog.Logger

	// Metrics of [NewMetrics]. Default: not registered anywhere.
	Metrics *Metrics
}

// Server is an external-processing server.
type Server struct {
	decider   Decider
	passer    Passer          // nil when the Decider is none
	completer Completer       // nil for none
	ready     <-chan struct{} // nil for at once
	mostBody  int64
	tls       *tls.Config // nil: clear text
	reflect   bool
	log       *slog.Logger
	metrics   *Metrics
	account   *account
	settings  atomic.Pointer[settings]

	told      sync.Map     // mode label → true, once logged
	lastPanic atomic.Int64 // Unix nanoseconds of the last panic logged
}

// New checks the options and fills in defaults. It reports all wrong options at once.
func New(o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(prometheus.NewRegistry())
	}

	set, err := o.settings()
	if o.Decider == nil {
		err = errors.Join(errors.New("decider: missing"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("extproc options: %w", err)
	}
	s := &Server{
		decider:   o.Decider,
		completer: o.Completer,
		ready:     o.Ready,
		mostBody:  o.MaxBody,
		tls:       o.TLS,
		reflect:   o.Reflection,
		log:       o.Log,
		metrics:   o.Metrics,
		account:   newAccount(o.MaxBody, o.MaxTotal, o.Metrics.held),
	}
	s.passer, _ = o.Decider.(Passer)
	s.settings.Store(set)
	return s, nil
}

// Run serves on l, which it closes, until ctx ends, then drains; it returns nil after a drain and an error when l fails before.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(
		s.transport(),
		grpc.MaxRecvMsgSize(int(s.mostBody+slack)),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(64<<10),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(10*time.Second),
		// gRPC's default takes pings more often than every 5 min for an attack; Envoy's connection_keepalive sends one every 30 s.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		// A peer that vanished without closing would keep its streams for ever.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.WaitForHandlers(true),
		// Streams are short, and a goroutine that has grown its stack before halves what they cost beyond gRPC itself.
		grpc.NumStreamWorkers(streamWorkers),
	)
	svc := &service{Server: s, ending: make(chan struct{}), closing: make(chan struct{})}
	extprocv3.RegisterExternalProcessorServer(g, svc)
	if s.completer != nil {
		accesslogv3.RegisterAccessLogServiceServer(g, &accessLog{service: svc})
	}
	checks := newChecks()
	healthpb.RegisterHealthServer(g, checks)
	if s.reflect {
		reflection.Register(g)
	}
	ready := s.ready
	if ready != nil {
		checks.Shutdown() // NOT_SERVING until Resume
	}

	var failure error
	served := make(chan struct{})
	go func() {
		defer close(served)
		failure = g.Serve(l)
	}()
	defer svc.waits.Wait()
	for ctx.Err() == nil {
		select {
		case <-served:
			g.Stop()
			return fmt.Errorf("serve ext_proc on %s: %w", l.Addr(), failure)
		case <-ready:
			checks.Resume()
			ready = nil
		case <-ctx.Done():
		}
	}

	checks.Shutdown() // for good
	pause(s.settings.Load().notice, served)
	s.shutdown(g, svc)
	<-served
	return nil
}

// shutdown ends g within Drain, Budget and lastGrace, harming as few requests as can be.
func (s *Server) shutdown(g *grpc.Server, svc *service) {
	set := s.settings.Load()
	ended := make(chan struct{})
	close(svc.ending)
	go func() {
		defer close(ended)
		g.GracefulStop()
	}()
	if pause(set.drain, ended) {
		return
	}
	close(svc.closing)
	if pause(set.budget+lastGrace, ended) {
		return
	}
	g.Stop()
	<-ended
}

// pause waits for d, and reports whether it ended early because ch was closed.
func pause(d time.Duration, ch <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-ch:
		return true
	}
}

// panicked counts a recovered panic. Its value may quote a request, so that only the text of runtime errors is logged.
func (s *Server) panicked(v any) {
	s.metrics.panics.Inc()
	now, last := time.Now().UnixNano(), s.lastPanic.Load()
	if last != 0 && now-last < int64(panicLogEvery) || !s.lastPanic.CompareAndSwap(last, now) {
		return
	}
	what := fmt.Sprintf("value of type %T", v)
	if e, ok := v.(runtime.Error); ok {
		what = e.Error()
	}
	s.log.Error("panic in an ext_proc stream", slog.String("panic", what), slog.String("stack", string(debug.Stack())))
}
