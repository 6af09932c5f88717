package discover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fake is a Resolver whose answers a test sets.
type fake struct {
	mu    sync.Mutex
	hosts map[string][]string // nil value: it fails; no key: no such host
	srv   map[string][]*net.SRV
	asked map[string]int
	delay time.Duration // before each answer of a host's
}

func newFake() *fake {
	return &fake{hosts: map[string][]string{}, srv: map[string][]*net.SRV{}, asked: map[string]int{}}
}

func (f *fake) set(host string, ips ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts[host] = ips
}

func (f *fake) drop(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.hosts, host)
}

func (f *fake) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[name]
}

func (f *fake) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	if f.delay > 0 {
		select {
		case <-time.After(f.delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[host]++
	ips, ok := f.hosts[host]
	switch {
	case !ok:
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	case ips == nil:
		return nil, &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}
	}
	var all []netip.Addr
	for _, ip := range ips {
		all = append(all, netip.MustParseAddr(ip))
	}
	return all, nil
}

func (f *fake) LookupSRV(_ context.Context, _, _, name string) (string, []*net.SRV, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[name]++
	if all, ok := f.srv[name]; ok {
		return name, all, nil
	}
	return "", nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

// told notes what a Discoverer tells.
type told struct {
	mu  sync.Mutex
	all []string
}

func (c *told) changed(n Name, addrs []netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprint(n, " ", addrs))
}

// take returns what has been told since the last call.
func (c *told) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = nil
	return strings.Join(all, "; ")
}

