package tokenize

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// oneAnswer is an engine on a real port that answers the first request of each connection, promises to keep the connection
// open, and closes it when the next request arrives: a keep-alive that ran out in the moment of its reuse.
func oneAnswer(t *testing.T) (addr string, conns *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			r := bufio.NewReader(conn)
			if req, err := http.ReadRequest(r); err == nil {
				_, _ = io.Copy(io.Discard, req.Body)
				_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"tokens\":[1]}"))
				if req.Header.Get("Connection") != "close" {
					_, _ = r.ReadByte()
				}
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String(), conns
}

func TestDeadConnectionIsReplaced(t *testing.T) {
	addr, conns := oneAnswer(t)
	z, err := New(Options{Timeout: 10 * time.Second, CacheBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for i := range 6 {
		// Long bodies too, so that the connection also dies in the middle of writing one.
		r, err := z.Tokens(t.Context(), call(t, addr, strings.Repeat("p", 1+i*200_000)))
		if err != nil || r.Outcome != OK {
			t.Fatalf("call %d: %+v, %v", i, r, err)
		}
	}
	if n := conns.Load(); n < 6 {
		t.Errorf("%d connections", n)
	}
}

func TestRealServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(letters))
	addr := server.Listener.Addr().String()
	z, err := New(Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := z.Tokens(t.Context(), call(t, addr, "hello")); err != nil || len(r.Tokens) != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	z.Close()
	server.Close()
	if r, err := z.Tokens(t.Context(), call(t, addr, "other")); r.Outcome != Unreachable {
		t.Errorf("closed port: %+v, %v", r, err)
	}
}

func TestIdleConnectionsEndBeforeTheEngineEndsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f fabric
		f.engine(t, "a:1", letters)
		z := f.tokenizer(t, Options{CacheBytes: -1})
		for i, c := range []struct {
			idle  time.Duration
			dials int64
		}{{0, 1}, {time.Second, 1}, {2 * time.Second, 1}, {4 * time.Second, 2}} {
			<-time.After(c.idle)
			synctest.Wait()
			if _, err := z.Tokens(t.Context(), call(t, "a:1", "p")); err != nil {
				t.Fatal(err)
			}
			if n := f.dials.Load(); n != c.dials {
				t.Errorf("step %d: %d connections, want %d", i, n, c.dials)
			}
		}
	})
}
