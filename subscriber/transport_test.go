package subscriber

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func refusals(s *Subscriber, v violation) float64 {
	return testutil.ToFloat64(s.o.Metrics.refused.WithLabelValues("chat", "10.0.0.1:8000", "0", string(v)))
}

// TestHostilePeers lets peers break each rule and a good engine connect after each.
func TestHostilePeers(t *testing.T) {
	hello := concat(greeting(), publisherReady())
	tests := []struct {
		name   string
		stream []byte
		want   violation
	}{
		{"garbage greeting", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), badGreeting},
		{"zeros", make([]byte, 1000), badGreeting},
		{"huge READY", concat(greeting(), ready(property("Socket-Type", "PUB"), property("X", strings.Repeat("a", 5000)))), bigCommand},
		{"READY that zmq4 panics on", concat(greeting(), ready("\xff")), badReady},
		{"type that zmq4 panics on", concat(greeting(), ready(property("Socket-Type", "X"))), notPublisher},
		{"no type, on which zmq4 panics", concat(greeting(), ready()), notPublisher},
		{"frame of 2^46 bytes", concat(hello, []byte{flagLong, 0, 0, 0x40, 0, 0, 0, 0, 0}, make([]byte, 1000)), bigFrame},
		{"frame of 2^63 bytes", concat(hello, []byte{flagLong, 0x80, 0, 0, 0, 0, 0, 0, 0}), bigFrame},
		{"one message of endless small frames", concat(hello, bytes.Repeat(frame(flagMore, "a"), 10000)), manyFrames},
		{"one message of many large frames", concat(hello, bytes.Repeat(frame(flagMore, strings.Repeat("a", 40000)), 3)), bigMessage},
		{"command in a message", concat(hello, frame(flagMore, "a"), frame(flagCommand, "\x04PING\x00\x00")), strayCommand},
		{"reserved flags", concat(hello, []byte{0xf0, 0xf0}), badFlags},
	}
	limits := Limits{Message: 100 << 10, Frame: 64 << 10}
	var r recorder
	s, _ := start(t, Options{Limits: limits}, &r)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := dialPublisher(t, s)
			_, _ = p.conn.Write(tt.stream) // the subscriber may close before the end of it
			p.closed()
			eventually(t, "refusal counted", func() bool { return refusals(s, tt.want) >= 1 })
		})
	}
	before := len(r.have())
	p := dialPublisher(t, s)
	p.handshake()
	p.write(live(0, "good"))
	eventually(t, "the good engine's batch", func() bool {
		calls := r.have()
		return len(calls) == before+2 && calls[before+1] == "good"
	})
}

// TestSilentPeers keeps more silent connections open than there may be handshakes, and lets an engine in.
func TestSilentPeers(t *testing.T) {
	var r recorder
	s, stop := start(t, Options{Limits: Limits{Handshake: time.Hour}}, &r)
	var silent []*publisher
	for i := range maxPending + 4 {
		p := dialPublisher(t, s)
		if i%2 == 0 {
			p.write(greeting()[:33])
		}
		silent = append(silent, p)
	}
	p := dialPublisher(t, s)
	p.handshake()
	p.write(live(0, "a"))
	r.await(t, "connected true", "a")
	for _, p := range silent[:4] {
		p.closed()
	}
	eventually(t, "refusals counted", func() bool { return refusals(s, tooManyPeers) >= 4 })
	stop()
	silent[len(silent)-1].closed()
}

// pipe opens a session over a synchronous pipe inside a synctest bubble.
func pipe(t *testing.T, l Limits) (*publisher, chan *session, chan error) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	sessions, errs := make(chan *session, 1), make(chan error, 1)
	go func() {
		s, err := open(t.Context(), ours, "", l.withDefaults())
		if err != nil {
			errs <- err
			return
		}
		sessions <- s
	}()
	return &publisher{t: t, conn: theirs}, sessions, errs
}

