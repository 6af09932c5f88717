package subscriber

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// pub is a ZeroMQ PUB socket that publishes as an engine does.
type pub struct {
	t    testing.TB
	sock zmq4.Socket
}

// newPub binds or connects a PUB at addr and returns when it has a subscription.
func newPub(t testing.TB, bind bool, addr string) *pub {
	t.Helper()
	p := &pub{t: t, sock: zmq4.NewPub(context.Background())}
	t.Cleanup(p.close)
	connect := p.sock.Dial
	if bind {
		connect = p.sock.Listen
	}
	if err := connect(addr); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pub) awaitSubscription() {
	p.t.Helper()
	eventually(p.t, "subscribed", func() bool { return len(p.sock.(zmq4.Topics).Topics()) > 0 })
}

func (p *pub) send(seq uint64, payload []byte) {
	p.t.Helper()
	m := zmq4.NewMsgFrom([]byte("kv-events"), binary.BigEndian.AppendUint64(nil, seq), payload)
	if err := p.sock.SendMulti(m); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pub) close() { _ = p.sock.Close() }

// freeAddr returns a loopback address with a port that nobody uses.
func freeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return "tcp://" + ln.Addr().String()
}

// TestZeroMQ follows a ZeroMQ publisher through two restarts, in both directions.
func TestZeroMQ(t *testing.T) {
	for _, bind := range []bool{false, true} {
		t.Run(fmt.Sprintf("engine binds=%v", bind), func(t *testing.T) {
			var r recorder
			o, addr := Options{BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond}, ""
			if bind {
				addr = freeAddr(t)
				o.Dial = addr
			}
			s, _ := start(t, o, &r)
			if !bind {
				eventually(t, "listening", func() bool { return s.Addr() != "" })
				addr = s.Addr()
			}
			var want []string
			for range 3 {
				p := newPub(t, bind, addr)
				p.awaitSubscription()
				want = append(want, "connected true")
				for seq := range uint64(3) {
					p.send(seq, fmt.Appendf(nil, "batch %d", seq))
					want = append(want, fmt.Sprint("batch ", seq))
				}
				r.await(t, want...)
				p.close()
				want = append(want, "connected false", "reset disconnect")
				r.await(t, want...)
			}
		})
	}
}
