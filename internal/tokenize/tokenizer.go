package tokenize

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvsteer/kvsteer/internal/openai"
)

// Options of a Tokenizer. Zero fields take the default.
type Options struct {
	Timeout     time.Duration // longest call; default 250 ms
	CacheBytes  int64         // bytes of cached token ids; default 64 MiB, negative: no cache
	CacheAge    time.Duration // longest use of a cached answer; default 10 min
	Concurrency int           // calls under way at one time; default 64
	MaxTokens   int           // longest prompt, in tokens; default 262,144
	Render      bool          // ask render endpoints first

	// DialTLS connects to engines that speak TLS; nil stands for clear text.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// HTTP2 speaks HTTP/2 to engines, without DialTLS by prior knowledge.
	HTTP2 bool

	Metrics *Metrics         // nil: not registered anywhere
	Now     func() time.Time // default time.Now
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout %v is negative", o.Timeout))
	}
	if o.CacheAge < 0 {
		errs = append(errs, fmt.Errorf("cache age %v is negative", o.CacheAge))
	}
	if o.Concurrency < 0 || o.Concurrency > 1<<16 {
		errs = append(errs, fmt.Errorf("concurrency %d is not in 0…65536", o.Concurrency))
	}
	if o.MaxTokens < 0 || o.MaxTokens > 1<<24 {
		errs = append(errs, fmt.Errorf("max tokens %d is not in 0…16777216", o.MaxTokens))
	}
	if o.Timeout == 0 {
		o.Timeout = 250 * time.Millisecond
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.CacheAge == 0 {
		o.CacheAge = 10 * time.Minute
	}
	if o.Concurrency == 0 {
		o.Concurrency = 64
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 262_144
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, errors.Join(errs...)
}

// promptToken is how many bytes of a body one token may take on average; prose takes about four, escaped text six. A body
// beyond MaxTokens of these would keep the engine's tokenizer busy for a prompt that is too long to be matched.
const promptToken = 32

// Call names a prompt and who is to be asked for its token ids.
type Call struct {
	Pool     string          // part of the cache's key
	Endpoint string          // ip:port, asked when the cache has nothing
	Model    string          // served name to ask with, base model or adapter; part of the cache's key
	APIKey   string          // sent as Bearer; "" sends none
	Life     uint64          // of the endpoint's engine; with Version it says how long a missing render endpoint is remembered
	Version  string          // release of the engine, "" when not known
	Request  *openai.Request // without a Reason
}

// Result is the prompt's token ids. Tokens is shared with the cache and other callers: it must not be changed.
type Result struct {
	Tokens      []uint32
	MaxModelLen int // longest prompt and answer that the engine takes, in tokens; 0 when not known
	Outcome     Outcome
}

// Tokenizer gets token ids of prompts.
type Tokenizer struct {
	o      Options
	cache  *cache
	client *client
	slots  chan struct{} // one element per call under way
	bodies sync.Pool     // of *[]byte, for lookups

	absences absences

	mu      sync.Mutex
	flights map[key]*flight
}

// flight is a call that is under way. Its fields are written before done is closed and only read afterwards.
type flight struct {
	done      chan struct{}
	endpoint  string
	result    Result
	err       error
	abandoned bool // the caller that made it gave up
}

// New returns a Tokenizer. It starts nothing.
func New(o Options) (*Tokenizer, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("tokenize options: %w", err)
	}
	t := &Tokenizer{o: o, client: newClient(o), slots: make(chan struct{}, o.Concurrency), flights: make(map[key]*flight)}
	t.bodies.New = func() any { return new([]byte) }
	if o.CacheBytes > 0 {
		if t.cache, err = newCache(o.CacheBytes, o.CacheAge); err != nil {
			return nil, err
		}
	}
	o.Metrics.cache.Store(t.cache)
	return t, nil
}

// Close closes idle connections. Calls under way go on; the Tokenizer remains usable.
func (t *Tokenizer) Close() { t.client.close() }