func TestSlowHandshake(t *testing.T) {
	if err := register(); err != nil {
		t.Fatal(err)
	}
	hello := concat(greeting(), publisherReady())
	tests := []struct {
		name  string
		send  []byte
		every time.Duration // between two bytes
	}{
		{"nothing", nil, 0},
		{"half a greeting", hello[:20], 0},
		{"no READY", hello[:64], 0},
		{"half a READY", hello[:80], 0},
		{"byte by byte", hello, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _, errs := pipe(t, Limits{Handshake: 10 * time.Second})
				go func() { _, _ = io.Copy(io.Discard, p.conn) }()
				go func() {
					for i := range tt.send {
						if _, err := p.conn.Write(tt.send[i : i+1]); err != nil {
							return
						}
						_ = wait(t.Context(), tt.every)
					}
				}()
				begin := time.Now()
				if err := <-errs; !errors.Is(err, slowHandshake) {
					t.Errorf("got %v, want %v", err, slowHandshake)
				}
				diff(t, "time to the refusal", 10*time.Second, time.Since(begin))
			})
		})
	}
}

// TestPeerThatDoesNotRead checks the deadline of writes, in the handshake and after it.
func TestPeerThatDoesNotRead(t *testing.T) {
	if err := register(); err != nil {
		t.Fatal(err)
	}
	t.Run("greeting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, _, errs := pipe(t, Limits{Write: time.Second})
			if err := <-errs; !errors.Is(err, slowHandshake) {
				t.Errorf("got %v, want %v", err, slowHandshake)
			}
		})
	})
	t.Run("subscription", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, sessions, _ := pipe(t, Limits{Write: time.Second})
			go func() { _, _ = p.conn.Write(concat(greeting(), publisherReady())) }()
			p.read(greetingSize)
			p.readFrame() // READY, and no more
			s := <-sessions
			_, err := s.recv()
			s.close(err, true)
			if !errors.Is(err, stalledPeer) {
				t.Errorf("got %v, want %v", err, stalledPeer)
			}
		})
	})
}

// TestStall checks which silences a peer may have after its handshake.
func TestStall(t *testing.T) {
	if err := register(); err != nil {
		t.Fatal(err)
	}
	whole := live(0, strings.Repeat("x", 1000))
	tests := []struct {
		name  string
		parts [][]byte
		gap   time.Duration // before each part
		want  error         // nil: the last part is received
	}{
		{"idle for a day", [][]byte{whole, whole}, 24 * time.Hour, nil},
		{"slow but in time", [][]byte{whole[:1], whole[1:20], whole[20:]}, 9 * time.Second, nil},
		{"half a header", [][]byte{whole[:1]}, time.Second, stalledPeer},
		{"half a body", [][]byte{whole[:len(whole)-1]}, time.Second, stalledPeer},
		{"between two frames", [][]byte{whole[:11]}, time.Second, stalledPeer},
		{"too slow in all", [][]byte{whole[:1], whole[1:20], whole[20:40], whole[40:]}, 12 * time.Second, stalledPeer},
		{"after a whole message", [][]byte{concat(whole, whole[:5])}, time.Second, stalledPeer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, sessions, _ := pipe(t, Limits{Stall: 30 * time.Second})
				p.handshake()
				s := <-sessions
				go func() {
					for _, part := range tt.parts {
						_ = wait(t.Context(), tt.gap)
						if _, err := p.conn.Write(part); err != nil {
							return
						}
					}
					if tt.want == nil {
						p.conn.Close()
					}
				}()
				var err error
				for err == nil {
					_, err = s.recv()
				}
				s.close(err, true)
				want := tt.want
				if want == nil {
					want = io.EOF
				}
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			})
		})
	}
}

// TestBuffered checks that a subscriber which does not apply holds no more than Limits.Buffered, that the wait is not counted
// as the peer's stall, and that nothing is lost.
func TestBuffered(t *testing.T) {
	if err := register(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		const size, count = 1000, 200
		l := Limits{Message: 2000, Buffered: 4000, Stall: time.Second}
		p, sessions, _ := pipe(t, l)
		p.handshake()
		s := <-sessions
		sent := 0
		go func() {
			for i := range count {
				if _, err := p.conn.Write(live(uint64(i), strings.Repeat("x", size))); err != nil {
					return
				}
				sent++
			}
		}()
		synctest.Wait()
		_ = wait(t.Context(), time.Hour)
		if most := readBuffer/size + l.Buffered/size + 1; sent > most {
			t.Errorf("%d messages taken in, want at most %d", sent, most)
		}
		s.conn.mu.Lock()
		held := s.conn.held
		s.conn.mu.Unlock()
		if held == 0 || held > l.Buffered {
			t.Errorf("%d bytes held, want up to %d", held, l.Buffered)
		}
		for i := range count {
			m, err := s.recv()
			if err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
			if seq, _, err := parseMessage(m.Frames); err != nil || seq != uint64(i) {
				t.Fatalf("message %d: sequence %d, %v", i, seq, err)
			}
			s.release(m)
		}
		s.conn.mu.Lock()
		held = s.conn.held
		s.conn.mu.Unlock()
		diff(t, "bytes held at the end", 0, held)
		s.close(errStopped, false)
	})
}

