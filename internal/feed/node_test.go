package feed

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/logtest"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
	"github.com/kvsteer/kvsteer/subscriber"
)

const deadline = 20 * time.Second

// serve runs a node on a loopback address until the test ends.
func serve(t testing.TB, n *Node) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return l.Addr().String()
}

func dial(t testing.TB, address string, o ...grpc.DialOption) feedpb.FeedClient {
	t.Helper()
	if len(o) == 0 {
		o = append(o, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	c, err := grpc.NewClient("passthrough:///"+address, o...)
	check(t, err)
	t.Cleanup(func() { c.Close() })
	return feedpb.NewFeedClient(c)
}

type watching = grpc.BidiStreamingClient[feedpb.RouterMessage, feedpb.NodeMessage]

func hello(instance string) *feedpb.RouterMessage {
	return &feedpb.RouterMessage{Message: &feedpb.RouterMessage_Hello{Hello: &feedpb.RouterHello{
		Protocol: Protocol, Oldest: OldestProtocol, Release: "v0.1.0", Instance: instance,
	}}}
}

// watch begins a stream and reads the node's hello.
func watch(t testing.TB, c feedpb.FeedClient, instance string) (w watching, stop context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w, err := c.Watch(ctx)
	check(t, err)
	check(t, w.Send(hello(instance)))
	m, err := w.Recv()
	check(t, err)
	if m.GetHello() == nil {
		t.Fatalf("the first message is %v", m)
	}
	return w, cancel
}

// find reads until a message is wanted.
func find(t testing.TB, w watching, what string, want func(*feedpb.NodeMessage) bool) *feedpb.NodeMessage {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		m, err := w.Recv()
		if err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		if want(m) {
			return m
		}
	}
	t.Fatalf("no %s", what)
	return nil
}

// until polls a condition.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func sequence(from, n int) (keys []uint64) {
	for i := range n {
		keys = append(keys, uint64(from+i))
	}
	return keys
}

func (n *Node) announceOne(s *Source) {
	n.Announce([]Replica{{Endpoint: ":8000", Pool: "chat", Models: []string{"llama"}, Sources: []uint32{s.Number()}}})
}

func TestWatch(t *testing.T) {
	reg := prometheus.NewRegistry()
	log := &logtest.Buffer{}
	n := testNode(t, NodeOptions{Name: "gpu-7", Release: "v0.2.0", Alive: 50 * time.Millisecond, Metrics: NewNodeMetrics(reg), Log: slog.New(slog.NewTextHandler(log, nil))})
	s := n.Source()
	s.Store(subscriber.Any, sequence(1, 100))
	s.Store(subscriber.Device, sequence(1, 50))
	s.Describe(subscriber.Description{Connected: true, BlockSize: 16})
	n.announceOne(s)
	n.Loads([]Load{{Endpoint: ":8000", Running: 3}})
	client := dial(t, serve(t, n))

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w, err := client.Watch(ctx)
	check(t, err)
	check(t, w.Send(hello("a")))
	m, err := w.Recv()
	check(t, err)
	if h := m.GetHello(); h.GetProtocol() != Protocol || h.GetName() != "gpu-7" || h.GetRelease() != "v0.2.0" || h.GetInstance() == "" {
		t.Errorf("hello %v", m)
	}
	var kinds []string
	var keys int
	find(t, w, "end", func(m *feedpb.NodeMessage) bool {
		if kind := fmt.Sprintf("%T", m.GetMessage()); kind != "*feedpb.NodeMessage_Loads" && kind != "*feedpb.NodeMessage_Peers" {
			kinds = append(kinds, kind)
		}
		keys += len(m.GetBlocks().GetKeys()) / keySize
		keys += len(m.GetDelta().GetAdded()) / keySize
		return m.GetEnd() != nil
	})
	if got, want := strings.Join(kinds[:3], " "), "*feedpb.NodeMessage_Replicas *feedpb.NodeMessage_State *feedpb.NodeMessage_Begin"; got != want || keys < 100 {
		t.Errorf("%d keys, messages %s", keys, got)
	}
	find(t, w, "alive", func(m *feedpb.NodeMessage) bool { return m.GetAlive() != nil })
	s.Remove(subscriber.Device, []uint64{50})
	d := find(t, w, "delta", func(m *feedpb.NodeMessage) bool { return m.GetDelta() != nil }).GetDelta()
	if len(d.GetRemoved()) != keySize || keyAt(d.GetRemoved(), 0) != 50 || !slices.Equal(d.GetRemovedTiers(), []byte{tierDevice}) {
		t.Errorf("delta %v", d)
	}
	s.Reset(subscriber.CauseCleared)
	if r := find(t, w, "reset", func(m *feedpb.NodeMessage) bool { return m.GetReset_() != nil }).GetReset_(); r.GetCause() != "cleared" {
		t.Errorf("reset %v", r)
	}
	n.Loads([]Load{{Endpoint: ":8000", Running: 9, KVUsage: 7}})
	if l := find(t, w, "loads", func(m *feedpb.NodeMessage) bool { return m.GetLoads().GetLoads()[0].GetRunning() == 9 }); l.GetLoads().GetLoads()[0].GetKvUsage() != 1 {
		t.Errorf("loads %v", l)
	}
	n.Announce(nil)
	find(t, w, "no replicas", func(m *feedpb.NodeMessage) bool {
		return m.GetReplicas() != nil && len(m.GetReplicas().GetReplicas()) == 0
	})
	cancel()
	until(t, "the stream is gone", func() bool { return len(n.streams()) == 0 })
	if text := log.String(); !strings.Contains(text, "a router watches") || !strings.Contains(text, "router=a") {
		t.Errorf("log %s", text)
	}
}