// Tokens returns the token ids of a prompt. Every error is an *Error; its outcome also stands in the result.
func (t *Tokenizer) Tokens(ctx context.Context, c Call) (Result, error) {
	switch {
	case c.Request.Form == openai.Tokens:
		return Result{Tokens: c.Request.Tokens, Outcome: Given}, nil
	case c.Request.Form == openai.NoPrompt || c.Request.Reason != "":
		return c.fail(answer{outcome: Unkeyable})
	}
	start := t.o.Now()
	buf := t.bodies.Get().(*[]byte)
	all, prefix := appendBody((*buf)[:0], c)
	*buf = all
	if len(all)-prefix > t.o.MaxTokens*promptToken {
		t.release(buf)
		t.o.Metrics.observe(TooLong, t.o.Now().Sub(start))
		return c.fail(answer{outcome: TooLong})
	}
	j, ok := t.plan(&c, all, prefix)
	if !ok {
		t.release(buf)
		t.o.Metrics.observe(NotOffered, t.o.Now().Sub(start))
		return c.fail(answer{outcome: NotOffered})
	}
	if e, ok := t.cache.get(j.first(), start); ok {
		t.release(buf)
		return t.cached(e, start), nil
	}
	// The buffer is not kept from here on: net/http may still read a body after its answer.
	r, err := t.ask(ctx, c, &j)
	t.o.Metrics.observe(r.Outcome, t.o.Now().Sub(start))
	return r, err
}

// plan says what is asked for a call. all is what appendBody gave.
func (t *Tokenizer) plan(c *Call, all []byte, prefix int) (j job, ok bool) {
	j.render = t.renders(c)
	switch {
	case c.Request.RenderOnly() && !j.render:
		return j, false
	case c.Request.RenderOnly():
		whole := append(append([]byte(separate), all[:prefix]...), c.Request.RenderPath()...)
		j.renderKey = sum(openai.AppendRender(whole, c.Model, c.Request))
		j.key = j.renderKey
		return j, true
	}
	j.tokenize, j.key = all[prefix:], sum(all)
	j.renderKey = j.key
	if j.render && c.Request.ByServer() {
		apart := append([]byte(separate), all...)
		j.renderKey = sum(openai.AppendByServer(apart, c.Request))
	}
	return j, true
}

// appendBody appends what the key is computed over: the pool with its length, which is the prefix, and the body to send.
func appendBody(dst []byte, c Call) (all []byte, prefix int) {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(c.Pool)))
	dst = append(dst, c.Pool...)
	return openai.AppendTokenize(dst, c.Model, c.Request), 8 + len(c.Pool)
}

func (t *Tokenizer) release(buf *[]byte) {
	if cap(*buf) <= keptBuffer {
		t.bodies.Put(buf)
	}
}

func (t *Tokenizer) cached(e *entry, start time.Time) Result {
	t.o.Metrics.observe(Cached, t.o.Now().Sub(start))
	return Result{Tokens: e.tokens, MaxModelLen: e.maxModelLen, Outcome: Cached}
}

// ask makes the call or waits for an identical one.
func (t *Tokenizer) ask(parent context.Context, c Call, j *job) (Result, error) {
	k := j.first()
	ctx, cancel := context.WithTimeout(parent, t.o.Timeout)
	defer cancel()
	for {
		t.mu.Lock()
		f := t.flights[k]
		if f == nil {
			f = &flight{done: make(chan struct{}), endpoint: c.Endpoint}
			t.flights[k] = f
			t.mu.Unlock()
			t.lead(parent, ctx, c, k, j, f)
			return f.result, f.err
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
			return c.fail(ended(parent, answer{err: ctx.Err()}))
		case <-f.done:
		}
		switch {
		case f.retry(c.Endpoint):
		case f.err != nil:
			return f.result, f.err
		default:
			return Result{Tokens: f.result.Tokens, MaxModelLen: f.result.MaxModelLen, Outcome: Shared}, nil
		}
	}
}

