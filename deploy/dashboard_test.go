package deploy

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is what tests read of Grafana's format; deploy/schema reads all of it.
type dashboard struct {
	UID         string  `json:"uid"`
	Panels      []panel `json:"panels"`
	Annotations struct {
		List []struct {
			Name string `json:"name"`
			Expr string `json:"expr"`
		} `json:"list"`
	} `json:"annotations"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
}

type variable struct {
	Name       string `json:"name"`
	Label      string `json:"label"`
	Type       string `json:"type"`
	Definition string `json:"definition"`
}

type panel struct {
	ID          int               `json:"id"`
	Type        string            `json:"type"`
	Title       string            `json:"title"`
	Description string            `json:"description"`
	Datasource  map[string]string `json:"datasource"`
	GridPos     struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets     []target `json:"targets"`
	Panels      []panel  `json:"panels"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

type target struct {
	RefID        string            `json:"refId"`
	Datasource   map[string]string `json:"datasource"`
	Expr         string            `json:"expr"`
	LegendFormat string            `json:"legendFormat"`
	Instant      bool              `json:"instant"`
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, "grafana/kvsteer.json")), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) < 20 {
		t.Fatalf("only %d panels", len(d.Panels))
	}
	return d
}

// queries are the panels that ask for something.
func (d dashboard) queries() []panel {
	return slices.DeleteFunc(slices.Clone(d.Panels), func(p panel) bool { return p.Type == "row" })
}

// variableUse finds $name, ${name} and ${name:format}.
var variableUse = regexp.MustCompile(`\$(?:\{(\w+)(?::\w+)?\}|(\w+))`)

func TestDashboardPanels(t *testing.T) {
	d := readDashboard(t)
	known := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		known[v.Name] = true
		if v.Label == "" {
			t.Errorf("variable %s has no label", v.Name)
		}
	}
	for _, name := range []string{"datasource", "job", "envoy_job", "pool", "endpoint"} {
		if !known[name] {
			t.Errorf("there is no variable %s", name)
		}
	}
	ids, titles := map[int]bool{}, map[string]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("panel %q: id %d is another's, or none", p.Title, p.ID)
		}
		ids[p.ID] = true
		if titles[p.Title] || p.Title == "" {
			t.Errorf("panel %d: title %q is another's, or none", p.ID, p.Title)
		}
		titles[p.Title] = true
		if p.Type == "row" && len(p.Panels) > 0 {
			t.Errorf("row %q is collapsed: its panels would not be looked at", p.Title)
		}
	}
	for _, p := range d.queries() {
		if !strings.HasSuffix(p.Description, ".") {
			t.Errorf("panel %q: the description %q is no sentence", p.Title, p.Description)
		}
		if p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("panel %q has no unit", p.Title)
		}
		if len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.LegendFormat == "" || q.RefID == "" || refs[q.RefID] {
				t.Errorf("panel %q: legend %q, reference %q: both are wanted, the reference once", p.Title, q.LegendFormat, q.RefID)
			}
			refs[q.RefID] = true
			if q.Datasource["uid"] != "${datasource}" || p.Datasource["uid"] != "${datasource}" {
				t.Errorf("panel %q, query %s: the data source is not the variable's", p.Title, q.RefID)
			}
			for _, m := range variableUse.FindAllStringSubmatch(q.Expr, -1) {
				if name := m[1] + m[2]; !known[name] {
					t.Errorf("panel %q, query %s: no variable is named %s", p.Title, q.RefID, name)
				}
			}
			// The interval of a rate follows the data source's scrape interval.
			if strings.Contains(q.Expr, "[") && !strings.Contains(q.Expr, "[$__rate_interval]") {
				t.Errorf("panel %q, query %s: a fixed interval: %s", p.Title, q.RefID, q.Expr)
			}
		}
	}
}