// TestRelay has two routers hear of each other's charges and records.
func TestRelay(t *testing.T) {
	reg := prometheus.NewRegistry()
	n := testNode(t, NodeOptions{Metrics: NewNodeMetrics(reg)})
	address := serve(t, n)
	a, _ := watch(t, dial(t, address), "a")
	b, stop := watch(t, dial(t, address), "b")
	find(t, a, "peer", func(m *feedpb.NodeMessage) bool { return slices.Equal(m.GetPeers().GetInstances(), []string{"b"}) })
	find(t, b, "peer", func(m *feedpb.NodeMessage) bool { return slices.Equal(m.GetPeers().GetInstances(), []string{"a"}) })

	c := Charge{Pool: "chat", Endpoint: "10.0.0.1:8000", Rank: -1, Number: 7, Uncached: 100, Prompt: 200, Key: 5}
	check(t, b.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Charges{Charges: &feedpb.Charges{
		Instance: "somebody", Gone: true, Made: []*feedpb.Charge{c.proto()}, Released: []*feedpb.Release{Release{"chat", 6}.proto()},
	}}}))
	got := find(t, a, "charges", func(m *feedpb.NodeMessage) bool { return m.GetCharges() != nil }).GetCharges()
	charge, err := chargeOf(got.GetMade()[0])
	check(t, err)
	if got.GetInstance() != "b" || got.GetGone() || charge != c || got.GetReleased()[0].GetNumber() != 6 {
		t.Errorf("charges %v", got)
	}

	record := Record{Instance: "a", ID: "a-1", Pool: "chat", Code: 200}
	for _, r := range []Record{{Instance: "nobody", ID: "x"}, {Instance: "b", ID: "own"}, record} {
		check(t, b.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Record{Record: r.proto()}}))
	}
	back := find(t, a, "record", func(m *feedpb.NodeMessage) bool { return m.GetRecord() != nil }).GetRecord()
	if r, err := recordOf(back); err != nil || r != record {
		t.Errorf("record %v, %v", back, err)
	}
	until(t, "records are counted", func() bool {
		return testutil.ToFloat64(n.o.Metrics.records[unknown]) == 2 && testutil.ToFloat64(n.o.Metrics.records[relayed]) == 1 &&
			testutil.ToFloat64(n.o.Metrics.charges[relayed]) == 2
	})

	// One more stream of b: the end of the other one is no end of b.
	again, stopAgain := watch(t, dial(t, address), "b")
	stop()
	until(t, "one stream of b ends", func() bool { return len(n.streams()) == 2 })
	check(t, again.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Charges{Charges: &feedpb.Charges{Made: []*feedpb.Charge{c.proto()}}}}))
	find(t, a, "charges", func(m *feedpb.NodeMessage) bool {
		if m.GetCharges().GetGone() {
			t.Error("b is said to be gone while it has a stream")
		}
		return len(m.GetCharges().GetMade()) == 1
	})
	stopAgain()
	find(t, a, "gone", func(m *feedpb.NodeMessage) bool {
		return m.GetCharges().GetGone() && m.GetCharges().GetInstance() == "b"
	})
	find(t, a, "no peers", func(m *feedpb.NodeMessage) bool { return m.GetPeers() != nil && len(m.GetPeers().GetInstances()) == 0 })
}

