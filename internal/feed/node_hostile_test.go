package feed

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// flat is a tree of roots.
func flat(n int) *tree {
	return &tree{parent: make([]uint64, n), children: make([][]uint64, n)}
}

// follow applies what a stream says to a receiver until that holds what a source has announced.
func (r *receiver) follow(t testing.TB, w watching, s *Source, want blocks) {
	t.Helper()
	if r.sources == nil {
		r.sources = map[uint32]*received{}
	}
	for end := time.Now().Add(deadline); ; {
		if got := r.sources[s.Number()]; got != nil && got.ends > 0 && got.fresh == nil && len(got.known) == len(want) && maps.Equal(got.known, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a router is not told what is announced")
		}
		m, err := w.Recv()
		check(t, err)
		check(t, r.take(m))
	}
}

// site is a node with one source, and a router that behaves.
type site struct {
	n       *Node
	s       *Source
	address string
	has     blocks
	next    int
	tree    *tree
	good    *receiver
	stream  watching
}

func newSite(t testing.TB, o NodeOptions, set ...func(*Node)) *site {
	x := &site{n: testNode(t, o), has: blocks{}, tree: flat(300_000)}
	for _, f := range set {
		f(x.n)
	}
	x.s = x.n.Source()
	x.n.announceOne(x.s)
	x.address = serve(t, x.n)
	x.good = &receiver{tree: x.tree}
	x.stream, _ = watch(t, dial(t, x.address), "good")
	return x
}

// grow announces more blocks.
func (x *site) grow(n int) {
	keys := sequence(x.next+1, n)
	x.next += n
	for _, k := range keys {
		x.has[k] = tierBoth
	}
	for len(keys) > 0 {
		some := keys[:min(len(keys), 4096)]
		keys = keys[len(some):]
		x.s.Store(subscriber.Any, some)
		x.s.Store(subscriber.Device, some)
	}
}

// undisturbed shows that the good router hears of changes.
func (x *site) undisturbed(t testing.TB) {
	t.Helper()
	x.grow(100)
	x.good.follow(t, x.stream, x.s, x.has)
}

func TestGarbageOnThePort(t *testing.T) {
	x := newSite(t, NodeOptions{MaxPerAddress: 16})
	x.undisturbed(t)
	noise := make([]byte, 64<<10)
	rand.Read(noise)
	preface := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	for name, data := range map[string][]byte{
		"noise":           noise,
		"HTTP/1":          []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"TLS":             append([]byte{0x16, 3, 1, 2, 0, 1}, noise...),
		"HTTP/2 of noise": append(bytes.Clone(preface), noise...),
		"an endless frame": append(append(bytes.Clone(preface), 0, 0, 0, 4, 0, 0, 0, 0, 0), // settings
			append([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}, noise...)...), // 16 MiB of data
		"headers for ever": append(append(bytes.Clone(preface), 0, 0, 0, 4, 0, 0, 0, 0, 0), bytes.Repeat([]byte{0, 0, 1, 9, 0, 0, 0, 0, 1, 0x80}, 1000)...),
	} {
		c, err := net.Dial("tcp", x.address)
		check(t, err)
		_, _ = c.Write(data) // it may be closed before all is written
		check(t, c.SetReadDeadline(time.Now().Add(deadline)))
		if _, err := io.Copy(io.Discard, c); err != nil {
			var timeout net.Error
			if ok := asTimeout(err, &timeout); ok {
				t.Errorf("%s: the connection is kept", name)
			}
		}
		c.Close()
	}
	x.undisturbed(t)

	// Who says nothing at all.
	var silent []net.Conn
	for range 40 {
		c, err := net.Dial("tcp", x.address)
		check(t, err)
		defer c.Close()
		silent = append(silent, c)
	}
	until(t, "what is too much is refused", func() bool { return testutil.ToFloat64(x.n.o.Metrics.refused[refusedTooClose]) >= 40-2*16 })
	x.undisturbed(t)
	for _, c := range silent {
		check(t, c.SetReadDeadline(time.Now().Add(deadline)))
		if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
			t.Errorf("a silent connection is kept: %v", err)
		}
	}
	watch(t, dial(t, x.address), "b") // there is room again
}

func asTimeout(err error, to *net.Error) bool {
	e, ok := err.(net.Error) //nolint:errorlint // io.Copy wraps nothing
	*to = e
	return ok && e.Timeout()
}

func isReset(err error) bool {
	var timeout net.Error
	return !asTimeout(err, &timeout)
}

func TestNoHello(t *testing.T) {
	x := newSite(t, NodeOptions{}, func(n *Node) { n.helloWait = 200 * time.Millisecond })
	w, err := dial(t, x.address).Watch(t.Context())
	check(t, err)
	if _, err := w.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("without a hello: %v", err)
	}
	if testutil.ToFloat64(x.n.o.Metrics.refused[refusedSilent]) != 1 {
		t.Error("not counted")
	}
	x.undisturbed(t)
}

