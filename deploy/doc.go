// Package deploy holds what runs beside kvsteer, and what it runs by: the Grafana dashboard, Prometheus' rules and scrape configuration, a
// compose file of a whole site, manifests for Kubernetes, units for systemd. In Go it has tests only:
//
//   - rules: promtool checks them and runs their cases; each alert has cases that fire and that do not, and a runbook entry.
//   - dashboard: structure, layout and metric names; deploy/schema reads it with Grafana's own types.
//   - compose: the files agree on names, addresses, ports and volumes, and each is accepted by the program that reads it.
//   - units: systemd-analyze verifies them and says how little they may do; they fit the program and the files of their folder.
//   - manifests: configurations, ports, mounted files and engines' arguments agree, and what is in them for Envoy is what kvsteer envoy
//     prints; deploy/schema builds each kustomization and reads every object with the types of its reader.
//   - with the build tag dashboards (make dashboards-test): every query of the dashboard and the rules returns data from a real
//     Prometheus that scrapes a running site.
//
// promtool comes from KVSTEER_PROMTOOL, or from scripts/prometheus.sh when that is not set; systemd-analyze
// from KVSTEER_SYSTEMD_ANALYZE or scripts/systemd.sh; Envoy from KVSTEER_ENVOY_1_40 or
// scripts/envoy.sh.
package deploy
