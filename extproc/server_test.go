package extproc

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/router"
)

// running is a server on a real listener, and a connection to it.
type running struct {
	*Server
	conn   *grpc.ClientConn
	client extprocv3.ExternalProcessorClient
	stop   context.CancelFunc
	ended  <-chan error
}

func listenTCP(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func run(t testing.TB, l net.Listener, o Options) *running {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, l)
		close(ended)
	}()
	target := l.Addr().String()
	if l.Addr().Network() == "unix" {
		target = "unix:" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		stop()
		select {
		case <-ended:
		case <-time.After(deadline):
			t.Error("Run goes on after ctx ended")
		}
		if n := testutil.ToFloat64(s.metrics.open); n != 0 {
			t.Errorf("%v streams open at the end", n)
		}
		if n := testutil.ToFloat64(s.metrics.held); n != 0 {
			t.Errorf("%v bytes held at the end", n)
		}
	})
	return &running{Server: s, conn: conn, client: extprocv3.NewExternalProcessorClient(conn), stop: stop, ended: ended}
}

func (r *running) open(ctx context.Context, t testing.TB) extprocv3.ExternalProcessor_ProcessClient {
	t.Helper()
	st, err := r.client.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (r *running) count(o outcome) float64 {
	return testutil.ToFloat64(r.metrics.streams.WithLabelValues(string(o)))
}

// exchangeOne sends m and returns the reply.
func exchangeOne(t testing.TB, st extprocv3.ExternalProcessor_ProcessClient, m *request) *response {
	t.Helper()
	if err := st.Send(m); err != nil {
		t.Fatal(err)
	}
	r, err := st.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func target(r *response) string {
	c := r.GetRequestBody().GetResponse()
	if c == nil {
		c = r.GetRequestHeaders().GetResponse()
	}
	for _, h := range c.GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-target-endpoint" {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return ""
}

// eventually polls a condition that another goroutine brings about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(deadline)
	for !cond() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not in time: %s", what)
		}
	}
}

func TestServe(t *testing.T) {
	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "extproc.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]net.Listener{"tcp": listenTCP(t), "unix": unix} {
		t.Run(name, func(t *testing.T) {
			r := run(t, l, Options{Decider: deciderFunc(func(_ context.Context, q router.Request) router.Decision {
				d := decided()
				d.Prompt = len(q.Body)
				return d
			})})
			for _, size := range []int{0, 1, 100_000, 5 << 20} {
				st := r.open(t.Context(), t)
				exchangeOne(t, st, headersIn(false))
				reply := exchangeOne(t, st, bodyIn(true, big(size)))
				got := reply.GetDynamicMetadata().GetFields()["kvsteer"].GetStructValue().GetFields()["prompt_tokens"].GetNumberValue()
				if target(reply) != "10.0.0.11:8000" || got != float64(size) {
					t.Errorf("%d bytes: target %q, %v bytes seen", size, target(reply), got)
				}
				// Envoy's side of the stream stays open until the answer ends; ours does not.
				if _, err := st.Recv(); !errors.Is(err, io.EOF) {
					t.Errorf("%d bytes: stream ended with %v", size, err)
				}
			}
		})
	}
}

func TestHealth(t *testing.T) {
	r := run(t, listenTCP(t), Options{Decider: always(decided())})
	checks := healthpb.NewHealthClient(r.conn)
	check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		resp, err := checks.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	services := []string{"", "envoy.service.ext_proc.v3.ExternalProcessor"}
	for _, s := range services {
		if got := check(s); got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v", s, got)
		}
	}
	if _, err := checks.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v", err)
	}
}

