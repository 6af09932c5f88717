package discover

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Name is what DNS is asked for.
type Name struct {
	Host string
	Port uint16 // of all addresses of Host; 0: Host is a name of SRV records, which have ports of their own
}

// ParseName reads name:port.
func ParseName(text string) (Name, error) {
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || n == 0 || host == "" {
		return Name{}, fmt.Errorf("%q is not name:port", text)
	}
	return Name{Host: host, Port: uint16(n)}, nil
}

// String is name:port, or the name of SRV records.
func (n Name) String() string {
	if n.Port == 0 {
		return n.Host
	}
	return net.JoinHostPort(n.Host, strconv.Itoa(int(n.Port)))
}

// usable reports whether an address can be that of a host, and gives its one spelling.
func usable(ip netip.Addr, port uint16) (netip.AddrPort, bool) {
	ip = ip.Unmap()
	ok := ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && ip.Zone() == "" && port != 0
	return netip.AddrPortFrom(ip, port), ok
}
