package enginesim

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// The part of ZMTP 3.0 (rfc.zeromq.org/spec/23) that PUB and ROUTER sockets without security need.

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	greetingLen  = 64
	maxPeerFrame = 64 << 10 // subscriptions, replay requests and handshake commands are short
)

// greeting returns our greeting: signature, version 3.0, mechanism NULL, not as server.
func greeting() []byte {
	g := make([]byte, greetingLen)
	g[0], g[9] = 0xff, 0x7f
	g[10] = 3
	copy(g[12:32], "NULL")
	return g
}

// checkGreeting accepts any peer of version 3 that uses no security.
func checkGreeting(g []byte) error {
	switch {
	case g[0] != 0xff || g[9] != 0x7f:
		return errors.New("zmtp greeting: no signature")
	case g[10] < 3:
		return fmt.Errorf("zmtp greeting: version %d, want 3", g[10])
	case !bytes.Equal(bytes.TrimRight(g[12:32], "\x00"), []byte("NULL")):
		return errors.New("zmtp greeting: mechanism is not NULL")
	}
	return nil
}

// socket is a type of ZMQ socket that an engine has, with the types that may be its peer.
type socket struct {
	name  string
	peers []string
}

func pubSocket() socket    { return socket{"PUB", []string{"SUB", "XSUB"}} }
func routerSocket() socket { return socket{"ROUTER", []string{"DEALER", "REQ", "ROUTER"}} }

// ready returns the READY command of a socket.
func (k socket) ready() []byte {
	const name, property = "READY", "Socket-Type"
	value := k.name
	body := append([]byte{byte(len(name))}, name...)
	body = append(append(body, byte(len(property))), property...)
	body = append(binary.BigEndian.AppendUint32(body, uint32(len(value))), value...)
	return appendFrame(nil, flagCommand, body)
}

// checkReady checks that a command is the READY of a socket that may be the peer.
func (k socket) checkReady(body []byte) error {
	rest, ok := bytes.CutPrefix(body, []byte("\x05READY"))
	if !ok {
		return errors.New("zmtp handshake: command is not READY")
	}
	for len(rest) > 0 {
		n := int(rest[0])
		if len(rest) < 1+n+4 {
			break
		}
		name := rest[1 : 1+n]
		size := binary.BigEndian.Uint32(rest[1+n:])
		rest = rest[1+n+4:]
		if uint64(size) > uint64(len(rest)) {
			break
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) {
			if v := string(rest[:size]); !slices.Contains(k.peers, v) {
				return fmt.Errorf("zmtp handshake: peer socket of type %q, want %s", v, k.peers[0])
			}
			return nil
		}
		rest = rest[size:]
	}
	return errors.New("zmtp handshake: READY without Socket-Type")
}

// appendFrame appends one frame.
func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

// readFrame reads one frame into buf, which it may replace. Its length is checked before memory is made for it.
func readFrame(r io.Reader, buf []byte) (flags byte, body []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:2]); err != nil {
		return 0, nil, err
	}
	flags = head[0]
	size := uint64(head[1])
	if flags&flagLong != 0 {
		if _, err := io.ReadFull(r, head[2:9]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:9])
	}
	if size > maxPeerFrame {
		return 0, nil, fmt.Errorf("zmtp frame of %d bytes, want at most %d", size, maxPeerFrame)
	}
	if uint64(cap(buf)) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	_, err = io.ReadFull(r, buf)
	return flags, buf, err
}

// pubMessage returns topic, sequence number and payload as the frames of one message.
func pubMessage(topic string, seq uint64, payload []byte) []byte {
	b := make([]byte, 0, len(topic)+len(payload)+40)
	b = appendFrame(b, flagMore, []byte(topic))
	return appendNumbered(b, seq, payload)
}

// appendNumbered appends the last two frames of a message: sequence number and payload.
func appendNumbered(b []byte, seq uint64, payload []byte) []byte {
	b = appendFrame(b, flagMore, binary.BigEndian.AppendUint64(nil, seq))
	return appendFrame(b, 0, payload)
}

// handshake greets the peer and exchanges READY.
func (k socket) handshake(conn net.Conn, r *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write(greeting()); err != nil {
		return err
	}
	peer := make([]byte, greetingLen)
	if _, err := io.ReadFull(r, peer); err != nil {
		return err
	}
	if err := checkGreeting(peer); err != nil {
		return err
	}
	if _, err := conn.Write(k.ready()); err != nil {
		return err
	}
	_, body, err := readFrame(r, nil)
	if err != nil {
		return err
	}
	if err := k.checkReady(body); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// pong answers a PING command, and reports whether body is one.
func pong(body []byte) ([]byte, bool) {
	const ping = "\x04PING"
	if len(body) < len(ping)+2 || string(body[:len(ping)]) != ping {
		return nil, false
	}
	return appendFrame(nil, flagCommand, append([]byte("\x04PONG"), body[len(ping)+2:]...)), true
}
