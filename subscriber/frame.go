package subscriber

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
)

// violation names the rule of the guard that a peer broke. The set is closed: it is the reason label of
// kvsteer_subscriber_refused_connections_total.
type violation string

const (
	badGreeting   violation = "greeting"          // not a ZMTP 3 greeting with mechanism NULL
	badReady      violation = "ready"             // the command after it is not a well-formed READY
	notPublisher  violation = "not_publisher"     // READY names another socket type than PUB or XPUB
	notRouter     violation = "not_router"        // READY of a replay socket names another socket type than ROUTER
	badFlags      violation = "flags"             // reserved bits, or a command that claims to go on
	bigCommand    violation = "command_size"      // above Limits.Command
	strayCommand  violation = "command_order"     // a command between the frames of one message
	bigFrame      violation = "frame_size"        // above Limits.Frame
	bigMessage    violation = "message_size"      // above Limits.Message
	manyFrames    violation = "frame_count"       // above Limits.Frames
	slowHandshake violation = "handshake_timeout" // greeting and READY not complete within Limits.Handshake
	stalledPeer   violation = "stalled"           // a message not complete within Limits.Stall
	tooManyPeers  violation = "pending"           // pushed out by newer connections before its handshake was complete
	secondPeer    violation = "second_peer"       // beside a publisher that took over a moment ago
)

// violations lists the closed set, for series that start at zero.
func violations() []violation {
	return []violation{
		badGreeting, badReady, notPublisher, notRouter, badFlags, bigCommand, strayCommand, bigFrame, bigMessage, manyFrames,
		slowHandshake, stalledPeer, tooManyPeers, secondPeer,
	}
}

// Error implements error.
func (v violation) Error() string { return "connection refused: " + string(v) }

// Sizes and bits of ZMTP 3.0 (rfc.zeromq.org/spec/23).
const (
	greetingSize = 64
	shortHeader  = 2 // flags, 1 byte of length
	longHeader   = 9 // flags, 8 bytes of length, big-endian

	flagMore     = 0x01
	flagLong     = 0x02
	flagCommand  = 0x04
	flagReserved = 0xf8 // "Bits 7-3: reserved … MUST be zero"
)

// guard follows the byte stream of one ZMTP 3.0 peer and says which bytes may reach the ZMTP implementation, which
// allocates whatever a frame header announces and panics on some malformed handshakes. It holds back a greeting, a READY
// command and every frame header until it is complete and lawful; bodies flow through.
//
// It is a pure core: bytes in, verdict out. After a violation it must not be used again.
type guard struct {
	limits Limits
	role   role

	phase phase
	body  int  // bytes of the current frame's body that have not passed yet
	more  bool // the current message has further frames
	// frames and size count the frames of the current message whose headers have passed, and their bodies' bytes.
	frames, size int
	// units counts the messages and commands begun, so that a deadline can be tied to one of them.
	units int
}

type phase uint8

const (
	inGreeting phase = iota
	inReady
	inTraffic
)

// pass examines p, the bytes of the stream that have not passed yet, and returns how many of them may go on, at most to the
// end of one frame. alloc is the body size of the frame whose header is among them, -1 when there is none. n = 0 without an
// error asks for more bytes: never more than greetingSize or longHeader+Limits.Command.
func (g *guard) pass(p []byte) (n, alloc int, err error) {
	switch {
	case g.phase == inGreeting:
		n, err = passGreeting(p)
		if n > 0 {
			g.phase = inReady
		}
		return n, -1, err
	case g.phase == inTraffic && g.body > 0:
		n = min(g.body, len(p))
		g.body -= n
		return n, -1, nil
	}
	h, err := g.header(p)
	if err != nil || h.length == 0 {
		return 0, -1, err
	}
	if g.phase == inReady {
		if len(p) < h.length+h.body {
			return 0, -1, nil
		}
		if err := checkReady(p[h.length:h.length+h.body], g.role); err != nil {
			return 0, -1, err
		}
		g.phase = inTraffic
		return h.length + h.body, -1, nil
	}
	g.begin(h)
	n = min(h.length+h.body, len(p))
	g.body = h.length + h.body - n
	return n, h.body, nil
}

// skip records that n bytes of the current body went past the guard directly.
func (g *guard) skip(n int) { g.body -= n }

// begin records the frame whose header has passed.
func (g *guard) begin(h header) {
	if !g.more {
		g.units++
		g.frames, g.size = 0, 0
	}
	g.frames++
	g.size += h.body
	g.more = h.flags&flagMore != 0
}

// open reports whether a message or command has begun and is not complete.
func (g *guard) open() bool { return g.body > 0 || g.more }

type header struct {
	flags  byte
	length int // of the header itself; 0 while it is incomplete
	body   int
}

