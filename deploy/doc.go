// Package deploy holds what runs beside kvsteer: the Grafana dashboard, Prometheus' rules and scrape configuration, and a compose
// file of a whole site. In Go it has tests only:
//
//   - rules: promtool checks them and runs their cases; each alert has cases that fire and that do not, and a runbook entry.
//   - dashboard: structure, layout and metric names; deploy/schema reads it with Grafana's own types.
//   - compose: the files agree on names, addresses, ports and volumes, and each is accepted by the program that reads it.
//   - with the build tag dashboards (make dashboards-test): every query of the dashboard and the rules returns data from a real
//     Prometheus that scrapes a running site.
//
// promtool comes from KVSTEER_PROMTOOL, or from scripts/prometheus.sh when that is not set; Envoy from KVSTEER_ENVOY_1_40 or
// scripts/envoy.sh.
package deploy
