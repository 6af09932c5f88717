package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const everything = `
listen: 10.0.0.1:9002
tls: {cert_file: router.crt, key_file: router.key, client_ca_file: ca.crt}
admin: {listen: 10.0.0.1:9003, token_file: token, write: true, tls: {cert_file: a.crt, key_file: a.key}}
budget: 300ms
limits: {body: 1MiB}
engines: {tls: {ca_file: engines.crt, server_name: "engine \"1\""}}
pools:
- name: chat
  models: [llama, "<llama>"]
  percent: 10
  api_key_file: key
  match: {path_prefix: /chat}
  fallback: none
  tiers: {media: [{name: CPU, tier: host, lifetime: 1m}, {name: s3, tier: ignore}], host_weight: 0.75, disk_weight: 0, demote: 5m}
  adapter_ids: [{id: 1, name: sql}]
  endpoints:
  - {address: "10.0.0.11:8000", drain: true, events: {listen: "tcp://127.0.0.1:5557"}}
- name: code
  models: [coder]
  match: {header: {name: x-team, value: code}}
  endpoints: [{address: "[fd00::12]:8000"}]
`

// TestShownIsReadAgain holds that nothing is left out and nothing changed.
func TestShownIsReadAgain(t *testing.T) {
	for name, text := range map[string]string{"everything": everything, "defaults": "pools: [{name: p, models: [m], endpoints: [{address: '127.0.0.1:1'}]}]"} {
		want, err := Parse(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		shown, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse("shown", shown)
		if err != nil {
			t.Fatalf("%v\nin %s", err, shown)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s, -want +got:\n%s", name, diff)
		}
	}
}

func TestShownHidesCredentials(t *testing.T) {
	for header, hides := range map[string]bool{
		"authorization": true, "X-API-Key": true, "cookie": true, "x-auth-request-user": true, "x-team": false, "host-group": false,
	} {
		cfg, err := Parse("k.yaml", []byte(`pools: [{name: p, models: [m], endpoints: [{address: "127.0.0.1:1"}], match: {header: {name: `+header+`, value: marker}}}]`))
		if err != nil {
			t.Fatal(err)
		}
		shown, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := !strings.Contains(string(shown), "marker"); got != hides {
			t.Errorf("value of header %s hidden: %v, want %v", header, got, hides)
		}
		if cfg.Pools[0].Match.Header.Value != "marker" {
			t.Error("showing a configuration changes it")
		}
	}
}
