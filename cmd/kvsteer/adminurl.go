package main

import (
	"fmt"
	"net/netip"
	"net/url"
)

// checkURL reports what is wrong with the URL of an admin listener that a flag gives. User, password and query have no use, and would show in errors.
func checkURL(flag, given string) error {
	u, err := url.Parse(given)
	switch {
	case err == nil && (u.User != nil || u.RawQuery != "" || u.Fragment != ""):
		return fmt.Errorf("%s: http://HOST:PORT or https://HOST:PORT is needed, without user, password and query", flag)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("%s: %q is not http://HOST:PORT or https://HOST:PORT", flag, given)
	}
	return nil
}

// adminURL is where an admin listener is reached from its own host; "" when its address does not tell.
func adminURL(listen string, tls bool) string {
	at, err := netip.ParseAddrPort(listen)
	if err != nil || at.Port() == 0 {
		return "" // a port that the system picks is known to nobody else
	}
	if at.Addr().IsUnspecified() {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if at.Addr().Is6() {
			loopback = netip.IPv6Loopback()
		}
		at = netip.AddrPortFrom(loopback, at.Port())
	}
	if tls {
		return "https://" + at.String()
	}
	return "http://" + at.String()
}
