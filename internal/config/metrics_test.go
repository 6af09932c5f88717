package config

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, time.UnixMilli(1000))
	check := func(what, applied, refused, successful, timestamp string) {
		t.Helper()
		want := `
# HELP kvsteer_config_last_reload_successful 1 when the configuration that was last found is in use, 0 when it was refused.
# TYPE kvsteer_config_last_reload_successful gauge
kvsteer_config_last_reload_successful ` + successful + `
# HELP kvsteer_config_last_reload_timestamp_seconds When the configuration in use was read, in seconds since 1970.
# TYPE kvsteer_config_last_reload_timestamp_seconds gauge
kvsteer_config_last_reload_timestamp_seconds ` + timestamp + `
# HELP kvsteer_config_reloads_total Changed configurations found while running, by outcome: applied, or refused with the one before left in use.
# TYPE kvsteer_config_reloads_total counter
kvsteer_config_reloads_total{outcome="applied"} ` + applied + `
kvsteer_config_reloads_total{outcome="refused"} ` + refused + `
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("at the start", "0", "0", "1", "1")
	m.Refused()
	check("refused", "0", "1", "0", "1")
	m.Applied(time.UnixMilli(2500))
	check("applied", "1", "1", "1", "2.5")
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}