func start(t *testing.T, o Options) *Discoverer {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return d
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFake(), &told{}
		var log bytes.Buffer
		reg := prometheus.NewPedanticRegistry()
		d := start(t, Options{Resolver: f, Changed: c.changed, Metrics: NewMetrics(reg), Log: slog.New(slog.NewTextHandler(&log, nil))})
		step := func(what, want string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if got := c.take(); got != want {
				t.Errorf("%s: told %q, want %q", what, got, want)
			}
		}
		a, b := Name{"a.test", 80}, Name{"b.test", 81}
		f.set("a.test", "10.0.0.2", "10.0.0.1", "10.0.0.2", "224.0.0.1")
		step("nothing asked", "")
		d.Set([]Name{a}, time.Second)
		step("first", "a.test:80 [10.0.0.1:80 10.0.0.2:80]")
		f.set("a.test", "10.0.0.1", "10.0.0.2")
		step("another order", "")
		f.set("b.test", "fd00::1")
		d.Set([]Name{a, b}, time.Second)
		step("a second name", "b.test:81 [[fd00::1]:81]")
		f.set("a.test", "10.0.0.2")
		step("one address left", "a.test:80 [10.0.0.2:80]")
		f.set("a.test") // fails
		for range 20 {
			step("failing", "")
		}
		if n := strings.Count(log.String(), "does not answer"); n != 1 {
			t.Errorf("a failing name is said %d times", n)
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP kvsteer_discover_addresses Addresses of the name that are in use.
# TYPE kvsteer_discover_addresses gauge
kvsteer_discover_addresses{name="a.test:80"} 1
kvsteer_discover_addresses{name="b.test:81"} 1
# HELP kvsteer_discover_failing 1 while DNS does not answer for the name, and the last answer stays in use.
# TYPE kvsteer_discover_failing gauge
kvsteer_discover_failing{name="a.test:80"} 1
kvsteer_discover_failing{name="b.test:81"} 0
`), "kvsteer_discover_addresses", "kvsteer_discover_failing"); err != nil {
			t.Error(err)
		}
		f.set("a.test", "10.0.0.2")
		for range 10 { // the longest wait
			step("answers again", "")
		}
		if n := strings.Count(log.String(), "answers again"); n != 1 {
			t.Errorf("its end is said %d times", n)
		}
		f.drop("a.test")
		time.Sleep(time.Second)
		step("gone", "a.test:80 []")
		d.Set([]Name{b}, time.Second)
		synctest.Wait()
		before := f.count("a.test")
		step("left out", "")
		if f.count("a.test") != before {
			t.Error("a name that was left out is asked for")
		}
		if n := testutil.CollectAndCount(d.o.Metrics.addresses); n != 1 {
			t.Errorf("%d names have series", n)
		}
		f.set("a.test", "10.0.0.9")
		d.Set([]Name{b, a}, time.Second)
		step("back", "a.test:80 [10.0.0.9:80]")
	})
}

// A name whose addresses are all gone is known to be so within two seconds.
func TestGoneInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFake(), &told{}
		d := start(t, Options{Resolver: f, Changed: c.changed})
		f.set("a.test", "10.0.0.1")
		d.Set([]Name{{"a.test", 80}}, time.Second)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.take()
		f.drop("a.test")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := c.take(); got != "a.test:80 []" {
			t.Errorf("told %q", got)
		}
	})
}

// Names are asked for as often as the interval says, whatever the answers.
func TestInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFake(), &told{}
		d := start(t, Options{Resolver: f, Changed: c.changed})
		f.set("well.test", "10.0.0.1")
		f.set("failing.test")
		d.Set([]Name{{"well.test", 80}, {"none.test", 80}, {"failing.test", 80}}, time.Second)
		time.Sleep(100 * time.Second)
		synctest.Wait()
		for name, want := range map[string][2]int{"well.test": {100, 112}, "none.test": {100, 112}, "failing.test": {10, 20}} {
			if n := f.count(name); n < want[0] || n > want[1] {
				t.Errorf("%s was asked for %d times in 100 s, want %v", name, n, want)
			}
		}
		d.Set([]Name{{"well.test", 80}}, 10*time.Second)
		time.Sleep(time.Second)
		before := f.count("well.test")
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if n := f.count("well.test") - before; n < 10 || n > 12 {
			t.Errorf("asked for %d times in 100 s at an interval of 10 s", n)
		}
		d.Set([]Name{{"well.test", 80}}, time.Hour)
		time.Sleep(time.Minute)
		before = f.count("well.test")
		d.Set([]Name{{"well.test", 80}}, time.Second)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := f.count("well.test") - before; n < 10 || n > 12 {
			t.Errorf("asked for %d times in the 10 s after the interval became 1 s", n)
		}
	})
}

// A name that is left out and is back before anybody has looked is told of anew: who left it out has forgotten what it was told.
func TestBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFake(), &told{}
		d := start(t, Options{Resolver: f, Changed: c.changed})
		f.set("a.test", "10.0.0.1")
		for range 3 {
			d.Set(nil, time.Second)
			d.Set([]Name{{"a.test", 80}}, time.Second)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := c.take(); got != "a.test:80 [10.0.0.1:80]" {
				t.Errorf("told %q", got)
			}
		}
	})
}

func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFake(), &told{}
		d := start(t, Options{Resolver: f, Changed: c.changed})
		n := Name{Host: "_http._tcp.test"}
		f.srv[n.Host] = []*net.SRV{{Target: "a.test.", Port: 80, Priority: 1}, {Target: "b.test.", Port: 81, Priority: 2}, {Target: "none.test.", Port: 82}}
		f.set("a.test.", "10.0.0.1", "fd00::1")
		f.set("b.test.", "10.0.0.2")
		d.Set([]Name{n}, time.Second)
		synctest.Wait()
		if got, want := c.take(), "_http._tcp.test [10.0.0.1:80 10.0.0.2:81 [fd00::1]:80]"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		f.set("b.test.") // fails: there is no answer, and b's address stays
		f.set("a.test.", "10.0.0.3")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := c.take(); got != "" {
			t.Errorf("told %q of half an answer", got)
		}
		f.set("b.test.", "10.0.0.2")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got, want := c.take(), "_http._tcp.test [10.0.0.2:81 10.0.0.3:80]"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}

// Hosts of SRV records are asked for at the same time, each once, in the time of one question.
func TestServicesSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hosts, each = 10 * maxTargets, 4
		f := newFake()
		f.delay = 200 * time.Millisecond
		n := Name{Host: "_http._tcp.test"}
		for i := range hosts {
			host := fmt.Sprintf("e%d.test.", i)
			f.set(host, fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250))
			for port := range uint16(each) {
				f.srv[n.Host] = append(f.srv[n.Host], &net.SRV{Target: strings.ToUpper(host[:1]) + host[1:], Port: 8000 + port})
			}
		}
		d, err := New(Options{Resolver: f, Timeout: 2*time.Second + 1, Changed: func(Name, []netip.AddrPort) {}})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		addrs, dropped, err := d.lookup(t.Context(), n)
		if took := time.Since(begun); err != nil || len(addrs) != hosts*each || dropped != 0 || took != 10*f.delay {
			t.Errorf("%d addresses, %d dropped, error %v after %v", len(addrs), dropped, err, took)
		}
		for i := range hosts {
			if got := f.count(fmt.Sprintf("e%d.test.", i)); got != 1 {
				t.Fatalf("host %d is asked for %d times", i, got)
			}
		}

		// A name server that is too slow is given up after one timeout, not after one for each host.
		f.delay = time.Minute
		begun = time.Now()
		if _, _, err := d.lookup(t.Context(), n); err == nil || time.Since(begun) != d.o.Timeout {
			t.Errorf("error %v after %v", err, time.Since(begun))
		}
	})
}

func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFake(), &told{}
		var log bytes.Buffer
		d := start(t, Options{Resolver: f, Changed: c.changed, MaxAddresses: 2, Log: slog.New(slog.NewTextHandler(&log, nil))})
		host, srv := Name{"a.test", 80}, Name{Host: "_http._tcp.test"}
		f.set("a.test", "10.0.0.3", "10.0.0.1", "10.0.0.2")
		for i := range 5 {
			f.srv[srv.Host] = append(f.srv[srv.Host], &net.SRV{Target: "a.test", Port: uint16(80 + i)})
		}
		d.Set([]Name{host}, time.Second)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got, want := c.take(), "a.test:80 [10.0.0.1:80 10.0.0.2:80]"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		if n := strings.Count(log.String(), "more addresses than are taken"); n != 1 {
			t.Errorf("said %d times", n)
		}
		d.Set([]Name{srv}, time.Second)
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := c.take(), "_http._tcp.test [10.0.0.1:80 10.0.0.1:81]"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		// 3 records beyond the bound, and 4 of the 6 addresses of the others
		if got := testutil.ToFloat64(d.o.Metrics.dropped.WithLabelValues(srv.String())); got != 7 {
			t.Errorf("%v dropped", got)
		}
	})
}

func TestNew(t *testing.T) {
	changed := func(Name, []netip.AddrPort) {}
	for name, o := range map[string]Options{
		"nobody to tell": {}, "negative timeout": {Changed: changed, Timeout: -1}, "negative bound": {Changed: changed, MaxAddresses: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	d, err := New(Options{Changed: changed})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.Set([]Name{{"a.test", 80}}, time.Second)
	if err := d.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestAnswered(t *testing.T) {
	other := errors.New("other")
	for name, tt := range map[string]struct {
		err  error
		none bool
	}{
		"none":               {&net.DNSError{IsNotFound: true}, true},
		"none, wrapped":      {fmt.Errorf("x: %w", &net.DNSError{IsNotFound: true}), true},
		"none, but time out": {&net.DNSError{IsNotFound: true, IsTimeout: true}, false},
		"none for now":       {&net.DNSError{IsNotFound: true, IsTemporary: true}, false},
		"SERVFAIL":           {&net.DNSError{IsTemporary: true}, false},
		"another error":      {other, false},
	} {
		if got := answered(tt.err); (got == nil) != tt.none {
			t.Errorf("%s: %v", name, got)
		}
	}
}
