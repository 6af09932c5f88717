package subscriber

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestUnderAttack attacks a listening Subscriber and the replay client of another one at the same time, by all kinds at once: garbage, huge
// lengths, bytes that come one at a time, half handshakes, 1,000 connections held open and floods of new ones. Meanwhile
//
//   - the engine that belongs to the listener connects again and again, and its batches are applied;
//   - the live batches of the Subscriber with the hostile replay socket are applied;
//   - a third Subscriber of the process, whom nobody attacks, applies batches and repairs gaps;
//
// each within a time that is generous against the same without an attack. The memory is bounded, every kind is counted, and all
// goroutines end.
func TestUnderAttack(t *testing.T) {
	const (
		held   = 1000 // connections open at one time
		probes = 4
		growth = 64 << 20 // of the heap, garbage and the attackers' own included
	)
	goroutines := runtime.NumGoroutine()
	m := NewMetrics(nil)
	limits := Limits{Message: 1 << 20, Handshake: 500 * time.Millisecond, Stall: 300 * time.Millisecond, Write: 500 * time.Millisecond}

	// The listener and its engine.
	sinkA := newHeldSink(t)
	a := attacked(t, Options{Endpoint: "listener", Listen: "tcp://127.0.0.1:0", Sink: sinkA, Limits: limits, Metrics: m}, nil)
	eventually(t, "listening", func() bool { return a.s.Addr() != "" })
	addr := strings.TrimPrefix(a.s.Addr(), "tcp://")
	own := &reconnecting{addr: addr}
	defer own.close()

	// The third one.
	other := newTestEngine(t)
	sinkB := newHeldSink(t)
	b := attacked(t, Options{Endpoint: "other", Dial: other.dial(), Replay: other.replay(), Sink: sinkB, Metrics: m, BackoffMin: time.Millisecond}, nil)

	// The one with the hostile replay socket.
	victim := newTestEngine(t)
	evil := newEvilReplays(t)
	sinkC := newHeldSink(t)
	c := attacked(t, Options{Endpoint: "asker", Dial: victim.dial(), Replay: evil.addr(), Sink: sinkC, Limits: limits, Metrics: m, BackoffMin: time.Millisecond}, func(s *Subscriber) {
		s.asks = pace{burst: 1 << 20, interval: time.Millisecond}
		s.track.pacing = hurried()
		s.track.pacing.whole = 2 * time.Second
	})

	var calm [3]time.Duration // until each was served, without an attack
	next := uint64(0)
	// fresh is an event that stores a block which no event before it has stored, and the block's fingerprint.
	fresh := func() (event any, key uint64) {
		next++
		event = storedEvent(nil, 2, []uint32{uint32(next), 7}, next)
		one := newCheckedSink(t)
		mustHold(t, newFold(foldOptions{pool: "chat", sink: one}), packBatch(event))
		for key = range one.tiers[Device] {
		}
		return event, key
	}
	has := func(s *heldSink, key uint64) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.tiers[Device][key]
	}
	// applied publishes blocks until one of them is announced.
	applied := func(what string, s *heldSink, publish func(event any)) {
		t.Helper()
		var keys []uint64
		for begin, last := time.Now(), (time.Time{}); ; {
			if time.Since(last) > 20*time.Millisecond {
				event, key := fresh()
				publish(event)
				keys = append(keys, key)
				last = time.Now()
			}
			if slices.ContainsFunc(keys, func(k uint64) bool { return has(s, k) }) {
				return
			}
			if time.Since(begin) > 3*patience {
				t.Fatalf("%s: none after %v, without an attack %v", what, 3*patience, calm)
			}
			_ = wait(t.Context(), 2*time.Millisecond)
		}
	}
	// probe returns how long it took until each was served.
	probe := func() (times [3]time.Duration) {
		begin := time.Now()
		own.close()
		for range 3 {
			applied("batches of the listener's engine", sinkA, func(e any) { own.publish(e) })
		}
		times[0] = time.Since(begin)
		begin = time.Now()
		for range 3 {
			applied("live batches beside a hostile replay socket", sinkC, func(e any) { victim.publish(false, e) })
		}
		times[1] = time.Since(begin)
		begin = time.Now()
		for range 3 {
			other.publish(true, removedEvent(1)) // a gap
			applied("batches of the one whom nobody attacks", sinkB, func(e any) { other.publish(false, e) })
		}
		times[2] = time.Since(begin)
		return times
	}

	for range 3 {
		for i, d := range probe() {
			calm[i] = max(calm[i], d)
		}
	}

	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	evil.awake.Store(true)
	victim.cut() // it connects and asks
	attack := newAttack(t, addr, held)
	var peak atomic.Uint64
	attack.every(20*time.Millisecond, func() {
		var now runtime.MemStats
		runtime.ReadMemStats(&now)
		peak.Store(max(peak.Load(), now.HeapAlloc))
	})
	eventually(t, "connections held", func() bool { return attack.most.Load() >= held })

	var worst [3]time.Duration
	for range probes {
		for i, d := range probe() {
			worst[i] = max(worst[i], d)
		}
	}
	refused := func(endpoint string, v violation) float64 {
		return testutil.ToFloat64(m.refused.WithLabelValues("chat", endpoint, "0", string(v)))
	}
	counted := map[string]float64{}
	for _, k := range []struct {
		endpoint string
		kinds    []violation
	}{
		{"listener", []violation{badGreeting, badReady, notPublisher, bigCommand, bigFrame, tooManyPeers}},
		{"asker", []violation{badGreeting, notRouter, bigFrame, manyFrames, slowHandshake, stalledPeer}},
	} {
		for _, v := range k.kinds {
			eventually(t, fmt.Sprintf("%s counted at the %s", v, k.endpoint), func() bool { return refused(k.endpoint, v) > 0 })
			counted[k.endpoint+" "+string(v)] = refused(k.endpoint, v)
		}
	}
	for _, v := range violations() {
		if n := refused("other", v); n > 0 {
			t.Errorf("%v connections of the one whom nobody attacks are refused: %s", n, v)
		}
	}
	attack.stop()
	evil.awake.Store(false)
	// In the flood what is slow is pushed out before its time.
	slow, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := slow.Write(greeting()[:20]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "half a greeting counted at the listener", func() bool {
		return refused("listener", slowHandshake) > 0
	})

	grown := int64(peak.Load()) - int64(before.HeapAlloc)
	if grown > growth {
		t.Errorf("the heap grew by %d MiB, want at most %d", grown>>20, growth>>20)
	}
	for i, who := range []string{"the listener's engine", "the one with the hostile replay socket", "the one whom nobody attacks"} {
		if most := max(45*time.Second, 50*calm[i]); worst[i] > most {
			t.Errorf("%s: %v under attack, want at most %v", who, worst[i], most)
		}
	}
	t.Logf("served within %v, without an attack within %v; the heap grew by %.1f MiB; %d connections made, %d at one time, %d of them replies; refused: %v",
		worst, calm, float64(grown)/(1<<20), attack.made.Load(), attack.most.Load(), evil.served.Load(), counted)

	own.close()
	for _, f := range []*underAttack{a, b, c} {
		f.stop()
	}
	evil.close()
	other.close()
	victim.close()
	eventually(t, "goroutines of before", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// underAttack is a Subscriber at work.
type underAttack struct {
	s    *Subscriber
	stop func()
}

func attacked(t *testing.T, o Options, set func(*Subscriber)) *underAttack {
	t.Helper()
	o.Pool = "chat"
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if set != nil {
		set(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return &underAttack{s, stop}
}

// reconnecting is an engine that connects to a Subscriber and connects again when it loses the connection, as ZeroMQ does.
type reconnecting struct {
	addr string
	conn net.Conn
	seq  uint64
}

func (r *reconnecting) close() {
	if r.conn != nil {
		_ = r.conn.Close()
		r.conn = nil
	}
}

// publish sends a batch, if it has a connection or gets one at once.
func (r *reconnecting) publish(event any) {
	payload := string(packBatch(event))
	r.seq++
	if r.conn == nil {
		c, err := net.DialTimeout("tcp", r.addr, time.Second)
		if err != nil {
			return
		}
		r.conn = c
		if _, err := c.Write(concat(greeting(), publisherReady())); err != nil {
			r.close()
			return
		}
		// The subscription says that the handshake is done. It can take as long as others are before it.
		in := io.LimitReader(c, greetingSize+1)
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if n, _ := io.Copy(io.Discard, in); n <= greetingSize {
			r.close()
			return
		}
	}
	_ = r.conn.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := r.conn.Write(live(r.seq, payload)); err != nil {
		r.close()
	}
}

// attack is a crowd of hostile peers of one address.
type attack struct {
	addr       string
	ctx        context.Context
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	made       atomic.Int64 // connections
	open, most atomic.Int64 // of those that are held: at this time, and at one time
}

func newAttack(t *testing.T, addr string, held int) *attack {
	a := &attack{addr: addr}
	a.ctx, a.cancel = context.WithCancel(t.Context())
	t.Cleanup(a.stop)
	hello := concat(greeting(), publisherReady())
	// What is sent at once, before the connection is left or held until the other side ends it.
	for _, stream := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		bytes.Repeat([]byte{0xff}, 4096),
		concat(greeting(), live(0, "no READY")),
		concat(greeting(), []byte{flagCommand | flagLong, 0, 0, 0x40, 0, 0, 0, 0, 0}),
		concat(greeting(), ready(property("Socket-Type", "SUB"))),
		greeting()[:20],
		hello[:70],
	} {
		a.every(10*time.Millisecond, func() { a.visit(func(c net.Conn) { _, _ = c.Write(stream); a.gone(c) }) })
	}
	// A whole handshake takes the engine's place, so it is rarer: what follows must end it at once.
	a.every(300*time.Millisecond, func() {
		a.visit(func(c net.Conn) {
			_, _ = c.Write(concat(hello, []byte{flagLong, 0x7f, 0xff, 0, 0, 0, 0, 0, 0}))
			a.gone(c)
		})
	})
	// Connections that are left at once.
	for range 2 {
		a.every(10*time.Millisecond, func() { a.visit(func(net.Conn) {}) })
	}
	// A byte at a time.
	for range 10 {
		a.every(time.Millisecond, func() {
			a.visit(func(c net.Conn) {
				for i := range hello {
					if _, err := c.Write(hello[i : i+1]); err != nil || wait(a.ctx, 20*time.Millisecond) != nil {
						return
					}
				}
			})
		})
	}
	// Silent ones, each replaced as soon as the other side ends it.
	for range held {
		a.every(time.Millisecond, func() {
			a.visit(func(c net.Conn) {
				n := a.open.Add(1)
				for m := a.most.Load(); n > m && !a.most.CompareAndSwap(m, n); m = a.most.Load() {
				}
				a.gone(c)
				a.open.Add(-1)
			})
		})
	}
	return a
}

// every does something again and again until the attack ends.
func (a *attack) every(pause time.Duration, do func()) {
	a.wg.Go(func() {
		for wait(a.ctx, pause) == nil {
			do()
		}
	})
}

func (a *attack) visit(do func(c net.Conn)) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	c, err := dialer.DialContext(a.ctx, "tcp", a.addr)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(a.ctx, func() { _ = c.Close() })()
	a.made.Add(1)
	do(c)
}

// gone waits until the other side has ended a connection, in a buffer of a few bytes as there are many.
func (a *attack) gone(c net.Conn) {
	var b [64]byte
	for {
		if _, err := c.Read(b[:]); err != nil {
			return
		}
	}
}

func (a *attack) stop() {
	a.cancel()
	a.wg.Wait()
}

// evilReplays is a replay socket that misbehaves in another way on each connection, once it is awake.
type evilReplays struct {
	ln     net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	awake  atomic.Bool
	served atomic.Int64
}

func newEvilReplays(t *testing.T) *evilReplays {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &evilReplays{ln: ln}
	e.ctx, e.cancel = context.WithCancel(t.Context())
	t.Cleanup(e.close)
	e.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				continue
			}
			e.wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(e.ctx, func() { _ = c.Close() })()
				if e.awake.Load() {
					e.serve(c, int(e.served.Add(1)))
				}
			})
		}
	})
	return e
}

