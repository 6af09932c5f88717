package discover

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// maxTargets bounds the hosts of SRV records that are asked for at one time. All have one timeout together: with so many, a name server that takes
// 0.2 s for each answer is fast enough for 640 hosts within 2 s.
const maxTargets = 64

// dialer connects to one of these name servers after the other, or, without any, to that which the resolver names.
func dialer(servers []string) func(ctx context.Context, network, address string) (net.Conn, error) {
	var last atomic.Uint64
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if len(servers) > 0 {
			address = servers[last.Add(1)%uint64(len(servers))]
		}
		return dial(ctx, network, address)
	}
}

// dial connects to a name server. A question whose time is over ends its connection: the resolver would go on to wait for an answer.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = conn.Close() })
	}
	return conn, err
}

// lookup asks once. An error stands for no answer; no addresses and none dropped for a name that does not exist or has none.
func (d *Discoverer) lookup(ctx context.Context, n Name) (addrs []netip.AddrPort, dropped int, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.o.Timeout)
	defer cancel()
	if n.Port != 0 {
		addrs, err = d.hosts(ctx, n.Host, n.Port)
	} else {
		addrs, dropped, err = d.services(ctx, n.Host)
	}
	if err != nil {
		return nil, 0, err
	}
	addrs, more := tidy(addrs, d.o.MaxAddresses)
	return addrs, dropped + more, nil
}

// hosts are the addresses of a host, with each of the ports.
func (d *Discoverer) hosts(ctx context.Context, host string, ports ...uint16) ([]netip.AddrPort, error) {
	ips, err := d.o.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, answered(err)
	}
	var addrs []netip.AddrPort
	for _, ip := range ips {
		for _, port := range ports {
			if addr, ok := usable(ip, port); ok {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs, nil
}

// services are the addresses of all hosts of a name's SRV records. Where one of these cannot be asked for, there is no answer. dropped counts records beyond
// MaxAddresses.
func (d *Discoverer) services(ctx context.Context, name string) (addrs []netip.AddrPort, dropped int, err error) {
	_, records, err := d.o.Resolver.LookupSRV(ctx, "", "", name)
	if e := new(net.DNSError); len(records) > 0 && errors.As(err, &e) && !e.IsTemporary && !e.IsTimeout {
		err = nil // the resolver leaves out records that are no names of hosts, and says so
	}
	if err != nil {
		return nil, 0, answered(err)
	}
	if n := len(records) - d.o.MaxAddresses; n > 0 {
		records, dropped = records[:d.o.MaxAddresses], n
	}
	ports := map[string][]uint16{} // by host, each of which is asked for once
	for _, r := range records {
		host := strings.ToLower(r.Target)
		ports[host] = append(ports[host], r.Port)
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxTargets)
	for host, ports := range ports {
		group.Go(func() error {
			some, err := d.hosts(ctx, host, ports...)
			mu.Lock()
			defer mu.Unlock()
			addrs = append(addrs, some...)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	return addrs, dropped, nil
}

// answered tells an answer from none: that a name does not exist, or has no records of the kind, is nil.
func answered(err error) error {
	if e := new(net.DNSError); errors.As(err, &e) && e.IsNotFound && !e.IsTemporary && !e.IsTimeout {
		return nil
	}
	return err
}
