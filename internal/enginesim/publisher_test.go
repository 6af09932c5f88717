package enginesim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

// TestSubscribers has subscribers of another ZMQ implementation in both directions, and wants topic, sequence numbers and,
// after random traffic, folded events that equal the cache's content.
func TestSubscribers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		format Format
		hashes HashForm
		bind   bool
	}{
		{"bind, map", Map, HashInt, true},
		{"connect, map, bytes", Map, HashBytes, false},
		{"connect, array", Array, HashInt, false},
		{"bind, old array, bytes", OldArray, HashBytes, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			sub := zmq4.NewSub(ctx)
			defer sub.Close()
			if err := sub.SetOption(zmq4.OptionSubscribe, "kv"); err != nil {
				t.Fatal(err)
			}
			events := Events{Topic: "kv@x", Format: tc.format, Hashes: tc.hashes}
			if tc.bind {
				events.Bind = "tcp://127.0.0.1:0"
			} else {
				if err := sub.Listen("tcp://127.0.0.1:0"); err != nil {
					t.Fatal(err)
				}
				events.Connect = "tcp://" + sub.Addr().String()
			}
			e := start(t, Options{Blocks: 40, Events: events})
			if tc.bind {
				if err := sub.Dial("tcp://" + e.EventsAddr()); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "subscription", func() bool { return e.ranks[0].pub.wanted() })

			c := newClient(t)
			rng := rand.New(rand.NewPCG(7, 8))
			var wg sync.WaitGroup
			for range 4 {
				bodies := make([]string, 25)
				for i := range bodies {
					bodies[i] = fmt.Sprintf(`{"max_tokens":%d,"prompt":%s}`, 1+rng.IntN(40), tokenList(1+rng.IntN(300), rng.IntN(3)))
				}
				wg.Go(func() {
					for _, b := range bodies {
						postJSON(t, c, e, "/v1/completions", b)
					}
				})
			}
			wg.Wait()

			known := map[string]int{}
			e.ranks[0].pub.mu.Lock()
			sent := e.ranks[0].pub.next
			e.ranks[0].pub.mu.Unlock()
			for seq := range sent {
				msg, err := sub.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if len(msg.Frames) != 3 || string(msg.Frames[0]) != "kv@x" || binary.BigEndian.Uint64(msg.Frames[1]) != seq {
					t.Fatalf("frames %q, want 3 of topic kv@x and number %d", msg.Frames[:2], seq)
				}
				foldPayload(t, known, msg.Frames[2])
			}
			want := map[string]int{}
			for d, n := range copies(e.ranks[0].loop.sched.cache) {
				if tc.hashes == HashBytes {
					want[hex.EncodeToString(d[:])] = n
				} else {
					want[strconv.FormatUint(d.Uint64(), 10)] = n
				}
			}
			if d := cmp.Diff(want, known); d != "" || len(known) == 0 {
				t.Errorf("%d messages; cache and events differ:\n%s", sent, d)
			}
		})
	}
}

// foldPayload counts copies by hash, from arrays and maps alike.
func foldPayload(t *testing.T, known map[string]int, payload []byte) {
	t.Helper()
	var batch []any
	if err := msgpack.Unmarshal(payload, &batch); err != nil || len(batch) != 3 {
		t.Fatalf("batch of %d: %v", len(batch), err)
	}
	for _, ev := range batch[1].([]any) {
		var kind string
		var hashes any
		switch ev := ev.(type) {
		case map[string]any:
			kind, hashes = ev["type"].(string), ev["block_hashes"]
		case []any:
			kind, hashes = ev[0].(string), ev[1]
		}
		for _, h := range hashes.([]any) {
			key := fmt.Sprint(h)
			if b, ok := h.([]byte); ok {
				key = hex.EncodeToString(b)
			}
			if kind == "BlockStored" {
				known[key]++
			} else if known[key]--; known[key] == 0 {
				delete(known, key)
			}
		}
	}
}

// wanted reports whether a subscriber is there and has subscribed.
func (p *publisher) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		s.mu.Lock()
		ok := s.wants(p.topic)
		s.mu.Unlock()
		if ok {
			return true
		}
	}
	return false
}

func (p *publisher) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.subs)
}

// peer is a subscriber whose every byte the test decides.
type peer struct {
	conn net.Conn
	r    *bufio.Reader
}