func TestRefusals(t *testing.T) {
	token := "0123456789abcdef"
	n := testNode(t, NodeOptions{MaxPerAddress: 3, Token: func() string { return token }})
	client := dial(t, serve(t, n))
	bearer := func(text string) context.Context {
		ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "authorization", text))
		t.Cleanup(cancel)
		return ctx
	}
	ask := func(ctx context.Context, messages ...*feedpb.RouterMessage) error {
		w, err := client.Watch(ctx)
		check(t, err)
		for _, m := range messages {
			if w.Send(m) != nil {
				break // the status comes from Recv
			}
		}
		for {
			if _, err := w.Recv(); err != nil {
				return err
			}
		}
	}
	good := bearer("Bearer " + token)
	charges := func(c *feedpb.Charges) *feedpb.RouterMessage {
		return &feedpb.RouterMessage{Message: &feedpb.RouterMessage_Charges{Charges: c}}
	}
	old := hello("a")
	old.GetHello().Oldest, old.GetHello().Protocol = 7, 8
	long := hello(strings.Repeat("x", 65))
	for name, tt := range map[string]struct {
		ctx      context.Context
		messages []*feedpb.RouterMessage
		code     codes.Code
		text     string
		why      refusal
	}{
		"no token":        {context.Background(), nil, codes.Unauthenticated, "token", refusedToken},
		"wrong token":     {bearer("Bearer 0123456789abcdeX"), nil, codes.Unauthenticated, "token", refusedToken},
		"another scheme":  {bearer("Basic " + token), nil, codes.Unauthenticated, "token", refusedToken},
		"no hello":        {good, []*feedpb.RouterMessage{{}}, codes.InvalidArgument, "no hello", refusedInvalid},
		"no instance":     {good, []*feedpb.RouterMessage{hello("")}, codes.InvalidArgument, "without an instance", refusedInvalid},
		"long instance":   {good, []*feedpb.RouterMessage{long}, codes.InvalidArgument, "instance of 65 bytes", refusedInvalid},
		"another version": {good, []*feedpb.RouterMessage{old}, codes.FailedPrecondition, "the router 7 to 8 (release v0.1.0): upgrade the node", refusedVersion},
		"two hellos":      {good, []*feedpb.RouterMessage{hello("a"), hello("a")}, codes.InvalidArgument, "second hello", refusedInvalid},
		"bad charge":      {good, []*feedpb.RouterMessage{hello("a"), charges(&feedpb.Charges{Made: []*feedpb.Charge{{}}})}, codes.InvalidArgument, "no endpoint", refusedInvalid},
		"bad release":     {good, []*feedpb.RouterMessage{hello("a"), charges(&feedpb.Charges{Released: []*feedpb.Release{{}}})}, codes.InvalidArgument, "no pool", refusedInvalid},
		"many charges":    {good, []*feedpb.RouterMessage{hello("a"), charges(&feedpb.Charges{Made: make([]*feedpb.Charge, maxCharges+1)})}, codes.InvalidArgument, "4097 charges", refusedInvalid},
		"bad record":      {good, []*feedpb.RouterMessage{hello("a"), {Message: &feedpb.RouterMessage_Record{Record: &feedpb.Record{}}}}, codes.InvalidArgument, "no decision", refusedInvalid},
		"too long": {
			good,
			[]*feedpb.RouterMessage{hello("a"), charges(&feedpb.Charges{Made: []*feedpb.Charge{{Pool: strings.Repeat("x", maxReceived)}}})},
			codes.ResourceExhausted, "larger than max", refusedInvalid,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := testutil.ToFloat64(n.o.Metrics.refused[tt.why])
			err := ask(tt.ctx, tt.messages...)
			if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.text) {
				t.Errorf("%v, want %v: %s", err, tt.code, tt.text)
			}
			until(t, "it is counted", func() bool { return testutil.ToFloat64(n.o.Metrics.refused[tt.why]) == before+1 })
		})
	}
	until(t, "nobody is left", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.admitted == 0 && len(n.addresses) == 0 })
	for range 3 {
		_, err := client.Watch(good)
		check(t, err)
	}
	until(t, "three are there", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.admitted == 3 })
	if err := ask(good, hello("d")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the fourth of one address: %v", err)
	}
	n.o.MaxStreams = 3
	if err := ask(good, hello("d")); status.Code(err) != codes.ResourceExhausted || testutil.ToFloat64(n.o.Metrics.refused[refusedStreams]) != 1 {
		t.Errorf("the fourth: %v", err)
	}
}

