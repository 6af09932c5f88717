package doctor

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// openPorts are this host's listening TCP sockets, as far as the system shows them.
type openPorts struct {
	shown bool             // false where there is no such list
	all   []netip.AddrPort // sockets in state LISTEN
	own   []netip.Addr     // this host's addresses
}

// maxSockets bounds the lines read of each list.
const maxSockets = 1 << 20

// readPorts reads net/tcp and net/tcp6 in proc.
func readPorts(proc string) openPorts {
	var p openPorts
	for _, name := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join(proc, "net", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return openPorts{}
		}
		p.shown = true
		p.all = append(p.all, listening(file)...)
		file.Close()
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return p
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				p.own = append(p.own, ip.Unmap())
			}
		}
	}
	return p
}

// stateListen is TCP_LISTEN of Linux's include/net/tcp_states.h.
const stateListen = "0A"

// listening reads lines such as "0: 0100007F:1F90 00000000:0000 0A …".
func listening(r io.Reader) []netip.AddrPort {
	var found []netip.AddrPort
	lines := bufio.NewScanner(r)
	for n := 0; lines.Scan() && n < maxSockets; n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != stateListen {
			continue
		}
		if a, ok := kernelAddress(fields[1]); ok {
			found = append(found, a)
		}
	}
	return found
}

// kernelAddress reads ADDRESS:PORT in hexadecimal, the address in words of 32 bits in the byte order of the host, which is little-endian
// on every platform that has these engines.
func kernelAddress(s string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	ip, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), ok
}

// listens reports whether somebody of this host listens at ip:port.
func (p openPorts) listens(at netip.AddrPort) bool {
	return slices.ContainsFunc(p.all, func(l netip.AddrPort) bool {
		return l.Port() == at.Port() && (l.Addr().IsUnspecified() || at.Addr().IsUnspecified() || l.Addr() == at.Addr().Unmap())
	})
}

// exposed returns the listening sockets of a port beyond loopback, when the address at is one of this host.
func (p openPorts) exposed(at netip.AddrPort) []netip.AddrPort {
	ip := at.Addr().Unmap()
	if !ip.IsLoopback() && !slices.Contains(p.own, ip) {
		return nil
	}
	var found []netip.AddrPort
	for _, l := range p.all {
		if l.Port() == at.Port() && !l.Addr().IsLoopback() && !slices.Contains(found, l) {
			found = append(found, l)
		}
	}
	return found
}
