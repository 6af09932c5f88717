package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// staleAfter is how many scrapes in a row have to fail.
const staleAfter = 3

// Options of a Scraper. Only Address is needed.
type Options struct {
	Pool    string // for logs and metrics
	Address string // ip:port of the engine

	Profile  Profile       // default ProfileAuto
	Interval time.Duration // between two scrapes. Default 1 s
	Timeout  time.Duration // of one scrape, connecting included, at most the interval. Default: the interval, at most 5 s
	// Labels are what a series must have to count, by name: say model_name, where one page tells of several engines.
	Labels map[string]string
	APIKey string // sent as Bearer; "" for none. vLLM and SGLang want none for their metrics

	// HTTP sends the scrapes. The default follows no redirects, uses no proxy, and closes a connection that is idle for 3 s: engines close theirs after 5 s.
	HTTP *http.Client
	// DialTLS connects to engines that speak TLS; nil stands for clear text. The default HTTP uses it, and scrapes say https with it.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// HTTP2 has the default HTTP speak HTTP/2, without DialTLS by prior knowledge.
	HTTP2 bool

	// Told is told each Load that can be read, and one that has become stale.
	Told func(Load)

	Log     *slog.Logger // default: none
	Metrics *Metrics     // default: not exported
}

// Load is what an engine last said of itself, of all its ranks.
type Load struct {
	Running, Waiting int     // requests
	KVUsage          float64 // share of the KV cache that running requests use, 0 to 1, the mean of the ranks

	// Prompt tokens found in the prefix cache and looked up there, since before the first scrape, over all restarts of the engine.
	PrefixHits, PrefixQueries uint64

	Sleeping bool      // a rank does
	At       time.Time // when it said so
	Stale    bool      // it could not be asked lately
}

// Scraper scrapes one engine.
type Scraper struct {
	o    Options
	url  string
	load atomic.Pointer[Load] // nil before the first

	// Of Run's goroutine.
	counter  counter
	failures int // in a row
	stale    bool
}

// New validates the options; all problems are reported in one error. It starts nothing.
func New(o Options) (*Scraper, error) {
	if o.Profile == "" {
		o.Profile = ProfileAuto
	}
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = min(o.Interval, 5*time.Second)
	}
	if o.HTTP == nil {
		o.HTTP = client(o)
	}
	if o.Told == nil {
		o.Told = func(Load) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	o.Log = o.Log.With("pool", o.Pool, "endpoint", o.Address)
	var errs []error
	if _, err := netip.ParseAddrPort(o.Address); err != nil {
		errs = append(errs, fmt.Errorf("address: %q is not ip:port", o.Address))
	}
	if !slices.Contains(Profiles(), o.Profile) {
		errs = append(errs, fmt.Errorf("profile: %q is none of %v", o.Profile, Profiles()))
	}
	if o.Interval < 0 {
		errs = append(errs, fmt.Errorf("interval: %v is negative", o.Interval))
	}
	if o.Timeout < 0 || o.Timeout > o.Interval {
		errs = append(errs, fmt.Errorf("timeout: %v is not between 0 and the interval of %v", o.Timeout, o.Interval))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	scheme := "http"
	if o.DialTLS != nil {
		scheme = "https"
	}
	return &Scraper{o: o, url: scheme + "://" + o.Address + "/metrics"}, nil
}

func client(o Options) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!o.HTTP2)
	protocols.SetHTTP2(o.HTTP2)
	protocols.SetUnencryptedHTTP2(o.HTTP2)
	return &http.Client{
		Transport: &http.Transport{
			DialTLSContext: o.DialTLS, Protocols: protocols, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
			MaxConnsPerHost: 1, IdleConnTimeout: 3 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Load returns the last one; ok is false before the first.
func (s *Scraper) Load() (l Load, ok bool) {
	if last := s.load.Load(); last != nil {
		return *last, true
	}
	return Load{}, false
}

// Run scrapes until ctx ends, and returns nil.
func (s *Scraper) Run(ctx context.Context) error {
	series := s.o.Metrics.series(s.o.Pool, s.o.Address)
	defer series.remove()
	defer s.o.HTTP.CloseIdleConnections()
	// Scrapers that start together do not ask together.
	timer := time.NewTimer(rand.N(min(s.o.Interval, time.Second)/8 + 1))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(s.o.Interval)
		r, err := s.scrape(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.failed(err, series)
			continue
		}
		s.read(r, series)
	}
}

// scrape asks once.
func (s *Scraper) scrape(ctx context.Context) (reading, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return reading{}, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	if s.o.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+s.o.APIKey)
	}
	resp, err := s.o.HTTP.Do(req)
	if err != nil {
		return reading{}, err
	}
	defer resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
	case code >= 400 && code < 500:
		return reading{}, problemf(OutcomeRefused, "GET /metrics: status %d", code)
	default:
		return reading{}, problemf(OutcomeFailed, "GET /metrics: status %d", code)
	}
	r, err := read(resp.Body, s.o.Profile, s.o.Labels)
	if err != nil {
		return reading{}, fmt.Errorf("GET /metrics: %w", err)
	}
	return r, nil
}

func (s *Scraper) read(r reading, series *series) {
	if s.counter.add(r.counts) {
		series.restarts.Inc()
		s.o.Log.Info("the engine has restarted: its counters began anew; those of prefix tokens go on from where they were")
	}
	l := Load{
		Running: r.running, Waiting: r.waiting, KVUsage: r.usage, Sleeping: r.sleeping, At: time.Now(),
		PrefixHits: s.counter.total.hits, PrefixQueries: s.counter.total.queries,
	}
	s.load.Store(&l)
	if s.stale {
		s.o.Log.Info("the engine's metrics are read again", "after", s.failures)
	}
	s.failures, s.stale = 0, false
	series.read(l)
	s.o.Told(l)
}

func (s *Scraper) failed(err error, series *series) {
	s.failures++
	outcome := outcomeOf(err)
	series.outcomes[outcome].Inc()
	if s.failures < staleAfter || s.stale {
		return
	}
	s.stale = true
	s.o.Log.Warn("the engine's metrics cannot be read; its load is not known", "failures", s.failures, "outcome", string(outcome), "error", err)
	series.stale()
	if last := s.load.Load(); last != nil {
		l := *last
		l.Stale = true
		s.load.Store(&l)
		s.o.Told(l)
	}
}

// outcomeOf says what a failed scrape is counted under.
func outcomeOf(err error) Outcome {
	var p *problem
	var timeout net.Error
	switch {
	case errors.As(err, &p):
		return p.outcome
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return OutcomeTimeout
	case errors.Is(err, io.ErrUnexpectedEOF):
		return OutcomeBroken
	}
	return OutcomeUnreachable
}