func TestOptions(t *testing.T) {
	_, err := NewNode(NodeOptions{Window: time.Minute, WindowKeys: -1, QueueBytes: 1, MaxStreams: 1 << 20, Alive: time.Microsecond, Name: strings.Repeat("x", 300)})
	for _, want := range []string{"window: 1m0s is not within 1ms and 1s", "window keys: -1", "queue bytes: 1 ", "streams: 1048576", "alive: 1µs", "name of 300 bytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

// TestClearText is spoken on loopback only, unless it is allowed.
func TestClearText(t *testing.T) {
	for _, insecure := range []bool{false, true} {
		n := testNode(t, NodeOptions{Insecure: insecure})
		l, err := net.Listen("tcp", "0.0.0.0:0")
		check(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx, l) }()
		if insecure {
			watch(t, dial(t, l.Addr().String()), "a")
			cancel()
		}
		if err := <-ended; (err == nil) != insecure || err != nil && !strings.Contains(err.Error(), "loopback") {
			t.Errorf("insecure %v: %v", insecure, err)
		}
		cancel()
	}
}

func TestRunAfterItsListenerEnded(t *testing.T) {
	n := testNode(t, NodeOptions{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	l.Close()
	if err := n.Run(context.Background(), l); err == nil || !strings.Contains(err.Error(), "serve the feed on 127.0.0.1:") {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ours, err := lab.NewAuthority(dir, "ours")
	check(t, err)
	cert, key, err := ours.Issue("node", "127.0.0.1")
	check(t, err)
	files, err := tlsfiles.New(tlsfiles.Options{Listener: "feed", Key: "tls", CertFile: cert, KeyFile: key, ClientCAFile: ours.File})
	check(t, err)
	n := testNode(t, NodeOptions{TLS: files.Config()})
	address := serve(t, n)
	config := func(o tlsfiles.ClientOptions) grpc.DialOption {
		c, err := tlsfiles.Client(o)
		check(t, err)
		return grpc.WithTransportCredentials(credentials.NewTLS(c))
	}
	client, clientKey, err := ours.Issue("router", "router")
	check(t, err)
	watch(t, dial(t, address, config(tlsfiles.ClientOptions{CAFile: ours.File, CertFile: client, KeyFile: clientKey, Protocols: []string{"h2"}})), "a")
	for name, o := range map[string]grpc.DialOption{
		"no certificate": config(tlsfiles.ClientOptions{CAFile: ours.File, Protocols: []string{"h2"}}),
		"clear text":     grpc.WithTransportCredentials(insecure.NewCredentials()),
	} {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		w, err := dial(t, address, o).Watch(ctx)
		if err == nil {
			_, err = w.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	until(t, "they are counted", func() bool { return testutil.ToFloat64(n.o.Metrics.refused[refusedTLS]) >= 2 })
	if files.Config().MinVersion != tls.VersionTLS12 {
		t.Error("TLS version")
	}
}

// contents are files in memory.
type contents map[[sha256.Size]byte][]byte

func (c contents) Open(sum [sha256.Size]byte) (io.ReadCloser, int64, bool) {
	data, ok := c[sum]
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), ok
}

func TestFetch(t *testing.T) {
	content := make([]byte, 200_000)
	rand.Read(content)
	sum := sha256.Sum256(content)
	n := testNode(t, NodeOptions{Files: contents{sum: content}})
	client := dial(t, serve(t, n))
	fetch := func(sum []byte) (data []byte, parts int, err error) {
		w, err := client.Fetch(context.Background(), &feedpb.FetchRequest{Sha256: sum})
		check(t, err)
		for {
			m, err := w.Recv()
			if errors.Is(err, io.EOF) {
				return data, parts, nil
			}
			if err != nil {
				return data, parts, err
			}
			data = append(data, m.GetContent()...)
			parts++
		}
	}
	data, parts, err := fetch(sum[:])
	if err != nil || sha256.Sum256(data) != sum || parts != 4 {
		t.Errorf("%d bytes in %d parts, %v", len(data), parts, err)
	}
	other := sha256.Sum256([]byte("weights"))
	if _, _, err := fetch(other[:]); status.Code(err) != codes.NotFound {
		t.Errorf("a file that is not offered: %v", err)
	}
	if _, _, err := fetch([]byte("short")); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a short hash: %v", err)
	}
	if got := testutil.ToFloat64(n.o.Metrics.fetchBytes); got != 200_000 {
		t.Errorf("%g bytes are counted", got)
	}
}

// endless is a file that is never read to its end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }
func (endless) Open([sha256.Size]byte) (io.ReadCloser, int64, bool) {
	return endless{}, 1 << 40, true
}

// TestFetchesThatAreNotRead end, and are so many at most.
func TestFetchesThatAreNotRead(t *testing.T) {
	n := testNode(t, NodeOptions{Files: endless{}, Stall: time.Second})
	address := serve(t, n)
	var all []grpc.ServerStreamingClient[feedpb.FetchReply]
	for range maxFetches {
		w, err := dial(t, address).Fetch(t.Context(), &feedpb.FetchRequest{Sha256: make([]byte, sha256.Size)})
		check(t, err)
		all = append(all, w)
	}
	until(t, "all have begun", func() bool { return testutil.ToFloat64(n.o.Metrics.fetches) == maxFetches })
	w, err := dial(t, address).Fetch(t.Context(), &feedpb.FetchRequest{Sha256: make([]byte, sha256.Size)})
	check(t, err)
	if _, err := w.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	until(t, "they are ended", func() bool { return testutil.ToFloat64(n.o.Metrics.refused[refusedStalled]) == maxFetches })
	for _, w := range all {
		for err = nil; err == nil; {
			_, err = w.Recv()
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
	}
}

func TestNodeMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	n := testNode(t, NodeOptions{Metrics: NewNodeMetrics(reg)})
	a, b := n.Source(), n.Source()
	n.Announce([]Replica{{Endpoint: ":1", Pool: "chat", Sources: []uint32{a.Number(), b.Number()}}})
	for _, s := range []*Source{a, b} {
		s.Store(subscriber.Any, sequence(1, 10))
		s.Describe(subscriber.Description{Connected: true})
	}
	problems, err := testutil.GatherAndLint(reg)
	check(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	check(t, testutil.GatherAndCompare(reg, strings.NewReader(`# HELP kvsteer_feed_node_ledger_blocks Blocks of the endpoint that are kept for routers, of all ranks together.
# TYPE kvsteer_feed_node_ledger_blocks gauge
kvsteer_feed_node_ledger_blocks{endpoint=":1",pool="chat"} 20
`), "kvsteer_feed_node_ledger_blocks"))
	n.Announce(nil)
	if count, err := testutil.GatherAndCount(reg, "kvsteer_feed_node_ledger_blocks", "kvsteer_feed_node_ledger_bytes"); count != 0 || err != nil {
		t.Errorf("%d series of an endpoint that is gone, %v", count, err)
	}
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	reg := prometheus.NewRegistry()
	n := testNode(t, NodeOptions{Window: time.Millisecond, WindowKeys: 64, Metrics: NewNodeMetrics(reg), Alive: 10 * time.Millisecond})
	client := dial(t, serve(t, n))
	var sources []*Source
	for range 3 {
		sources = append(sources, n.Source())
	}
	var tasks sync.WaitGroup
	for i, s := range sources {
		tasks.Go(func() {
			for round := range 200 {
				keys := sequence(1+(round%7)*100+i, 50)
				s.Store(subscriber.Any, keys)
				s.Store(subscriber.Device, keys)
				slices.Reverse(keys)
				s.Remove(subscriber.Device, keys)
				s.Remove(subscriber.Any, keys)
				if round%50 == 0 {
					s.Reset(subscriber.CauseGap)
					s.Describe(subscriber.Description{Connected: round%100 == 0})
				}
			}
		})
	}
	tasks.Go(func() {
		for i := range 100 {
			all := []Replica{{Endpoint: ":1", Pool: "a", Sources: []uint32{sources[0].Number(), sources[1].Number()}}}
			if i%2 == 0 {
				all = append(all, Replica{Endpoint: ":2", Pool: "a", Sources: []uint32{sources[2].Number()}})
			}
			n.Announce(all)
			n.Loads([]Load{{Endpoint: ":1", Running: i}})
			_, err := reg.Gather()
			check(t, err)
		}
	})
	for i := range 4 {
		tasks.Go(func() {
			for range 5 {
				w, stop := watch(t, client, fmt.Sprint("r", i))
				for range 50 {
					if _, err := w.Recv(); err != nil {
						t.Error(err)
					}
					check(t, w.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Charges{Charges: &feedpb.Charges{
						Made: []*feedpb.Charge{Charge{Pool: "a", Endpoint: ":1", Rank: 0, Number: 1}.proto()},
					}}}))
				}
				stop()
			}
		})
	}
	tasks.Wait()
	sources[0].Close()
	sources[0].Close()
	sources[0].Store(subscriber.Any, []uint64{1})
	until(t, "all streams are gone", func() bool { return len(n.streams()) == 0 })
	until(t, "nothing is queued", func() bool { return testutil.ToFloat64(n.o.Metrics.queued) == 0 })
}
