package feed

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/logtest"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
	"github.com/kvsteer/kvsteer/subscriber"
)

// fakeNode is a gRPC server that says what a test wants.
type fakeNode struct {
	feedpb.UnimplementedFeedServer
	addr  string
	watch func(feedpb.Feed_WatchServer) error
	fetch func(*feedpb.FetchRequest, feedpb.Feed_FetchServer) error
}

func (f *fakeNode) Watch(s feedpb.Feed_WatchServer) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	if err := s.Send(helloOf(Protocol)); err != nil {
		return err
	}
	return f.watch(s)
}

func (f *fakeNode) Fetch(r *feedpb.FetchRequest, s feedpb.Feed_FetchServer) error {
	if f.fetch == nil {
		return status.Error(codes.NotFound, "no files")
	}
	return f.fetch(r, s)
}

// newFakeNode serves until the test ends.
func newFakeNode(t *testing.T, watch func(feedpb.Feed_WatchServer) error, o ...grpc.ServerOption) *fakeNode {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	f := &fakeNode{addr: l.Addr().String(), watch: watch}
	g := grpc.NewServer(append(o, grpc.WaitForHandlers(true))...)
	feedpb.RegisterFeedServer(g, f)
	var wg sync.WaitGroup
	wg.Go(func() { g.Serve(l) })
	t.Cleanup(func() { g.Stop(); wg.Wait() })
	return f
}

// says is a watch that says something and then waits.
func says(all ...*feedpb.NodeMessage) func(feedpb.Feed_WatchServer) error {
	return func(s feedpb.Feed_WatchServer) error {
		for _, m := range all {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		<-s.Context().Done()
		return nil
	}
}

// startRouter runs a router until the test ends.
func startRouter(t *testing.T, fleet Fleet, change func(*RouterOptions), nodes ...string) (*Router, *logtest.Buffer) {
	t.Helper()
	log := &logtest.Buffer{}
	o := RouterOptions{Instance: "own", Release: "1.2", Fleet: fleet, Log: slog.New(slog.NewTextHandler(log, nil))}
	if change != nil {
		change(&o)
	}
	r, err := NewRouter(o)
	check(t, err)
	runRouter(t, r, nodes...)
	return r, log
}

func runRouter(t *testing.T, r *Router, nodes ...string) {
	var all []Address
	for _, n := range nodes {
		all = append(all, Address{Addr: n})
	}
	r.Set(all)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, <-done)
	})
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	end := time.Now().Add(time.Minute) // for busy machines; only a failure takes so long
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		if time.Now().After(end) {
			t.Fatalf("it never is so: %s", what)
		}
		<-tick.C
	}
}

func statusOf(t *testing.T, r *Router, addr string) NodeStatus {
	t.Helper()
	var s NodeStatus
	eventually(t, "node "+addr+" is watched", func() bool {
		all := r.Nodes()
		i := slices.IndexFunc(all, func(s NodeStatus) bool { return s.Address == addr })
		if i >= 0 {
			s = all[i]
		}
		return i >= 0
	})
	return s
}

// TestDial goes over a real connection.
func TestDial(t *testing.T) {
	var got metadata.MD
	f := newFakeNode(t, nil)
	f.watch = func(s feedpb.Feed_WatchServer) error {
		got, _ = metadata.FromIncomingContext(s.Context())
		return says(tellReplicas(tellReplica(":8000", 7)), tellConnected(7), tellBegin(7, 2), tellBlocks(7, "", 1, 2), tellEnd(7))(s)
	}
	fleet := newModelFleet(t)
	r, _ := startRouter(t, fleet, func(o *RouterOptions) { o.Token = func() string { return "secret-token-of-nodes" } }, f.addr)
	eventually(t, "the copy has come", func() bool {
		s := fleet.sink("chat 127.0.0.1:8000 0")
		return s != nil && len(s.matched(subscriber.Device)) == 2
	})
	if a := got.Get("authorization"); len(a) != 1 || a[0] != "Bearer secret-token-of-nodes" {
		t.Errorf("the token is sent as %q", a)
	}
	if a := got.Get("user-agent"); len(a) != 1 || !strings.HasPrefix(a[0], "kvsteer/1.2 ") {
		t.Errorf("the router says that it is %q", a)
	}
	if s := statusOf(t, r, f.addr); s.Bytes < 40 || s.Bytes > 1000 || testutil.ToFloat64(r.o.Metrics.bytes.WithLabelValues(f.addr)) != float64(s.Bytes) {
		t.Errorf("%d bytes were received", s.Bytes)
	}
}

