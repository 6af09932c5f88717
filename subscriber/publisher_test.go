package subscriber

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// greeting returns the greeting of a ZMTP 3.0 peer with mechanism NULL.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	return g
}

// frame returns one frame; the long form is used when it must be.
func frame(flags byte, body string) []byte {
	if len(body) > 255 {
		return append(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body))), body...)
	}
	return append([]byte{flags, byte(len(body))}, body...)
}

// property returns one property of a READY command.
func property(name, value string) string {
	return string(append(binary.BigEndian.AppendUint32(append([]byte{byte(len(name))}, name...), uint32(len(value))), value...))
}

// ready returns a READY command with the given properties.
func ready(properties ...string) []byte {
	return frame(flagCommand, "\x05READY"+strings.Join(properties, ""))
}

func publisherReady() []byte { return ready(property("Socket-Type", "PUB"), property("Identity", "")) }

// message returns the frames of one message.
func message(frames ...string) []byte {
	var out []byte
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		out = append(out, frame(flags, f)...)
	}
	return out
}

// live returns a live message as engines send it.
func live(seq uint64, payload string) []byte {
	return message("kv-events", string(binary.BigEndian.AppendUint64(nil, seq)), payload)
}

func concat(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// publisher is the engine's end of a connection, in bytes, so that a test can misbehave at any point.
type publisher struct {
	t    testing.TB
	conn net.Conn
}

// dialPublisher connects to a Subscriber that listens.
func dialPublisher(t testing.TB, s *Subscriber) *publisher {
	t.Helper()
	eventually(t, "listening", func() bool { return s.Addr() != "" })
	c, err := net.Dial("tcp", strings.TrimPrefix(s.Addr(), "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &publisher{t: t, conn: c}
}

func (p *publisher) write(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

func (p *publisher) read(n int) []byte {
	p.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(p.conn, b); err != nil {
		p.t.Fatalf("read %d bytes: %v", n, err)
	}
	return b
}

// readFrame reads one short frame and returns its flags and body.
func (p *publisher) readFrame() (byte, string) {
	p.t.Helper()
	h := p.read(shortHeader)
	return h[0], string(p.read(int(h[1])))
}

// handshake does a publisher's handshake and returns the topic subscribed to.
func (p *publisher) handshake() string {
	p.t.Helper()
	written := make(chan error, 1)
	go func() {
		_, err := p.conn.Write(concat(greeting(), publisherReady()))
		written <- err
	}()
	p.read(greetingSize)
	if flags, body := p.readFrame(); flags != flagCommand || !strings.HasPrefix(body, "\x05READY") {
		p.t.Fatalf("handshake: got frame %x %q", flags, body)
	}
	flags, body := p.readFrame()
	if flags != 0 || !strings.HasPrefix(body, "\x01") {
		p.t.Fatalf("subscription: got frame %x %q", flags, body)
	}
	if err := <-written; err != nil {
		p.t.Fatal(err)
	}
	return body[1:]
}

// closed waits until the subscriber has closed the connection.
func (p *publisher) closed() {
	p.t.Helper()
	if err := p.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, p.conn)
	if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
		p.t.Fatal("connection is still open")
	}
}

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s: not so after %v", what, patience)
		}
	}
}

func diff(t testing.TB, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}