// TestDashboardLayout holds that panels lie within the grid's 24 columns, that none covers another, and that no gap is left.
func TestDashboardLayout(t *testing.T) {
	const columns = 24
	taken := map[[2]int]string{}
	bottom := 0
	for _, p := range readDashboard(t).Panels {
		g := p.GridPos
		if g.X < 0 || g.W < 1 || g.H < 1 || g.X+g.W > columns {
			t.Errorf("panel %q does not lie within %d columns: %+v", p.Title, columns, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panels %q and %q both cover column %d of line %d", p.Title, other, x, y)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		bottom = max(bottom, g.Y+g.H)
	}
	if free := columns*bottom - len(taken); free > 0 {
		t.Errorf("%d cells of the grid above line %d are empty", free, bottom)
	}
}

// TestDashboardMetrics holds that panels and variables ask for metrics that exist.
func TestDashboardMetrics(t *testing.T) {
	known := knownMetrics(t)
	d := readDashboard(t)
	for _, p := range d.queries() {
		for _, q := range p.Targets {
			for _, name := range unknownMetrics(q.Expr, known) {
				t.Errorf("panel %q: nobody exports %s", p.Title, name)
			}
		}
	}
	for _, v := range d.Templating.List {
		for _, name := range unknownMetrics(v.Definition, known) {
			t.Errorf("variable %s: nobody exports %s", v.Name, name)
		}
	}
}

// TestDashboardShowsAll holds that each metric of the router is shown by a panel, or left out for a reason.
func TestDashboardShowsAll(t *testing.T) {
	leftOut := map[string]string{
		"kvsteer_config_last_reload_timestamp_seconds": "when the configuration changed is seen in Reloads",
		"kvsteer_extproc_access_log_streams_total":     "streams end with their Envoy; open ones are shown",
		"kvsteer_extproc_decisions_total":              "reasons say more than kinds",
		"kvsteer_extproc_passthrough_streams_total":    "an outcome in Streams by outcome",
		"kvsteer_index_full_slots":                     "the problem index_full of the endpoint",
		"kvsteer_index_sets":                           "nothing to do about it; in the index's bytes",
		"kvsteer_index_slots":                          "the number of endpoints with events",
		"kvsteer_pool_adapters":                        "the state names them",
		"kvsteer_scrape_kv_usage_ratio":                "routers are told, and show it",
		"kvsteer_scrape_prefix_hit_tokens_total":       "routers are told, and show it",
		"kvsteer_scrape_prefix_query_tokens_total":     "routers are told, and show it",
		"kvsteer_scrape_running_requests":              "routers are told, and show it",
		"kvsteer_scrape_sleeping":                      "routers are told, and show it",
		"kvsteer_scrape_stale":                         "routers are told, and show it",
		"kvsteer_scrape_waiting_requests":              "routers are told, and show it",
		"kvsteer_subscriber_connections_total":         "resets by cause disconnect",
		"kvsteer_subscriber_problem":                   "among the router's problems of the endpoint",
		"kvsteer_tokenize_cache_entries":               "its bytes are what is bounded",
	}
	shown := map[string]bool{}
	for _, p := range readDashboard(t).queries() {
		for _, q := range p.Targets {
			for _, name := range metricName.FindAllString(q.Expr, -1) {
				shown[name] = true
			}
		}
	}
	documented := regexp.MustCompile("(?m)^\\| `(kvsteer_\\w+)` \\|").FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1)
	if len(documented) < 50 {
		t.Fatalf("only %d metrics are documented", len(documented))
	}
	for _, m := range documented {
		name := m[1]
		seen := shown[name] || shown[name+"_bucket"] || shown[name+"_count"]
		switch why := leftOut[name]; {
		case !seen && why == "":
			t.Errorf("no panel shows %s", name)
		case seen && why != "":
			t.Errorf("%s is shown, and said to be left out", name)
		}
		delete(leftOut, name)
	}
	for name := range leftOut {
		t.Errorf("%s is left out, and no metric", name)
	}
}
