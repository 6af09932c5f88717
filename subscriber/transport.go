package subscriber

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/transport"
)

// scheme is the name under which the guarded transport is registered with zmq4.
const scheme = "kvsteer-guarded"

// register puts the guarded transport into zmq4's registry. The registry is global to the process and refuses a second
// entry of the same name, so this is the one piece of state that cannot live in a Subscriber.
var register = sync.OnceValue(func() error { return zmq4.RegisterTransport(scheme, handover{}) })

// handover is the zmq4 transport through which a socket gets its one connection. Dialling, accepting and their policies
// happen outside zmq4 (its own retry ignores contexts, its accept loop waits for one handshake at a time); the connection
// that results travels in the socket's context.
type handover struct{}

type connKey struct{}

var errNoConn = errors.New("no connection in the context of the socket")

// Dial implements transport.Transport.
func (handover) Dial(ctx context.Context, _ transport.Dialer, _ string) (net.Conn, error) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return nil, errNoConn
	}
	return c, nil
}

// Listen implements transport.Transport.
func (handover) Listen(context.Context, string) (net.Listener, error) { return nil, errNoConn }

// Addr implements transport.Transport.
func (handover) Addr(endpoint string) (string, error) { return endpoint, nil }

// conn is a net.Conn on which zmq4 can do no harm and to which a peer can do none: every byte read has passed the guard,
// the handshake, each message and each write have a deadline, and the bytes that zmq4 holds for the subscriber are bounded.
// A violation closes it. Read and Write are for one goroutine each; Close, end and release are for any.
type conn struct {
	net.Conn
	limits Limits

	// Of the reading goroutine. buf[r:w] is read and not handed out; the first passed bytes of it have passed the guard.
	guard        guard
	buf          []byte
	r, w, passed int
	timed        int // the unit for which the read deadline is set, 0 for none, -1 for unknown

	mu       sync.Mutex
	freed    *sync.Cond // held shrank, or the connection ended
	held     int        // bytes of frames handed to zmq4 and not released
	ended    bool
	why      error // the first reason for the end
	closeErr error
}

func newConn(c net.Conn, as role, limits Limits) *conn {
	g := &conn{
		Conn:   c,
		limits: limits,
		guard:  guard{limits: limits, role: as},
		buf:    make([]byte, longHeader+limits.Command), // all that a handshake needs
		timed:  -1,
	}
	g.freed = sync.NewCond(&g.mu)
	return g
}

// readBuffer is the size of a connection's read buffer in bytes: some dozens of ordinary batches per system call.
const readBuffer = 64 << 10

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if c.passed > 0 {
			n := copy(p, c.buf[c.r:c.r+c.passed])
			c.r, c.passed = c.r+n, c.passed-n
			return n, nil
		}
		if c.r == c.w && c.guard.body > 0 {
			// The rest of a body goes straight to its place.
			n, err := c.read(p[:min(len(p), c.guard.body)])
			c.guard.skip(n)
			return n, err
		}
		n, alloc, err := c.guard.pass(c.buf[c.r:c.w])
		if err != nil {
			return 0, c.end(err)
		}
		if n > 0 {
			if alloc >= 0 {
				if err := c.hold(alloc); err != nil {
					return 0, err
				}
			}
			c.passed = n
			continue
		}
		buf := c.buf
		if c.guard.phase == inTraffic && len(buf) < readBuffer {
			c.buf = make([]byte, readBuffer)
		}
		c.w = copy(c.buf, buf[c.r:c.w])
		c.r = 0
		n, err = c.read(c.buf[c.w:])
		c.w += n
		if n == 0 && err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// read reads from the peer under the deadline that fits: none between messages (an idle engine is silent for hours), one
// per message from the moment it is waited for. The handshake's deadline is set once by open.
func (c *conn) read(p []byte) (int, error) {
	if c.guard.phase == inTraffic {
		unit := 0
		switch {
		case c.guard.open():
			unit = c.guard.units
		case c.r < c.w: // part of the next header is here
			unit = c.guard.units + 1
		}
		c.expect(unit)
	}
	n, err := c.Conn.Read(p)
	if err == nil || n > 0 {
		return n, nil // an error comes again
	}
	return 0, c.end(c.late(err))
}

// late names the rule behind a deadline that passed; other errors it returns as they are.
func (c *conn) late(err error) error {
	switch {
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case c.guard.phase != inTraffic:
		return slowHandshake
	}
	return stalledPeer
}

// expect sets the read deadline for the message with the given number, 0 for none in progress. It can fail only when the
// connection is closed, which the read that follows reports better.
func (c *conn) expect(unit int) {
	if c.timed == unit {
		return
	}
	c.timed = unit
	var deadline time.Time
	if unit != 0 {
		deadline = time.Now().Add(c.limits.Stall)
	}
	_ = c.SetReadDeadline(deadline)
}

// Write implements net.Conn. zmq4 ignores errors of the subscription it writes, so they end the connection here.
func (c *conn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.limits.Write)); err != nil {
		return 0, c.end(err)
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		return n, c.end(c.late(err))
	}
	return n, nil
}

