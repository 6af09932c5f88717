package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/discover"
)

func addrPorts(text string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, a := range strings.Fields(text) {
		all = append(all, netip.MustParseAddrPort(a))
	}
	return all
}

// A name of these tests is never asked for: the keeper does not run, and is told what DNS gives.
const namedPool = "pools: [{name: chat, models: [tiny], adapters_refresh: 0s, dns: \"engines.test:8000\"}]\n"

func TestEndpointsFromNames(t *testing.T) {
	r := startRunning(t, namedPool)
	name := discover.Name{Host: "engines.test", Port: 8000}
	// show lists the endpoints, with - for those that get nothing new.
	show := func() string {
		var all []string
		for _, e := range (viewer{r.service}).State().Pools[0].Endpoints {
			text := e.Address + " " + e.Origin
			if e.Draining != e.Leaving {
				t.Errorf("%s: draining %v, leaving %v", e.Address, e.Draining, e.Leaving)
			}
			if e.Leaving {
				text += " -"
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	check := func(what, want string) {
		t.Helper()
		if got := show(); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("nothing known", "")
	if missing := r.readiness.missing(); len(missing) == 0 || missing[0] != "no answer of DNS for engines.test:8000; waiting for the others until 10s after the start" {
		t.Errorf("missing for readiness: %q", missing)
	}
	r.keeper.found(name, addrPorts("127.0.0.1:18001 127.0.0.1:18002"))
	check("two", "127.0.0.1:18001 dns, 127.0.0.1:18002 dns")
	if names := r.keeper.unresolved(); len(names) > 0 {
		t.Errorf("not resolved: %v", names)
	}
	r.keeper.found(name, addrPorts("127.0.0.1:18002"))
	check("one is gone", "127.0.0.1:18001 gone -, 127.0.0.1:18002 dns")
	r.keeper.found(discover.Name{Host: "other.test", Port: 1}, addrPorts("127.0.0.1:18003"))
	check("a name that nobody asks for", "127.0.0.1:18001 gone -, 127.0.0.1:18002 dns")

	r.change(strings.Replace(namedPool, "engines.test", "elsewhere.test", 1))
	check("another name, of which nothing is known", "127.0.0.1:18001 gone -, 127.0.0.1:18002 dns")
	r.keeper.found(name, addrPorts("127.0.0.1:18001"))
	check("what comes late for the name before", "127.0.0.1:18001 gone -, 127.0.0.1:18002 dns")
	r.keeper.found(discover.Name{Host: "elsewhere.test", Port: 8000}, addrPorts("127.0.0.1:18002 127.0.0.1:18004"))
	check("the new name", "127.0.0.1:18001 gone -, 127.0.0.1:18002 dns, 127.0.0.1:18004 dns")
	r.change(namedPool)
	check("the first name again, of which nothing is known any more", "127.0.0.1:18001 gone -, 127.0.0.1:18002 dns, 127.0.0.1:18004 dns")
	if names := r.keeper.unresolved(); len(names) != 1 {
		t.Errorf("not resolved: %v", names)
	}
	r.change("pools: [{name: chat, models: [tiny], adapters_refresh: 0s, endpoints: [{address: \"127.0.0.1:18002\"}]}]\n")
	check("configured", "127.0.0.1:18002 configured, 127.0.0.1:18001 gone -, 127.0.0.1:18004 gone -")
	if !strings.Contains(r.log.String(), "the pool's endpoints have changed") {
		t.Error("changes are not said")
	}
}

// TestCapacityByNames holds that what does not fit is refused, and what is there stays.
func TestCapacityByNames(t *testing.T) {
	r := startRunning(t, "index: {max_endpoints: 2}\n"+namedPool)
	name := discover.Name{Host: "engines.test", Port: 8000}
	r.keeper.found(name, addrPorts("127.0.0.1:18002 127.0.0.1:18003"))
	r.keeper.found(name, addrPorts("127.0.0.1:18001 127.0.0.1:18002 127.0.0.1:18003"))
	state := (viewer{r.service}).State()
	if n := len(state.Pools[0].Endpoints); n != 2 || r.endpoint("127.0.0.1:18001").Address != "" {
		t.Errorf("%d endpoints", n)
	}
	if len(state.Refused) != 1 || !strings.Contains(state.Refused[0].Why, "index.max_endpoints") {
		t.Errorf("refused %+v", state.Refused)
	}
	if n := strings.Count(r.log.String(), "an endpoint is refused"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

func TestNodesOf(t *testing.T) {
	cfg, err := config.Parse("kvsteer.yaml", []byte(`
feed: {insecure: true}
nodes:
- {address: "10.0.0.2:9010", allow: [10.0.1.0/24]}
- {dns: "nodes.test:9010", allow: [10.0.2.1]}
- {srv: _feed._tcp.nodes.test}
`+toldPool))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, n := range nodesOf(cfg, map[string][]netip.AddrPort{
		"nodes.test:9010": addrPorts("10.0.0.1:9010 10.0.0.2:9010"), "_feed._tcp.nodes.test": addrPorts("10.0.0.3:9011"), "other": addrPorts("10.9.9.9:1"),
	}) {
		got[n.addr.String()] = len(n.allow)
	}
	if diff := cmp.Diff(map[string]int{"10.0.0.1:9010": 1, "10.0.0.2:9010": 2, "10.0.0.3:9011": 0}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNodesOfAnotherName holds that nodes stay where DNS is asked for another name, until it answers.
func TestNodesOfAnotherName(t *testing.T) {
	text := func(nodes string) string { return "feed: {insecure: true}\nnodes: [" + nodes + "]\n" + toldPool }
	r := startRunning(t, text(`{dns: "one.test:9010", allow: [10.0.1.1]}, {address: "127.0.0.1:9"}`))
	check := func(what, want string) {
		t.Helper()
		var all []string
		for _, n := range r.keeper.nodes() {
			all = append(all, fmt.Sprintf("%v%v", n.addr, n.allow))
		}
		if got := strings.Join(all, " "); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	check("nothing known", "127.0.0.1:9[]")
	r.keeper.found(discover.Name{Host: "one.test", Port: 9010}, addrPorts("10.0.0.1:9010 10.0.0.2:9010"))
	check("two", "10.0.0.1:9010[10.0.1.1/32] 10.0.0.2:9010[10.0.1.1/32] 127.0.0.1:9[]")
	r.change(text("{srv: two.test}"))
	for range 2 {
		check("another name", "10.0.0.1:9010[10.0.1.1/32] 10.0.0.2:9010[10.0.1.1/32]")
	}
	r.keeper.found(discover.Name{Host: "two.test"}, addrPorts("10.0.0.2:9010 10.0.0.3:9010"))
	check("its answer", "10.0.0.2:9010[] 10.0.0.3:9010[]")
	r.change(text(`{address: "127.0.0.1:9"}`))
	check("no name", "127.0.0.1:9[]")
}
