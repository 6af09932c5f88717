package subscriber

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// smallLimits make every cap reachable with short streams.
func smallLimits() Limits {
	return Limits{Message: 600, Frame: 400, Frames: 4, Command: 300, Buffered: 1 << 30}.withDefaults()
}

// slowGuard says how much of a whole stream a guard lets pass and which rule the stream breaks, one rule after the
// other as they are written down, with the whole stream in view.
func slowGuard(stream []byte, as role, l Limits) (passed int, v violation) {
	g := stream[:min(64, len(stream))]
	for i, b := range g {
		switch {
		case i == 0 && b != 0xff, i == 9 && b != 0x7f, i == 10 && b < 3, i == 32 && b > 1:
			return 0, badGreeting
		case i >= 12 && i < 32 && b != ("NULL" + strings.Repeat("\x00", 16))[i-12] && len(g) >= 32:
			return 0, badGreeting
		}
	}
	if len(g) < 64 {
		return 0, ""
	}
	passed = 64
	var frames, size uint64
	more := false
	for handshake := true; ; handshake = false {
		p := stream[passed:]
		if len(p) == 0 {
			return passed, ""
		}
		command := p[0]&4 != 0
		if handshake && (p[0] != 4 && p[0] != 6) {
			return passed, badReady
		}
		if p[0] > 7 || command && p[0]&1 != 0 {
			return passed, badFlags
		}
		if command && more {
			return passed, strayCommand
		}
		var body uint64
		header := 2
		if p[0]&2 != 0 {
			header = 9
		}
		if len(p) < header {
			return passed, ""
		}
		for _, b := range p[1:header] {
			body = body<<8 | uint64(b)
		}
		if !more {
			frames, size = 0, 0
		}
		if command {
			if body > uint64(l.Command) {
				return passed, bigCommand
			}
		} else {
			frames++
			if body > uint64(l.Frame) {
				return passed, bigFrame
			}
			if size += body; size > uint64(l.Message) {
				return passed, bigMessage
			}
			if frames > uint64(l.Frames) {
				return passed, manyFrames
			}
		}
		more = p[0]&1 != 0
		if handshake {
			if uint64(len(p)-header) < body {
				return passed, ""
			}
			if v := slowReady(p[header:header+int(body)], as); v != "" {
				return passed, v
			}
		}
		if uint64(len(p)-header) < body {
			return len(stream), ""
		}
		passed += header + int(body)
	}
}

func slowReady(body []byte, as role) violation {
	r := bytes.NewReader(body)
	take := func(n uint32) (string, bool) {
		if uint64(n) > uint64(r.Len()) {
			return "", false
		}
		b := make([]byte, n)
		_, err := io.ReadFull(r, b)
		return string(b), err == nil
	}
	if name, ok := take(6); !ok || name != "\x05READY" {
		return badReady
	}
	types := 0
	value := ""
	for r.Len() > 0 {
		n, _ := r.ReadByte()
		key, ok := take(uint32(n))
		if !ok || key == "" {
			return badReady
		}
		var size uint32
		if binary.Read(r, binary.BigEndian, &size) != nil {
			return badReady
		}
		v, ok := take(size)
		if !ok || strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.+") != "" {
			return badReady
		}
		if strings.EqualFold(key, "socket-type") {
			if types++; types > 1 || key != "Socket-Type" || v == "" {
				return badReady
			}
			value = v
		}
	}
	switch {
	case as == asker && value != "ROUTER":
		return notRouter
	case as == listens && value != "PUB" && value != "XPUB":
		return notPublisher
	}
	return ""
}

// chunks is a net.Conn whose stream arrives in pieces of the given sizes, repeated, and then ends.
type chunks struct {
	stream []byte
	sizes  []byte
	turn   int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.stream) == 0 {
		return 0, io.EOF
	}
	n := len(c.stream)
	if len(c.sizes) > 0 {
		n = min(n, 1+int(c.sizes[c.turn%len(c.sizes)]))
		c.turn++
	}
	n = copy(p, c.stream[:n])
	c.stream = c.stream[n:]
	return n, nil
}

func (c *chunks) Write(p []byte) (int, error)      { return len(p), nil }
func (c *chunks) Close() error                     { return nil }
func (c *chunks) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *chunks) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *chunks) SetDeadline(time.Time) error      { return nil }
func (c *chunks) SetReadDeadline(time.Time) error  { return nil }
func (c *chunks) SetWriteDeadline(time.Time) error { return nil }