func newPeer(t *testing.T, conn net.Conn, subscribe string) *peer {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	p := &peer{conn, bufio.NewReader(conn)}
	if _, err := io.ReadFull(p.r, make([]byte, greetingLen)); err != nil {
		t.Fatal(err)
	}
	p.write(t, greeting())
	p.write(t, appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x08Identity\x00\x00\x00\x00")))
	if flags, body, err := readFrame(p.r, nil); err != nil || flags != flagCommand || !bytes.Contains(body, []byte("PUB")) {
		t.Fatalf("READY: %d %q %v", flags, body, err)
	}
	p.write(t, appendFrame(nil, 0, []byte(subscribe)))
	return p
}

func (p *peer) write(t *testing.T, b []byte) {
	t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

// recv returns sequence number and payload of the next message.
func (p *peer) recv(t *testing.T) (uint64, string) {
	t.Helper()
	var frames []string
	for {
		flags, body, err := readFrame(p.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, string(body))
		if flags&flagMore == 0 {
			break
		}
	}
	if len(frames) != 3 {
		t.Fatalf("%d frames: %q", len(frames), frames)
	}
	return binary.BigEndian.Uint64([]byte(frames[1])), frames[2]
}

func newTestPublisher(t *testing.T, topic string) (p *publisher, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = newPublisher(topic, 0, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		p.accept(ctx, l)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return p, l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// subscriptions lists the prefixes of all subscribers, sorted.
func (p *publisher) subscriptions() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for s := range p.subs {
		s.mu.Lock()
		out = slices.AppendSeq(out, maps.Keys(s.prefixes))
		s.mu.Unlock()
	}
	slices.Sort(out)
	return out
}

// TestTopics wants prefixes to select, both forms of subscribing to work, and numbers to count what nobody listened to.
func TestTopics(t *testing.T) {
	p, addr := newTestPublisher(t, "kv@a")
	expect := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("subscriptions %q", want), func() bool { return slices.Equal(p.subscriptions(), want) })
	}
	p.publish([]byte("nobody"))
	all := newPeer(t, dial(t, addr), "\x01")
	mine := newPeer(t, dial(t, addr), "\x01kv@")
	newPeer(t, dial(t, addr), "\x01other")
	expect("", "kv@", "other")

	all.write(t, appendFrame(nil, flagCommand, []byte("\x04PING\x00\x0actx")))
	if flags, body, err := readFrame(all.r, nil); err != nil || flags != flagCommand || string(body) != "\x04PONGctx" {
		t.Fatalf("answer to PING: %d %q %v", flags, body, err)
	}
	mine.write(t, appendFrame(nil, 0, []byte("\x01kv@"))) // twice, so one cancel leaves one
	mine.write(t, appendFrame(nil, flagCommand, []byte("\x09SUBSCRIBEkv@a")))
	mine.write(t, appendFrame(nil, 0, []byte("\x00kv@")))
	mine.write(t, appendFrame(nil, flagCommand, []byte("\x06CANCELkv@a")))
	mine.write(t, appendFrame(nil, 0, []byte("\x01more")))
	expect("", "kv@", "more", "other")
	p.publish([]byte("first"))
	mine.write(t, appendFrame(nil, 0, []byte("\x00kv@")))
	expect("", "more", "other")
	p.publish([]byte("second"))
	mine.write(t, appendFrame(nil, 0, []byte("\x01kv@a")))
	expect("", "kv@a", "more", "other")
	p.publish([]byte("third"))
	for _, want := range []struct {
		peer    *peer
		seq     uint64
		payload string
	}{{all, 1, "first"}, {all, 2, "second"}, {all, 3, "third"}, {mine, 1, "first"}, {mine, 3, "third"}} {
		if seq, payload := want.peer.recv(t); seq != want.seq || payload != want.payload {
			t.Errorf("got %d %q, want %d %q", seq, payload, want.seq, want.payload)
		}
	}
}

// TestSlowSubscriber wants a subscriber that does not read to miss messages, see a gap, and hold up nobody.
func TestSlowSubscriber(t *testing.T) {
	p, addr := newTestPublisher(t, "")
	p.maxQueued = 1 << 20
	slow := newPeer(t, dial(t, addr), "\x01")
	eventually(t, "subscription", p.wanted)
	payload := bytes.Repeat([]byte("x"), 60<<10)
	var last uint64
	dropped := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for s := range p.subs {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.queued+len(payload) > p.maxQueued
		}
		return false
	}
	// Fill the socket's buffers first, then the queue, then some more.
	eventually(t, "queue is full", func() bool {
		p.publish(payload)
		last++
		return dropped()
	})
	for range 100 {
		p.publish(payload)
		last++
	}
	var prev uint64
	gap := false
	for seen := uint64(0); !gap; seen++ {
		if seen == last {
			break
		}
		p.publish([]byte("end"))
		seq, _ := slow.recv(t)
		if seen > 0 && seq != prev+1 {
			gap = true
		}
		prev = seq
	}
	if !gap {
		t.Errorf("no gap in %d messages", last)
	}
}