// TestHostileNodes has one good node among others. Each of those costs what is bounded, and is counted; the good one does not notice.
func TestHostileNodes(t *testing.T) {
	good := newFakeNode(t, nil)
	beat := make(chan struct{})
	good.watch = func(s feedpb.Feed_WatchServer) error {
		for _, m := range []*feedpb.NodeMessage{tellReplicas(tellReplica(":8000", 7)), tellConnected(7), tellBegin(7, 1), tellBlocks(7, "", 1), tellEnd(7)} {
			check(t, s.Send(m))
		}
		for key := uint64(2); ; key++ {
			select {
			case <-beat:
				if err := s.Send(tellAdded(7, "", key)); err != nil {
					return err
				}
			case <-s.Context().Done():
				return nil
			}
		}
	}
	flood := func(m func(i uint64) *feedpb.NodeMessage) func(feedpb.Feed_WatchServer) error {
		return func(s feedpb.Feed_WatchServer) error {
			check(t, s.Send(tellReplicas(tellReplica(":9000", 7))))
			check(t, s.Send(tellBegin(7, 0)))
			for i := range uint64(20_000) {
				if err := s.Send(m(i)); err != nil {
					return err
				}
			}
			<-s.Context().Done()
			return nil
		}
	}
	bad := map[endReason]*fakeNode{
		endLimit:   newFakeNode(t, says(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Reset_{Reset_: &feedpb.Reset{Cause: strings.Repeat("x", maxSent+1)}}})),
		endInvalid: newFakeNode(t, says(tellReplicas(tellReplica(":9001", 7)), tellBlocks(7, "", 1))),
		endClosed:  newFakeNode(t, func(feedpb.Feed_WatchServer) error { return nil }),
		endDenied:  newFakeNode(t, func(feedpb.Feed_WatchServer) error { return status.Error(codes.PermissionDenied, "no") }),
	}
	floods := []*fakeNode{
		newFakeNode(t, flood(func(uint64) *feedpb.NodeMessage { return tellAlive() })),
		newFakeNode(t, flood(func(i uint64) *feedpb.NodeMessage { return tellPeersOf(fmt.Sprint("r", i)) })),
		newFakeNode(t, flood(func(i uint64) *feedpb.NodeMessage {
			return tellReplicas(tellReplica(fmt.Sprintf("10.9.%d.%d:80", i/256%256, i%256), 8))
		})),
		newFakeNode(t, flood(func(i uint64) *feedpb.NodeMessage {
			return tellCharges(&feedpb.Charges{Instance: fmt.Sprint("r", i), Made: []*feedpb.Charge{tellMade(":9000", i), tellMade(":8000", i)}})
		})),
		newFakeNode(t, flood(func(uint64) *feedpb.NodeMessage { return tellBegin(7, 10) })),
		newFakeNode(t, flood(func(uint64) *feedpb.NodeMessage { return tellRecordFor("other") })),
	}
	// Foreign endpoints, among them the good node's.
	thief := newFakeNode(t, says(
		tellReplicas(tellReplica("127.0.0.1:8000", 1), tellReplica("10.1.1.1:80", 2), tellReplica("127.0.0.2:8000", 3), tellReplica(":9999", 4)),
		tellConnected(1), tellBegin(1, 1), tellBlocks(1, "", 666), tellEnd(1), tellAdded(1, "", 667), tellReset(1, "cleared"),
		tellLoads(&feedpb.Load{Endpoint: "127.0.0.1:8000", Waiting: 99}, &feedpb.Load{Endpoint: ":9999", Waiting: 1}),
		tellCharges(&feedpb.Charges{Instance: "r", Made: []*feedpb.Charge{tellMade("127.0.0.1:8000", 1), tellMade(":9999", 2)}}),
	))
	garbage, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := garbage.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(strings.Repeat("garbage\x00\xff", 1000)))
			c.Close()
		}
	})
	t.Cleanup(func() { garbage.Close(); wg.Wait() })

	fleet := newModelFleet(t)
	r, log := startRouter(t, fleet, nil, good.addr)
	sink := func() *modelSink { return fleet.sink("chat 127.0.0.1:8000 0") }
	eventually(t, "the good node's copy has come", func() bool { return sink() != nil && len(sink().matched(subscriber.Any)) == 1 })
	nodes := []Address{{Addr: good.addr}, {Addr: thief.addr}, {Addr: garbage.Addr().String()}}
	for _, f := range bad {
		nodes = append(nodes, Address{Addr: f.addr})
	}
	for _, f := range floods {
		nodes = append(nodes, Address{Addr: f.addr})
	}
	r.Set(nodes)
	worst := time.Duration(0)
	for n := 2; n < 50; n++ {
		began := time.Now()
		beat <- struct{}{}
		eventually(t, "a change of the good node has come", func() bool { return len(sink().matched(subscriber.Any)) == n })
		worst = max(worst, time.Since(began))
	}
	t.Logf("a change of the good node took %s at most", worst)
	for reason, f := range bad {
		eventually(t, string(reason), func() bool {
			return testutil.ToFloat64(r.o.Metrics.ended.WithLabelValues(f.addr, string(reason))) >= 1
		})
	}
	eventually(t, "garbage", func() bool {
		return testutil.ToFloat64(r.o.Metrics.ended.WithLabelValues(garbage.Addr().String(), string(endUnreachable))) >= 1
	})
	eventually(t, "the thief is refused", func() bool { return len(statusOf(t, r, thief.addr).Refused) == 3 })
	eventually(t, "the thief's own charge comes", func() bool {
		n := 0
		fleet.with(func() { n = len(fleet.charges) })
		return n >= 1
	})
	if got := fleet.endpoints(thief.addr); !slices.Equal(got, []string{"127.0.0.1:9999"}) {
		t.Errorf("the thief serves %v", got)
	}
	if slices.Contains(sink().matched(subscriber.Any), 666) || len(sink().resets) > 0 {
		t.Error("the thief has written another node's blocks")
	}
	fleet.with(func() {
		if fleet.loads["127.0.0.1:8000"].Waiting != 0 {
			t.Error("the thief has told another's load")
		}
		for name, c := range fleet.charges {
			if c.Endpoint == "127.0.0.1:8000" {
				t.Errorf("charge %v of another node's endpoint", name)
			}
		}
	})
	if n := strings.Count(log.String(), "\n"); n > 200 {
		t.Errorf("%d lines are logged", n)
	}
	if s := statusOf(t, r, good.addr); s.Streams != 1 {
		t.Errorf("the good node had %d streams", s.Streams)
	}
}