// header reads and judges the frame header at the start of p.
func (g *guard) header(p []byte) (header, error) {
	if len(p) == 0 {
		return header{}, nil
	}
	flags := p[0]
	command := flags&flagCommand != 0
	switch {
	case g.phase == inReady && flags&^flagLong != flagCommand:
		return header{}, badReady
	case flags&flagReserved != 0, command && flags&flagMore != 0:
		return header{}, badFlags
	case command && g.more:
		return header{}, strayCommand
	}
	length, body := shortHeader, uint64(0)
	switch {
	case flags&flagLong == 0 && len(p) >= shortHeader:
		body = uint64(p[1])
	case flags&flagLong != 0 && len(p) >= longHeader:
		length, body = longHeader, binary.BigEndian.Uint64(p[1:longHeader])
	default:
		return header{}, nil
	}
	frames, size := 1, body
	if g.more {
		frames, size = g.frames+1, uint64(g.size)+body // no overflow: the frame's own size is judged first
	}
	switch {
	case command && body > uint64(g.limits.Command):
		return header{}, bigCommand
	case command:
	case body > uint64(g.limits.Frame):
		return header{}, bigFrame
	case size > uint64(g.limits.Message):
		return header{}, bigMessage
	case frames > g.limits.Frames:
		return header{}, manyFrames
	}
	return header{flags: flags, length: length, body: int(body)}, nil
}

// passGreeting judges a greeting as early as its bytes allow: a peer that speaks another protocol is often shorter than a
// greeting and then waits.
//
//	signature FF 8×any 7F | version major minor | mechanism 20 bytes, zero-padded | as-server 00 or 01 | filler 31
func passGreeting(p []byte) (int, error) {
	p = p[:min(len(p), greetingSize)]
	mechanism := [20]byte{'N', 'U', 'L', 'L'}
	switch {
	case len(p) > 0 && p[0] != 0xff,
		len(p) > 9 && p[9] != 0x7f,
		len(p) > 10 && p[10] < 3,
		len(p) >= 32 && !bytes.Equal(p[12:32], mechanism[:]),
		len(p) > 32 && p[32] > 1:
		return 0, badGreeting
	case len(p) < greetingSize:
		return 0, nil
	}
	return greetingSize, nil
}

// checkReady judges the body of the handshake command.
//
//	05 "READY" then properties: name length 1 byte, name, value length 4 bytes big-endian, value
//
// The socket type must be spelt "Socket-Type", as every implementation does, and occur once: zmq4 folds some spellings
// into one and panics on a type that it does not know.
func checkReady(body []byte, as role) error {
	const name = "\x05READY"
	if !bytes.HasPrefix(body, []byte(name)) {
		return badReady
	}
	socket := ""
	for p := body[len(name):]; len(p) > 0; {
		n := int(p[0])
		if n == 0 || len(p) < 1+n+4 {
			return badReady
		}
		key := string(p[1 : 1+n])
		size := uint64(binary.BigEndian.Uint32(p[1+n:]))
		p = p[1+n+4:]
		if size > uint64(len(p)) || !propertyName(key) {
			return badReady
		}
		if strings.EqualFold(key, "Socket-Type") {
			if key != "Socket-Type" || socket != "" || size == 0 {
				return badReady
			}
			socket = string(p[:size])
		}
		p = p[size:]
	}
	switch {
	case as == asker && socket != "ROUTER":
		return notRouter
	case as == listens && socket != "PUB" && socket != "XPUB":
		return notPublisher
	}
	return nil
}

// role says what we are to a peer, which decides on the socket type that the peer must have.
type role uint8

const (
	listens role = iota // SUB, of a PUB
	asker               // DEALER, of a ROUTER
)

// propertyName reports whether s consists of ZMTP name characters: ALPHA, DIGIT, "-", "_", ".", "+".
func propertyName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '_', c == '.', c == '+':
		default:
			return false
		}
	}
	return true
}

var errMessageShape = errors.New("message is not topic, 8-byte sequence, payload")

// parseMessage splits a live message. Engines send exactly three frames, topic, sequence and payload; it is read from the tail and
// the topic is not looked at, so a relay that adds frames in front does no harm.
func parseMessage(frames [][]byte) (seq uint64, payload []byte, err error) {
	seq, payload, err = parseReply(frames)
	if err == nil && seq == endOfReplay {
		return 0, nil, errMessageShape
	}
	return seq, payload, err
}

// parseReply splits a reply of a replay socket, whose sequence is endOfReplay at the end. Before the sequence stand an empty frame
// and, from vLLM 0.26 and SGLang 0.5.22 on, the topic.
func parseReply(frames [][]byte) (seq uint64, payload []byte, err error) {
	n := len(frames)
	if n < 2 || len(frames[n-2]) != 8 {
		return 0, nil, errMessageShape
	}
	return binary.BigEndian.Uint64(frames[n-2]), frames[n-1], nil
}

// endOfReplay is the sequence number with which engines mark the end of a replay. No batch has it.
const endOfReplay = ^uint64(0)

// pong returns the PONG frame that answers command, and false when command is not a PING.
//
//	04 "PING" ttl 2 bytes, context 0 to 16 bytes   →   04 "PONG" context
func pong(command []byte) ([]byte, bool) {
	const ping, maxContext = "\x04PING", 16
	if !bytes.HasPrefix(command, []byte(ping)) || len(command) < len(ping)+2 || len(command) > len(ping)+2+maxContext {
		return nil, false
	}
	body := append([]byte("\x04PONG"), command[len(ping)+2:]...)
	return append([]byte{flagCommand, byte(len(body))}, body...), true
}
