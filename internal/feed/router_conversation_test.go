package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/internal/logtest"
	"github.com/kvsteer/kvsteer/subscriber"
)

// line is one conversation, made of channels.
type line struct {
	ctx  context.Context
	up   chan *feedpb.RouterMessage
	down chan any // *feedpb.NodeMessage, or an error that ends it
	done chan struct{}

	half  chan struct{} // closed when the router has said everything
	hangs bool          // and the node does not come to that
}

func (l *line) Send(m *feedpb.RouterMessage) error {
	select {
	case l.up <- m:
		return nil
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
}

// CloseSend has the node end the stream, as all that was sent has been read.
func (l *line) CloseSend() error {
	if !l.hangs {
		close(l.half)
	}
	return nil
}

func (l *line) Recv() (*feedpb.NodeMessage, error) {
	select {
	case <-l.half:
		return nil, io.EOF
	case m := <-l.down:
		if err, ok := m.(error); ok {
			return nil, err
		}
		return m.(*feedpb.NodeMessage), nil
	case <-l.ctx.Done():
		return nil, l.ctx.Err()
	}
}

// say sends what a node says. It returns when the router has taken it.
func (l *line) say(all ...any) {
	for _, m := range all {
		select {
		case l.down <- m:
		case <-l.done:
			return
		}
	}
	synctest.Wait()
}

// exchange is where the router's attempts to connect arrive.
type exchange struct {
	t     *testing.T
	calls chan *line

	mu    sync.Mutex
	err   map[string]error // of attempts, by address
	tried []time.Time
}

// routerSite is a router whose nodes are the test.
type routerSite struct {
	*exchange
	r     *Router
	fleet *modelFleet
	log   *logtest.Buffer
	stop  func()
}

// newRouterSite is to be called in a bubble. The router runs until the test ends.
func newRouterSite(t *testing.T, nodes ...Address) *routerSite {
	x := &exchange{t: t, calls: make(chan *line, 1000), err: map[string]error{}}
	s := &routerSite{exchange: x, fleet: newModelFleet(t), log: &logtest.Buffer{}}
	var err error
	s.r, err = NewRouter(RouterOptions{Instance: "own", Release: "1.2", Fleet: s.fleet, Log: slog.New(slog.NewTextHandler(s.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.r.begin = func(ctx context.Context, addr netip.AddrPort, _ func(int)) (conversation, func(), error) {
		x.mu.Lock()
		x.tried = append(x.tried, time.Now())
		err := x.err[addr.String()]
		x.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		l := &line{ctx: ctx, half: make(chan struct{}), up: make(chan *feedpb.RouterMessage, 1000), down: make(chan any), done: make(chan struct{})}
		x.calls <- l
		return l, sync.OnceFunc(func() { close(l.done) }), nil
	}
	s.r.Set(nodes)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.r.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (x *exchange) refuse(addr string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err[addr] = err
}

// answer takes the next call and says hello.
func (x *exchange) answer() *line {
	x.t.Helper()
	l := x.take()
	l.say(helloOf(Protocol))
	return l
}

func (x *exchange) take() *line {
	x.t.Helper()
	select {
	case l := <-x.calls:
		return l
	case <-time.After(time.Minute):
		x.t.Fatal("the router does not call")
		return nil
	}
}

func helloOf(protocol uint32) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Hello{Hello: &feedpb.NodeHello{Protocol: protocol, Release: "1.1", Name: "gpu-7", Instance: "n1"}}}
}

func node1() Address { return Address{Addr: "10.0.0.1:9010"} }

// copyOf is all that a node says of one endpoint.
func copyOf(keys ...uint64) []any {
	return []any{tellReplicas(tellReplica(":8000", 7)), tellConnected(7), tellBegin(7, len(keys)), tellBlocks(7, "", keys...), tellEnd(7)}
}

func (s *routerSite) status() NodeStatus {
	s.t.Helper()
	all := s.r.Nodes()
	if len(all) != 1 {
		s.t.Fatalf("%d nodes", len(all))
	}
	return all[0]
}

func (s *routerSite) matched() []uint64 { return s.fleet.sink(sinkName).matched(subscriber.Device) }

// TestConversation follows one stream from the hello to its end.
func TestConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.take()
		hello := (<-l.up).GetHello()
		if hello.GetInstance() != "own" || hello.GetProtocol() != Protocol || hello.GetOldest() != OldestProtocol || hello.GetRelease() != "1.2" {
			t.Errorf("the router says %v", hello)
		}
		l.say(helloOf(Protocol))
		if st := s.status(); !st.Connected || st.Name != "gpu-7" || st.Release != "1.1" || st.Protocol != 1 || st.Instance != "n1" || st.Problem != "" || st.Stale {
			t.Errorf("after the hello: %+v", st)
		}
		l.say(copyOf(1, 2)...)
		l.say(tellAdded(7, "", 3))
		if diff := cmp.Diff([]uint64{1, 2, 3}, s.matched()); diff != "" {
			t.Error(diff)
		}
		if st := s.status(); st.Blocks != 3 || len(st.Replicas) != 1 || st.Copies != 0 || st.Streams != 1 {
			t.Errorf("after a copy: %+v", st)
		}
		sink := s.fleet.sink(sinkName)
		s.stop()
		if diff := cmp.Diff([]string{"connected true", "begin", "end", "close"}, sink.events()); diff != "" {
			t.Error(diff)
		}
		if got := s.fleet.endpoints("10.0.0.1:9010"); len(got) != 1 {
			t.Errorf("when the router stops, the node's replicas are %v", got)
		}
		if n := testutil.CollectAndCount(s.r.o.Metrics.up); n != 0 {
			t.Errorf("%d series are left", n)
		}
	})
}

// TestSilence ends a stream on which nothing comes. A message that says nothing is enough.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(copyOf(1, 2)...)
		for range 10 {
			time.Sleep(2900 * time.Millisecond)
			l.say(tellAlive())
		}
		if st := s.status(); !st.Connected || len(s.matched()) != 2 {
			t.Fatalf("while the node is alive: %+v", st)
		}
		time.Sleep(2999 * time.Millisecond)
		synctest.Wait()
		if len(s.matched()) != 2 {
			t.Error("forgotten too early")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if st := s.status(); st.Connected || !st.Stale || !strings.HasPrefix(st.Problem, "silent: ") || len(st.Replicas) != 1 {
			t.Errorf("after silence: %+v", st)
		}
		if got := s.matched(); got != nil {
			t.Errorf("after silence %v are matched", got)
		}
		if got := testutil.ToFloat64(s.r.o.Metrics.ended.WithLabelValues("10.0.0.1:9010", "silent")); got != 1 {
			t.Errorf("%v streams ended by silence", got)
		}
		s.answer().say(copyOf(1)...)
		if diff := cmp.Diff([]uint64{1}, s.matched()); diff != "" {
			t.Error(diff)
		}
		if st := s.status(); !st.Connected || st.Stale {
			t.Errorf("after the next copy: %+v", st)
		}
	})
}

