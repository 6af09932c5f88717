package feed

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvsteer/kvsteer/subscriber"
)

const (
	stormBlocks = 64   // stored by one event, and as many removed
	stormTokens = 16   // of a block
	stormRing   = 2048 // different events; half of their blocks are held at a time
	stormHead   = 11   // bytes of a batch before its first event
)

// storm are the payloads of batches that each store a prompt of stormBlocks blocks, and from half of the ring on remove the one of half a ring before.
// The time of a batch stands at payload[2:10].
func storm(tb testing.TB) [][]byte {
	tb.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	hashes := make([][]uint64, stormRing)
	all := make([][]byte, stormRing)
	for i := range all {
		tokens := make([]uint32, stormBlocks*stormTokens)
		for j := range tokens {
			tokens[j] = random.Uint32N(150_000)
		}
		hashes[i] = make([]uint64, stormBlocks)
		for j := range hashes[i] {
			hashes[i][j] = random.Uint64()
		}
		all[i] = stormBatch(tb, []any{"BlockStored", hashes[i], nil, tokens, stormTokens, nil, "GPU"})
	}
	for i := range all {
		old := slices.Clone(hashes[(i+stormRing/2)%stormRing])
		slices.Reverse(old)
		removed := stormBatch(tb, []any{"BlockRemoved", old, "GPU"})
		all[i] = append(all[i], removed[stormHead:]...)
		all[i][stormHead-1] = 0x92 // two events in place of one
	}
	return all
}

// stormBatch encodes [time, [event]].
func stormBatch(tb testing.TB, event []any) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := msgpack.NewEncoder(&b).Encode([]any{1.5, []any{event}}); err != nil {
		tb.Fatal(err)
	}
	text := b.Bytes()
	if text[0] != 0x92 || text[1] != 0xcb || text[stormHead-1] != 0x91 {
		tb.Fatalf("a batch begins with % x", text[:stormHead])
	}
	return text
}

// stormEngine publishes on a plain connection, as an engine's PUB socket does.
type stormEngine struct {
	conn    net.Conn
	next    uint64
	buf     []byte
	longest time.Duration // that one batch took to be written
}

func connectStorm(tb testing.TB, address string) *stormEngine {
	tb.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(address, "tcp://"))
	check(tb, err)
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	_, err = conn.Write(append(append(greeting, 4, byte(len(ready))), ready...))
	check(tb, err)
	go io.Copy(io.Discard, conn) // what is subscribed to
	tb.Cleanup(func() { conn.Close() })
	return &stormEngine{conn: conn}
}

// publish writes one batch. It is an engine's thread that would wait.
func (e *stormEngine) publish(payload []byte, now time.Time) error {
	b := append(e.buf[:0], 1, 9)
	b = append(b, "kv-events"...)
	b = append(b, 1, 8)
	b = binary.BigEndian.AppendUint64(b, e.next)
	b = append(b, 2)
	b = binary.BigEndian.AppendUint64(b, uint64(len(payload)))
	at := len(b) + 2
	b = append(b, payload...)
	binary.BigEndian.PutUint64(b[at:], math.Float64bits(float64(now.UnixNano())/1e9))
	e.buf, e.next = b, e.next+1
	_, err := e.conn.Write(b)
	e.longest = max(e.longest, time.Since(now))
	return err
}

// processorTime is what the process has used so far.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	check(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkEvents is a node whose four engines store and remove so many blocks per second each, with one router that watches. An operation is an event of 64
// stored and 64 removed blocks of one engine. cores is the processor time of all parts in one process: engines' writing, node, and receiving; lag is from
// the first batch of a window to the arrival of its delta, the window of 20 ms included; blocked is the longest that an engine waited to write a batch.
func BenchmarkEvents(b *testing.B) {
	payloads := storm(b)
	for _, rate := range []int{5_000, 50_000} {
		b.Run(fmt.Sprintf("engines=4/blocks-per-second=%d", rate), func(b *testing.B) { benchEvents(b, payloads, rate) })
	}
}

func benchEvents(b *testing.B, payloads [][]byte, rate int) {
	const engines = 4
	n := testNode(b, NodeOptions{})
	address := serve(b, n)
	ctx, cancel := context.WithCancel(b.Context())
	var subs sync.WaitGroup
	defer subs.Wait()
	defer cancel()
	var replicas []Replica
	var all []*stormEngine
	for i := range engines {
		source := n.Source()
		endpoint := fmt.Sprintf("127.0.0.1:%d", 8000+i)
		s, err := subscriber.New(subscriber.Options{Pool: "chat", Endpoint: endpoint, Listen: "tcp://127.0.0.1:0", Sink: source})
		check(b, err)
		subs.Go(func() { _ = s.Run(ctx) })
		for end := time.Now().Add(deadline); s.Addr() == "" && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		all = append(all, connectStorm(b, s.Addr()))
		replicas = append(replicas, Replica{Endpoint: endpoint, Pool: "chat", Sources: []uint32{source.Number()}})
	}
	n.Announce(replicas)

	var sent [engines + 1]atomic.Int64 // by source: when the first batch was sent that no delta has come for
	var lags []time.Duration
	w, stop := watch(b, dial(b, address), "a")
	received := make(chan struct{})
	go func() {
		defer close(received)
		for {
			m, err := w.Recv()
			if err != nil {
				return
			}
			if d := m.GetDelta(); d != nil {
				if at := sent[d.GetSource()].Swap(0); at != 0 {
					lags = append(lags, time.Duration(time.Now().UnixNano()-at))
				}
			}
		}
	}()
	pause := time.Second * stormBlocks / time.Duration(rate) / engines
	begin, used := time.Now(), processorTime(b)
	i := 0
	for b.Loop() {
		if early := time.Until(begin.Add(time.Duration(i) * pause)); early > 0 {
			time.Sleep(early)
		}
		now := time.Now()
		sent[i%engines+1].CompareAndSwap(0, now.UnixNano())
		check(b, all[i%engines].publish(payloads[i/engines%len(payloads)], now))
		i++
	}
	elapsed := time.Since(begin)
	used = processorTime(b) - used
	_ = w.CloseSend()
	stop()
	<-received
	slices.Sort(lags)
	longest := time.Duration(0)
	for _, e := range all {
		longest = max(longest, e.longest)
	}
	b.ReportMetric(used.Seconds()/elapsed.Seconds(), "cores")
	b.ReportMetric(float64(i*stormBlocks)/elapsed.Seconds()/engines, "blocks/s/engine")
	b.ReportMetric(float64(longest.Microseconds())/1000, "blocked-ms")
	if len(lags) > 0 {
		b.ReportMetric(float64(lags[len(lags)/2].Microseconds())/1000, "p50-lag-ms")
		b.ReportMetric(float64(lags[len(lags)*99/100].Microseconds())/1000, "p99-lag-ms")
	}
}