// TestManyNodes watches 200 nodes that are silent in different ways.
func TestManyNodes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	check(t, err)
	defer l.Close()
	fleet := newModelFleet(t)
	r, err := NewRouter(RouterOptions{Instance: "own", Fleet: fleet, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		if strings.HasSuffix(addr, "1") {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}})
	check(t, err)
	r.connectTimeout = 50 * time.Millisecond
	var nodes []string
	for i := range 200 {
		nodes = append(nodes, fmt.Sprintf("127.0.0.1:%d", 20_000+i))
	}
	runRouter(t, r, nodes...)
	eventually(t, "all were tried", func() bool {
		all := r.Nodes()
		return len(all) == 200 && !slices.ContainsFunc(all, func(s NodeStatus) bool { return !strings.HasPrefix(s.Problem, "unreachable: ") || !s.Stale })
	})
	r.Set(nil)
	eventually(t, "none is left", func() bool { return len(r.Nodes()) == 0 && testutil.CollectAndCount(r.o.Metrics.up) == 0 })
}

// TestPlaintext refuses to speak in clear text beyond the host.
func TestPlaintext(t *testing.T) {
	dialled := make(chan string, 100)
	dial := func(_ context.Context, addr string) (net.Conn, error) {
		dialled <- addr
		return nil, net.ErrClosed
	}
	for _, tt := range []struct {
		name, addr string
		insecure   bool
		dials      bool
	}{
		{"another host", "10.0.0.1:9010", false, false},
		{"another host, allowed", "10.0.0.1:9010", true, true},
		{"another IPv6 host", "[2001:db8::1]:9010", false, false},
		{"this host", "127.0.0.7:9010", false, true},
		{"this host, IPv6", "[::1]:9010", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, log := startRouter(t, newModelFleet(t), func(o *RouterOptions) {
				o.Dial, o.Insecure, o.Token = dial, tt.insecure, func() string { return "secret-token-of-nodes" }
			}, tt.addr)
			reason := endPlain
			if tt.dials {
				reason = endUnreachable
			}
			eventually(t, "it was tried", func() bool { return statusOf(t, r, tt.addr).Problem != "" })
			if got := statusOf(t, r, tt.addr).Problem; !strings.HasPrefix(got, string(reason)+": ") {
				t.Errorf("the problem is %q", got)
			}
			if strings.Contains(log.String(), "secret") {
				t.Error("the token is logged")
			}
			if tt.dials != (len(dialled) > 0) {
				t.Errorf("%d connections", len(dialled))
			}
			for len(dialled) > 0 {
				<-dialled
			}
		})
	}
}

