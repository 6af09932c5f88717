package enginesim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// dealer is a peer of the replay socket whose every byte the test decides.
type dealer struct{ peer }

func newDealer(t *testing.T, addr, kind string) *dealer {
	t.Helper()
	conn := dial(t, addr)
	t.Cleanup(func() { conn.Close() })
	d := &dealer{peer{conn, bufio.NewReader(conn)}}
	d.write(t, greeting())
	d.write(t, socket{name: kind}.ready())
	if _, err := io.ReadFull(d.r, make([]byte, greetingLen)); err != nil {
		t.Fatal(err)
	}
	if flags, body, err := readFrame(d.r, nil); err != nil || flags != flagCommand || !bytes.Contains(body, []byte("ROUTER")) {
		t.Fatalf("READY: %d %q %v", flags, body, err)
	}
	return d
}

func (d *dealer) send(t *testing.T, frames ...[]byte) {
	t.Helper()
	var b []byte
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, f)
	}
	d.write(t, b)
}

// message returns the frames of the next message in hex.
func (d *dealer) message(t *testing.T) []string {
	t.Helper()
	var frames []string
	for {
		flags, body, err := readFrame(d.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, hex.EncodeToString(body))
		if flags&flagMore == 0 {
			return frames
		}
	}
}

// replay asks for the batches from number from on and returns the messages with the end.
func (d *dealer) replay(t *testing.T, from uint64) [][]string {
	t.Helper()
	d.send(t, nil, binary.BigEndian.AppendUint64(nil, from))
	return d.answer(t)
}

func (d *dealer) answer(t *testing.T) (all [][]string) {
	t.Helper()
	for {
		m := d.message(t)
		all = append(all, m)
		if m[len(m)-2] == "ffffffffffffffff" {
			return all
		}
	}
}

// numbers are the batches in a replay; it must have an end.
func numbers(t *testing.T, messages [][]string) (seqs []uint64) {
	t.Helper()
	for _, m := range messages[:len(messages)-1] {
		b, err := hex.DecodeString(m[len(m)-2])
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, binary.BigEndian.Uint64(b))
	}
	return seqs
}

func newTestReplayer(t *testing.T, topic string, buffer int, f Format, limit int) (p *publisher, addr string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	p = newPublisher(topic, buffer, log)
	r := newReplayer(p, f, limit, log)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.accept(ctx, l) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return p, l.Addr().String()
}

// TestRecordedReplays asks for what was asked of real engines that had published the same batches, and wants the same frames.
func TestRecordedReplays(t *testing.T) {
	type reply struct{ Frames []string }
	for _, tc := range []struct {
		file   string
		format Format
		buffer int
	}{
		{"replay-0.32.0/20_replay.json", Map, 10_000},
		{"replay-0.32.0/38_replay_buffer_overflow.json", Map, 5},
		{"replay-0.23.0/20_replay.json", Array, 10_000},
	} {
		t.Run(tc.file, func(t *testing.T) {
			data, err := os.ReadFile("testdata/" + tc.file)
			if err != nil {
				t.Fatal(err)
			}
			var rec struct {
				Newest  uint64 `json:"newest_seq"`
				Replays map[string]struct {
					Sent    []string
					Replies []json.RawMessage
				}
			}
			if err := json.Unmarshal(data, &rec); err != nil {
				t.Fatal(err)
			}
			replies := make(map[string][][]string)
			for name, r := range rec.Replays {
				for _, raw := range r.Replies {
					var m reply
					if raw[0] == '[' {
						err = json.Unmarshal(raw, &m.Frames)
					} else {
						err = json.Unmarshal(raw, &m)
					}
					if err != nil {
						t.Fatal(err)
					}
					replies[name] = append(replies[name], m.Frames)
				}
			}
			all := replies["from_0"][:len(replies["from_0"])-1]
			topic := ""
			if tc.format == Map {
				b, err := hex.DecodeString(all[0][1])
				if err != nil {
					t.Fatal(err)
				}
				topic = string(b)
			}
			p, addr := newTestReplayer(t, topic, tc.buffer, tc.format, 1000)
			for range rec.Newest + 1 - uint64(len(all)) {
				p.publish([]byte("no longer kept"))
			}
			for _, m := range all {
				payload, err := hex.DecodeString(m[len(m)-1])
				if err != nil {
					t.Fatal(err)
				}
				p.publish(payload)
			}
			for name, r := range rec.Replays {
				t.Run(name, func(t *testing.T) {
					var sent [][]byte
					kind := "DEALER"
					if name == "req_socket" {
						kind, sent = "REQ", [][]byte{nil}
					}
					for _, f := range r.Sent {
						b, err := hex.DecodeString(f)
						if err != nil {
							t.Fatal(err)
						}
						sent = append(sent, b)
					}
					d := newDealer(t, addr, kind)
					d.send(t, sent...)
					var got [][]string
					switch {
					case kind == "REQ": // which takes the first reply only, and the empty frame off it
						got = [][]string{d.message(t)[1:]}
					case len(r.Replies) == 0: // the next request is answered, this one is not
						if next := d.replay(t, rec.Newest+1); len(next) != 1 {
							t.Errorf("%d messages, want the end alone", len(next))
						}
					default:
						got = d.answer(t)
					}
					if diff := cmp.Diff(replies[name], got); diff != "" {
						t.Errorf("replies (-want +got):\n%s", diff)
					}
				})
			}
		})
	}
}

