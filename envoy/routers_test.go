package envoy

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// crowd sends requests from several clients until it is ended, and counts those that no router decided.
type crowd struct {
	end  func()
	sent atomic.Int64

	mu        sync.Mutex
	undecided []time.Time // when each was answered
}

func startCrowd(t *testing.T, p *proxy) *crowd {
	c := &crowd{}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var once sync.Once
	c.end = func() { once.Do(func() { close(stop); wg.Wait() }) }
	t.Cleanup(c.end)
	for range 6 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got := p.do(t, call{})
				c.sent.Add(1)
				if got.code != 200 {
					t.Errorf("a client got %d %q", got.code, got.body)
					return
				}
				if strings.HasPrefix(got.header.Get(HeaderDecision), "id=;") {
					c.mu.Lock()
					c.undecided = append(c.undecided, time.Now())
					c.mu.Unlock()
				}
			}
		})
	}
	return c
}

// after waits for n more requests.
func (c *crowd) after(t *testing.T, n int64) {
	t.Helper()
	want := c.sent.Load() + n
	eventually(t, fmt.Sprint(n, " more requests"), func() error {
		if c.sent.Load() < want {
			return fmt.Errorf("%d of %d", c.sent.Load(), want)
		}
		return nil
	})
}

// unrouted says how many requests since begin went without a decision, and until when.
func (c *crowd) unrouted(begin time.Time) (n int, last time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.undecided {
		if at.After(begin) {
			n++
			last = at.Sub(begin)
		}
	}
	return n, last
}

// onEachRelease leaves a setup out: the routers' cluster is the same in both layouts.
func onEachRelease(t *testing.T, f func(t *testing.T, s setup)) {
	done := map[string]bool{}
	for _, s := range setups() {
		if !done[s.version] {
			t.Run(s.version, func(t *testing.T) { f(t, s) })
		}
		done[s.version] = true
	}
}

// routersSeen waits until Envoy takes so many routers for healthy.
func routersSeen(t *testing.T, p *proxy, want int) {
	t.Helper()
	eventually(t, fmt.Sprint(want, " routers in use"), func() error {
		if n := p.stat(t, "cluster.kvsteer_router.membership_healthy"); n != want {
			return fmt.Errorf("%d routers are healthy", n)
		}
		return nil
	})
}

// used waits until a router is asked.
func used(t *testing.T, s *stub) {
	t.Helper()
	before := len(s.asked())
	eventually(t, "the router is asked", func() error {
		if len(s.asked()) == before {
			return fmt.Errorf("still %d times", before)
		}
		return nil
	})
}

// TestTwoRouters kills one of two routers under load, restarts it, stops it in order, and ends with none: Envoy notices before the
// next health check, and clients never do.
func TestTwoRouters(t *testing.T) {
	onEachRelease(t, func(t *testing.T, s setup) {
		for _, kind := range []string{"address", "name"} {
			t.Run(kind, func(t *testing.T) {
				site := newSite(t)
				other := startStub(t, "127.0.0.1:0")
				site.router.decide(site.chat1.addr, "")
				other.decide(site.chat2.addr, "")
				o := site.onePool()
				o.DecisionHeader = true
				o.Routers = []string{site.router.addr, other.addr}
				if kind == "name" {
					for i, r := range o.Routers {
						_, port, _ := net.SplitHostPort(r)
						o.Routers[i] = "localhost:" + port
					}
				}
				p := startEnvoy(t, s, o)
				routersSeen(t, p, 2)
				c := startCrowd(t, p)
				used(t, site.router)
				used(t, other)
				if n, _ := c.unrouted(time.Time{}); n != 0 {
					t.Errorf("%d requests went unrouted with both routers up", n)
				}

				killed := time.Now()
				other.grpc.Stop()
				c.after(t, 200)
				routersSeen(t, p, 1)
				n, last := c.unrouted(killed)
				t.Logf("killed: %d unrouted, the last after %v", n, last.Round(time.Millisecond))
				if last > routerInterval {
					t.Errorf("the last unrouted request came %v after the kill, want at most %v", last, routerInterval)
				}
				if n > 40 { // each client may lose a few that were under way
					t.Errorf("%d requests went unrouted", n)
				}

				settled := time.Now()
				other = startStub(t, other.addr)
				other.decide(site.chat2.addr, "")
				routersSeen(t, p, 2)
				used(t, other)
				c.after(t, 50)
				t.Logf("restarted: in use again after %v", time.Since(settled).Round(time.Millisecond))
				if n, last := c.unrouted(settled); n != 0 {
					t.Errorf("%d requests went unrouted when the router came back, the last after %v", n, last)
				}

				// In order: it says so first, and refuses streams once Envoy has heard.
				stopping := time.Now()
				other.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
				routersSeen(t, p, 1)
				other.grpc.GracefulStop()
				c.after(t, 50)
				if n, last := c.unrouted(stopping); n != 0 {
					t.Errorf("%d requests went unrouted by a stop in order, the last after %v", n, last)
				}

				// None left: requests fall back at once.
				none := time.Now()
				site.router.grpc.Stop()
				c.after(t, 50)
				routersSeen(t, p, 0)
				if n, _ := c.unrouted(none); n == 0 {
					t.Error("requests are decided without a router")
				}
				start := time.Now()
				p.want(t, call{}, 200, "chat")
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("without a router a request took %v", d)
				}
				c.end()
				t.Logf("%d requests", c.sent.Load())
			})
		}
	})
}

// TestOneRouterHangs stops one of two routers from answering anything: two health checks later it is left out.
func TestOneRouterHangs(t *testing.T) {
	onEachRelease(t, func(t *testing.T, s setup) {
		site := newSite(t)
		other := startStub(t, "127.0.0.1:0")
		site.router.decide(site.chat1.addr, "")
		other.decide(site.chat2.addr, "")
		o := site.onePool()
		o.DecisionHeader, o.MessageTimeout = true, time.Second
		o.Routers = []string{site.router.addr, other.addr}
		p := startEnvoy(t, s, o)
		routersSeen(t, p, 2)
		c := startCrowd(t, p)
		used(t, other)

		hung := time.Now()
		other.hang.Store(true)
		routersSeen(t, p, 1)
		out := time.Since(hung)
		c.after(t, 100)
		n, last := c.unrouted(hung)
		t.Logf("hung: out after %v; %d unrouted, the last after %v", out.Round(time.Millisecond), n, last.Round(time.Millisecond))
		if most := 2*(routerInterval+time.Second) + o.MessageTimeout + 2*time.Second; last > most { // and some for a busy machine
			t.Errorf("the last unrouted request came after %v, want at most %v", last, most)
		}
		other.hang.Store(false)
		routersSeen(t, p, 2)
		used(t, other)
		c.end()
	})
}
