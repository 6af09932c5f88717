package doctor

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestOlderThan(t *testing.T) {
	for _, tt := range []struct {
		release, than string
		want          bool
	}{
		{"0.9.1", "0.10.2", true},
		{"0.10.2", "0.10.2", false},
		{"0.10.2rc1", "0.10.2", false},
		{"v0.8.5.post1", "0.9.0", true},
		{"0.11.0.dev5+g1234", "0.11.0", false},
		{"0.16", "0.17.1", true},
		{"1.0.0", "0.17.1", false},
		{"1.9", "1.40", true},
		{"1.40.0", "1.40", false},
		{"", "0.17.1", false},
		{"dev", "0.17.1", false},
		{"0", "0.17.1", false},
	} {
		if got := olderThan(tt.release, tt.than); got != tt.want {
			t.Errorf("%q older than %q: %v", tt.release, tt.than, got)
		}
	}
}

// TestPageAgainstLibrary reads the recorded pages as Prometheus' own library does.
func TestPageAgainstLibrary(t *testing.T) {
	w := newWorld(t, "envoy-1.40.0")
	for _, name := range []string{"router/metrics.txt", "vllm-0.32.0/metrics.txt", "vllm-0.23.0/metrics.txt"} {
		text := w.read(name)
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]float64{}
		for _, f := range families { // without their types all are untyped
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				want[key(f.GetName(), labels)] = m.GetUntyped().GetValue()
			}
		}
		got := map[string]float64{}
		for _, all := range parsePage(text).all {
			for _, s := range all {
				got[key(s.name, s.labels)] = s.value
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || len(got) < 50 {
			t.Errorf("%s: %d series (-want +got):\n%s", name, len(got), diff)
		}
	}
}

func key(name string, labels map[string]string) string {
	return fmt.Sprintf("%s %q", name, labels) // maps are printed in the order of their keys
}

func TestParseSeries(t *testing.T) {
	for _, tt := range []struct {
		line string
		want series
		ok   bool
	}{
		{`a 1`, series{"a", map[string]string{}, 1}, true},
		{`a{} 2 1700000000000`, series{"a", map[string]string{}, 2}, true},
		{`a:b{x="1",y="a b",} 1e3`, series{"a:b", map[string]string{"x": "1", "y": "a b"}, 1000}, true},
		{`a{x="q\"}\\\n"} 1`, series{"a", map[string]string{"x": "q\"}\\\n"}, 1}, true},
		{`a +Inf`, series{"a", map[string]string{}, math.Inf(1)}, true},
		{`# HELP a b`, series{}, false},
		{`a`, series{}, false},
		{`a{x="1"`, series{}, false},
		{`a{x="1} 1`, series{}, false},
		{`a{x=1} 1`, series{}, false},
		{`a one`, series{}, false},
		{`{x="1"} 1`, series{}, false},
		{``, series{}, false},
	} {
		got, ok := parseSeries(tt.line)
		if ok != tt.ok || ok && !cmp.Equal(tt.want, got, cmp.AllowUnexported(series{})) {
			t.Errorf("%s: %+v %v", tt.line, got, ok)
		}
	}
}

// FuzzParseSeries holds that what was read, written out, is read the same.
func FuzzParseSeries(f *testing.F) {
	f.Add(`a:b{x="1",y="a b",} 1e3 17`)
	f.Add(`a{x="q\"}\\\n"} NaN`)
	f.Fuzz(func(t *testing.T, line string) {
		s, ok := parseSeries(line)
		if !ok {
			return
		}
		var labels []string
		escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
		for k, v := range s.labels {
			if strings.ContainsAny(k, "=\",}") {
				return // no name of a label
			}
			labels = append(labels, k+`="`+escape.Replace(v)+`"`)
		}
		out := fmt.Sprintf("%s{%s} %v", s.name, strings.Join(labels, ","), s.value)
		again, ok := parseSeries(out)
		if !ok || again.name != s.name || !maps.Equal(again.labels, s.labels) || again.value != s.value && !math.IsNaN(s.value) {
			t.Errorf("%q: %+v, again %+v", line, s, again)
		}
	})
}

func TestPorts(t *testing.T) {
	p := readPorts("testdata/proc")
	if !p.shown || len(p.all) != 5 {
		t.Fatalf("%+v", p)
	}
	for _, tt := range []struct{ dialled, want string }{
		{"127.0.0.1:6789", "0.0.0.0:6789"},
		{"127.0.0.1:6791", "[::]:6791"},
		{"127.0.0.1:6792", "10.0.10.5:6792"},
		{"127.0.0.1:6790", ""},  // connected, not listening
		{"127.0.0.1:23101", ""}, // on loopback
		{"[::1]:8080", ""},
		{"192.0.2.1:6789", ""}, // another host
	} {
		var got []string
		for _, a := range p.exposed(netip.MustParseAddrPort(tt.dialled)) {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.dialled, got, tt.want)
		}
	}
	if p := readPorts("testdata/none"); p.shown || len(p.all) > 0 {
		t.Errorf("without /proc: %+v", p)
	}
	for _, bad := range []string{"", ":", "0100007F", "010000:1F90", "0100007F:1F901", "xx00007F:1F90"} {
		if a, ok := kernelAddress(bad); ok {
			t.Errorf("%q is read as %s", bad, a)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		matcher, s string
		want       bool
	}{
		{`{"exact":"x-a"}`, "x-a", true},
		{`{"exact":"X-A"}`, "x-a", false},
		{`{"exact":"X-A","ignore_case":true}`, "x-a", true},
		{`{"prefix":"x-"}`, "x-a", true},
		{`{"suffix":"-a"}`, "x-a", true},
		{`{"contains":"b"}`, "x-a", false},
		{`{"safe_regex":{"regex":"x-.*"}}`, "x-a", true},
		{`{"safe_regex":{"regex":"x-"}}`, "x-a", false},
		{`{"safe_regex":{"regex":"("}}`, "x-a", false},
		{`{"custom":{}}`, "x-a", false},
		{`null`, "x-a", false},
	} {
		m, err := parseTree([]byte(tt.matcher))
		if err != nil {
			t.Fatal(err)
		}
		if got := matches(m, tt.s); got != tt.want {
			t.Errorf("%s on %q: %v", tt.matcher, tt.s, got)
		}
	}
}

func TestRelease(t *testing.T) {
	for in, want := range map[string]string{
		"9e55/1.40.0/Clean/RELEASE/BoringSSL": "1.40.0", "9e55/1.41.0-dev/Modified/DEBUG/BoringSSL": "1.41.0-dev", "1.40.0": "", "": "",
	} {
		if got := release(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestCatalogue(t *testing.T) {
	all := Catalogue()
	if !slices.IsSortedFunc(all, func(a, b Entry) int { return strings.Compare(string(a.Code), string(b.Code)) }) {
		t.Error("codes are not in order")
	}
	seen := map[Code]bool{}
	for _, e := range all {
		if seen[e.Code] || e.Meaning == "" || e.Advice == "" || e.Severity.rank() == 2 && e.Severity != Info {
			t.Errorf("%+v", e)
		}
		seen[e.Code] = true
		if strings.ContainsAny(e.Meaning+e.Advice, "|\n") || strings.HasSuffix(e.Meaning, ".") {
			t.Errorf("%s: text does not fit into a table", e.Code)
		}
		if entry(e.Code) != e {
			t.Errorf("%s is not found", e.Code)
		}
	}
	for _, r := range badReleases() {
		if !seen[r.code] || r.source == "" {
			t.Errorf("%+v", r)
		}
	}
}