// retry reports whether the end of f says nothing about the same call to endpoint.
func (f *flight) retry(endpoint string) bool {
	if f.abandoned {
		return true
	}
	o := f.result.Outcome
	return f.endpoint != endpoint && (o == Unreachable || o == Failed || o == BadReply || o == NotOffered)
}

// lead makes the call of f and tells those who wait for it.
func (t *Tokenizer) lead(parent, ctx context.Context, c Call, k key, j *job, f *flight) {
	f.abandoned = true // if the call panics
	defer func() {
		t.mu.Lock()
		delete(t.flights, k)
		t.mu.Unlock()
		close(f.done)
	}()
	// An identical call may have ended between the lookup and this one's entry in flights.
	if e, ok := t.cache.get(k, t.o.Now()); ok {
		f.result, f.abandoned = Result{Tokens: e.tokens, MaxModelLen: e.maxModelLen, Outcome: Cached}, false
		return
	}
	a := t.call(parent, ctx, c, j)
	if a.outcome == OK {
		e := &entry{tokens: a.reply.Tokens, maxModelLen: a.reply.MaxModelLen, stored: t.o.Now()}
		if a.rendered {
			t.cache.put(j.renderKey, e)
		} else {
			t.cache.put(j.key, e)
		}
		f.result, f.abandoned = Result{Tokens: e.tokens, MaxModelLen: e.maxModelLen, Outcome: OK}, false
		return
	}
	f.result, f.err = c.fail(a)
	f.abandoned = parent.Err() != nil
}

// call asks the endpoint, unless too many calls are under way. ctx is parent with the call's own timeout.
func (t *Tokenizer) call(parent, ctx context.Context, c Call, j *job) answer {
	select {
	case t.slots <- struct{}{}:
	default:
		return answer{outcome: Shed}
	}
	t.o.Metrics.inFlight.Inc()
	defer func() {
		t.o.Metrics.inFlight.Dec()
		<-t.slots
	}()
	if j.render {
		path := c.Request.RenderPath()
		body := openai.AppendRender(make([]byte, 0, c.Request.RenderSize(c.Model)), c.Model, c.Request)
		a := t.post(parent, ctx, request{api: APIRender, endpoint: c.Endpoint, path: path, apiKey: c.APIKey, body: body})
		switch {
		case absent(a):
			t.absences.note(&c, path)
			a.outcome = NotOffered
		case a.outcome == Failed: // which says nothing of /tokenize
		default:
			t.o.Metrics.called(APIRender, a.outcome)
			return a
		}
		t.o.Metrics.called(APIRender, a.outcome)
		if j.tokenize == nil || ctx.Err() != nil {
			return a
		}
	}
	a := t.post(parent, ctx, request{api: APITokenize, endpoint: c.Endpoint, path: "/tokenize", apiKey: c.APIKey, body: j.tokenize})
	t.o.Metrics.called(APITokenize, a.outcome)
	return a
}

// post makes one call.
func (t *Tokenizer) post(parent, ctx context.Context, r request) answer {
	a := t.client.post(ctx, r)
	switch {
	case a.status != 0:
		if a.err != nil && ctx.Err() != nil {
			a = ended(parent, a) // while reading the reply
		}
	case parent.Err() != nil || a.connected && ctx.Err() != nil:
		// The caller gave up, which tells nothing of the endpoint, or the engine is slow.
		a = ended(parent, a)
	}
	return a
}

// ended gives the outcome of a call that its context cut short.
func ended(parent context.Context, a answer) answer {
	a.outcome = Timeout
	if errors.Is(parent.Err(), context.Canceled) {
		a.outcome = Canceled
	}
	return a
}

func (c Call) fail(a answer) (Result, error) {
	return Result{Outcome: a.outcome}, &Error{Endpoint: c.Endpoint, Outcome: a.outcome, Status: a.status, Err: a.err}
}