// TestStale keeps blocks for a while after a stream was lost, and the replicas for good.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(copyOf(1, 2)...)
		l.say(tellLoads(&feedpb.Load{Endpoint: ":8000", Running: 3}))
		s.refuse("10.0.0.1:9010", status.Error(codes.Unavailable, "no route"))
		l.say(errors.New("the connection broke"))
		time.Sleep(2900 * time.Millisecond)
		synctest.Wait()
		if st := s.status(); st.Connected || st.Stale || len(s.matched()) != 2 || s.fleet.load("10.0.0.1:8000").Stale {
			t.Errorf("just after a loss: %+v", st)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if st := s.status(); !st.Stale || s.matched() != nil || len(st.Replicas) != 1 || st.Blocks != 0 {
			t.Errorf("later: %+v", st)
		}
		if load := s.fleet.load("10.0.0.1:8000"); !load.Stale || load.Running != 3 {
			t.Errorf("the load is %+v", load)
		}
		if diff := cmp.Diff([]string{"10.0.0.1:9010"}, s.fleet.silent); diff != "" {
			t.Error(diff)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if serves := s.fleet.serves; serves != 1 || len(s.fleet.silent) != 1 {
			t.Errorf("an hour later: served %d times, silent %v", serves, s.fleet.silent)
		}
		if got := s.fleet.endpoints("10.0.0.1:9010"); len(got) != 1 {
			t.Errorf("an hour later the node serves %v", got)
		}
		if n := strings.Count(s.log.String(), "not connected"); n != 2 {
			t.Errorf("%d lines of an hour without connection:\n%s", n, s.log)
		}
		s.refuse("10.0.0.1:9010", nil)
		s.answer().say(copyOf(4)...)
		if diff := cmp.Diff([]uint64{4}, s.matched()); diff != "" {
			t.Error(diff)
		}
		if s.fleet.serves != 2 {
			t.Errorf("served %d times once the silent node, unchanged, is back", s.fleet.serves)
		}
		events := s.fleet.sink(sinkName).events()
		want := []string{"connected true", "begin", "end", "connected false", "reset disconnect", "begin", "end", "connected true"}
		if diff := cmp.Diff(want, events); diff != "" {
			t.Error(diff)
		}
	})
}

