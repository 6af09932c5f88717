package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// strict reads a dashboard with Grafana's own types, of the dashboard, its panels, their options and their queries.
func strict(text []byte) (dashboard.Dashboard, error) {
	plugins.RegisterDefaultPlugins()
	var d dashboard.Dashboard
	err := d.UnmarshalJSONStrict(text)
	// Success comes as an empty list of errors.
	if list := (cog.BuildErrors{}); errors.As(err, &list) && len(list) == 0 {
		err = nil
	}
	return d, err
}

func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../grafana/kvsteer.json")
	if err != nil {
		t.Fatal(err)
	}
	d, err := strict(text)
	if err != nil {
		t.Fatal(err)
	}
	panels := 0
	for _, p := range d.Panels {
		if p.Panel != nil {
			panels++
			for i, q := range p.Panel.Targets {
				if q.DataqueryType() != "prometheus" {
					t.Errorf("panel %q, query %d is read as %q, not as one for Prometheus", *p.Panel.Title, i, q.DataqueryType())
				}
			}
		}
	}
	if panels < 20 {
		t.Errorf("only %d panels were read", panels)
	}
}

// TestDashboardIsReadStrictly holds that misspelt fields at every depth are found.
func TestDashboardIsReadStrictly(t *testing.T) {
	text, err := os.ReadFile("../grafana/kvsteer.json")
	if err != nil {
		t.Fatal(err)
	}
	at := func(d map[string]any, path ...any) map[string]any {
		var v any = d
		for _, p := range path {
			switch p := p.(type) {
			case string:
				v = v.(map[string]any)[p]
			case int:
				v = v.([]any)[p]
			}
		}
		return v.(map[string]any)
	}
	for _, path := range [][]any{
		{}, {"templating", "list", 1}, {"panels", 1}, {"panels", 1, "gridPos"}, {"panels", 1, "targets", 0}, {"panels", 1, "options"},
		{"panels", 1, "options", "reduceOptions"}, {"panels", 1, "fieldConfig", "defaults"},
	} {
		t.Run(fmt.Sprint(path...), func(t *testing.T) {
			var d map[string]any
			if err := json.Unmarshal(text, &d); err != nil {
				t.Fatal(err)
			}
			at(d, path...)["misspelt"] = true
			changed, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := strict(changed); err == nil {
				t.Error("an unknown field is accepted")
			}
		})
	}
}
