package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/pool"
)

// The pools of these tests: one of each kind.
const pools = `
feed: {insecure: true}
nodes: [{dns: "nodes.test:9010"}]
pools:
- {name: static, models: [s], endpoints: [{address: "10.0.0.9:80"}, {address: "10.0.0.1:80"}]}
- {name: named, models: [d], dns: "engines.test:80"}
- {name: told, models: [a, a-large]}
- {name: mixed, models: [m], announced: true, srv: _http._tcp.engines.test, endpoints: [{address: "10.3.0.1:80"}]}
`

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("kvsteer.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func addrs(text string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, a := range strings.Fields(text) {
		all = append(all, netip.MustParseAddrPort(a))
	}
	return all
}

// show is a plan in one text: pool address origin, with - for leaving, xN for ranks and @node.
func show(p Plan) string {
	var b strings.Builder
	for _, e := range p.Endpoints {
		fmt.Fprintf(&b, "%s %s %s", e.Pool, e.Address, e.Origin)
		if e.Leaving {
			b.WriteString(" -")
		}
		if e.Ranks != 1 {
			fmt.Fprintf(&b, " x%d", e.Ranks)
		}
		if e.Node != "" {
			b.WriteString(" @" + e.Node)
		}
		b.WriteString("\n")
	}
	for _, r := range p.Refused {
		fmt.Fprintf(&b, "refused %s %s @%s: %s\n", r.Pool, r.Address, r.Node, r.Why)
	}
	return b.String()
}

func lines(all ...string) string { return strings.Join(all, "\n") + "\n" }

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func idle(string, string) bool { return false }