// TestReplayLimit wants long replays to miss batches in their middle, and each to be had by asking again from the hole.
func TestReplayLimit(t *testing.T) {
	const limit, total = 100, 500
	p, addr := newTestReplayer(t, "", total, Map, limit)
	for i := range total {
		p.publish(fmt.Appendf(nil, "%d", i))
	}
	d := newDealer(t, addr, "DEALER")
	for _, tc := range []struct {
		from, hole uint64 // the first missing number; total for none
	}{{0, 100}, {100, 200}, {350, 450}, {398, 498}, {399, 499}, {400, total}, {499, total}, {500, total}, {900, total}} {
		got := numbers(t, d.replay(t, tc.from))
		var want []uint64
		for seq := tc.from; seq < total; seq++ {
			if tc.hole == total || seq < tc.hole || seq >= tc.hole+dropped || seq == total-1 {
				want = append(want, seq)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("from %d (-want +got):\n%s", tc.from, diff)
		}
	}
}

func TestNumber(t *testing.T) {
	for text, want := range map[string]uint64{
		"": 0, "1f": 31, "0000001f": 31, "000000000000000000001f": 31, "ffffffffffffffff": endOfReplay,
		"010000000000000000": endOfReplay, "8000000000000000": 1 << 63,
	} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := number(b); got != want {
			t.Errorf("number(%s) = %d, want %d", text, got, want)
		}
	}
}

// TestHostileReplayPeers wants what does not speak the protocol to be closed, and others to be served meanwhile.
func TestHostileReplayPeers(t *testing.T) {
	p, addr := newTestReplayer(t, "t", 10, Map, 0)
	p.publish([]byte("a"))
	stuck := newDealer(t, addr, "DEALER") // asks and never reads
	for range 200 {
		stuck.send(t, nil, make([]byte, 8))
	}
	dealer := append(greeting(), socket{name: "DEALER"}.ready()...)
	for name, sent := range map[string][]byte{
		"http":       []byte("GET / HTTP/1.1\r\n" + strings.Repeat("x", 64)),
		"subscriber": append(greeting(), socket{name: "SUB"}.ready()...),
		"huge frame": append(slices.Clone(dealer), flagLong, 0, 0, 64, 0, 0, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, addr)
			defer conn.Close()
			conn.Write(sent)
			if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("connection was not closed: %v", err)
			}
		})
	}
	d := newDealer(t, addr, "DEALER")
	d.send(t, bytes.Split(bytes.Repeat([]byte("x"), 1000), nil)...) // a message of 1,000 frames
	d.write(t, appendFrame(nil, flagCommand, []byte("\x04PING\x00\x00ctx")))
	if pong := d.message(t); pong[0] != hex.EncodeToString([]byte("\x04PONGctx")) {
		t.Errorf("PONG %q", pong)
	}
	if got := numbers(t, d.replay(t, 0)); !slices.Equal(got, []uint64{0}) {
		t.Errorf("numbers %v", got)
	}
}

// TestLostBatches wants lost batches to leave a gap for subscribers, in the middle and at the end, that a replay fills; and cut
// connections to be taken again.
func TestLostBatches(t *testing.T) {
	e := start(t, Options{Events: Events{Bind: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Topic: "kv"}})
	c := newClient(t)
	next := 0
	publish := func(n int) {
		for range n {
			postJSON(t, c, e, "/v1/completions", fmt.Sprintf(`{"max_tokens":1,"prompt":%s}`, tokenList(32, next)))
			next++
		}
	}
	pub := e.ranks[0].pub
	s := newPeer(t, dial(t, e.EventsAddr()), "\x01")
	eventually(t, "subscription", pub.wanted)
	recv := func(want ...uint64) {
		t.Helper()
		for _, w := range want {
			if seq, _ := s.recv(t); seq != w {
				t.Errorf("number %d, want %d", seq, w)
			}
		}
	}
	publish(2)
	e.LoseBatches(0, 3)
	publish(4)
	recv(0, 1, 5)
	e.LoseBatches(0, 2)
	publish(2)
	d := newDealer(t, e.ReplayAddr(), "DEALER")
	if got := numbers(t, d.replay(t, 0)); !slices.Equal(got, []uint64{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("replayed %v", got)
	}
	e.CutConnections(0)
	for name, conn := range map[string]net.Conn{"event": s.conn, "replay": d.conn} {
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s connection was not cut: %v", name, err)
		}
	}
	s = newPeer(t, dial(t, e.EventsAddr()), "\x01")
	eventually(t, "subscription", pub.wanted)
	publish(1)
	recv(8)
	if got := numbers(t, newDealer(t, e.ReplayAddr(), "DEALER").replay(t, 8)); !slices.Equal(got, []uint64{8}) {
		t.Errorf("replayed %v", got)
	}
}

// FuzzReplayRequest wants whatever a peer sends to be a message of few frames or the end of the connection.
func FuzzReplayRequest(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, flagMore, nil), 0, make([]byte, 8)))
	f.Add(appendFrame(nil, flagCommand, []byte("\x04PING\x00\x00ctx")))
	f.Add(append([]byte{flagLong}, bytes.Repeat([]byte{0xff}, 9)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bufio.NewReader(bytes.NewReader(data))
		for {
			frames, err := readRequest(in, discardConn{})
			if err != nil {
				return
			}
			if len(frames) == 0 || len(frames) > maxRequestFrames {
				t.Fatalf("%d frames", len(frames))
			}
			for _, b := range frames {
				number(b)
			}
		}
	})
}

// discardConn takes what is written.
type discardConn struct{ net.Conn }

func (discardConn) Write(b []byte) (int, error) { return len(b), nil }