// TestBadHellos looks at what is said and done about nodes that cannot be talked to.
func TestBadHellos(t *testing.T) {
	tests := []struct {
		name   string
		play   func(l *line)
		reason endReason
		text   string // in the problem
	}{
		{"no hello", func(*line) { time.Sleep(helloTimeout + time.Millisecond) }, endHello, "no hello in time"},
		{"another message", func(l *line) { l.say(tellAlive()) }, endHello, "no hello"},
		{"an older protocol", func(l *line) { l.say(helloOf(0)) }, endVersion, "upgrade the node"},
		{"a newer protocol", func(l *line) { l.say(helloOf(7)) }, endVersion, "upgrade the router"},
		{"the node knows no version", func(l *line) { l.say(status.Error(codes.FailedPrecondition, "upgrade the\nnode")) }, endVersion, "version: upgrade the node"},
		{"no feed there", func(l *line) { l.say(status.Error(codes.Unimplemented, "unknown service")) }, endVersion, "unknown service"},
		{"a wrong token", func(l *line) { l.say(status.Error(codes.Unauthenticated, "token")) }, endDenied, "token"},
		{"too many streams", func(l *line) { l.say(status.Error(codes.ResourceExhausted, "256 streams")) }, endLimit, "256 streams"},
		{"an end", func(l *line) { l.say(io.EOF) }, endClosed, "the node ended the stream"},
		{"a broken connection", func(l *line) { l.say(status.Error(codes.Unavailable, "reset")) }, endUnreachable, "reset"},
		{"a long name", func(l *line) {
			l.say(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Hello{Hello: &feedpb.NodeHello{Protocol: 1, Name: strings.Repeat("x", 300)}}})
		}, endInvalid, "name of 300 bytes"},
		{"a long complaint", func(l *line) { l.say(status.Error(codes.Internal, strings.Repeat("y", 5000))) }, endUnreachable, strings.Repeat("y", maxText)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRouterSite(t, node1())
				for range 20 {
					tt.play(s.take())
					synctest.Wait()
				}
				st := s.status()
				if !strings.HasPrefix(st.Problem, string(tt.reason)+": ") || !strings.Contains(st.Problem, tt.text) || len(st.Problem) > maxText+50 || strings.Contains(st.Problem, "\n") {
					t.Errorf("the problem is %q", st.Problem)
				}
				if st.Connected || st.Streams != 0 {
					t.Errorf("%+v", st)
				}
				if got := testutil.ToFloat64(s.r.o.Metrics.ended.WithLabelValues("10.0.0.1:9010", string(tt.reason))); got != 20 {
					t.Errorf("%v attempts ended so", got)
				}
				if n := strings.Count(s.log.String(), "\n"); n != 1 {
					t.Errorf("%d lines for 20 attempts:\n%s", n, s.log)
				}
				if len(s.fleet.served) != 0 {
					t.Error("the fleet was told something")
				}
			})
		})
	}
}

// TestGarbage has a node that says hello and then nonsense, time after time: attempts become rare, and the log stays short.
func TestGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		began := time.Now()
		const rounds = 100
		for range rounds {
			l := s.answer()
			l.say(tellReplicas(tellReplica(":8000", 7)), tellBegin(7, 1), tellBlocks(7, "", 1, 2), tellAdded(9, "", 5))
		}
		if took := time.Since(began); took < rounds*time.Second {
			t.Errorf("%d attempts within %s", rounds, took)
		}
		if got := testutil.ToFloat64(s.r.o.Metrics.ended.WithLabelValues("10.0.0.1:9010", "invalid")); got != rounds {
			t.Errorf("%v streams ended as invalid", got)
		}
		if got := s.matched(); got != nil {
			t.Errorf("%v are matched of copies that have no end", got)
		}
		if n := strings.Count(s.log.String(), "\n"); n > 6 {
			t.Errorf("%d lines:\n%s", n, s.log)
		}
	})
}

