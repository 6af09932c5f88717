package discover

import (
	"net/netip"
	"slices"
	"time"
)

// outcome is what became of a question; one of a closed set.
type outcome string

const (
	outcomeOK     outcome = "ok"     // addresses
	outcomeNone   outcome = "none"   // the name does not exist, or has no address
	outcomeFailed outcome = "failed" // no answer
)

func outcomes() []outcome { return []outcome{outcomeOK, outcomeNone, outcomeFailed} }

// nonesBelieved is how many answers in a row take away all addresses.
const nonesBelieved = 2

// belief is what is held to be true of a name.
type belief struct {
	addrs    []netip.AddrPort // sorted
	told     bool             // there has been an answer
	nones    int              // of the latest answers in a row, those without an address
	failures int              // in a row
}

// fold is the belief after a question. changed says that its addresses are others, or the first ones, be it none.
func (b belief) fold(o outcome, addrs []netip.AddrPort) (next belief, changed bool) {
	next = b
	switch o {
	case outcomeFailed:
		next.failures++
		return next, false
	case outcomeNone:
		next.failures, addrs = 0, nil
		next.nones = min(b.nones+1, nonesBelieved)
		if len(b.addrs) > 0 && next.nones < nonesBelieved {
			return next, false
		}
	default:
		next.failures, next.nones = 0, 0
	}
	next.addrs, next.told = addrs, true
	return next, !b.told || !slices.Equal(b.addrs, addrs)
}

// maxWait bounds the time until a name that fails is asked again, where the interval is shorter.
const maxWait = 10 * time.Second

// wait is the time until the next question. part is a random number from 0 to 1, which keeps names apart.
func (b belief) wait(interval time.Duration, part float64) time.Duration {
	d := interval
	switch {
	case b.failures > 0:
		d = min(interval/2<<min(b.failures-1, 16), max(interval, maxWait))
	case b.nones == 1 && len(b.addrs) > 0:
		d = interval / 2 // to be believed or not
	}
	return d - time.Duration(part*float64(d)/10)
}

// tidy sorts addresses, drops what stands there twice, and keeps at most so many.
func tidy(addrs []netip.AddrPort, most int) (kept []netip.AddrPort, dropped int) {
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	addrs = slices.Compact(addrs)
	if n := len(addrs) - most; n > 0 {
		return addrs[:most], n
	}
	return addrs, 0
}