// TestHostilePeers wants connections that do not speak the protocol to be closed, without memory made for what they announce.
func TestHostilePeers(t *testing.T) {
	p, addr := newTestPublisher(t, "")
	ready := func(kind string) []byte {
		return appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\x00\x00\x00"+string(rune(len(kind)))+kind))
	}
	curve, old := greeting(), greeting()
	copy(curve[12:], "CURVE")
	old[10] = 1
	for name, bytes := range map[string][]byte{
		"http":            []byte("GET / HTTP/1.1\r\n" + strings.Repeat("x", 64)),
		"old version":     old,
		"other mechanism": curve,
		"other socket":    append(greeting(), ready("PULL")...),
		"no socket type":  append(greeting(), appendFrame(nil, flagCommand, []byte("\x05READY"))...),
		"cut property":    append(greeting(), appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\xff\xff\xff\xffSUB"))...),
		"huge command":    append(greeting(), flagCommand|flagLong, 0, 0, 64, 0, 0, 0, 0, 0),
		"huge frame":      append(append(greeting(), ready("SUB")...), flagLong, 0, 0, 64, 0, 0, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, addr)
			defer conn.Close()
			conn.Write(bytes)
			if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("connection was not closed: %v", err)
			}
		})
	}
	eventually(t, "all gone", func() bool { return p.count() == 0 })
	s := newPeer(t, dial(t, addr), "\x01")
	eventually(t, "subscription", p.wanted)
	p.publish([]byte("still works"))
	if _, payload := s.recv(t); payload != "still works" {
		t.Errorf("got %q", payload)
	}
}

// TestReconnect wants an engine that connects to find a subscriber that comes late, and again after it was away.
func TestReconnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	e := start(t, Options{Events: Events{Connect: "tcp://" + addr}})
	var seq uint64
	for round := range 3 {
		var l net.Listener
		eventually(t, "address is free", func() bool {
			l, err = net.Listen("tcp", addr)
			return err == nil
		})
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		s := newPeer(t, conn, "\x01")
		eventually(t, "subscription", e.ranks[0].pub.wanted)
		e.ranks[0].pub.publish([]byte("hello"))
		if got, _ := s.recv(t); got != seq {
			t.Errorf("round %d: number %d, want %d", round, got, seq)
		}
		seq++
		conn.Close()
		l.Close()
		eventually(t, "subscriber gone", func() bool { return e.ranks[0].pub.count() == 0 })
		e.ranks[0].pub.publish([]byte("lost"))
		seq++
	}
}

// FuzzPeer wants whatever a peer sends to end the connection or be taken, and handshakes to be all or nothing.
func FuzzPeer(f *testing.F) {
	f.Add(append(greeting(), appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"))...))
	f.Add([]byte("\x05READY\x0bSocket-Type\x00\x00\x00\x04XSUB"))
	f.Add(appendFrame(nil, flagLong, []byte("\x01topic")))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &subscriber{wake: make(chan struct{}, 1), prefixes: map[string]int{}}
		if err := s.read(bufio.NewReader(bytes.NewReader(data))); err == nil {
			t.Fatal("read returned without an error")
		}
		if s.queued > len(data)*maxPeerFrame || len(s.prefixes) > maxSubscriptions {
			t.Fatalf("%d bytes queued, %d prefixes", s.queued, len(s.prefixes))
		}
		pubSocket().checkReady(data)
		if len(data) >= greetingLen {
			checkGreeting(data[:greetingLen])
		}
	})
}
