package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// answerTime bounds one request; no healthy one comes near.
const answerTime = 30 * time.Second

// keepAlive is how long the web servers of real engines keep an idle connection.
const keepAlive = 5 * time.Second

// recorder is an engine without a model: it answers every request at once and remembers what it was sent.
type recorder struct {
	addr string

	mu      sync.Mutex
	seen    []recorded
	idle    map[net.Conn]time.Time // since when
	longest time.Duration          // that a connection was idle before it was closed, by whichever side
}

type recorded struct {
	method, path    string
	header, trailer http.Header
	length          int64
	sum             [sha256.Size]byte // of the body
}

func startRecorder(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{idle: map[net.Conn]time.Time{}}
	r.addr = serveHTTP(t, r, r.state)
	return r
}

func (r *recorder) state(c net.Conn, s http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch since, ok := r.idle[c]; {
	case s == http.StateIdle:
		r.idle[c] = time.Now()
	case ok && s == http.StateClosed:
		r.longest = max(r.longest, time.Since(since))
		delete(r.idle, c)
	default:
		delete(r.idle, c)
	}
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/health" {
		return
	}
	hash := sha256.New()
	n, err := io.Copy(hash, req.Body)
	if err != nil {
		return // the client went away
	}
	r.mu.Lock()
	r.seen = append(r.seen, recorded{req.Method, req.URL.RequestURI(), req.Header, req.Trailer, n, [sha256.Size]byte(hash.Sum(nil))})
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[]}`)
}

// take returns what came since the last call.
func (r *recorder) take() []recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

// decoy is a server that nobody is ever sent to.
type decoy struct {
	addr        string
	connections atomic.Int64
}

func startDecoy(t *testing.T) *decoy {
	t.Helper()
	d := &decoy{}
	d.addr = serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "decoy") }),
		func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				d.connections.Add(1)
			}
		})
	return d
}

// serveHTTP serves until the test ends and returns the address.
func serveHTTP(t *testing.T, h http.Handler, state func(net.Conn, http.ConnState)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ConnState: state, ReadHeaderTimeout: answerTime, IdleTimeout: keepAlive}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return l.Addr().String()
}

// clients speak HTTP/1.1 and HTTP/2 in clear text.
func clients(t *testing.T) map[string]*http.Client {
	t.Helper()
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	h1 := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(h1.CloseIdleConnections)
	t.Cleanup(h2.CloseIdleConnections)
	return map[string]*http.Client{"http/1.1": {Transport: h1}, "h2c": {Transport: h2}}
}

// request is one request of a table.
type request struct {
	method, path, host string
	header, trailer    http.Header
	body               io.Reader
	length             int64 // -1 sends chunks
}

// answer is what a client got.
type answer struct {
	status int
	body   string
	header http.Header
}

// send sends r and reads the whole answer.
func send(t *testing.T, client *http.Client, url string, r request) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, url+r.path, r.body)
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.ContentLength, req.Trailer = r.host, r.length, r.trailer
	for name, values := range r.header {
		req.Header[name] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: read answer: %v", r.method, r.path, err)
	}
	return answer{resp.StatusCode, string(body), resp.Header}
}

// sendRaw writes the bytes of an HTTP/1.1 request on a connection of its own and reads the answer. The writing goes on beside the
// reading, because a proxy may answer before it has read everything.
func sendRaw(t *testing.T, site *lab.Site, parts ...io.Reader) answer {
	t.Helper()
	conn := dial(t, site)
	defer conn.Close()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.Copy(conn, io.MultiReader(parts...))
	}()
	answers := bufio.NewReader(conn)
	resp, err := http.ReadResponse(answers, nil) //nolint:bodyclose // ends with the connection
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(answers, nil) //nolint:bodyclose // ends with the connection
	}
	if err != nil {
		t.Fatalf("read answer: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read answer: %v", err)
	}
	conn.Close()
	<-written
	return answer{resp.StatusCode, string(body), resp.Header}
}

func dial(t *testing.T, site *lab.Site) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", host(site), answerTime)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func host(site *lab.Site) string { return strings.TrimPrefix(site.URL, "http://") }