// through sends a stream through a guarded connection, read in pieces of the given size, and returns what comes out.
func through(stream, sizes []byte, as role, read int, l Limits) ([]byte, violation) {
	c := newConn(&chunks{stream: stream, sizes: sizes}, as, l)
	var out []byte
	p := make([]byte, read)
	for {
		n, err := c.Read(p)
		out = append(out, p[:n]...)
		if err != nil {
			var v violation
			errors.As(err, &v)
			return out, v
		}
	}
}

func TestGuard(t *testing.T) {
	hello := concat(greeting(), publisherReady())
	greet := func(at int, b byte) []byte {
		g := greeting()
		g[at] = b
		return g
	}
	tests := []struct {
		name   string
		stream []byte
		passed int // -1: all
		want   violation
	}{
		{"nothing", nil, 0, ""},
		{"handshake", hello, -1, ""},
		{"messages", concat(hello, live(0, "a"), live(1, strings.Repeat("b", 300)), live(2, "")), -1, ""},
		{"as many frames as allowed", concat(hello, message("1", "2", "3", "4"), message("1")), -1, ""},
		{"a message as large as allowed", concat(hello, message(strings.Repeat("a", 400), strings.Repeat("b", 200))), -1, ""},
		{"long form of a short frame", concat(hello, []byte{flagLong, 0, 0, 0, 0, 0, 0, 0, 1, 'x'}), -1, ""},
		{"newer minor version", concat(greet(11, 1), publisherReady()), -1, ""},
		{"XPUB", concat(greeting(), ready(property("Socket-Type", "XPUB"))), -1, ""},
		{"commands between messages", concat(hello, frame(flagCommand, "\x04PING\x00\x01"), live(0, "a")), -1, ""},
		{"half a header", concat(hello, []byte{flagLong, 0, 0}), len(hello), ""},
		{"half a body", concat(hello, live(0, "abc")[:20]), -1, ""},

		{"another protocol", []byte("GET / HTTP/1.1\r\n"), 0, badGreeting},
		{"ZMTP 2", []byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1}, 0, badGreeting},
		{"no footer", greet(9, 0), 0, badGreeting},
		{"mechanism PLAIN", concat(greet(12, 'P')), 0, badGreeting},
		{"mechanism NULLX", greet(16, 'X'), 0, badGreeting},
		{"as-server 2", greet(32, 2), 0, badGreeting},
		{"message instead of READY", concat(greeting(), live(0, "a")), 64, badReady},
		{"ERROR instead of READY", concat(greeting(), frame(flagCommand, "\x05ERROR\x00")), 64, badReady},
		{"READY goes on", concat(greeting(), []byte{flagCommand | flagMore}), 64, badReady},
		{"huge READY", concat(greeting(), ready(property("Socket-Type", "PUB"), property("X-a", strings.Repeat("a", 300)))), 64, bigCommand},
		{"READY announces 2^46 bytes", concat(greeting(), []byte{flagCommand | flagLong, 0, 0, 0x40, 0, 0, 0, 0, 0}), 64, bigCommand},
		{"READY without a type", concat(greeting(), ready()), 64, notPublisher},
		{"READY of a SUB", concat(greeting(), ready(property("Socket-Type", "SUB"))), 64, notPublisher},
		{"READY of an unknown type", concat(greeting(), ready(property("Socket-Type", "NOSUCH"))), 64, notPublisher},
		{"type in other letters", concat(greeting(), ready(property("socket-type", "PUB"))), 64, badReady},
		{"two types", concat(greeting(), ready(property("Socket-Type", "PUB"), property("socket-type", "X"))), 64, badReady},
		{"property without a name", concat(greeting(), ready(property("", "PUB"))), 64, badReady},
		{"property name past the end", concat(greeting(), ready("\xffabc")), 64, badReady},
		{"property value past the end", concat(greeting(), ready("\x01a\xff\xff\xff\xff")), 64, badReady},
		{"property name not ASCII", concat(greeting(), ready(property("Ä", ""), property("Socket-Type", "PUB"))), 64, badReady},
		{"frame of 2^46 bytes", concat(hello, []byte{flagLong, 0, 0, 0x40, 0, 0, 0, 0, 0}), len(hello), bigFrame},
		{"frame of 2^64-1 bytes", concat(hello, []byte{flagLong, 255, 255, 255, 255, 255, 255, 255, 255}), len(hello), bigFrame},
		{"frame one too large", concat(hello, frame(0, strings.Repeat("a", 401))), len(hello), bigFrame},
		{"message one too large", concat(hello, message(strings.Repeat("a", 400), strings.Repeat("b", 201))), len(hello) + 409, bigMessage},
		{"one frame too many", concat(hello, message("", "", "", "", "")), len(hello) + 8, manyFrames},
		{"reserved flag", concat(hello, []byte{0x08}), len(hello), badFlags},
		{"command that goes on", concat(hello, []byte{flagCommand | flagMore}), len(hello), badFlags},
		{"command in a message", concat(hello, frame(flagMore, "a"), frame(flagCommand, "\x04PING")), len(hello) + 3, strayCommand},
		{"command too large", concat(hello, frame(flagCommand, strings.Repeat("a", 301))), len(hello), bigCommand},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := tt.stream
			if tt.passed >= 0 {
				want = tt.stream[:tt.passed]
			}
			for _, sizes := range [][]byte{nil, {0}, {2, 0, 7}} {
				got, v := through(tt.stream, sizes, listens, 64, smallLimits())
				if !bytes.Equal(got, want) || v != tt.want {
					t.Errorf("chunks %v: passed %d bytes, violation %q, want %d, %q", sizes, len(got), v, len(want), tt.want)
				}
			}
			if n, v := slowGuard(tt.stream, listens, smallLimits()); n != len(want) || v != tt.want {
				t.Errorf("slow guard: passed %d bytes, violation %q, want %d, %q", n, v, len(want), tt.want)
			}
		})
	}
}

