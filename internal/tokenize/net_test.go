package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvsteer/kvsteer/internal/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fabric is a network in memory, for tests in a synctest bubble: nothing listens on a real port and time is the bubble's.
type fabric struct {
	mu     sync.Mutex
	queues map[string]chan net.Conn
	dials  atomic.Int64
	calls  atomic.Int64 // requests that reached any engine
}

// engine serves handler at addr until the test ends.
func (f *fabric) engine(t *testing.T, addr string, handler http.HandlerFunc) {
	t.Helper()
	queue := make(chan net.Conn)
	f.mu.Lock()
	if f.queues == nil {
		f.queues = make(map[string]chan net.Conn)
	}
	f.queues[addr] = queue
	f.mu.Unlock()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.calls.Add(1)
		// net/http notices that a client goes away only once the body has been read.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		handler(w, r)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(&pipeListener{queue: queue, closed: make(chan struct{})})
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}

func (f *fabric) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	f.dials.Add(1)
	f.mu.Lock()
	queue := f.queues[addr]
	f.mu.Unlock()
	if queue == nil {
		if strings.HasPrefix(addr, "hole:") {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	ours, theirs := net.Pipe()
	select {
	case queue <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type pipeListener struct {
	queue  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// tokenizer returns a Tokenizer on f that is closed when the test ends.
func (f *fabric) tokenizer(t *testing.T, o Options) *Tokenizer {
	t.Helper()
	z, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	z.client.reused.DialContext, z.client.fresh.DialContext = f.dial, f.dial
	t.Cleanup(z.Close)
	return z
}

// letters answers /tokenize with one id per byte of the prompt.
func letters(w http.ResponseWriter, r *http.Request) {
	var body struct{ Model, Prompt string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	reply := struct {
		Count       int   `json:"count"`
		MaxModelLen int   `json:"max_model_len"`
		Tokens      []int `json:"tokens"`
	}{len(body.Prompt), 2048, make([]int, len(body.Prompt))}
	for i, c := range []byte(body.Prompt) {
		reply.Tokens[i] = int(c)
	}
	_ = json.NewEncoder(w).Encode(reply)
}

// status answers every request with code.
func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"error":{"message":"no","code":400}}`)
	}
}

// text answers every request with a 200 and this body.
func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

// silent never answers.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func prompt(t testing.TB, text string) *openai.Request {
	t.Helper()
	body := fmt.Sprintf(`{"model":"client-name","prompt":%q}`, text)
	r := openai.Parse(openai.Meta{Method: "POST", Path: "/v1/completions"}, []byte(body), openai.Limits{})
	if r.Reason != "" {
		t.Fatalf("prompt has reason %q", r.Reason)
	}
	return &r
}

func call(t testing.TB, endpoint, text string) Call {
	return Call{Pool: "chat", Endpoint: endpoint, Model: "tiny", Request: prompt(t, text)}
}