// TestCloseWithFullQueue ends a session that nobody reads from, in the middle of a message and with zmq4's queue full.
func TestCloseWithFullQueue(t *testing.T) {
	if err := register(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p, sessions, _ := pipe(t, Limits{})
		p.handshake()
		s := <-sessions
		go func() {
			for i := range 1000 {
				if _, err := p.conn.Write(live(uint64(i), "x")); err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		s.close(errStopped, false) // the bubble fails when a goroutine stays
	})
}

func TestDialBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		var at []time.Duration
		d := &dialer{
			dial: func(context.Context, string, string) (net.Conn, error) {
				at = append(at, time.Since(begin))
				if len(at) == 7 {
					cancel()
				}
				return nil, errors.New("refused")
			},
			tried:   func(error) {},
			backoff: newBackoff(100*time.Millisecond, 2*time.Second),
		}
		d.backoff.random = func() float64 { return 0 }
		if _, err := d.next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
		diff(t, "times of attempts", []time.Duration{0, ms(100), ms(300), ms(700), ms(1500), ms(3100), ms(5100)}, at)
	})
}

func TestDialEndsWithContext(t *testing.T) {
	var r recorder
	for _, tt := range []struct {
		name   string
		accept bool // and stay silent
	}{{"refused", false}, {"silent", true}} {
		t.Run(tt.name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			if !tt.accept {
				ln.Close()
			}
			_, stop := start(t, Options{Dial: "tcp://" + ln.Addr().String(), BackoffMin: time.Hour, Limits: Limits{Handshake: time.Hour}}, &r)
			if tt.accept {
				c, err := ln.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			}
			stop()
		})
	}
}

func TestBackoff(t *testing.T) {
	random := 0.0
	b := newBackoff(100*time.Millisecond, time.Second)
	b.random = func() float64 { return random }
	tests := []struct {
		name   string
		lived  time.Duration
		random float64
		want   time.Duration
	}{
		{"first", 0, 0, 100 * time.Millisecond},
		{"second", 0, 0, 200 * time.Millisecond},
		{"jitter takes off up to half", 0, 0.999999, 200 * time.Millisecond},
		{"a short connection changes nothing", time.Second, 0, 800 * time.Millisecond},
		{"longest", 0, 0, time.Second},
		{"stays", 0, 0, time.Second},
		{"a stable connection starts over", 5 * time.Second, 0, 100 * time.Millisecond},
	}
	for _, tt := range tests {
		random = tt.random
		diff(t, tt.name, tt.want, b.after(tt.lived).Round(time.Millisecond))
	}
}

func TestPace(t *testing.T) {
	p := pace{burst: 2, interval: time.Second}
	now := time.Unix(1000, 0)
	for i, tt := range []struct {
		after  time.Duration
		ok     bool
		missed int
	}{
		{0, true, 0},
		{0, true, 0},
		{0, false, 0},
		{500 * time.Millisecond, false, 0},
		{500 * time.Millisecond, true, 2},
		{0, false, 0},
		{time.Hour, true, 1},
		{0, true, 0},
		{0, false, 0},
		{-time.Hour, false, 0},
	} {
		now = now.Add(tt.after)
		ok, missed, _ := p.take(now)
		if ok != tt.ok || missed != tt.missed {
			t.Errorf("step %d: got %v, %d, want %v, %d", i, ok, missed, tt.ok, tt.missed)
		}
	}
}

func TestSuccession(t *testing.T) {
	s := succession{shortest: time.Second, longest: 4 * time.Second}
	now := time.Unix(1000, 0)
	for i, tt := range []struct {
		after time.Duration
		want  bool
	}{
		{0, true},
		{0, false},
		{time.Second, true},
		{time.Second, false},
		{time.Second, true},
		{3 * time.Second, false},
		{time.Second, true},
		{4 * time.Second, true},
		{40 * time.Second, true},
		{time.Second, true},
	} {
		now = now.Add(tt.after)
		if got := s.allow(now); got != tt.want {
			t.Errorf("step %d: got %v, want %v", i, got, tt.want)
		}
	}
}