func (e *evilReplays) addr() string { return "tcp://" + e.ln.Addr().String() }

func (e *evilReplays) close() {
	e.cancel()
	_ = e.ln.Close()
	e.wg.Wait()
}

func (e *evilReplays) serve(c net.Conn, n int) {
	number := func(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }
	hello := concat(greeting(), ready(property("Socket-Type", "ROUTER"), property("Identity", "")))
	large := concat(message("", number(0), string(packBatch())), message("", number(1), strings.Repeat("x", 1<<19)))
	streams := []struct {
		bytes []byte
		slow  bool // one byte at a time
	}{
		{[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), false},
		{nil, false},
		{hello[:70], false},
		{hello, true},
		{concat(greeting(), publisherReady()), false},
		{concat(hello, frame(flagMore, ""), []byte{flagLong, 0x7f, 0xff, 0, 0, 0, 0, 0, 0}), false},
		{concat(hello, bytes.Repeat(frame(flagMore, "x"), 1000)), false},
		{concat(hello, large[:len(large)-1]), false},
		{concat(hello, message("", number(7), "no batch"), message("", number(3), "no batch")), false},
		{concat(hello, message("", "1234567", "")), false},
	}
	s := streams[n%len(streams)]
	for at := 0; at < len(s.bytes); {
		n := len(s.bytes)
		if s.slow {
			n = at + 1
		}
		if _, err := c.Write(s.bytes[at:n]); err != nil || s.slow && wait(e.ctx, 20*time.Millisecond) != nil {
			return
		}
		at = n
	}
	_, _ = io.Copy(io.Discard, c)
}