func TestShutdown(t *testing.T) {
	t.Run("not serving is told before streams are refused", func(t *testing.T) {
		r := run(t, listenTCP(t), Options{Decider: always(decided()), Notice: 300 * time.Millisecond})
		checks := healthpb.NewHealthClient(r.conn)
		if _, err := checks.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		r.stop()
		eventually(t, "NOT_SERVING", func() bool {
			resp, err := checks.Check(t.Context(), &healthpb.HealthCheckRequest{})
			return err == nil && resp.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING
		})
		if got := target(exchangeOne(t, r.open(t.Context(), t), headersIn(true))); got == "" {
			t.Error("not routed during the notice")
		}
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})

	t.Run("a decision under way is sent", func(t *testing.T) {
		deciding, decide := make(chan struct{}), make(chan struct{})
		r := run(t, listenTCP(t), Options{Decider: deciderFunc(func(context.Context, router.Request) router.Decision {
			close(deciding)
			<-decide
			return decided()
		})})
		st := r.open(t.Context(), t)
		if err := st.Send(headersIn(true)); err != nil {
			t.Fatal(err)
		}
		<-deciding
		r.stop()
		close(decide)
		reply, err := st.Recv()
		if err != nil || target(reply) == "" {
			t.Errorf("reply %v, error %v", reply, err)
		}
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})

	t.Run("a stream that waits for a body ends with nil", func(t *testing.T) {
		r := run(t, listenTCP(t), Options{Decider: always(decided()), Drain: 20 * time.Millisecond})
		st := r.open(t.Context(), t)
		exchangeOne(t, st, headersIn(false))
		r.stop()
		if _, err := st.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("ended with %v", err)
		}
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
		if r.count(outcomeDrained) != 1 {
			t.Error("not counted")
		}
	})

	t.Run("what does not end is cut", func(t *testing.T) {
		r := run(t, listenTCP(t), Options{Decider: always(decided()), Drain: 10 * time.Millisecond, Budget: 10 * time.Millisecond})
		st := r.open(t.Context(), t)
		exchangeOne(t, st, inMode(modev3.ProcessingMode_FULL_DUPLEX_STREAMED, headersIn(false)))
		watch, err := healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		r.stop()
		if _, err := st.Recv(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("ended with %v", err)
		}
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})

	t.Run("a listener that fails ends Run", func(t *testing.T) {
		l := listenTCP(t)
		l.Close()
		s, err := New(Options{Decider: always(decided())})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context(), l); err == nil || !strings.Contains(err.Error(), "serve ext_proc on 127.0.0.1:") {
			t.Errorf("error %v", err)
		}
	})

	t.Run("ctx that ended before", func(t *testing.T) {
		s, err := New(Options{Decider: always(decided())})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Run(ctx, listenTCP(t)); err != nil {
			t.Error(err)
		}
	})
}

func TestPanicIsOneStreams(t *testing.T) {
	r := run(t, listenTCP(t), Options{Decider: deciderFunc(func(_ context.Context, q router.Request) router.Decision {
		if q.Header("x-panic") != "" {
			panic("x")
		}
		return decided()
	})})
	for _, m := range []*request{headersIn(true, "x-panic", "1"), headersIn(true, "x-panic", "1")} {
		st := r.open(t.Context(), t)
		if err := st.Send(m); err != nil {
			t.Fatal(err)
		}
		if r, err := st.Recv(); err != nil || target(r) != "" {
			t.Errorf("reply %v, %v", r, err)
		}
		if _, err := st.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("ended with %v", err)
		}
	}
	if got := target(exchangeOne(t, r.open(t.Context(), t), headersIn(true))); got == "" {
		t.Error("not routed after panics")
	}
	if n := testutil.ToFloat64(r.metrics.panics); n != 2 {
		t.Errorf("%v panics counted", n)
	}
}

func TestOversize(t *testing.T) {
	const maxBody = 1 << 20
	var mu sync.Mutex
	var unread []bool
	r := run(t, listenTCP(t), Options{MaxBody: maxBody, Decider: deciderFunc(func(_ context.Context, q router.Request) router.Decision {
		mu.Lock()
		defer mu.Unlock()
		unread = append(unread, q.Unread)
		return decided()
	})})

	// Declared: decided in the headers phase.
	st := r.open(t.Context(), t)
	if got := target(exchangeOne(t, st, headersIn(false, "content-length", "1048577"))); got == "" {
		t.Error("declared: not routed")
	}
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("declared: ended with %v", err)
	}

	// Undeclared, within what gRPC lets in: decided in the body phase.
	st = r.open(t.Context(), t)
	exchangeOne(t, st, headersIn(false))
	if got := target(exchangeOne(t, st, bodyIn(true, big(maxBody+1)))); got == "" {
		t.Error("undeclared: not routed")
	}

	// Undeclared, beyond: gRPC refuses the message.
	st = r.open(t.Context(), t)
	exchangeOne(t, st, headersIn(false))
	if err := st.Send(bodyIn(true, big(maxBody+slack))); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, err := st.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("beyond: ended with %v", err)
	}
	eventually(t, "outcome too_large", func() bool { return r.count(outcomeTooLarge) == 1 })

	mu.Lock()
	defer mu.Unlock()
	if len(unread) != 2 || !unread[0] || !unread[1] {
		t.Errorf("unread %v", unread)
	}
}

