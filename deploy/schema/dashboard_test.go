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
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// reader is one of Grafana's types.
type reader interface{ UnmarshalJSONStrict(text []byte) error }

// read reads text strictly. Success comes as an empty list of errors.
func read(into reader, text []byte) error {
	err := into.UnmarshalJSONStrict(text)
	if list := (cog.BuildErrors{}); errors.As(err, &list) && len(list) == 0 {
		return nil
	}
	return err
}

// strict reads a dashboard with Grafana's own types: the dashboard, its panels, their options and queries. A panel's fields are read
// by themselves, because the type of a panel takes anything there.
func strict(text []byte) error {
	plugins.RegisterDefaultPlugins()
	if err := read(&dashboard.Dashboard{}, text); err != nil {
		return err
	}
	var fields struct {
		Panels []struct {
			Title, Type string
			FieldConfig json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	for _, p := range fields.Panels {
		if p.Type == "row" {
			continue
		}
		var config dashboard.FieldConfigSource
		if err := read(&config, p.FieldConfig); err != nil {
			return fmt.Errorf("panel %q: fieldConfig: %w", p.Title, err)
		}
		var custom struct {
			Defaults struct{ Custom json.RawMessage }
		}
		if err := json.Unmarshal(p.FieldConfig, &custom); err != nil {
			return err
		}
		into := map[string]reader{"timeseries": &timeseries.FieldConfig{}, "state-timeline": &statetimeline.FieldConfig{}, "table": &table.FieldConfig{}}[p.Type]
		switch {
		case into != nil:
			if err := read(into, custom.Defaults.Custom); err != nil {
				return fmt.Errorf("panel %q: fieldConfig.defaults.custom: %w", p.Title, err)
			}
		case custom.Defaults.Custom != nil:
			return fmt.Errorf("panel %q: fieldConfig.defaults.custom: nothing is known of a %s panel's", p.Title, p.Type)
		}
	}
	return nil
}

func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../grafana/kvsteer.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := strict(text); err != nil {
		t.Fatal(err)
	}
	var d dashboard.Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
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
		{},
		{"templating", "list", 1},
		{"panels", 1},
		{"panels", 1, "gridPos"},
		{"panels", 1, "targets", 0},
		{"panels", 1, "options"},
		{"panels", 1, "options", "reduceOptions"},
		{"panels", 1, "fieldConfig"},
		{"panels", 1, "fieldConfig", "defaults"},
		{"panels", 9, "fieldConfig", "defaults", "custom"},
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
			if err := strict(changed); err == nil {
				t.Error("an unknown field is accepted")
			}
		})
	}
}
