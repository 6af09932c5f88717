package discover

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func addrs(text string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, a := range strings.Fields(text) {
		all = append(all, netip.MustParseAddrPort(a))
	}
	return all
}

func TestBelief(t *testing.T) {
	const fails, none = "fails", ""
	tests := []struct {
		name    string
		answers []string
		want    []string // after each
		told    string   // x: a change is told
	}{
		{"an answer replaces the one before", []string{"1.1.1.1:1 1.1.1.2:1", "1.1.1.2:1"}, []string{"1.1.1.1:1 1.1.1.2:1", "1.1.1.2:1"}, "xx"},
		{"the same again", []string{"1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1"}, []string{"1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1"}, "x--"},
		{"failures change nothing", []string{"1.1.1.1:1", fails, fails, fails, "1.1.1.1:1"}, []string{"1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1"}, "x----"},
		{"failures at first", []string{fails, fails, "1.1.1.1:1"}, []string{"", "", "1.1.1.1:1"}, "--x"},
		{"none at first", []string{none, none, "1.1.1.1:1"}, []string{"", "", "1.1.1.1:1"}, "x-x"},
		{"one answer without an address", []string{"1.1.1.1:1", none, "1.1.1.1:1", none, "1.1.1.1:1"}, []string{"1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1"}, "x----"},
		{"two", []string{"1.1.1.1:1", none, none, none}, []string{"1.1.1.1:1", "1.1.1.1:1", "", ""}, "x-x-"},
		{"two with a failure in between", []string{"1.1.1.1:1", none, fails, none}, []string{"1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1", ""}, "x--x"},
		{"gone and back", []string{"1.1.1.1:1", none, none, "1.1.1.1:1"}, []string{"1.1.1.1:1", "1.1.1.1:1", "", "1.1.1.1:1"}, "x-xx"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b belief
			for i, answer := range tt.answers {
				o := outcomeOK
				switch answer {
				case fails:
					o, answer = outcomeFailed, ""
				case none:
					o = outcomeNone
				}
				var changed bool
				b, changed = b.fold(o, addrs(answer))
				if diff := cmp.Diff(addrs(tt.want[i]), b.addrs, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
					t.Errorf("after answer %d (-want +got):\n%s", i, diff)
				}
				if changed != (tt.told[i] == 'x') {
					t.Errorf("after answer %d: a change is told %v", i, changed)
				}
			}
		})
	}
}

func TestWait(t *testing.T) {
	tests := []struct {
		name     string
		b        belief
		interval time.Duration
		part     float64
		want     time.Duration
	}{
		{"well", belief{}, time.Second, 0, time.Second},
		{"apart", belief{}, time.Second, 1, 900 * time.Millisecond},
		{"not believed yet", belief{addrs: addrs("1.1.1.1:1"), nones: 1}, time.Second, 0, time.Second / 2},
		{"never had any", belief{nones: 1}, time.Second, 0, time.Second},
		{"first failure", belief{failures: 1}, time.Second, 0, time.Second / 2},
		{"second", belief{failures: 2}, time.Second, 0, time.Second},
		{"fifth", belief{failures: 5}, time.Second, 0, 8 * time.Second},
		{"sixth", belief{failures: 6}, time.Second, 0, 10 * time.Second},
		{"many", belief{failures: 1 << 40}, time.Second, 0, 10 * time.Second},
		{"long interval", belief{failures: 1 << 40}, time.Minute, 0, time.Minute},
		{"longest", belief{failures: 100}, time.Hour, 0, time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.b.wait(tt.interval, tt.part); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestTidy(t *testing.T) {
	got, dropped := tidy(addrs("10.0.0.2:1 10.0.0.1:2 10.0.0.2:1 [fd00::1]:1 10.0.0.1:1"), 3)
	if s := fmt.Sprint(got); s != "[10.0.0.1:1 10.0.0.1:2 10.0.0.2:1]" || dropped != 1 {
		t.Errorf("%s, %d dropped", s, dropped)
	}
}

func TestUsable(t *testing.T) {
	tests := []struct {
		ip   string
		port uint16
		want string // "" = left out
	}{
		{"10.0.0.1", 80, "10.0.0.1:80"},
		{"::ffff:10.0.0.1", 80, "10.0.0.1:80"},
		{"fd00::1", 80, "[fd00::1]:80"},
		{"10.0.0.1", 0, ""},
		{"0.0.0.0", 80, ""},
		{"::", 80, ""},
		{"224.0.0.1", 80, ""},
		{"ff02::1", 80, ""},
		{"fe80::1%eth0", 80, ""},
	}
	for _, tt := range tests {
		got, ok := usable(netip.MustParseAddr(tt.ip), tt.port)
		if ok != (tt.want != "") || ok && got.String() != tt.want {
			t.Errorf("%s: %v, %v", tt.ip, got, ok)
		}
	}
	if _, ok := usable(netip.Addr{}, 80); ok {
		t.Error("no address is usable")
	}
}

func TestParseName(t *testing.T) {
	for text, want := range map[string]Name{
		"engines.test:8000": {"engines.test", 8000}, "a:1": {"a", 1}, "a": {}, "a:": {}, ":1": {}, "a:0": {}, "a:65536": {}, "a:+1": {}, "": {},
	} {
		got, err := ParseName(text)
		if (err != nil) != (want == Name{}) || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if err == nil && got.String() != text {
			t.Errorf("%q is written %q", text, got)
		}
	}
	if got := (Name{Host: "_a._tcp.test"}).String(); got != "_a._tcp.test" {
		t.Errorf("SRV name %q", got)
	}
}
