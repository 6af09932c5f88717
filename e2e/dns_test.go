package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// nameServer answers for one name, over UDP on loopback.
type nameServer struct {
	conn  net.PacketConn
	addrs atomic.Pointer[[]netip.Addr]
}

func startNameServer(t *testing.T) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{conn: conn}
	s.addrs.Store(new([]netip.Addr))
	var wg sync.WaitGroup
	wg.Go(s.serve)
	t.Cleanup(func() { conn.Close(); wg.Wait() })
	return s
}

// give sets the addresses of the name.
func (s *nameServer) give(addrs ...netip.Addr) { s.addrs.Store(&addrs) }

func (s *nameServer) serve() {
	buf := make([]byte, 4096)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var p dnsmessage.Parser
		header, err := p.Start(buf[:n])
		if err != nil {
			continue
		}
		q, err := p.Question()
		if err != nil {
			continue
		}
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true}, Questions: []dnsmessage.Question{q}}
		switch {
		case q.Name.String() != "engines.test.":
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			for _, a := range *s.addrs.Load() {
				m.Answers = append(m.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}, Body: &dnsmessage.AResource{A: a.As4()},
				})
			}
		}
		if reply, err := m.Pack(); err == nil {
			_, _ = s.conn.WriteTo(reply, from)
		}
	}
}

