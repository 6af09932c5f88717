package feed

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// RefusalReason says why a router does not accept a replica that a node announces; one of a closed set.
type RefusalReason string

// The reasons of refusals.
const (
	RefusedAddress RefusalReason = "address" // it is no ip:port that requests could be sent to
	RefusedForeign RefusalReason = "foreign" // the node may not speak for the address
	RefusedTaken   RefusalReason = "taken"   // another node announced the endpoint first
	RefusedTwice   RefusalReason = "twice"   // the node announces the endpoint twice
)

func refusalReasons() []RefusalReason {
	return []RefusalReason{RefusedAddress, RefusedForeign, RefusedTaken, RefusedTwice}
}

// Refusal is one replica that is not accepted.
type Refusal struct {
	Endpoint string // as the node announces it
	Pool     string
	Reason   RefusalReason
	Owner    string // with RefusedTaken: the address of the node whose endpoint it is
}

// resolve turns the endpoint that a node announces into an ip:port in its canonical form. The empty host stands for the address that the router
// dialled. A node may announce that address, and those that its configuration allows; "" for the reason means that it may.
func resolve(announced string, dialled netip.Addr, allow []netip.Prefix) (netip.AddrPort, RefusalReason) {
	at := netip.AddrPort{}
	if port, ok := strings.CutPrefix(announced, ":"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return at, RefusedAddress
		}
		at = netip.AddrPortFrom(dialled, uint16(n))
	} else {
		parsed, err := netip.ParseAddrPort(announced)
		if err != nil {
			return at, RefusedAddress
		}
		at = netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port())
	}
	ip := at.Addr()
	if at.Port() == 0 || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return netip.AddrPort{}, RefusedAddress
	}
	if ip != dialled && !slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return netip.AddrPort{}, RefusedForeign
	}
	return at, ""
}

// owners say which node speaks for which endpoint: the first that announces it, until it announces it no more or is no node of this router any
// more. A node that is lost keeps its endpoints.
type owners struct {
	mu     sync.RWMutex
	claims map[string]*claim // by endpoint
}

type claim struct {
	owner     *watched
	announced string     // the endpoint as the owner names it
	waiting   []*watched // whom the endpoint was refused
}

// claim makes n the owner of an endpoint unless another node is: that one is returned then, and n is told when the endpoint is free again.
func (o *owners) claim(n *watched, endpoint, announced string) (owner *watched) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.claims[endpoint]
	switch {
	case c == nil:
		if o.claims == nil {
			o.claims = map[string]*claim{}
		}
		o.claims[endpoint] = &claim{owner: n, announced: announced}
	case c.owner == n:
		c.announced = announced
	default:
		if !slices.Contains(c.waiting, n) {
			c.waiting = append(c.waiting, n)
		}
		return c.owner
	}
	return nil
}

// keep lets n have, and wait for, endpoints only that it announces still. The nodes that waited for what it gives up are told.
func (o *owners) keep(n *watched, announced map[string]bool) {
	var freed []*watched
	o.mu.Lock()
	for endpoint, c := range o.claims {
		switch {
		case announced[endpoint]:
		case c.owner == n:
			delete(o.claims, endpoint)
			freed = append(freed, c.waiting...)
		default:
			c.waiting = slices.DeleteFunc(c.waiting, func(w *watched) bool { return w == n })
		}
	}
	o.mu.Unlock()
	for _, w := range freed {
		w.again()
	}
}

// of returns the node that speaks for an endpoint, nil for none, and how it names it.
func (o *owners) of(endpoint string) (n *watched, announced string) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if c := o.claims[endpoint]; c != nil {
		return c.owner, c.announced
	}
	return nil, ""
}