// TestStreamThatIsNotRead holds up neither engines nor others, and is told everything once it is read.
func TestStreamThatIsNotRead(t *testing.T) {
	x := newSite(t, NodeOptions{QueueBytes: 256 << 10, MaxCopies: 1})
	x.grow(60_000)
	x.good.follow(t, x.stream, x.s, x.has)
	slow, _ := watch(t, dial(t, x.address), "slow")
	until(t, "the slow one is copied to", func() bool { copying, _ := x.n.turns.counts(); return copying == 1 })

	// Its turn does not last.
	third, _ := watch(t, dial(t, x.address), "third")
	(&receiver{tree: x.tree}).follow(t, third, x.s, x.has)

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var longest time.Duration
	for range 30 {
		begun := time.Now()
		x.grow(4096)
		longest = max(longest, time.Since(begun))
		for _, st := range x.n.streams() {
			st.mu.Lock()
			if st.queue.bytes > st.queue.limit+1000 {
				t.Errorf("%d bytes wait for %s", st.queue.bytes, st.instance)
			}
			st.mu.Unlock()
		}
		x.good.follow(t, x.stream, x.s, x.has)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 200<<20 {
		t.Errorf("%d MiB more are held", grown>>20)
	}
	if longest > 2*time.Second {
		t.Errorf("a call of the sink took %v", longest)
	}
	if testutil.ToFloat64(x.n.o.Metrics.overflows) == 0 {
		t.Error("nothing was dropped")
	}
	(&receiver{tree: x.tree}).follow(t, slow, x.s, x.has)
}

// TestStalledStreamEnds when nothing of it is read for long.
func TestStalledStreamEnds(t *testing.T) {
	x := newSite(t, NodeOptions{Stall: 3 * time.Second})
	x.grow(30_000)
	x.good.follow(t, x.stream, x.s, x.has)
	_, _ = watch(t, dial(t, x.address), "slow")
	until(t, "the slow one is ended", func() bool { return testutil.ToFloat64(x.n.o.Metrics.refused[refusedStalled]) == 1 })
	until(t, "it is gone", func() bool { return len(x.n.streams()) == 1 })
	x.undisturbed(t)
}

// TestChargesMakeRoomForBlocks has a router flood others with charges.
func TestChargesMakeRoomForBlocks(t *testing.T) {
	x := newSite(t, NodeOptions{QueueBytes: 256 << 10})
	x.undisturbed(t)
	slow, _ := watch(t, dial(t, x.address), "slow")
	flood, _ := watch(t, dial(t, x.address), "flood")
	c := Charge{Pool: "chat", Endpoint: "10.0.0.1:8000", Rank: -1, Number: 7}.proto()
	made := make([]*feedpb.Charge, 500)
	for i := range made {
		made[i] = c
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for range 200 {
			if err := flood.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Charges{Charges: &feedpb.Charges{Made: made, Released: []*feedpb.Release{{Pool: "chat", Number: 7}}}}}); err != nil {
				t.Error(err)
			}
		}
	})
	until(t, "charges are dropped", func() bool { return testutil.ToFloat64(x.n.o.Metrics.charges[dropped]) > 1000 })
	for range 10 {
		x.undisturbed(t)
	}
	tasks.Wait()
	if testutil.ToFloat64(x.n.o.Metrics.overflows) != 0 {
		t.Error("charges made blocks be dropped")
	}
	(&receiver{tree: x.tree}).follow(t, slow, x.s, x.has)
}

func Test200Streams(t *testing.T) {
	x := newSite(t, NodeOptions{MaxPerAddress: 256})
	x.grow(2_000)
	x.good.follow(t, x.stream, x.s, x.has)
	var tasks sync.WaitGroup
	for i := range 200 {
		w, _ := watch(t, dial(t, x.address), fmt.Sprint(i))
		tasks.Go(func() { (&receiver{tree: x.tree}).follow(t, w, x.s, x.has) })
	}
	most := 0
	ended := make(chan struct{})
	go func() { tasks.Wait(); close(ended) }()
	until(t, "all have been copied to", func() bool {
		copying, _ := x.n.turns.counts()
		most = max(most, copying)
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if most > 4 {
		t.Errorf("%d streams were copied to at a time", most)
	}
	x.undisturbed(t)

	y := newSite(t, NodeOptions{})
	refusals := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all []watching
	for i := range 200 {
		w, err := dial(t, y.address).Watch(ctx)
		if err != nil { // its connection is one too many
			refusals++
			continue
		}
		_ = w.Send(hello(fmt.Sprint(i))) // it may be refused already
		all = append(all, w)
	}
	for _, w := range all {
		if _, err := w.Recv(); err != nil {
			refusals++
		}
	}
	if refusals != 200-63 {
		t.Errorf("%d of 200 streams are refused", refusals)
	}
	y.undisturbed(t)
}
