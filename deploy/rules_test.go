package deploy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// ruleFile is a file of rules as Prometheus reads it.
type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// rules returns all rules, in the order of the file.
func rules(t *testing.T) []rule {
	t.Helper()
	var file ruleFile
	if err := yaml.UnmarshalWithOptions([]byte(read(t, "prometheus/rules.yml")), &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 10 {
		t.Fatalf("only %d rules found", len(all))
	}
	return all
}

func TestPromtool(t *testing.T) {
	tool := promtool(t)
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"rules", []string{"check", "rules", "--lint=all", "--lint-fatal", "rules.yml"}, "rules found"},
		{"scrape configuration", []string{"check", "config", "--lint=all", "--lint-fatal", "prometheus.yml"}, "is valid prometheus config"},
		{"cases", []string{"test", "rules", "rules_test.yml"}, "SUCCESS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out := run(t, "prometheus", tool, c.args...); !strings.Contains(out, c.says) {
				t.Errorf("promtool says:\n%s", out)
			}
		})
	}
}

// TestAlertCases holds that each alert has a case that fires and one that does not, and that a case asks for what its name says.
func TestAlertCases(t *testing.T) {
	var file struct {
		Tests []struct {
			Name string `yaml:"name"`
			Expr []struct {
				Expr    string `yaml:"expr"`
				Samples []struct {
					Labels string `yaml:"labels"`
				} `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		} `yaml:"tests"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "prometheus/rules_test.yml")), &file); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	form := regexp.MustCompile(`^(\w+) (fires|does not fire): \S`)
	for _, c := range file.Tests {
		m := form.FindStringSubmatch(c.Name)
		if m == nil {
			t.Errorf(`case %q is not named "ALERT fires: …" or "ALERT does not fire: …"`, c.Name)
			continue
		}
		asked, seen := 0, 0
		for _, e := range c.Expr {
			if !strings.HasPrefix(e.Expr, "ALERTS{") || !strings.Contains(e.Expr, `alertstate="firing"`) {
				continue
			}
			asked++
			for _, s := range e.Samples {
				if strings.Contains(s.Labels, `alertname="`+m[1]+`"`) {
					seen++
				}
			}
		}
		switch {
		case asked == 0:
			t.Errorf("case %q asks for no firing alerts", c.Name)
		case m[2] == "fires" && seen == asked:
			fires[m[1]] = true
		case m[2] == "does not fire" && seen == 0:
			quiet[m[1]] = true
		default:
			t.Errorf("case %q expects %s in %d of %d queries", c.Name, m[1], seen, asked)
		}
	}
	for _, r := range rules(t) {
		if r.Alert != "" && (!fires[r.Alert] || !quiet[r.Alert]) {
			t.Errorf("%s: a case that fires: %v, one that does not: %v; both are wanted", r.Alert, fires[r.Alert], quiet[r.Alert])
		}
	}
}

// TestRunbook holds that each alert says what it means, and names an entry of the runbook that is there.
func TestRunbook(t *testing.T) {
	const page = "https://github.com/kvsteer/kvsteer/blob/main/docs/operations.md#"
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^### (Kvsteer\w+)$`).FindAllStringSubmatch(read(t, "../docs/operations.md"), -1) {
		headings = append(headings, m[1])
	}
	var alerts []string
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts = append(alerts, r.Alert)
		if !strings.HasPrefix(r.Alert, "Kvsteer") {
			t.Errorf("%s: the dashboard shows alerts whose names begin with Kvsteer", r.Alert)
		}
		if s := r.Labels["severity"]; s != "info" && s != "warning" && s != "critical" {
			t.Errorf("%s: severity %q is neither info, warning nor critical", r.Alert, s)
		}
		for _, name := range []string{"summary", "description"} {
			if !strings.HasSuffix(r.Annotations[name], ".") {
				t.Errorf("%s: %s %q is no sentence", r.Alert, name, r.Annotations[name])
			}
		}
		// The anchor of a heading is its text in lower case.
		if want := page + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !slices.Contains(headings, r.Alert) {
			t.Errorf("docs/operations.md has no entry %s", r.Alert)
		}
	}
	for _, h := range headings {
		if !slices.Contains(alerts, h) {
			t.Errorf("docs/operations.md has an entry %s, which is no alert", h)
		}
	}
}

// TestRuleMetrics holds that rules ask for metrics that exist.
func TestRuleMetrics(t *testing.T) {
	known := knownMetrics(t)
	for _, r := range rules(t) {
		if r.Record != "" {
			known[r.Record] = true
		}
	}
	for _, r := range rules(t) {
		for _, name := range unknownMetrics(r.Expr, known) {
			t.Errorf("%s%s: nobody exports %s", r.Alert, r.Record, name)
		}
	}
}

// TestRunbookPanels holds that the panels that the runbook names, in italics, are on the dashboard.
func TestRunbookPanels(t *testing.T) {
	titles := map[string]bool{}
	for _, p := range readDashboard(t).Panels {
		titles[p.Title] = true
	}
	named := regexp.MustCompile(`(?:^|[^*])\*([A-Z][^*]+)\*(?:[^*]|$)`).FindAllStringSubmatch(read(t, "../docs/operations.md"), -1)
	if len(named) < 10 {
		t.Fatalf("only %d panels are named", len(named))
	}
	for _, m := range named {
		if title := strings.Join(strings.Fields(m[1]), " "); !titles[title] {
			t.Errorf("the dashboard has no panel %q", title)
		}
	}
}