// However a client aborts, nothing stays behind; the cleanup of run checks the gauges as well.
func TestAbort(t *testing.T) {
	tests := []struct {
		name  string
		until func(t *testing.T, st extprocv3.ExternalProcessor_ProcessClient, deciding <-chan struct{})
	}{
		{"before the headers", func(*testing.T, extprocv3.ExternalProcessor_ProcessClient, <-chan struct{}) {}},
		{"before the body", func(t *testing.T, st extprocv3.ExternalProcessor_ProcessClient, _ <-chan struct{}) {
			exchangeOne(t, st, headersIn(false, "content-length", "1000000"))
		}},
		{"during the decision", func(t *testing.T, st extprocv3.ExternalProcessor_ProcessClient, deciding <-chan struct{}) {
			exchangeOne(t, st, headersIn(false, "content-length", "4"))
			if err := st.Send(bodyIn(true, "abcd")); err != nil {
				t.Fatal(err)
			}
			<-deciding
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			deciding := make(chan struct{}, 10)
			r := run(t, listenTCP(t), Options{Budget: time.Hour, Decider: deciderFunc(func(ctx context.Context, _ router.Request) router.Decision {
				deciding <- struct{}{}
				<-ctx.Done()
				return decided()
			})})
			const n = 10
			for range n {
				ctx, cancel := context.WithCancel(t.Context())
				st := r.open(ctx, t)
				tt.until(t, st, deciding)
				cancel()
			}
			eventually(t, "all streams ended", func() bool {
				return testutil.ToFloat64(r.metrics.open) == 0 && r.count(outcomeRouted) == 0
			})
			if held := testutil.ToFloat64(r.metrics.held); held != 0 {
				t.Errorf("%v bytes held", held)
			}
		})
	}
}

func TestManyStreams(t *testing.T) {
	const n = 500
	// The barrier makes all streams wait for their bodies at once.
	var ready, all sync.WaitGroup
	ready.Add(n)
	r := run(t, listenTCP(t), Options{Decider: always(decided())})
	for range n {
		all.Go(func() {
			st, err := r.client.Process(t.Context())
			if err == nil {
				err = st.Send(headersIn(false, "content-length", "10000"))
			}
			if err == nil {
				_, err = st.Recv()
			}
			ready.Done()
			if err != nil {
				t.Error(err)
				return
			}
			ready.Wait()
			if err := st.Send(bodyIn(true, big(10_000))); err != nil {
				t.Error(err)
				return
			}
			if reply, err := st.Recv(); err != nil || target(reply) == "" {
				t.Errorf("reply %v, error %v", reply, err)
			}
			if _, err := st.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("ended with %v", err)
			}
		})
	}
	all.Wait()
	if got := r.count(outcomeRouted); got != n {
		t.Errorf("%v of %d routed", got, n)
	}
}

func TestNew(t *testing.T) {
	tests := []struct {
		name string
		o    Options
		want []string // parts of the error; none means that the options are right
	}{
		{"defaults", Options{Decider: always(decided())}, nil},
		{"large bodies raise the default total", Options{Decider: always(decided()), MaxBody: 1 << 30}, nil},
		{"no decider", Options{}, []string{"decider: missing"}},
		{"body too small", Options{Decider: always(decided()), MaxBody: -1}, []string{"max body: -1"}},
		{"body too large", Options{Decider: always(decided()), MaxBody: 1<<30 + 1}, []string{"max body: 1073741825"}},
		{"total less than a body", Options{Decider: always(decided()), MaxTotal: 32 << 20}, []string{"max total: 33554432"}},
		{"all at once", Options{Budget: -1, BodyWait: -1, Notice: -1, Drain: -1}, []string{"decider", "budget: -1ns", "body wait", "notice", "drain"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := New(tt.o)
			if (err == nil) != (len(tt.want) == 0) || (s == nil) != (err != nil) {
				t.Fatalf("server %v, error %v", s, err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
		})
	}
}
