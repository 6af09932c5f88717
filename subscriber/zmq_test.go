package subscriber

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// pub is a ZeroMQ PUB socket that publishes as an engine does.
type pub struct {
	t    testing.TB
	sock zmq4.Socket
}

// newPub binds or connects a PUB at addr and returns when it has a subscription.
func newPub(t testing.TB, bind bool, addr string) *pub {
	t.Helper()
	p := &pub{t: t, sock: zmq4.NewPub(context.Background())}
	t.Cleanup(p.close)
	connect := p.sock.Dial
	if bind {
		connect = p.sock.Listen
	}
	if err := connect(addr); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pub) awaitSubscription() {
	p.t.Helper()
	eventually(p.t, "subscribed", func() bool { return len(p.sock.(zmq4.Topics).Topics()) > 0 })
}

func (p *pub) send(seq uint64, payload []byte) {
	p.t.Helper()
	m := zmq4.NewMsgFrom([]byte("kv-events"), binary.BigEndian.AppendUint64(nil, seq), payload)
	if err := p.sock.SendMulti(m); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pub) close() { _ = p.sock.Close() }

// freeAddr returns a loopback address with a port that nobody uses.
func freeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return "tcp://" + ln.Addr().String()
}

// TestZeroMQ follows a ZeroMQ publisher through two restarts, in both directions.
func TestZeroMQ(t *testing.T) {
	for _, bind := range []bool{false, true} {
		t.Run(fmt.Sprintf("engine binds=%v", bind), func(t *testing.T) {
			var r recorder
			o, addr := Options{BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond}, ""
			if bind {
				addr = freeAddr(t)
				o.Dial = addr
			}
			s, _ := start(t, o, &r)
			if !bind {
				eventually(t, "listening", func() bool { return s.Addr() != "" })
				addr = s.Addr()
			}
			var want []string
			for range 3 {
				p := newPub(t, bind, addr)
				p.awaitSubscription()
				want = append(want, "connected true")
				for seq := range uint64(3) {
					p.send(seq, fmt.Appendf(nil, "batch %d", seq))
					want = append(want, fmt.Sprint("batch ", seq))
				}
				r.await(t, want...)
				p.close()
				want = append(want, "connected false", "reset disconnect")
				r.await(t, want...)
			}
		})
	}
}

// script is a Sink that writes down every call.
type script struct {
	mu    sync.Mutex
	calls []string
}

func (s *script) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *script) Store(tier Tier, keys []uint64)  { s.add("store %d %x", tier, keys) }
func (s *script) Remove(tier Tier, keys []uint64) { s.add("remove %d %x", tier, keys) }
func (s *script) Reset(cause Cause)               { s.add("reset %s", cause) }
func (s *script) Describe(d Description)          { s.add("describe %+v", d) }

func (s *script) have() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// TestRecordedStreamsOverZeroMQ publishes what an engine sent, through evictions, a clear, a change of engine and a restart,
// and compares what the Sink hears with the same batches folded by hand.
func TestRecordedStreamsOverZeroMQ(t *testing.T) {
	var messages []recordedMessage
	for _, pattern := range []string{"3[0-7]_*.json", "17_*.json"} {
		for _, file := range goldenFiles(t, filepath.Join("testdata", "events", "vllm-0.32.0", pattern)) {
			var r recording
			readJSON(t, file, &r)
			messages = append(messages, r.Messages...)
		}
	}
	var want script
	oracle := newFold(foldOptions{pool: "chat", sink: &want})
	oracle.connected(true)
	last := int64(-1)
	for _, m := range messages {
		seq, err := strconv.ParseInt(m.Frames[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case last >= 0 && seq <= last:
			oracle.reset(CauseBackwards)
		case last >= 0 && seq > last+1:
			oracle.reset(CauseGap)
		}
		if seq == 0 {
			oracle.history(true)
		}
		last = seq
		if _, err := oracle.fold(m.payload(t), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if resets := strings.Count(strings.Join(want.calls, "\n"), "reset "); resets < 2 {
		t.Fatalf("the recording has %d resets", resets)
	}

	for _, bind := range []bool{false, true} {
		t.Run(fmt.Sprintf("engine binds=%v", bind), func(t *testing.T) {
			var got script
			o, addr := Options{Pool: "chat", Endpoint: "e", Sink: &got, BackoffMin: time.Millisecond}, ""
			if bind {
				addr = freeAddr(t)
				o.Dial = addr
			} else {
				o.Listen = "tcp://127.0.0.1:0"
			}
			s, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			if !bind {
				eventually(t, "listening", func() bool { return s.Addr() != "" })
				addr = s.Addr()
			}
			p := newPub(t, bind, addr)
			p.awaitSubscription()
			for _, m := range messages {
				seq, _ := strconv.ParseUint(m.Frames[1], 16, 64)
				p.send(seq, m.payload(t))
			}
			eventually(t, "all batches", func() bool { return len(got.have()) >= len(want.calls) })
			diff(t, "calls of the Sink", want.calls, got.have())

			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
			rest := got.have()[len(want.calls):]
			if len(rest) != 3 || rest[1] != "reset disconnect" {
				t.Errorf("at the end: %q", rest)
			}
		})
	}
}

// BenchmarkReceive measures the way from an engine's TCP connection to the end of the fold's decoding, mirror included.
func BenchmarkReceive(b *testing.B) {
	for _, blocks := range []int{1, 64} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			const burst, size = 1000, 16
			o := Options{Pool: "chat", Endpoint: "e", Listen: "tcp://127.0.0.1:0", Sink: noSink{}}
			s, err := New(o)
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			p := dialPublisher(b, s)
			p.handshake()

			// A burst stores and removes the same blocks, so that the mirror stays small.
			hashes, tokens := make([]uint64, blocks), make([]uint32, blocks*size)
			for i := range hashes {
				hashes[i] = 1<<60 + uint64(i)
			}
			for i := range tokens {
				tokens[i] = uint32(100000 + i)
			}
			stored := string(packBatch(storedEvent(nil, size, tokens, hashes...)))
			removed := string(packBatch(removedEvent(hashes...)))
			var out []byte
			var at []int // where the sequence numbers are
			for i := range burst {
				out = append(out, live(0, []string{stored, removed}[i%2])...)
				at = append(at, len(out))
			}
			seq := uint64(0)
			b.SetBytes(int64(len(out)))
			b.ReportAllocs()
			for b.Loop() {
				begin := 0
				for _, end := range at {
					binary.BigEndian.PutUint64(out[begin+len("..kv-events.."):], seq)
					begin = end
					seq++
				}
				p.write(out)
				p.write(frame(flagCommand, "\x04PING\x00\x00"))
				p.readFrame() // the answer comes when the burst is applied
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*burst), "ns/batch")
			cancel()
			<-ended
		})
	}
}