// TestRetry spreads the attempts of many routers.
func TestRetry(t *testing.T) {
	b := newRetry(0, 0)
	b.random = func() float64 { return 0.5 }
	var got []time.Duration
	for range 8 {
		got = append(got, b.after(0))
	}
	ms := time.Millisecond
	if diff := cmp.Diff([]time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 2500 * ms, 2500 * ms}, got); diff != "" {
		t.Error(diff)
	}
	if got := b.after(time.Second); got != 2500*ms {
		t.Errorf("after a short stream %s", got)
	}
	if got := b.after(5 * time.Second); got != 50*ms {
		t.Errorf("after a long stream %s", got)
	}
	b.random = func() float64 { return 0 }
	if got := b.after(0); got != 0 {
		t.Errorf("the shortest wait is %s", got)
	}
	b.attempts = 1 << 40
	b.random = func() float64 { return 0.999 }
	if got := b.after(0); got > 5*time.Second || got < 4*time.Second {
		t.Errorf("the longest wait is %s", got)
	}
}

// TestSet changes the nodes that are watched.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(copyOf(1, 2)...)
		s.r.Set([]Address{node1(), {Addr: "10.0.0.2:9010"}, {Addr: "[::ffff:10.0.0.1]:9010"}, {Addr: "gpu-7:9010"}, {Addr: "0.0.0.0:1"}, {Addr: "10.0.0.3:0"}})
		second := s.answer()
		second.say(copyOf(8)...)
		var names []string
		for _, n := range s.r.Nodes() {
			names = append(names, n.Address)
		}
		if diff := cmp.Diff([]string{"10.0.0.1:9010", "10.0.0.2:9010"}, names); diff != "" {
			t.Error(diff)
		}
		if got := s.fleet.sink(sinkName).copies; got != 1 {
			t.Errorf("the first node was copied %d times", got)
		}
		gone := s.fleet.sink(sinkName)
		s.r.Set([]Address{{Addr: "10.0.0.2:9010"}})
		<-l.done
		synctest.Wait()
		if diff := cmp.Diff([]string{"connected true", "begin", "end", "close"}, gone.events()); diff != "" {
			t.Error(diff)
		}
		if got := s.fleet.endpoints("10.0.0.1:9010"); got != nil {
			t.Errorf("a node that is none any more serves %v", got)
		}
		if n := testutil.CollectAndCount(s.r.o.Metrics.up); n != 1 {
			t.Errorf("%d series", n)
		}
		s.r.Set([]Address{node1(), {Addr: "10.0.0.2:9010"}}) // twice out and in again, at once
		s.r.Set([]Address{{Addr: "10.0.0.2:9010"}})
		s.r.Set([]Address{node1(), {Addr: "10.0.0.2:9010"}})
		s.answer().say(copyOf(3)...)
		if diff := cmp.Diff([]uint64{3}, s.matched()); diff != "" {
			t.Error(diff)
		}
		s.r.Set(nil)
		synctest.Wait()
		if len(s.r.Nodes()) != 0 || len(s.fleet.served) != 0 {
			t.Errorf("without nodes: %v", s.fleet.served)
		}
	})
}

// TestSetAgain leaves a node and comes back before the goroutine of the first time has ended.
func TestSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(copyOf(1, 2)...)
		hold := make(chan struct{})
		s.fleet.with(func() { s.fleet.leaving = hold })
		s.r.Set(nil)
		synctest.Wait()
		s.r.Set([]Address{node1()})
		synctest.Wait()
		if len(s.calls) != 0 {
			t.Error("the node is called twice at a time")
		}
		close(hold)
		l = s.answer()
		l.say(copyOf(3)...)
		if diff := cmp.Diff([]uint64{3}, s.matched()); diff != "" {
			t.Error(diff)
		}
		if got := s.fleet.endpoints("10.0.0.1:9010"); len(got) != 1 {
			t.Errorf("served are %v", got)
		}
		if got := testutil.ToFloat64(s.r.o.Metrics.up.WithLabelValues("10.0.0.1:9010")); got != 1 {
			t.Errorf("the node's series says %v", got)
		}
	})
}