// FuzzFrame checks that a guarded connection hands out what the slow guard lets pass, whatever the pieces in which the bytes
// arrive and are asked for: lawful streams unchanged, nothing of a frame above a cap; of a PUB and of a ROUTER.
func FuzzFrame(f *testing.F) {
	hello := concat(greeting(), publisherReady())
	for _, s := range [][]byte{
		nil, hello,
		concat(hello, live(0, "payload"), live(1, strings.Repeat("b", 300)), frame(flagCommand, "\x04PING\x00\x00")),
		concat(hello, []byte{flagLong, 0, 0, 0x40, 0, 0, 0, 0, 0}),
		concat(hello, message("", "", "", "", "", "")),
		concat(hello, message(strings.Repeat("a", 390), strings.Repeat("a", 390))),
		concat(greeting(), ready(property("Socket-Type", "SUB"))),
		[]byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		f.Add(s, []byte{3, 0, 60}, byte(7), false, false)
		f.Add(s, []byte(nil), byte(255), true, false)
		f.Add(s, []byte(nil), byte(9), true, true)
	}
	number := func(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }
	f.Add(concat(message("", number(3), "a"), message("", "kv", number(4), "b"), message("", "", number(endOfReplay), "")), []byte(nil), byte(90), true, true)
	f.Fuzz(func(t *testing.T, stream, sizes []byte, read byte, greeted, replay bool) {
		as, hello := listens, concat(greeting(), publisherReady())
		if replay {
			as, hello = asker, concat(greeting(), ready(property("Socket-Type", "ROUTER")))
		}
		if greeted {
			stream = concat(hello, stream)
		}
		l := smallLimits()
		n, want := slowGuard(stream, as, l)
		got, v := through(stream, sizes, as, 1+int(read), l)
		if !bytes.Equal(got, stream[:n]) || v != want {
			t.Fatalf("passed %d bytes, violation %q, want %d, %q", len(got), v, n, want)
		}
		if greeted && len(got) > len(hello) {
			checkMessages(t, got[len(hello):])
		}
	})
}

