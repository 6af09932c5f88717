package enginesim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The part of ZMTP 3.0 (rfc.zeromq.org/spec/23) that a PUB socket without security needs.

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	greetingLen  = 64
	maxPeerFrame = 64 << 10 // subscriptions and handshake commands are short
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

// ready returns the READY command of a PUB socket.
func ready() []byte {
	const name, property, value = "READY", "Socket-Type", "PUB"
	body := append([]byte{byte(len(name))}, name...)
	body = append(append(body, byte(len(property))), property...)
	body = append(binary.BigEndian.AppendUint32(body, uint32(len(value))), value...)
	return appendFrame(nil, flagCommand, body)
}

// checkReady checks that a command is the READY of a socket that subscribes.
func checkReady(body []byte) error {
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
			if v := string(rest[:size]); v != "SUB" && v != "XSUB" {
				return fmt.Errorf("zmtp handshake: peer socket of type %q, want SUB", v)
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
	b = appendFrame(b, flagMore, binary.BigEndian.AppendUint64(nil, seq))
	return appendFrame(b, 0, payload)
}