// TestAnnouncementFlood takes announcements no faster than a fleet can follow.
func TestAnnouncementFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		began := time.Now()
		for i := range uint32(200) {
			l.say(tellReplicas(tellReplica(fmt.Sprintf(":%d", 8000+i), i+1)))
		}
		if took := time.Since(began); took < 14*time.Second || took > 16*time.Second {
			t.Errorf("200 announcements took %s", took)
		}
		if n := s.r.nodes[0]; len(n.rec.former) > 1 || len(n.rec.numbers) != 1 || len(n.rec.held) != 1 || len(s.r.owners.claims) != 1 {
			t.Errorf("kept are %d, %d, %d, %d", len(n.rec.former), len(n.rec.numbers), len(n.rec.held), len(s.r.owners.claims))
		}
		if !s.status().Connected {
			t.Error("not connected")
		}
	})
}

// TestAllow lets a node announce an address once the configuration does.
func TestAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(tellReplicas(tellReplica(":8000", 7), tellReplica("10.0.7.1:8000", 8)), tellBegin(7, 0), tellEnd(7), tellBegin(8, 1), tellBlocks(8, "", 1), tellEnd(8))
		if got := s.fleet.endpoints("10.0.0.1:9010"); !slices.Equal(got, []string{"10.0.0.1:8000"}) {
			t.Errorf("served are %v", got)
		}
		if got := testutil.ToFloat64(s.r.o.Metrics.refused.WithLabelValues("10.0.0.1:9010")); got != 1 {
			t.Errorf("%v endpoints are refused", got)
		}
		if n := strings.Count(s.log.String(), "refused"); n != 1 {
			t.Errorf("%d lines:\n%s", n, s.log)
		}
		s.r.Set([]Address{{Addr: "10.0.0.1:9010", Allow: prefixes("10.0.7.0/24")}})
		<-l.done
		l = s.answer()
		l.say(tellReplicas(tellReplica(":8000", 7), tellReplica("10.0.7.1:8000", 8)), tellConnected(8), tellBegin(8, 1), tellBlocks(8, "", 1), tellEnd(8))
		if diff := cmp.Diff([]uint64{1}, s.fleet.sink("chat 10.0.7.1:8000 0").matched(subscriber.Any)); diff != "" {
			t.Error(diff)
		}
		if got := testutil.ToFloat64(s.r.o.Metrics.refused.WithLabelValues("10.0.0.1:9010")); got != 0 {
			t.Errorf("%v endpoints are refused", got)
		}
	})
}

// TestUnwanted asks for the blocks again that the fleet did not want.
func TestUnwanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		s.fleet.want("10.0.0.1:8000", false)
		l := s.answer()
		l.say(copyOf(1, 2)...)
		if st := s.status(); st.Unwanted != 1 {
			t.Errorf("%+v", st)
		}
		s.r.Set([]Address{node1()})
		synctest.Wait()
		l.say(tellAdded(7, "", 3)) // the stream is the same
		s.fleet.want("10.0.0.1:8000", true)
		s.r.Set([]Address{node1()})
		<-l.done
		s.answer().say(copyOf(1, 2, 3)...)
		if diff := cmp.Diff([]uint64{1, 2, 3}, s.matched()); diff != "" {
			t.Error(diff)
		}
		if got := testutil.ToFloat64(s.r.o.Metrics.ended.WithLabelValues("10.0.0.1:9010", "again")); got != 1 {
			t.Errorf("%v streams were begun anew", got)
		}
		if strings.Contains(s.log.String(), "not connected") {
			t.Errorf("the log says:\n%s", s.log)
		}
	})
}

// TestLost asks for another sink in place of one that counts no more, and for the blocks again.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(copyOf(1, 2)...)
		was := s.fleet.sink("chat 10.0.0.1:8000 0")
		s.r.Set([]Address{node1()})
		synctest.Wait()
		l.say(tellAdded(7, "", 3)) // the stream is the same
		was.mu.Lock()
		was.lost = true
		was.mu.Unlock()
		s.r.Set([]Address{node1()})
		<-l.done
		s.answer().say(copyOf(1, 2, 3)...)
		if diff := cmp.Diff([]uint64{1, 2, 3}, s.matched()); diff != "" {
			t.Error(diff)
		}
		if is := s.fleet.sink("chat 10.0.0.1:8000 0"); is == was || !was.closed {
			t.Error("the lost sink is still in use")
		}
	})
}