// hold accounts n bytes that zmq4 is about to allocate and waits until there is room for them. While it waits the peer's
// data stay in the kernel's buffers and then in the peer's queue.
func (c *conn) hold(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.ended && c.held+n > c.limits.Buffered {
		c.freed.Wait()
		c.timed = -1 // the wait is not the peer's fault
	}
	if c.ended {
		return c.why
	}
	c.held += n
	return nil
}

// release gives back n bytes that hold accounted.
func (c *conn) release(n int) {
	c.mu.Lock()
	c.held -= n
	c.mu.Unlock()
	c.freed.Signal()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	_ = c.end(net.ErrClosed)
	return c.closeErr
}

// end closes the connection for the given reason and returns the reason for which it was first ended.
func (c *conn) end(why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended, c.why = true, why
		c.closeErr = c.Conn.Close()
		c.freed.Broadcast()
	}
	return c.why
}

// over reports whether the connection has ended.
func (c *conn) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// session is one connection's life: a connection past its handshake and the zmq4 socket that has it and no other.
type session struct {
	conn *conn
	sock zmq4.Socket
}

// open performs the ZMTP handshake as a subscriber to topic on nc, which it owns from then on. It takes at most
// Limits.Handshake and ends at once with ctx.
func open(ctx context.Context, nc net.Conn, topic string, limits Limits) (*session, error) {
	return handshake(ctx, newConn(nc, listens, limits), func(life context.Context, o ...zmq4.Option) (zmq4.Socket, error) {
		sock := zmq4.NewSub(life, o...)
		return sock, sock.SetOption(zmq4.OptionSubscribe, topic)
	})
}

// openAsker is open for a replay socket.
func openAsker(ctx context.Context, nc net.Conn, limits Limits) (*session, error) {
	return handshake(ctx, newConn(nc, asker, limits), func(life context.Context, o ...zmq4.Option) (zmq4.Socket, error) {
		return zmq4.NewDealer(life, o...), nil
	})
}

func handshake(ctx context.Context, c *conn, socket func(context.Context, ...zmq4.Option) (zmq4.Socket, error)) (*session, error) {
	defer context.AfterFunc(ctx, func() { _ = c.end(context.Cause(ctx)) })()
	if err := c.SetReadDeadline(time.Now().Add(c.limits.Handshake)); err != nil {
		return nil, c.end(err)
	}
	// The socket's life ends by close alone: were its context to end first, zmq4's reader could hang in its full queue.
	life := context.WithValue(context.WithoutCancel(ctx), connKey{}, c)
	sock, err := socket(life,
		zmq4.WithLogger(log.New(io.Discard, "", 0)),
		zmq4.WithDialerMaxRetries(0),
		zmq4.WithTimeout(c.limits.Write))
	if err == nil {
		err = sock.Dial(scheme + "://peer")
	}
	if err != nil {
		err = c.end(err)
		_ = sock.Close()
		return nil, fmt.Errorf("handshake with %s: %w", c.RemoteAddr(), err)
	}
	return &session{conn: c, sock: sock}, nil
}

// ask asks a replay socket for the batches from a number on.
func (s *session) ask(from uint64) error {
	err := s.sock.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, from)))
	if err != nil {
		return s.conn.end(err)
	}
	return nil
}

// received bounds the messages between a connection and Run's goroutine, beside Limits.Buffered.
const received = 64

// pump hands out messages until the session is over or stop is closed, then closes it and says why.
func (s *session) pump(out chan<- zmq4.Msg, stop <-chan struct{}) error {
	for {
		m, err := s.recv()
		if err != nil {
			s.close(err, true)
			return err
		}
		select {
		case out <- m:
		case <-stop:
			s.close(errStopped, false)
			return errStopped
		}
	}
}

// command takes a ZMTP command.
func (s *session) command(m zmq4.Msg) {
	// A peer with heartbeats on drops one that does not answer; zmq4 leaves that to its user.
	if len(m.Frames) == 1 {
		if answer, ok := pong(m.Frames[0]); ok {
			_, _ = s.conn.Write(answer) // an error ends the connection
		}
	}
}

// recv returns the next message. After an error the session is over; the error is the first reason.
func (s *session) recv() (zmq4.Msg, error) {
	m, err := s.sock.Recv()
	if err != nil {
		return zmq4.Msg{}, s.conn.end(err)
	}
	return m, nil
}

// release returns the memory account of m, which must come from recv.
func (s *session) release(m zmq4.Msg) {
	n := 0
	for _, f := range m.Frames {
		n += len(f)
	}
	s.conn.release(n)
}

// close ends the session for the given reason. over says that recv has returned an error. zmq4's reader puts what it reads
// into a queue of ten and an error behind it, then ends: so the queue is emptied up to the error before the socket is closed.
func (s *session) close(why error, over bool) {
	_ = s.conn.end(why)
	for !over {
		_, err := s.sock.Recv()
		over = err != nil
	}
	_ = s.sock.Close()
}
