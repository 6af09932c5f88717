package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"syscall"
	"time"
)

// probeGap is the shortest time between two probes of one endpoint, however many ask for one.
const probeGap = 100 * time.Millisecond

// probing is how endpoints are probed. It is never changed once stored.
type probing struct {
	schedule
	timeout time.Duration
}

func newProbing(o Options, interval time.Duration) *probing {
	p := &probing{schedule: schedule{interval: interval, first: interval / 4, cap: o.MaxBackoff}, timeout: o.ProbeTimeout}
	if p.cap == 0 {
		p.cap = 5 * interval
	}
	if p.timeout == 0 {
		p.timeout = interval / 2
	}
	return p
}

// watched is an endpoint that is being probed.
type watched struct {
	stop  context.CancelFunc
	ended chan struct{}
}

// Run probes all endpoints, those that Apply brings too, until ctx ends. It returns nil when every probe has ended.
func (s *Set) Run(ctx context.Context) error {
	probes := map[*Endpoint]watched{}
	s.follow(ctx, probes)
	s.showAdapters()
	for {
		select {
		case <-s.told:
			s.rename()
		case <-s.changed:
			s.follow(ctx, probes)
			s.showAdapters()
		case <-ctx.Done():
			for _, w := range probes {
				w.stop()
				<-w.ended
			}
			s.m.removeAdapters()
			return nil
		}
	}
}

// showAdapters gives the pools there are their series, and takes those of others away.
func (s *Set) showAdapters() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.showAdapters(s.Pools())
}

// follow ends the probes of endpoints that are gone, then starts those of endpoints that have come: an endpoint that is both has the series
// of its successor.
func (s *Set) follow(ctx context.Context, probes map[*Endpoint]watched) {
	all := map[*Endpoint]bool{}
	for _, p := range s.Pools() {
		for _, e := range p.endpoints {
			all[e] = true
		}
	}
	var ending []watched
	for e, w := range probes {
		if !all[e] {
			w.stop()
			ending = append(ending, w)
			delete(probes, e)
		}
	}
	for _, w := range ending {
		<-w.ended
	}
	for e := range all {
		if _, ok := probes[e]; ok {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		w := watched{stop: stop, ended: make(chan struct{})}
		probes[e] = w
		go func() {
			defer close(w.ended)
			s.watch(ctx, e)
		}()
	}
}

// watch probes one endpoint until ctx ends, and removes its series then.
func (s *Set) watch(ctx context.Context, e *Endpoint) {
	e.show(s.m)
	defer e.show(nil)
	ctx, stop := context.WithCancel(ctx)
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		s.ask(ctx, e)
	}()
	defer func() { stop(); <-asking }()

	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			timer.Reset(time.Until(last.Add(probeGap)))
			continue
		case <-timer.C:
		}
		last = time.Now()
		probing := s.probing.Load()
		err := prober{client: s.client, timeout: probing.timeout, scheme: s.scheme()}.check(ctx, e.addr)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(probing.delay(s.settle(e, err), rand.Float64()))
	}
}

// settle enters the outcome of a probe.
func (s *Set) settle(e *Endpoint, err error) health {
	var before, after health
	if err == nil {
		now := time.Now()
		before, after = e.change(func(h health) health { return h.ok(now) })
	} else {
		s.m.failures.WithLabelValues(e.pool, e.addr).Inc()
		refused := errors.Is(err, syscall.ECONNREFUSED)
		before, after = e.change(func(h health) health { return h.failed(refused) })
	}
	switch {
	case before.down && !after.down:
		e.askModels()
		s.log.Info("endpoint is back", "pool", e.pool, "endpoint", e.addr)
	case !before.down && after.down:
		if e.listing.Load() != nil {
			s.tell() // what only it told of is not known any more
		}
		s.log.Warn("endpoint is down", "pool", e.pool, "endpoint", e.addr, "error", err)
	}
	return after
}

func (s *Set) scheme() string {
	if s.given.DialTLS != nil {
		return "https"
	}
	return "http"
}

// prober sends one probe.
type prober struct {
	client  *http.Client
	timeout time.Duration
	scheme  string
}

func probeClient(o Options) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!o.HTTP2)
	protocols.SetHTTP2(o.HTTP2)
	protocols.SetUnencryptedHTTP2(o.HTTP2)
	return &http.Client{
		Transport: &http.Transport{
			DialTLSContext:         o.DialTLS,
			Protocols:              protocols,
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (p prober) check(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.scheme+"://"+addr+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // the status is the answer
	if resp.StatusCode >= 500 {
		return fmt.Errorf("GET /health: status %d", resp.StatusCode)
	}
	return nil
}
