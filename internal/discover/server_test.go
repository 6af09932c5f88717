package discover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// server is a name server on loopback, over UDP and TCP.
type server struct {
	udp net.PacketConn
	tcp net.Listener
	wg  sync.WaitGroup

	mu        sync.Mutex
	records   map[string][]dnsmessage.ResourceBody // by name with its last dot
	codes     map[string]dnsmessage.RCode          // instead of records; of one type: "A name."
	silent    bool
	mute      map[string]bool // names that are not answered
	overTCP   int
	nodata    map[string]bool // the name exists without records
	questions int
}

// maxUDP is what goes into an answer over UDP before it is truncated.
const maxUDP = 1232

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{records: map[string][]dnsmessage.ResourceBody{}, codes: map[string]dnsmessage.RCode{}, nodata: map[string]bool{}, mute: map[string]bool{}}
	var err error
	if s.udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if s.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.wg.Go(s.serveUDP)
	s.wg.Go(s.serveTCP)
	t.Cleanup(func() {
		s.udp.Close()
		s.tcp.Close()
		s.wg.Wait()
	})
	return s
}

// resolver asks this server alone.
func (s *server) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		if strings.HasPrefix(network, "tcp") {
			return dial(ctx, "tcp", s.tcp.Addr().String())
		}
		return dial(ctx, "udp", s.udp.LocalAddr().String())
	}}
}

func (s *server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) serveUDP() {
	buf := make([]byte, 4096)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		if reply := s.answer(buf[:n], false); reply != nil {
			_, _ = s.udp.WriteTo(reply, from)
		}
	}
}

func (s *server) serveTCP() {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			var length [2]byte
			if _, err := io.ReadFull(conn, length[:]); err != nil {
				return
			}
			query := make([]byte, binary.BigEndian.Uint16(length[:]))
			if _, err := io.ReadFull(conn, query); err != nil {
				return
			}
			if reply := s.answer(query, true); reply != nil {
				_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
			}
		})
	}
}

func (s *server) answer(query []byte, tcp bool) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.questions++
	if tcp {
		s.overTCP++
	}
	name := q.Name.String()
	if s.silent || s.mute[name] {
		return nil
	}
	all, known := s.records[name]
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q},
	}
	code, other := s.codes[name]
	if one, ok := s.codes[strings.TrimPrefix(q.Type.String(), "Type")+" "+name]; ok {
		code, other = one, true
	}
	switch {
	case other:
		m.RCode = code
	case !known && !s.nodata[name]:
		m.RCode = dnsmessage.RCodeNameError
	default:
		for _, body := range all {
			var kind dnsmessage.Type
			switch body.(type) {
			case *dnsmessage.AResource:
				kind = dnsmessage.TypeA
			case *dnsmessage.AAAAResource:
				kind = dnsmessage.TypeAAAA
			case *dnsmessage.SRVResource:
				kind = dnsmessage.TypeSRV
			}
			if kind == q.Type {
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}, Body: body})
			}
		}
	}
	reply, err := m.Pack()
	if err == nil && !tcp && len(reply) > maxUDP {
		m.Truncated, m.Answers = true, m.Answers[:min(len(m.Answers), 10)]
		reply, err = m.Pack()
	}
	if err != nil {
		panic(err)
	}
	return reply
}

func records(ips ...string) []dnsmessage.ResourceBody {
	var all []dnsmessage.ResourceBody
	for _, text := range ips {
		if ip := netip.MustParseAddr(text); ip.Is4() {
			all = append(all, &dnsmessage.AResource{A: ip.As4()})
		} else {
			all = append(all, &dnsmessage.AAAAResource{AAAA: ip.As16()})
		}
	}
	return all
}

func asker(t *testing.T, s *server, timeout time.Duration) func(Name) ([]netip.AddrPort, int, error) {
	t.Helper()
	d, err := New(Options{Resolver: s.resolver(), Timeout: timeout, Changed: func(Name, []netip.AddrPort) {}})
	if err != nil {
		t.Fatal(err)
	}
	return func(n Name) ([]netip.AddrPort, int, error) { return d.lookup(t.Context(), n) }
}

