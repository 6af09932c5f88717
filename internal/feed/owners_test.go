package feed

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func mustAddr(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

func prefixes(all ...string) []netip.Prefix {
	var p []netip.Prefix
	for _, text := range all {
		p = append(p, netip.MustParsePrefix(text))
	}
	return p
}

// TestResolve lets a node speak for no address but its own and those that it is allowed.
func TestResolve(t *testing.T) {
	tests := []struct {
		name, announced, dialled string
		allow                    []netip.Prefix
		want                     string
		reason                   RefusalReason
	}{
		{"a port", ":8000", "10.0.0.1", nil, "10.0.0.1:8000", ""},
		{"a port of an IPv6 node", ":8000", "2001:db8::1", nil, "[2001:db8::1]:8000", ""},
		{"the dialled address", "10.0.0.1:8000", "10.0.0.1", nil, "10.0.0.1:8000", ""},
		{"the dialled address as IPv6", "[::ffff:10.0.0.1]:8000", "10.0.0.1", nil, "10.0.0.1:8000", ""},
		{"another spelling", "[2001:db8:0:0::1]:8000", "2001:db8::1", nil, "[2001:db8::1]:8000", ""},
		{"an allowed address", "10.0.7.9:8000", "10.0.0.1", prefixes("10.0.7.0/24"), "10.0.7.9:8000", ""},
		{"the second of two that are allowed", "10.0.8.1:8000", "10.0.0.1", prefixes("10.0.7.0/24", "10.0.8.1/32"), "10.0.8.1:8000", ""},
		{"another host", "10.0.0.2:8000", "10.0.0.1", nil, "", RefusedForeign},
		{"beside what is allowed", "10.0.8.0:8000", "10.0.0.1", prefixes("10.0.7.0/24"), "", RefusedForeign},
		{"the router's own host", "127.0.0.1:8000", "10.0.0.1", nil, "", RefusedForeign},
		{"the router's own host as IPv6", "[::1]:8000", "10.0.0.1", nil, "", RefusedForeign},
		{"the router's own host in disguise", "[::ffff:127.0.0.1]:8000", "10.0.0.1", nil, "", RefusedForeign},
		{"an IPv4 address written as IPv6 is not allowed by an IPv6 prefix", "[::ffff:10.0.0.2]:80", "10.0.0.1", prefixes("::/0"), "", RefusedForeign},
		{"a metadata service", "169.254.169.254:80", "10.0.0.1", nil, "", RefusedForeign},
		{"no address", "0.0.0.0:8000", "10.0.0.1", prefixes("0.0.0.0/0"), "", RefusedAddress},
		{"all hosts", "255.255.255.255:8000", "10.0.0.1", prefixes("0.0.0.0/0"), "", RefusedAddress},
		{"a group", "224.0.0.1:8000", "10.0.0.1", prefixes("0.0.0.0/0"), "", RefusedAddress},
		{"a zone", "[fe80::1%eth0]:8000", "fe80::1", nil, "", RefusedAddress},
		{"port 0", ":0", "10.0.0.1", nil, "", RefusedAddress},
		{"a port too large", ":65536", "10.0.0.1", nil, "", RefusedAddress},
		{"no port", "10.0.0.1", "10.0.0.1", nil, "", RefusedAddress},
		{"a name", "engine.test:8000", "10.0.0.1", prefixes("0.0.0.0/0"), "", RefusedAddress},
		{"a URL", "http://10.0.0.1:8000", "10.0.0.1", nil, "", RefusedAddress},
		{"two endpoints", "10.0.0.1:8000,10.0.0.2:8000", "10.0.0.1", nil, "", RefusedAddress},
		{"a line break", ":8000\r\nx: y", "10.0.0.1", nil, "", RefusedAddress},
		{"nothing", "", "10.0.0.1", nil, "", RefusedAddress},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, reason := resolve(tt.announced, netip.MustParseAddr(tt.dialled), tt.allow)
			text := ""
			if got.IsValid() {
				text = got.String()
			}
			if text != tt.want || reason != tt.reason {
				t.Errorf("%q, %q; want %q, %q", text, reason, tt.want, tt.reason)
			}
		})
	}
}

// TestOwners has two nodes of one host announce the same endpoint.
func TestOwners(t *testing.T) {
	b := newBench(t)
	first, second := b.node("10.0.0.1:9010"), b.node("10.0.0.1:9011")
	woken := 0
	wake := func(error) { woken++ }
	cancel := contextCancel(wake)
	second.cancel.Store(&cancel)

	b.say(first, tellReplicas(tellReplica(":8000", 1), tellReplica(":8001", 2)))
	b.say(second, tellReplicas(tellReplica("10.0.0.1:8000", 1), tellReplica(":8002", 2), tellReplica("10.0.0.9:1", 3), tellReplica(":8002", 4)))
	check := func(n *watched, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, b.fleet.endpoints(n.name), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("node %s serves: %s", n.name, diff)
		}
	}
	check(first, "10.0.0.1:8000", "10.0.0.1:8001")
	check(second, "10.0.0.1:8002")
	want := []Refusal{
		{Endpoint: "10.0.0.1:8000", Pool: "chat", Reason: RefusedTaken, Owner: "10.0.0.1:9010"},
		{Endpoint: "10.0.0.9:1", Pool: "chat", Reason: RefusedForeign},
		{Endpoint: ":8002", Pool: "chat", Reason: RefusedTwice},
	}
	if diff := cmp.Diff(want, second.status().Refused); diff != "" {
		t.Error(diff)
	}

	// Blocks of what is refused go nowhere.
	b.say(second, tellBegin(1, 1), tellBlocks(1, "", 66), tellEnd(1), tellAdded(1, "", 67), tellReset(1, "gap"), tellConnected(1))
	if got := b.fleet.sink("chat 10.0.0.1:8000 0").events(); len(got) > 0 {
		t.Errorf("another node wrote %v", got)
	}
	// A lost node keeps its endpoints, and a withdrawal gives them up.
	first.rec.lost(b.now, b.now.Add(1e12))
	b.say(second, tellReplicas(tellReplica("10.0.0.1:8000", 1)))
	check(second)
	first.rec.begin()
	if woken != 0 {
		t.Error("the second node was told too early")
	}
	b.say(first, tellReplicas(tellReplica(":8001", 2)))
	if woken != 1 {
		t.Errorf("the second node was told %d times that the endpoint is free", woken)
	}
	second.rec.lost(b.now, b.now)
	second.rec.begin()
	b.say(second, tellReplicas(tellReplica("10.0.0.1:8000", 5)), tellConnected(5), tellBegin(5, 1), tellBlocks(5, "", 66), tellEnd(5))
	check(second, "10.0.0.1:8000")
	if diff := cmp.Diff([]uint64{66}, b.fleet.sink("chat 10.0.0.1:8000 0").matched(0)); diff != "" {
		t.Error(diff)
	}
	// So does a node that is no node any more.
	b.say(first, tellReplicas(tellReplica(":8000", 3), tellReplica(":8001", 2)))
	check(first, "10.0.0.1:8001")
	second.leave(true)
	check(second)
	b.say(first, tellReplicas(tellReplica(":8000", 3), tellReplica(":8001", 2)))
	check(first, "10.0.0.1:8000", "10.0.0.1:8001")
}