// TestReplicasChange follows what a node announces on one stream.
func TestReplicasChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(copyOf(1, 2)...)
		first := s.fleet.sink(sinkName)

		// One more; the others go on.
		l.say(tellReplicas(tellReplica(":8000", 7), tellReplica(":8001", 8)), tellAdded(7, "", 3), tellConnected(8), tellBegin(8, 1), tellBlocks(8, "", 9), tellEnd(8))
		if diff := cmp.Diff([]uint64{1, 2, 3}, first.matched(subscriber.Any)); diff != "" {
			t.Error(diff)
		}
		// The same again is no news.
		serves := s.fleet.serves
		l.say(tellReplicas(tellReplica(":8000", 7), tellReplica(":8001", 8)))
		if s.fleet.serves != serves {
			t.Error("the same replicas were served again")
		}
		// One drains: news, and its blocks stay.
		drained := tellReplica(":8000", 7)
		drained.Draining = true
		l.say(tellReplicas(drained, tellReplica(":8001", 8)))
		if s.fleet.serves != serves+1 || len(first.matched(subscriber.Any)) != 3 {
			t.Error("draining")
		}
		// Two ranks in place of one: another endpoint to the fleet.
		l.say(tellReplicas(tellReplica(":8000", 7, 10), tellReplica(":8001", 8)))
		<-l.done
		if s.fleet.sink(sinkName) == first {
			t.Error("the sink of another number of ranks is the same")
		}
		l = s.answer()
		l.say(tellReplicas(tellReplica(":8000", 7, 10), tellReplica(":8001", 8)), tellConnected(10), tellBegin(10, 1), tellBlocks(10, "", 77), tellEnd(10))
		if diff := cmp.Diff([]uint64{77}, s.fleet.sink("chat 10.0.0.1:8000 1").matched(subscriber.Any)); diff != "" {
			t.Error(diff)
		}
		// What is withdrawn is closed, and what still comes of it is not heard.
		l.say(tellReplicas(tellReplica(":8001", 8)), tellAdded(10, "", 78), tellAlive())
		if s.fleet.sink("chat 10.0.0.1:8000 1") != nil || !s.status().Connected {
			t.Errorf("after a withdrawal: %+v", s.status())
		}
		// A source under another number begins anew, and stays matched until then.
		l.say(tellConnected(8), tellBegin(8, 1), tellBlocks(8, "", 9), tellEnd(8))
		l.say(tellReplicas(tellReplica(":8001", 20)))
		if got := s.fleet.sink("chat 10.0.0.1:8001 0").matched(subscriber.Any); len(got) != 1 {
			t.Errorf("matched are %v", got)
		}
		l.say(tellBegin(20, 2), tellBlocks(20, "", 9, 10), tellEnd(20))
		if got := s.fleet.sink("chat 10.0.0.1:8001 0").matched(subscriber.Any); len(got) != 2 {
			t.Errorf("matched are %v", got)
		}
		l.say(tellReplicas())
		if got := s.fleet.endpoints("10.0.0.1:9010"); len(got) != 0 || s.fleet.served["10.0.0.1:9010"] == nil {
			t.Errorf("a node without replicas serves %v", got)
		}
	})
}

// TestSaidOnce holds that each reason for having no connection is said once, and that a node which is back is said to be at once, however long
// it was away.
func TestSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		s.refuse("10.0.0.1:9010", fmt.Errorf("%w: connection refused", errConnect))
		l.say(errors.New("reset"))
		time.Sleep(10 * time.Minute)
		s.refuse("10.0.0.1:9010", nil)
		s.answer()
		synctest.Wait()
		var got []string
		for text := range strings.Lines(s.log.String()) {
			_, text, _ = strings.Cut(text, " msg=")
			text, _, _ = strings.Cut(text, ": ")
			got = append(got, text)
		}
		connected := `"node connected" node=10.0.0.1:9010 name=gpu-7 release=1.1 protocol=1` + "\n"
		lost := `"node not connected" node=10.0.0.1:9010 why="`
		if diff := cmp.Diff([]string{connected, lost + "lost", lost + "unreachable", connected}, got); diff != "" {
			t.Error(diff)
		}

		before := strings.Count(s.log.String(), "\n")
		for i := range 40 { // it comes up and dies, again and again
			l := s.answer()
			s.refuse("10.0.0.1:9010", fmt.Errorf("%w: connection refused", errConnect))
			l.say(errors.New("reset"))
			time.Sleep(time.Duration(i) * time.Second)
			s.refuse("10.0.0.1:9010", nil)
		}
		if n := strings.Count(s.log.String(), "\n") - before; n > 6 {
			t.Errorf("%d lines of a node that comes and goes:\n%s", n, s.log)
		}
	})
}
