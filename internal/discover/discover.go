package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Resolver asks DNS. A *net.Resolver is one; its StrictErrors must be set, or it gives some addresses of a host for all.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (cname string, records []*net.SRV, err error)
}

// Options of a Discoverer. Changed is needed.
type Options struct {
	// Changed is told the addresses of a name when they are first known, be it none, and whenever they are others. The slice must not be changed.
	Changed func(n Name, addrs []netip.AddrPort)
	// Resolver asks. Default: Go's own, with these name servers (ip:port), or those of /etc/resolv.conf.
	Resolver Resolver
	Servers  []string
	// Timeout bounds one question, all hosts of SRV records included. Default 2 s.
	Timeout time.Duration
	// MaxAddresses bounds the addresses of one name. Default 4,096, which is what fits into one answer of DNS.
	MaxAddresses int

	Log     *slog.Logger // default: none
	Metrics *Metrics     // default: not exported
}

// Discoverer asks for names.
type Discoverer struct {
	o        Options
	interval atomic.Int64
	changed  chan struct{} // capacity 1: tells Run of other names

	mu     sync.Mutex
	wanted []Name
	left   map[Name]bool // names that Set has left out since Run looked, also those that it wants again
}

// New validates the options. It starts nothing, and asks for no name before Set.
func New(o Options) (*Discoverer, error) {
	if o.Changed == nil {
		return nil, errors.New("discover: nobody is told of changes")
	}
	if o.Timeout < 0 || o.MaxAddresses < 0 {
		return nil, fmt.Errorf("discover: timeout %v, %d addresses: want 0 (default) or more", o.Timeout, o.MaxAddresses)
	}
	if o.Resolver == nil {
		o.Resolver = &net.Resolver{PreferGo: true, StrictErrors: true, Dial: dialer(o.Servers)}
	}
	o.Timeout = cmp.Or(o.Timeout, 2*time.Second)
	o.MaxAddresses = cmp.Or(o.MaxAddresses, 4096)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	d := &Discoverer{o: o, changed: make(chan struct{}, 1), left: map[Name]bool{}}
	d.interval.Store(int64(time.Second))
	return d, nil
}

// Set gives the names that are asked for from here on, and the time between two questions, which must be above zero. What is known of names that stay
// stays; with another interval they are asked for at once. A name that was left out is told of anew.
func (d *Discoverer) Set(names []Name, interval time.Duration) {
	d.interval.Store(int64(interval))
	d.mu.Lock()
	for _, n := range d.wanted {
		if !slices.Contains(names, n) {
			d.left[n] = true
		}
	}
	d.wanted = slices.Clone(names)
	d.mu.Unlock()
	select {
	case d.changed <- struct{}{}:
	default: // Run will see these names too
	}
}

// asked is a name that is asked for.
type asked struct {
	stop  context.CancelFunc
	again chan struct{} // capacity 1: asks at once
	ended chan struct{}
}

// Run asks until ctx ends, and returns nil then.
func (d *Discoverer) Run(ctx context.Context) error {
	names := map[Name]asked{}
	stop := func(n Name) {
		names[n].stop()
		<-names[n].ended
		delete(names, n)
		d.o.Metrics.remove(n)
	}
	defer func() {
		for n := range names {
			names[n].stop()
		}
		for n := range names {
			stop(n)
		}
	}()
	for interval := d.interval.Load(); ; {
		select {
		case <-d.changed:
		case <-ctx.Done():
			return nil
		}
		d.mu.Lock()
		wanted, left := d.wanted, d.left
		d.left = map[Name]bool{}
		d.mu.Unlock()
		for n := range names {
			if left[n] {
				stop(n)
			}
		}
		if other := d.interval.Load(); other != interval {
			interval = other
			for _, one := range names {
				select {
				case one.again <- struct{}{}:
				default: // about to ask
				}
			}
		}
		for _, n := range wanted {
			if _, ok := names[n]; ok {
				continue
			}
			ctx, cancel := context.WithCancel(ctx)
			one := asked{cancel, make(chan struct{}, 1), make(chan struct{})}
			names[n] = one
			go func() {
				defer close(one.ended)
				d.ask(ctx, n, one.again)
			}()
		}
	}
}

// ask asks for one name until ctx ends, and out of turn when again says so.
func (d *Discoverer) ask(ctx context.Context, n Name, again <-chan struct{}) {
	log := d.o.Log.With("name", n.String())
	d.o.Metrics.add(n)
	b, saidDropped := belief{}, false
	for ctx.Err() == nil {
		addrs, dropped, err := d.lookup(ctx, n)
		if ctx.Err() != nil {
			return
		}
		o := outcomeOK
		switch {
		case err != nil:
			o = outcomeFailed
		case len(addrs) == 0:
			o = outcomeNone
		}
		before := b
		var changed bool
		b, changed = b.fold(o, addrs)
		d.o.Metrics.asked(n, o, b, dropped)
		switch {
		case err != nil && before.failures == 0:
			log.Warn("DNS does not answer; the last answer stays in use", "addresses", len(b.addrs), "error", err)
		case err == nil && before.failures > 0:
			log.Info("DNS answers again", "addresses", len(b.addrs))
		}
		if err == nil && (dropped > 0) != saidDropped {
			if saidDropped = dropped > 0; saidDropped {
				log.Warn("DNS gives more addresses than are taken", "taken", len(b.addrs), "left_out", dropped)
			}
		}
		if changed {
			switch {
			case len(b.addrs) > 0:
				log.Info("DNS gives other addresses", "addresses", len(b.addrs), "before", len(before.addrs))
			default:
				log.Warn("DNS gives no address for the name", "before", len(before.addrs))
			}
			d.o.Changed(n, b.addrs)
		}
		timer := time.NewTimer(b.wait(time.Duration(d.interval.Load()), rand.Float64()))
		select {
		case <-timer.C:
		case <-again:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
