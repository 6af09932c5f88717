package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// probeGap is the shortest time between two probes of one endpoint, however many ask for one.
const probeGap = 100 * time.Millisecond

// Run probes all endpoints until ctx ends. It returns nil when every probe has ended.
func (s *Set) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, p := range s.Pools() {
		for _, e := range p.endpoints {
			wg.Go(func() { s.watch(ctx, e) })
		}
	}
	wg.Wait()
	return nil
}

// watch probes one endpoint until ctx ends, and removes its series then.
func (s *Set) watch(ctx context.Context, e *Endpoint) {
	s.m.set(e, e.Healthy())
	defer s.m.remove(e)

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
		err := s.probe.check(ctx, e.addr)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(s.health.delay(s.settle(e, err), rand.Float64()))
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
		s.log.Info("endpoint is back", "pool", e.pool, "endpoint", e.addr)
	case !before.down && after.down:
		s.log.Warn("endpoint is down", "pool", e.pool, "endpoint", e.addr, "error", err)
	}
	s.m.set(e, !after.down)
	return after
}

// prober sends one probe.
type prober struct {
	client  *http.Client
	timeout time.Duration
}

func probeClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (p prober) check(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/health", nil)
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
