// Package discover asks DNS for addresses, again and again, and tells when they have changed.
//
// A [Name] is a host whose A and AAAA records give addresses that share one port, or a name of SRV records, each of which gives a host and a port.
// Priorities and weights of SRV records count for nothing. Their hosts are asked for 64 at a time, each once, and all of them within one Timeout.
//
//	d, err := discover.New(discover.Options{Changed: func(n discover.Name, addrs []netip.AddrPort) { … }})
//	go d.Run(ctx)
//	d.Set([]discover.Name{{Host: "engines.example.org", Port: 8000}}, time.Second)
//
// # What is believed
//
// An answer replaces the one before. A question that fails (no answer in time, SERVFAIL, an answer that is none) changes nothing: the last answer stays,
// for as long as it takes, as what it names goes on serving whatever becomes of DNS. So does an answer of which a part is missing: where the A records come and the
// AAAA records do not, the question has failed. That a name does not exist, or has no address, is an answer (NXDOMAIN, or NOERROR without a
// record), but one that a name server also gives that has just started and knows nothing yet. So after addresses it is believed
// only when it comes twice in a row:
//
//	answers    10.0.0.1 10.0.0.2   SERVFAIL            none                none
//	believed   10.0.0.1 10.0.0.2   10.0.0.1 10.0.0.2   10.0.0.1 10.0.0.2   (none)
//
// Addresses are sorted, each stands there once, and those that can be of no host (unspecified, multicast, with a zone, port 0) are left out. Of more than
// MaxAddresses the first are taken, and the rest is counted.
//
// Each name is asked at an interval, from the end of a question on, a little apart from the others. After a failure, or a first answer without an address, the next
// question comes after half of the interval, and with more failures after twice as long each time, at most 10 s or the interval. A name that fails is said once, and once that it answers again.
//
// # Concurrency
//
// All methods may be called at any time. Run starts a goroutine for each name, and returns when all have ended. Options.Changed is called by them, one call at
// a time for each name; a call may come for a name that Set has just left out. It should not take long.
package discover