// TestNotReady takes endpoints out of DNS under load, as Kubernetes does with pods that are not ready or end: within 2 s nothing new goes there, no
// client sees an error when they are stopped then, and one that is back gets requests again.
func TestNotReady(t *testing.T) {
	dir, ports := t.TempDir(), freePorts(t, 4)
	l, err := lab.New(lab.Options{Kvsteer: binaries.kvsteer, Envoy: binaries.envoy[envoyNewest], Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	dns := startNameServer(t)
	// Engines of one headless service: other addresses, the same port.
	var ips []netip.Addr
	var engines []*lab.Process
	for i := range 3 {
		ips = append(ips, netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + i)}))
		at := netip.AddrPortFrom(ips[i], uint16(ports[0])).String()
		e, err := l.Start("engine"+fmt.Sprint(i), append([]string{binaries.kvsteer, "engine", "--listen", at, "--model", "sim"}, quick...)...)
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
		eventually(t, "engine "+at, func() bool { return lab.Answers(t.Context(), "http://"+at+"/health") })
	}
	dns.give(ips...)

	config, accessLog := filepath.Join(dir, "kvsteer.yaml"), filepath.Join(dir, "access.log")
	text := fmt.Sprintf(`
listen: 127.0.0.1:%d
admin: 127.0.0.1:%d
dns_servers: [%q]
envoy: {listen: "127.0.0.1:%d", admin: "127.0.0.1:0", version: %s}
pools: [{name: chat, models: [sim], dns: "engines.test:%d", fallback: none}]
`, ports[1], ports[2], dns.conn.LocalAddr(), ports[3], envoyNewest, ports[0])
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Start("router", binaries.kvsteer, "serve", "--config", config); err != nil {
		t.Fatal(err)
	}
	admin := fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	eventually(t, "the router is ready", func() bool { return lab.Answers(t.Context(), admin+"/readyz") })
	printed, err := exec.CommandContext(t.Context(), binaries.kvsteer, "envoy", "--config", config, "--access-log", accessLog).Output()
	if err != nil {
		t.Fatalf("kvsteer envoy: %v", err)
	}
	envoyConfig := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(envoyConfig, printed, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Start("envoy", binaries.envoy[envoyNewest], "-c", envoyConfig, "--disable-hot-restart", "--concurrency", "2", "--file-flush-interval-msec", "20", "-l", "warning"); err != nil {
		t.Fatal(err)
	}
	client := &lab.Client{URL: fmt.Sprintf("http://127.0.0.1:%d", ports[3]), HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	defer client.Close()
	eventually(t, "requests are served", func() bool {
		return client.Chat(t.Context(), lab.ChatRequest{Model: "sim", Messages: []lab.Message{{Role: "user", Content: "hello"}}, MaxTokens: 1}).OK()
	})

	load, served := startClients(t, client)
	gone := netip.AddrPortFrom(ips[2], uint16(ports[0])).String()
	used := func() bool { return metric(t, "http://"+gone+"/metrics", "vllm:request_success_total") > 0 }
	more := func(what string, n int64) {
		t.Helper()
		want := served() + n
		eventually(t, what, func() bool { return served() >= want })
	}
	eventually(t, "all three are used", used)
	dns.give(ips[0], ips[1])
	left := time.Now()
	if !lab.Wait(t.Context(), 2*time.Second) { // after which nothing new goes there
		t.Fatal("the test has ended")
	}
	more("requests go on", 100)
	eventually(t, "what it was sent before has been answered", func() bool {
		return metric(t, "http://"+gone+"/metrics", "vllm:num_requests_running")+metric(t, "http://"+gone+"/metrics", "vllm:num_requests_waiting") == 0
	})
	engines[2].Stop()
	more("requests go on without it", 100)
	dns.give(ips...)
	_, err = l.Start("engine2-again", append([]string{binaries.kvsteer, "engine", "--listen", gone, "--model", "sim"}, quick...)...)
	if err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	eventually(t, "its successor is used", used)
	sent := load()

	entries, err := (&lab.Site{AccessLog: accessLog}).ReadLog(t.Context(), sent)
	if err != nil {
		t.Fatal(err)
	}
	before, after := 0, 0
	for _, e := range entries {
		if e.Upstream != gone && e.Endpoint != gone {
			continue
		}
		switch {
		case e.Start.Before(left):
			before++
		case e.Start.After(back):
			after++
		case e.Start.After(left.Add(2 * time.Second)):
			t.Errorf("a request of %v after the endpoint left DNS was sent to it", e.Start.Sub(left))
		}
	}
	if before == 0 || after == 0 {
		t.Errorf("of %d requests %d went to the endpoint before it left and %d after it was back", len(entries), before, after)
	}
	t.Logf("%d requests, %d and %d of them at the endpoint", len(entries), before, after)

	// What has left is not in the state any more, or is there as leaving, and nothing is refused.
	var state struct {
		Pools []struct {
			Endpoints []struct {
				Address, Origin string
				Leaving         bool
			}
		}
		Refused []json.RawMessage
	}
	resp, err := http.Get(admin + "/api/v1/state")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		t.Fatal(err)
	}
	if len(state.Pools) != 1 || len(state.Pools[0].Endpoints) != 3 || len(state.Refused) > 0 {
		t.Errorf("state %+v", state)
	}
	for _, e := range state.Pools[0].Endpoints {
		if e.Origin != "dns" || e.Leaving {
			t.Errorf("endpoint %+v", e)
		}
	}
}

// startClients has clients send requests until stop is called, which returns how many were sent. Each of them must be answered well.
func startClients(t *testing.T, client *lab.Client) (stop func() int, served func() int64) {
	t.Helper()
	var wg sync.WaitGroup
	var sent, ends atomic.Int64
	for c := range 4 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(c)))
			for ends.Load() == 0 {
				r := client.Chat(t.Context(), lab.ChatRequest{Model: "sim", Messages: []lab.Message{{Role: "user", Content: prose(random, 60)}}, MaxTokens: 20})
				sent.Add(1)
				if !r.OK() {
					t.Errorf("status %d %s, error %v", r.Status, r.Body, r.Err)
				}
			}
		})
	}
	stop = func() int { ends.Store(1); wg.Wait(); return int(sent.Load()) }
	t.Cleanup(func() { ends.Store(1); wg.Wait() })
	return stop, sent.Load
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports, err := lab.FreePorts(n)
	if err != nil || slices.Contains(ports, 0) {
		t.Fatalf("ports %v, %v", ports, err)
	}
	return ports
}