// What Go's resolver makes of a name server's answers is what this package takes it for.
func TestServer(t *testing.T) {
	s := newServer(t)
	many := func(n int) []string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
		}
		return all
	}
	srv := func(target string, port uint16) dnsmessage.ResourceBody {
		return &dnsmessage.SRVResource{Target: dnsmessage.MustNewName(target), Port: port}
	}
	s.mu.Lock()
	s.records["two.test."] = records("10.0.0.2", "10.0.0.1")
	s.records["both.test."] = records("fd00::1", "10.0.0.1")
	s.records["many.test."] = records(many(3000)...)
	s.records["toomany.test."] = records(many(4050)...)
	s.nodata["nodata.test."] = true
	s.codes["servfail.test."] = dnsmessage.RCodeServerFailure
	s.codes["refused.test."] = dnsmessage.RCodeRefused
	s.records["half.test."] = records("10.0.0.1")
	s.codes["AAAA half.test."] = dnsmessage.RCodeServerFailure
	s.records["_http._tcp.test."] = []dnsmessage.ResourceBody{srv("two.test.", 80), srv("both.test.", 81), srv("none.test.", 82)}
	s.records["_half._tcp.test."] = []dnsmessage.ResourceBody{srv("two.test.", 80), srv("servfail.test.", 81)}
	s.nodata["_nodata._tcp.test."] = true
	s.records["_fleet._tcp.test."] = nil
	for i := range 500 {
		host := fmt.Sprintf("e%d.test.", i)
		s.records[host] = records(fmt.Sprintf("10.2.%d.%d", i/250, i%250+1))
		s.records["_fleet._tcp.test."] = append(s.records["_fleet._tcp.test."], srv(host, 8000))
	}
	s.mu.Unlock()
	tests := []struct {
		name  string
		of    Name
		want  string // "" = none
		count int    // addresses, instead of want
		fails bool
		tcp   bool
	}{
		{name: "sorted", of: Name{"two.test.", 80}, want: "[10.0.0.1:80 10.0.0.2:80]"},
		{name: "both families", of: Name{"both.test.", 80}, want: "[10.0.0.1:80 [fd00::1]:80]"},
		{name: "thousands come over TCP", of: Name{"many.test.", 80}, count: 3000, tcp: true},
		{name: "as many as go into one answer", of: Name{"toomany.test.", 80}, count: 4050, tcp: true},
		{name: "services", of: Name{Host: "_http._tcp.test."}, want: "[10.0.0.1:80 10.0.0.1:81 10.0.0.2:80 [fd00::1]:81]"},
		{name: "hundreds of services", of: Name{Host: "_fleet._tcp.test."}, count: 500, tcp: true},

		{name: "no such name", of: Name{"none.test.", 80}},
		{name: "no such service", of: Name{Host: "_none._tcp.test."}},
		{name: "no record", of: Name{"nodata.test.", 80}},
		{name: "no record of a service", of: Name{Host: "_nodata._tcp.test."}},
		{name: "SERVFAIL", of: Name{"servfail.test.", 80}, fails: true},
		{name: "REFUSED", of: Name{"refused.test.", 80}, fails: true},
		{name: "one family fails", of: Name{"half.test.", 80}, fails: true},
		{name: "a service's host fails", of: Name{Host: "_half._tcp.test."}, fails: true},
		{name: "not a name", of: Name{"a..b", 80}},
	}
	ask := asker(t, s, 10*time.Second)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := 0
			s.change(func() { before = s.overTCP })
			got, dropped, err := ask(tt.of)
			if (err != nil) != tt.fails || dropped != 0 {
				t.Fatalf("%v, %d dropped, error %v", got, dropped, err)
			}
			if tt.count > 0 {
				if len(got) != tt.count || !slices.IsSortedFunc(got, netip.AddrPort.Compare) {
					t.Errorf("%d addresses, want %d in their order", len(got), tt.count)
				}
			} else if len(got) > 0 != (tt.want != "") || len(got) > 0 && fmt.Sprint(got) != tt.want {
				t.Errorf("%v, want %s", got, tt.want)
			}
			s.change(func() {
				if tt.tcp && s.overTCP == before {
					t.Error("a truncated answer was taken for the whole")
				}
			})
		})
	}
}