// checkMessages reads the messages that passed, live ones or replies.
func checkMessages(t *testing.T, p []byte) {
	var frames [][]byte
	for len(p) > 0 {
		header, size := shortHeader, uint64(0)
		if p[0]&flagLong != 0 {
			header = longHeader
		}
		if len(p) < header {
			return
		}
		for _, b := range p[1:header] {
			size = size<<8 | uint64(b)
		}
		if uint64(len(p)-header) < size {
			return
		}
		flags, body := p[0], p[header:header+int(size)]
		p = p[header+int(size):]
		if flags&flagCommand != 0 {
			_, _ = pong(body)
			continue
		}
		if frames = append(frames, body); flags&flagMore != 0 {
			continue
		}
		seq, payload, err := parseReply(frames)
		whole := len(frames) > 1 && len(frames[len(frames)-2]) == 8
		if (err == nil) != whole || whole && (!bytes.Equal(payload, body) || seq != binary.BigEndian.Uint64(frames[len(frames)-2])) {
			t.Fatalf("%d frames: batch %d, %v", len(frames), seq, err)
		}
		if _, _, err := parseMessage(frames); (err == nil) != (whole && seq != endOfReplay) {
			t.Fatalf("%d frames, batch %d: %v", len(frames), seq, err)
		}
		frames = nil
	}
}

func TestParseMessage(t *testing.T) {
	seq := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	tests := []struct {
		name    string
		frames  [][]byte
		seq     uint64
		payload string
		bad     bool
	}{
		{name: "topic, sequence, payload", frames: [][]byte{[]byte("kv"), seq(7), []byte("p")}, seq: 7, payload: "p"},
		{name: "empty topic", frames: [][]byte{{}, seq(1 << 40), []byte("p")}, seq: 1 << 40, payload: "p"},
		{name: "no topic", frames: [][]byte{seq(0), []byte("p")}, payload: "p"},
		{name: "frames in front", frames: [][]byte{{}, {}, []byte("kv"), seq(3), []byte("p")}, seq: 3, payload: "p"},
		{name: "empty payload", frames: [][]byte{[]byte("kv"), seq(3), {}}, seq: 3},
		{name: "no frames", bad: true},
		{name: "payload alone", frames: [][]byte{[]byte("p")}, bad: true},
		{name: "sequence of 4 bytes", frames: [][]byte{[]byte("kv"), {0, 0, 0, 1}, []byte("p")}, bad: true},
		{name: "frames behind", frames: [][]byte{[]byte("kv"), seq(3), []byte("p"), {}}, bad: true},
		{name: "end of a replay", frames: [][]byte{{}, seq(endOfReplay), {}}, bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seq, payload, err := parseMessage(tt.frames)
			if seq != tt.seq || string(payload) != tt.payload || (err != nil) != tt.bad {
				t.Errorf("got %d, %q, %v", seq, payload, err)
			}
		})
	}
}

func TestPong(t *testing.T) {
	tests := []struct{ name, command, want string }{
		{"without context", "\x04PING\x00\x0a", "\x04\x05\x04PONG"},
		{"with context", "\x04PING\x00\x0aabc", "\x04\x08\x04PONGabc"},
		{"no time to live", "\x04PING\x00", ""},
		{"context too long", "\x04PING\x00\x00" + strings.Repeat("a", 17), ""},
		{"another command", "\x04PONG\x00\x00", ""},
		{"empty", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := pong([]byte(tt.command))
			if string(got) != tt.want || ok != (tt.want != "") {
				t.Errorf("got %q, %v, want %q", got, ok, tt.want)
			}
		})
	}
}

// TestWorkedExample reads the bytes of the package documentation.
func TestWorkedExample(t *testing.T) {
	b, err := hex.DecodeString("01096b762d6576656e7473" + "01080000000000000054" + "0065" +
		"93cb41dac3114654b0d49184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c420f097cb98f9026b9f94f9e4f8c9" +
		"1571156f39e6d707ce329f6efb199182eefe7da66d656469756da3475055a967726f75705f6964780000")
	if err != nil {
		t.Fatal(err)
	}
	out, v := through(concat(greeting(), publisherReady(), b), nil, listens, 4096, Limits{}.withDefaults())
	if v != "" || !bytes.HasSuffix(out, b) {
		t.Fatalf("violation %q", v)
	}
	payload := b[len(b)-101:]
	f := newFold(foldOptions{pool: "chat", sink: noSink{}})
	st, err := f.fold(payload, time.Time{})
	if err != nil || st.events[eventRemoved] != 1 {
		t.Errorf("got %+v, %v", st, err)
	}
	diff(t, "time", "1795966233.32", fmt.Sprintf("%.2f", float64(st.published.UnixMicro())/1e6))
}
