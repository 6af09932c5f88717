package lab

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// deadline bounds what a test waits for; nothing waits that long when all is well.
const deadline = 10 * time.Second

func TestRelayHidesEnds(t *testing.T) {
	router, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	r, err := newRelay(router.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	connect := func() (engine, atRouter net.Conn) {
		t.Helper()
		engine, err := net.Dial("tcp", r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		atRouter, err = router.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []net.Conn{engine, atRouter} {
			t.Cleanup(func() { c.Close() })
			_ = c.SetDeadline(time.Now().Add(deadline))
		}
		return engine, atRouter
	}
	receive := func(c net.Conn, want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Fatalf("received %q, %v; want %q", got, err, want)
		}
	}
	ended := func(c net.Conn) {
		t.Helper()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d bytes, %v; want the end", n, err)
		}
	}

	engine, atRouter := connect()
	_, _ = engine.Write([]byte("event"))
	receive(atRouter, "event")
	_, _ = atRouter.Write([]byte("subscribe"))
	receive(engine, "subscribe")
	engine.Close()
	ended(atRouter)

	engine, atRouter = connect()
	r.HideEnds()
	_, _ = engine.Write([]byte("last"))
	engine.Close()
	receive(atRouter, "last")
	_ = atRouter.SetDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := atRouter.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a hidden end shows as %v", err)
	}
	_ = atRouter.SetDeadline(time.Now().Add(deadline))
	again, newer := connect() // the engine is back before its end was seen
	_, _ = again.Write([]byte("event"))
	receive(newer, "event")
	r.ShowEnds()
	ended(atRouter)

	engine, atRouter = connect()
	atRouter.Close()
	ended(engine)
}

func TestRelayBreaks(t *testing.T) {
	router, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	r, err := newRelay(router.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	connect := func() net.Conn {
		t.Helper()
		engine, err := net.Dial("tcp", r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { engine.Close() })
		_ = engine.SetDeadline(time.Now().Add(deadline))
		return engine
	}
	ended := func(c net.Conn) {
		t.Helper()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d bytes, %v; want the end", n, err)
		}
	}
	before := connect()
	atRouter, err := router.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer atRouter.Close()
	_ = atRouter.SetDeadline(time.Now().Add(deadline))
	r.Break()
	ended(before)
	ended(atRouter)
	ended(connect())
	r.Mend()
	after := connect()
	_, _ = after.Write([]byte("event"))
	for { // what was tried meanwhile may have come through to the router and ended
		c, err := router.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(deadline))
		got := make([]byte, len("event"))
		_, err = io.ReadFull(c, got)
		c.Close()
		if err == nil {
			break
		}
	}
}