// Of several name servers one that is not there costs a second try.
func TestServers(t *testing.T) {
	s := newServer(t)
	s.change(func() { s.records["a.test."] = records("10.0.0.1") })
	at := s.udp.LocalAddr().String()
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	told := make(chan []netip.AddrPort, 1)
	d := start(t, Options{Servers: []string{at, gone.LocalAddr().String()}, Changed: func(_ Name, addrs []netip.AddrPort) { told <- addrs }})
	d.Set([]Name{{"a.test.", 80}}, time.Second)
	if got := fmt.Sprint(<-told); got != "[10.0.0.1:80]" {
		t.Errorf("told %s", got)
	}
}

// A name server that does not answer is a failure in bounded time.
func TestServerSilent(t *testing.T) {
	s := newServer(t)
	s.change(func() { s.records["a.test."], s.silent = records("10.0.0.1"), true })
	begun := time.Now()
	got, _, err := asker(t, s, 50*time.Millisecond)(Name{"a.test.", 80})
	if err == nil || time.Since(begun) > 5*time.Second {
		t.Errorf("%v, error %v after %v", got, err, time.Since(begun))
	}
	if e := new(net.DNSError); !errors.As(err, &e) || !e.IsTimeout {
		t.Errorf("error %v", err)
	}
}

// A name server that answers for no host of hundreds of SRV records is a failure in the time of one.
func TestServerSilentForHosts(t *testing.T) {
	const hosts, timeout = 300, 200 * time.Millisecond
	s := newServer(t)
	s.change(func() {
		for i := range hosts {
			host := fmt.Sprintf("e%d.test.", i)
			s.mute[host] = true
			s.records["_fleet._tcp.test."] = append(s.records["_fleet._tcp.test."], &dnsmessage.SRVResource{Target: dnsmessage.MustNewName(host), Port: 8000})
		}
	})
	begun := time.Now()
	got, _, err := asker(t, s, timeout)(Name{Host: "_fleet._tcp.test."})
	if took := time.Since(begun); err == nil || took < timeout || took > hosts*timeout/10 {
		t.Errorf("%v, error %v after %v", got, err, took)
	}
}

// Changes of records arrive by themselves.
func TestServerFollowed(t *testing.T) {
	s := newServer(t)
	s.change(func() { s.records["a.test."] = records("10.0.0.1", "10.0.0.2") })
	told := make(chan string, 16)
	d := start(t, Options{Resolver: s.resolver(), Changed: func(_ Name, addrs []netip.AddrPort) { told <- fmt.Sprint(addrs) }})
	d.Set([]Name{{"a.test.", 80}}, 20*time.Millisecond)
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-told:
			if got != want {
				t.Errorf("told %s, want %s", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s is not told", want)
		}
	}
	expect("[10.0.0.1:80 10.0.0.2:80]")
	s.change(func() { s.records["a.test."] = records("10.0.0.2") })
	expect("[10.0.0.2:80]")
	s.change(func() { s.codes["a.test."] = dnsmessage.RCodeServerFailure; s.questions = 0 })
	tick, late := time.NewTicker(5*time.Millisecond), time.After(20*time.Second)
	defer tick.Stop()
	for asked := 0; asked < 6; {
		select {
		case got := <-told:
			t.Fatalf("SERVFAIL changes the addresses: %s", got)
		case <-late:
			t.Fatal("a failing name is not asked for again")
		case <-tick.C:
			s.change(func() { asked = s.questions })
		}
	}
	s.change(func() { delete(s.codes, "a.test."); delete(s.records, "a.test.") })
	expect("[]")
	s.change(func() { s.records["a.test."] = records("10.0.0.3") })
	expect("[10.0.0.3:80]")
}