// TestRouterTLS binds a node to its certificate.
func TestRouterTLS(t *testing.T) {
	dir := t.TempDir()
	ours, err := lab.NewAuthority(dir, "ours")
	check(t, err)
	theirs, err := lab.NewAuthority(dir, "theirs")
	check(t, err)
	client := func(a *lab.Authority, name string, own bool) *tls.Config {
		o := tlsfiles.ClientOptions{CAFile: a.File, ServerName: name}
		if own {
			o.CertFile, o.KeyFile, err = ours.Issue("router", "router.test")
			check(t, err)
		}
		c, err := tlsfiles.Client(o)
		check(t, err)
		return c
	}
	serve := func(name string, hosts ...string) string {
		cert, key, err := ours.Issue(name, hosts...)
		check(t, err)
		files, err := tlsfiles.New(tlsfiles.Options{Listener: "feed", Key: "tls", CertFile: cert, KeyFile: key, ClientCAFile: ours.File})
		check(t, err)
		return newFakeNode(t, says(), grpc.Creds(credentials.NewTLS(files.Config()))).addr
	}
	byAddress := serve("address", "127.0.0.1")
	byName := serve("name", "node.test")
	elsewhere := serve("elsewhere", "node.test", "10.9.9.9")
	both := serve("both", "node.test", "10.9.9.9", "127.0.0.1")
	plain := newFakeNode(t, says()).addr
	for _, tt := range []struct {
		name, addr string
		tls        *tls.Config
		want       string // in the problem, "" for a connection
	}{
		{"by its address", byAddress, client(ours, "", true), ""},
		{"by a name", byName, client(ours, "node.test", true), ""},
		{"by a name, with this address", both, client(ours, "node.test", true), ""},
		{"by a name, with another address", elsewhere, client(ours, "node.test", true), "certificate is for the addresses"},
		{"by no name", byName, client(ours, "", true), "127.0.0.1"},
		{"another name", byName, client(ours, "other.test", true), "other.test"},
		{"another authority", byAddress, client(theirs, "", true), "unknown authority (feed.tls.ca_file"},
		{"no certificate of ours", byAddress, client(ours, "", false), "client_ca_file: feed.tls.cert_file"},
		{"clear text to TLS", byAddress, nil, "may speak TLS: feed.tls"},
		{"TLS to clear text", plain, client(ours, "", true), "first record does not look like a TLS handshake (the node speaks clear text"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := startRouter(t, newModelFleet(t), func(o *RouterOptions) {
				if tt.tls != nil {
					o.TLS = func() *tls.Config { return tt.tls }
				}
			}, tt.addr)
			fails := tt.want != ""
			eventually(t, "it was tried", func() bool {
				s := statusOf(t, r, tt.addr)
				return s.Connected || s.Problem != ""
			})
			s := statusOf(t, r, tt.addr)
			if s.Connected == fails || !strings.Contains(s.Problem, tt.want) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestRouterFetch reads files whole or not at all.
func TestRouterFetch(t *testing.T) {
	content := strings.Repeat("tokens ", 40_000)
	f := newFakeNode(t, says())
	file := File{Name: "tokenizer.json", SHA256: sha256.Sum256([]byte(content)), Size: int64(len(content))}
	send := func(parts ...string) func(*feedpb.FetchRequest, feedpb.Feed_FetchServer) error {
		return func(_ *feedpb.FetchRequest, s feedpb.Feed_FetchServer) error {
			for _, p := range parts {
				if err := s.Send(&feedpb.FetchReply{Content: []byte(p)}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	named := func(name string) File { o := file; o.Name = name; return o }
	half := content[:len(content)/2]
	for _, tt := range []struct {
		name  string
		file  File
		limit int64
		fetch func(*feedpb.FetchRequest, feedpb.Feed_FetchServer) error
		want  string // in the error
	}{
		{"in two parts", file, 1 << 20, send(half, content[len(half):]), ""},
		{"with empty parts", file, file.Size, send("", content, ""), ""},
		{"too long to be asked for", file, file.Size - 1, nil, "more than"},
		{"less than announced", file, 1 << 20, send(half), "bytes came"},
		{"more than announced", file, 1 << 20, send(content, "x"), "longer than"},
		{"another content", file, 1 << 20, send(strings.Repeat("x", len(content))), "another hash"},
		{"nothing", file, 1 << 20, send(), "0 bytes came"},
		{"an error", file, 1 << 20, func(*feedpb.FetchRequest, feedpb.Feed_FetchServer) error {
			return status.Error(codes.NotFound, "no such file")
		}, "no such file"},
		{"an error on the way", file, 1 << 20, func(r *feedpb.FetchRequest, s feedpb.Feed_FetchServer) error {
			check(t, send(half)(r, s))
			return status.Error(codes.DataLoss, "it has changed")
		}, "it has changed"},
		{"a stall", file, 1 << 20, func(r *feedpb.FetchRequest, s feedpb.Feed_FetchServer) error {
			_ = send(half)(r, s) // on a busy machine the router may be gone by then
			<-s.Context().Done()
			return nil
		}, "nothing came for"},
		{"a folder", named("a/tokenizer.json"), 1 << 20, nil, "no plain file name"},
		{"up", named(".."), 1 << 20, nil, "no plain file name"},
		{"hidden", named(".bashrc"), 1 << 20, nil, "no plain file name"},
		{"no name", named(""), 1 << 20, nil, "no plain file name"},
		{"a zero byte", named("a\x00b"), 1 << 20, nil, "no plain file name"},
		{"a negative size", File{Name: "x", Size: -1}, 1 << 20, nil, "more than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.fetch = tt.fetch
			r, err := NewRouter(RouterOptions{Instance: "own", Fleet: newModelFleet(t)})
			check(t, err)
			if tt.name == "a stall" {
				r.stallTimeout = 300 * time.Millisecond
			}
			dir := t.TempDir()
			path, err := r.Fetch(t.Context(), f.addr, tt.file, dir, tt.limit)
			left, _ := os.ReadDir(dir)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) || len(left) != 0 {
					t.Errorf("%q, %v, and %d files are left", path, err, len(left))
				}
				return
			}
			check(t, err)
			got, err := os.ReadFile(path)
			check(t, err)
			if string(got) != content || path != filepath.Join(dir, "tokenizer.json") || len(left) != 1 {
				t.Errorf("%d bytes in %s, %d files", len(got), path, len(left))
			}
		})
	}
	r, err := NewRouter(RouterOptions{Instance: "own", Fleet: newModelFleet(t)})
	check(t, err)
	if _, err := r.Fetch(t.Context(), "10.0.0.1:9010", file, t.TempDir(), 1<<20); err == nil || !strings.Contains(err.Error(), "clear text") {
		t.Errorf("from another host in clear text: %v", err)
	}
}

// TestNewRouter checks options.
func TestNewRouter(t *testing.T) {
	fleet := newModelFleet(t)
	for name, o := range map[string]RouterOptions{
		"no fleet":         {Instance: "own"},
		"no instance":      {Fleet: fleet},
		"a long instance":  {Fleet: fleet, Instance: strings.Repeat("x", 65)},
		"a negative time":  {Fleet: fleet, Instance: "own", StaleAfter: -1},
		"a negative bound": {Fleet: fleet, Instance: "own", MaxBlocks: -1},
	} {
		if r, err := NewRouter(o); r != nil || err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	r, err := NewRouter(RouterOptions{Fleet: fleet, Instance: "own"})
	check(t, err)
	if r.o.StaleAfter != 3*time.Second || r.Nodes() == nil || len(r.Nodes()) != 0 {
		t.Errorf("%+v", r.o)
	}
}
