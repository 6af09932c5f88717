package repocheck

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvsteer/kvsteer/extproc"
	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/approx"
	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/discover"
	"github.com/kvsteer/kvsteer/internal/doctor"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/fleet"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/internal/scrape"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
	"github.com/kvsteer/kvsteer/internal/tokenize"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

var update = flag.Bool("update", false, "write the generated parts of docs/ again")

// generated are the parts of documents that come from the code. In the document each stands between
// "<!-- generated: NAME -->" and "<!-- end: NAME -->".
var generated = []struct {
	name, file string
	text       func(*testing.T) string
}{
	{"configuration", "docs/configuration.md", func(*testing.T) string { return config.Reference() }},
	{"node configuration", "docs/configuration.md", func(*testing.T) string { return config.NodeReference() }},
	{"metrics", "docs/metrics.md", metricsTable},
	{"codes", "docs/doctor.md", func(*testing.T) string { return doctor.Reference() }},
	{"releases", "docs/doctor.md", func(*testing.T) string { return doctor.Releases() }},
	{"reasons", "docs/architecture.md", func(*testing.T) string { return reasonsTable() }},
	{"records", "docs/architecture.md", func(*testing.T) string { return recordsTable() }},
	{"charges", "docs/architecture.md", func(*testing.T) string { return chargesTable() }},
}

func TestDocs(t *testing.T) {
	for _, g := range generated {
		t.Run(g.name, func(t *testing.T) {
			path := filepath.Join(root(t), g.file)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			start, end := fmt.Sprintf("<!-- generated: %s -->\n", g.name), fmt.Sprintf("<!-- end: %s -->", g.name)
			before, rest, ok := strings.Cut(string(data), start)
			got, after, ok2 := strings.Cut(rest, end)
			if !ok || !ok2 {
				t.Fatalf("%s lacks the marks %q and %q", g.file, strings.TrimSpace(start), end)
			}
			want := g.text(t)
			if *update {
				if err := os.WriteFile(path, []byte(before+start+want+end+after), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s is out of date (make generate); -code +document:\n%s", g.file, diff)
			}
		})
	}
}

func reasonsTable() string {
	var b strings.Builder
	b.WriteString("| reason | meaning |\n|---|---|\n")
	for _, r := range router.Reasons() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.Reason, strings.ReplaceAll(r.Meaning, "|", `\|`))
	}
	return b.String()
}

func recordsTable() string {
	var b strings.Builder
	b.WriteString("| outcome | meaning |\n|---|---|\n")
	for _, r := range router.RecordOutcomes() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.Outcome, r.Meaning)
	}
	return b.String()
}

func chargesTable() string {
	var b strings.Builder
	b.WriteString("| outcome | meaning |\n|---|---|\n")
	for _, c := range router.ChargeOutcomes() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.Outcome, c.Meaning)
	}
	return b.String()
}

// recorder is a Registerer that keeps what was registered.
type recorder struct{ all []prometheus.Collector }

func (r *recorder) Register(c prometheus.Collector) error {
	r.all = append(r.all, c)
	return nil
}

func (r *recorder) MustRegister(all ...prometheus.Collector) { r.all = append(r.all, all...) }
func (r *recorder) Unregister(prometheus.Collector) bool     { return false }

var descForm = regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: "(.*?)", (?:unit: ".*?", )?constLabels: \{.*?\}, variableLabels: \{(.*?)\}\}$`)

// metricsTable lists every metric of the product's own, from the descriptions that the packages register.
func metricsTable(t *testing.T) string {
	index, err := kvindex.New(kvindex.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var r recorder
	config.NewMetrics(&r, time.Now())
	kvindex.NewMetrics(&r, index)
	subscriber.NewMetrics(&r)
	feed.NewNodeMetrics(&r)
	feed.NewRouterMetrics(&r)
	pool.NewMetrics(&r)
	scrape.NewMetrics(&r)
	discover.NewMetrics(&r)
	fleet.NewMetrics(&r)
	approx.NewMetrics(&r)
	tokenize.NewMetrics(&r)
	router.NewMetrics(&r)
	extproc.NewMetrics(&r)
	tlsfiles.NewMetrics(&r)
	admin.NewMetrics(&r)
	var rows []string
	for _, c := range r.all {
		descs := make(chan *prometheus.Desc)
		go func() { c.Describe(descs); close(descs) }()
		for d := range descs {
			m := descForm.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("description %q has another form", d)
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", m[1], kind(m[1]), strings.ReplaceAll(m[3], ",", ", "), m[2]))
		}
	}
	if len(rows) < 20 {
		t.Fatalf("only %d metrics are registered", len(rows))
	}
	sort.Strings(rows)
	return "| metric | type | labels | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "")
}

// kind tells a metric's type from its name: every package's own test lints that names and types agree.
func kind(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_timestamp_seconds"):
		return "gauge"
	case strings.HasSuffix(name, "_seconds"):
		return "histogram"
	}
	return "gauge"
}