func TestPlan(t *testing.T) {
	static := []string{"static 10.0.0.9:80 configured", "static 10.0.0.1:80 configured"}
	mixed := "mixed 10.3.0.1:80 configured"
	with := func(named, told, mixedToo []string, refused ...string) string {
		return lines(slices.Concat(static, named, told, []string{mixed}, mixedToo, refused)...)
	}
	tests := []struct {
		name     string
		resolved map[string]string
		nodes    map[string][]Replica
		want     string
	}{
		{"as configured", nil, nil, with(nil, nil, nil)},
		{
			"from DNS",
			map[string]string{"engines.test:80": "10.1.0.2:80 10.1.0.10:80 [fd00::1]:80", "_http._tcp.engines.test": "10.3.0.2:81 10.3.0.1:80", "nodes.test:9010": "10.1.0.2:9010"},
			nil,
			with([]string{"named 10.1.0.2:80 dns", "named 10.1.0.10:80 dns", "named [fd00::1]:80 dns"}, nil, []string{"mixed 10.3.0.2:81 dns"}),
		},
		{
			"an address of another pool",
			map[string]string{"engines.test:80": "10.0.0.1:80 10.1.0.1:80"},
			nil,
			with([]string{"named 10.1.0.1:80 dns"}, nil, nil, `refused named 10.0.0.1:80 @: it is an endpoint of pool "static"`),
		},
		{
			"announced", nil,
			map[string][]Replica{"n1": {{Endpoint: "10.2.0.1:80", Pool: "told", Models: []string{"x", "a-large"}, Ranks: 2}, {Endpoint: "10.3.0.3:80", Pool: "mixed"}}, "n2": {{Endpoint: "10.2.0.2:80", Pool: "told", Draining: true}}},
			with(nil, []string{"told 10.2.0.1:80 announced x2 @n1", "told 10.2.0.2:80 announced - @n2"}, []string{"mixed 10.3.0.3:80 announced @n1"}),
		},
		{
			"caches of configured endpoints", nil,
			map[string][]Replica{"n1": {{Endpoint: "10.0.0.1:80", Pool: "static", Ranks: 4}, {Endpoint: "10.0.0.9:80", Pool: "static", Draining: true}}},
			lines("static 10.0.0.9:80 configured - @n1", "static 10.0.0.1:80 configured x4 @n1", mixed),
		},
		{
			"not given by DNS yet",
			map[string]string{"engines.test:80": "10.1.0.1:80"},
			map[string][]Replica{"n1": {{Endpoint: "10.1.0.1:80", Pool: "named", Ranks: 2}, {Endpoint: "10.1.0.2:80", Pool: "named"}}},
			with([]string{"named 10.1.0.1:80 dns x2 @n1", "named 10.1.0.2:80 node - @n1"}, nil, nil),
		},
		{
			"refused", nil,
			map[string][]Replica{"n1": {
				{Endpoint: "10.0.0.5:80", Pool: "static"},
				{Endpoint: "10.2.0.1:80", Pool: "none"},
				{Endpoint: "10.2.0.2:80", Pool: "told", Models: []string{"b", "c"}},
				{Endpoint: "10.0.0.1:80", Pool: "told"},
				{Endpoint: "x", Pool: "told"},
				{Endpoint: "0.0.0.0:80", Pool: "told"},
				{Endpoint: "10.2.0.3:0", Pool: "told"},
				{Endpoint: "[::ffff:10.2.0.4]:80", Pool: "told"},
				{Endpoint: "10.2.0.5:80", Pool: "told", Ranks: 65},
			}},
			with(nil, nil, nil,
				`refused none 10.2.0.1:80 @n1: the router has no such pool`,
				`refused static 10.0.0.5:80 @n1: the pool's endpoints stand in the configuration, and it is none of them (announced: true takes it)`,
				`refused told 0.0.0.0:80 @n1: its address is not ip:port of one host`,
				`refused told 10.0.0.1:80 @n1: it is an endpoint of pool "static"`,
				`refused told 10.2.0.2:80 @n1: it serves "b", none of the pool's models`,
				`refused told 10.2.0.3:0 @n1: its address is not ip:port of one host`,
				`refused told 10.2.0.5:80 @n1: it has 65 data-parallel ranks, at most 64`,
				`refused told [::ffff:10.2.0.4]:80 @n1: its address is not ip:port of one host`,
				`refused told x @n1: its address is not ip:port of one host`),
		},
		{
			"announced twice", nil,
			map[string][]Replica{"n2": {{Endpoint: "10.2.0.1:80", Pool: "told"}}, "n1": {{Endpoint: "10.2.0.1:80", Pool: "told"}, {Endpoint: "10.2.0.1:80", Pool: "mixed"}}},
			with(nil, []string{"told 10.2.0.1:80 node @n1"}, nil,
				`refused mixed 10.2.0.1:80 @n1: it is an endpoint of pool "told"`, `refused told 10.2.0.1:80 @n2: node "n1" announces it`),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := New(Options{})
			for name, text := range tt.resolved {
				f.Resolved(name, addrs(text))
			}
			for node, replicas := range tt.nodes {
				f.Announced(node, replicas)
			}
			got := f.Plan(parse(t, pools), noon, idle)
			if diff := cmp.Diff(strings.ReplaceAll(tt.want, " announced ", " node "), show(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A history of one pool: what is committed counts for what follows.
func TestHistory(t *testing.T) {
	cfg := parse(t, pools)
	f := New(Options{})
	now, busy := noon, false
	step := func(what string, after time.Duration, want ...string) {
		t.Helper()
		now = now.Add(after)
		p := f.Plan(cfg, now, func(string, string) bool { return busy })
		f.Commit(p)
		var got []string
		for line := range strings.Lines(show(p)) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "named ") || strings.HasPrefix(line, "told ") || strings.HasPrefix(line, "refused") {
				got = append(got, line)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		gone := slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Origin == Gone })
		if p.Again != gone {
			t.Errorf("%s: planned again %v", what, p.Again)
		}
	}
	const name = "engines.test:80"
	f.Resolved(name, addrs("10.1.0.1:80 10.1.0.2:80"))
	step("two", 0, "named 10.1.0.1:80 dns", "named 10.1.0.2:80 dns")
	f.Resolved(name, addrs("10.1.0.1:80"))
	step("one is gone", time.Second, "named 10.1.0.1:80 dns", "named 10.1.0.2:80 gone -")
	step("it stays a while", leaveAtLeast-1, "named 10.1.0.1:80 dns", "named 10.1.0.2:80 gone -")
	f.Resolved(name, addrs("10.1.0.1:80 10.1.0.2:80"))
	step("it is back", 0, "named 10.1.0.1:80 dns", "named 10.1.0.2:80 dns")
	f.Resolved(name, addrs("10.1.0.1:80"))
	step("gone again", time.Second, "named 10.1.0.1:80 dns", "named 10.1.0.2:80 gone -")
	busy = true
	step("as long as it is busy", leaveAtLeast, "named 10.1.0.1:80 dns", "named 10.1.0.2:80 gone -")
	busy = false
	step("and no longer", time.Second, "named 10.1.0.1:80 dns")
	f.Resolved(name, nil)
	busy = true
	step("the last one", 0, "named 10.1.0.1:80 gone -")
	step("busy for ever", leaveAtMost-1, "named 10.1.0.1:80 gone -")
	step("until then", 1)
	busy = false

	f.Announced("n1", []Replica{{Endpoint: "10.1.0.5:80", Pool: "named", Ranks: 2}, {Endpoint: "10.2.0.5:80", Pool: "told"}})
	step("announced", 0, "named 10.1.0.5:80 node - x2 @n1", "told 10.2.0.5:80 node @n1")
	f.Resolved(name, addrs("10.1.0.5:80"))
	step("ready", 0, "named 10.1.0.5:80 dns x2 @n1", "told 10.2.0.5:80 node @n1")
	f.Announced("n0", []Replica{{Endpoint: "10.2.0.5:80", Pool: "told"}})
	step("who had it keeps it", 0, "named 10.1.0.5:80 dns x2 @n1", "told 10.2.0.5:80 node @n1", `refused told 10.2.0.5:80 @n0: node "n1" announces it`)
	f.Resolved(name, nil)
	step("not ready", 0, "named 10.1.0.5:80 node - x2 @n1", "told 10.2.0.5:80 node @n1", `refused told 10.2.0.5:80 @n0: node "n1" announces it`)
	f.Announced("n1", nil)
	step("the node is gone", 0, "named 10.1.0.5:80 gone - x2", "told 10.2.0.5:80 node @n0")
	f.Resolved(name, addrs("10.1.0.5:80"))
	step("DNS gives it all the same", 0, "named 10.1.0.5:80 dns", "told 10.2.0.5:80 node @n0")
	f.Announced("n0", []Replica{{Endpoint: "10.2.0.5:80", Pool: "mixed"}})
	step("another pool waits", 0, "named 10.1.0.5:80 dns")
	cfg = parse(t, strings.Replace(pools, `, dns: "engines.test:80"`, `, endpoints: [{address: "10.1.0.5:80"}]`, 1))
	step("configured", 0, "named 10.1.0.5:80 configured")
	cfg = parse(t, strings.Replace(pools, `, dns: "engines.test:80"`, `, endpoints: [{address: "10.1.0.6:80"}]`, 1))
	step("replaced by configuration", 0, "named 10.1.0.6:80 configured")
	cfg = parse(t, pools)
	step("by DNS again", 0, "named 10.1.0.5:80 dns")
	cfg = parse(t, strings.Replace(pools, "name: named", "name: other", 1))
	step("another pool of that name", 0)
}

// Where another name is asked for, what the one before gave stays until the first answer.
func TestAnotherName(t *testing.T) {
	f := New(Options{})
	step := func(what, text, want string) {
		t.Helper()
		p := f.Plan(parse(t, text), noon, idle)
		f.Commit(p)
		if diff := cmp.Diff(want, show(p)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	const head = "feed: {insecure: true}\nnodes: [{dns: \"nodes.test:9010\"}]\n"
	const one, two = head + "pools: [{name: p, models: [m], dns: \"one.test:80\"}]", head + "pools: [{name: p, models: [m], srv: two.test}]"
	f.Resolved("one.test:80", addrs("10.1.0.1:80 10.1.0.2:80"))
	step("the first name", one, lines("p 10.1.0.1:80 dns", "p 10.1.0.2:80 dns"))
	f.Resolved("one.test:80", addrs("10.1.0.2:80"))
	step("one is gone", one, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 dns"))
	step("another name", two, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 dns"))
	f.Forget("one.test:80")
	step("the one before is forgotten", two, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 dns"))
	f.Announced("n1", []Replica{{Endpoint: "10.1.0.2:80", Pool: "p", Ranks: 2}, {Endpoint: "10.1.0.4:80", Pool: "p"}})
	step("a node tells of its cache", two, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 dns x2 @n1", "p 10.1.0.4:80 node - @n1"))
	f.Announced("n1", nil)
	step("and no more", two, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 dns", "p 10.1.0.4:80 gone -"))
	f.Resolved("two.test", addrs("10.1.0.3:81"))
	step("the first answer", two, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 gone -", "p 10.1.0.3:81 dns", "p 10.1.0.4:80 gone -"))
	f.Forget("two.test")
	step("back", one, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 gone -", "p 10.1.0.3:81 dns", "p 10.1.0.4:80 gone -"))
	f.Resolved("one.test:80", nil)
	step("it has none", one, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 gone -", "p 10.1.0.3:81 gone -", "p 10.1.0.4:80 gone -"))
	f.Resolved("one.test:80", addrs("10.1.0.3:81"))
	step("one", one, lines("p 10.1.0.1:80 gone -", "p 10.1.0.2:80 gone -", "p 10.1.0.3:81 dns", "p 10.1.0.4:80 gone -"))
	f.Forget("one.test:80")
	step("no name", head+"pools: [{name: p, models: [m], endpoints: [{address: \"10.1.0.9:80\"}]}]", lines("p 10.1.0.9:80 configured", "p 10.1.0.1:80 gone -", "p 10.1.0.2:80 gone -", "p 10.1.0.3:81 gone -", "p 10.1.0.4:80 gone -"))
}

func TestCapacity(t *testing.T) {
	cfg := parse(t, pools) // 3 configured endpoints
	f := New(Options{Capacity: 6})
	const why = "the index was made for 6 endpoints, each of their ranks counted: restart the router with a larger index.max_endpoints"
	step := func(what string, want ...string) {
		t.Helper()
		p := f.Plan(cfg, noon, idle)
		f.Commit(p)
		var got []string
		for _, e := range p.Endpoints {
			if e.Origin != Configured {
				got = append(got, e.Address)
			}
		}
		for _, r := range p.Refused {
			got = append(got, "refused "+r.Address)
			if r.Why != why {
				t.Errorf("%s: %s", r.Address, r.Why)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f.Resolved("engines.test:80", addrs("10.1.0.3:80 10.1.0.4:80 10.1.0.5:80"))
	step("full", "10.1.0.3:80", "10.1.0.4:80", "10.1.0.5:80")
	f.Resolved("engines.test:80", addrs("10.1.0.1:80 10.1.0.3:80 10.1.0.4:80 10.1.0.5:80"))
	step("one more", "10.1.0.3:80", "10.1.0.4:80", "10.1.0.5:80", "refused 10.1.0.1:80")
	f.Announced("n1", []Replica{{Endpoint: "10.1.0.5:80", Pool: "named", Ranks: 2}})
	step("one of them grows", "10.1.0.1:80", "10.1.0.3:80", "10.1.0.4:80", "refused 10.1.0.5:80")
	f.Announced("n1", nil)
	f.Resolved("engines.test:80", addrs("10.1.0.1:80 10.1.0.2:80 10.1.0.3:80"))
	step("what is gone makes room", "10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80")
}

func TestEnter(t *testing.T) {
	in := []pool.Config{{Name: "b", Models: []string{"m"}, Endpoints: []string{"old"}, Leaving: []string{"old"}, Draining: []string{"10.0.0.1:80"}}, {Name: "a"}}
	p := Plan{Endpoints: []Endpoint{
		{Pool: "b", Address: "10.0.0.1:80", Ranks: 1}, {Pool: "b", Address: "10.0.0.2:80", Ranks: 2, Leaving: true}, {Pool: "other", Address: "10.0.0.3:80", Ranks: 1},
	}}
	want := []pool.Config{
		{Name: "b", Models: []string{"m"}, Endpoints: []string{"10.0.0.1:80", "10.0.0.2:80"}, Leaving: []string{"10.0.0.2:80"}, Draining: []string{"10.0.0.1:80"}, Ranks: map[string]int{"10.0.0.2:80": 2}},
		{Name: "a"},
	}
	if diff := cmp.Diff(want, p.Enter(in)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if in[0].Endpoints[0] != "old" {
		t.Error("what was given has changed")
	}
}

func TestMetrics(t *testing.T) {
	m := NewMetrics(nil)
	f := New(Options{Metrics: m})
	f.Announced("n1", []Replica{{Endpoint: "10.1.0.1:80", Pool: "named"}, {Endpoint: "10.1.0.2:80", Pool: "none"}})
	f.Commit(f.Plan(parse(t, pools), noon, idle))
	for _, w := range []struct {
		pool   string
		origin Origin
		want   float64
	}{{"static", Configured, 2}, {"named", Announced, 1}, {"named", Resolved, 0}, {"told", Announced, 0}, {"mixed", Configured, 1}} {
		if got := testutil.ToFloat64(m.endpoints.WithLabelValues(w.pool, string(w.origin))); got != w.want {
			t.Errorf("%s %s: %v, want %v", w.pool, w.origin, got, w.want)
		}
	}
	if n := testutil.CollectAndCount(m.endpoints); n != 16 {
		t.Errorf("%d series", n)
	}
	if l, r := testutil.ToFloat64(m.leaving.WithLabelValues("named")), testutil.ToFloat64(m.refused); l != 1 || r != 1 {
		t.Errorf("%v leaving, %v refused", l, r)
	}
}

// BenchmarkPlan plans a pool whose endpoints DNS gives and nodes announce, eight each.
func BenchmarkPlan(b *testing.B) {
	cfg, err := config.Parse("kvsteer.yaml", []byte(pools))
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{64, 1024} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			f := New(Options{})
			var all []netip.AddrPort
			for i := range n {
				all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80))
			}
			f.Resolved("engines.test:80", all)
			for i := 0; i < n; i += 8 {
				var replicas []Replica
				for _, addr := range all[i : i+8] {
					replicas = append(replicas, Replica{Endpoint: addr.String(), Pool: "named", Models: []string{"d"}})
				}
				f.Announced(fmt.Sprint("node-", i), replicas)
			}
			b.ReportAllocs()
			for b.Loop() {
				f.Commit(f.Plan(cfg, noon, idle))
			}
		})
	}
}