// TestSecondPublisher connects two engines to one listener.
func TestSecondPublisher(t *testing.T) {
	var r recorder
	s, _ := start(t, Options{}, &r)
	a := dialPublisher(t, s)
	a.handshake()
	a.write(live(7, "a"))
	r.await(t, "connected true", "a")

	b := dialPublisher(t, s)
	b.handshake()
	a.closed()
	b.write(live(0, "b"))
	want := []string{"connected true", "a", "connected false", "reset disconnect", "connected true", "b"}
	r.await(t, want...)

	c := dialPublisher(t, s)
	c.handshake()
	c.closed() // too soon after b took over
	eventually(t, "refusal counted", func() bool { return refusals(s, secondPeer) == 1 })
	b.write(live(1, "b2"))
	r.await(t, append(want, "b2")...)
}

// TestReconnectStorm lets a publisher connect and leave as fast as it is let.
func TestReconnectStorm(t *testing.T) {
	var r recorder
	s, _ := start(t, Options{}, &r)
	begin := time.Now()
	const rounds = acceptBurst + 6
	for range rounds {
		p := dialPublisher(t, s)
		p.handshake()
		p.conn.Close()
	}
	if least := 4 * acceptInterval; time.Since(begin) < least {
		t.Errorf("%d connections in %v, want at least %v", rounds, time.Since(begin), least)
	}
	last := time.Time{}
	eventually(t, "the last batch", func() bool {
		if calls := r.have(); len(calls) > 0 && calls[len(calls)-1] == "a" {
			return true
		}
		if time.Since(last) > 3*time.Second { // beside one that is not seen dead yet it is refused, and comes again
			last = time.Now()
			p := dialPublisher(t, s)
			p.handshake()
			_, _ = p.conn.Write(live(0, "a"))
		}
		return false
	})
	held := false // one that was made to wait can be let in, and heard, just before another takes its place
	for i, c := range r.have() {
		reset := strings.HasPrefix(c, "reset")
		if reset && !held {
			t.Errorf("call %d: %s with nothing held", i, c)
		}
		held = c == "a" || held && !reset
	}
}

// TestLostPeer ends connections from the engine's side, in both directions, and connects again.
func TestLostPeer(t *testing.T) {
	ends := []struct {
		name string
		end  func(*publisher)
	}{
		{"closed", func(p *publisher) { p.conn.Close() }},
		{"reset", func(p *publisher) { _ = p.conn.(*net.TCPConn).SetLinger(0); p.conn.Close() }},
		{"in a message", func(p *publisher) { p.write([]byte{flagMore, 9, 'x'}); p.conn.Close() }},
	}
	run := func(t *testing.T, connect func() *publisher, r *recorder) {
		var want []string
		for i, e := range ends {
			p := connect()
			p.handshake()
			p.write(live(uint64(i), e.name))
			want = append(want, "connected true", e.name)
			r.await(t, want...)
			e.end(p)
			want = append(want, "connected false", "reset disconnect")
			r.await(t, want...)
		}
	}
	t.Run("listen", func(t *testing.T) {
		var r recorder
		s, _ := start(t, Options{}, &r)
		run(t, func() *publisher { return dialPublisher(t, s) }, &r)
	})
	t.Run("dial", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		var r recorder
		start(t, Options{Dial: "tcp://" + ln.Addr().String(), BackoffMin: time.Millisecond}, &r)
		run(t, func() *publisher {
			c, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return &publisher{t: t, conn: c}
		}, &r)
	})
}

// TestLargeMessages sends bodies that do not fit the read buffer.
func TestLargeMessages(t *testing.T) {
	var r recorder
	s, _ := start(t, Options{}, &r)
	p := dialPublisher(t, s)
	p.handshake()
	want := []string{"connected true"}
	for i, n := range []int{readBuffer - 1, readBuffer, readBuffer + 1, 5 << 20, 16<<20 - 17} {
		p.write(live(uint64(i), strings.Repeat("x", n)))
		want = append(want, fmt.Sprint(n, " bytes"))
	}
	r.await(t, want...)
	_, _ = p.conn.Write(live(5, strings.Repeat("x", 16<<20-16)))
	p.closed()
	eventually(t, "refusal counted", func() bool { return refusals(s, bigMessage) == 1 })
}
