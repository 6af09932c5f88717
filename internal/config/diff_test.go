package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDiff(t *testing.T) {
	const base = `
pools:
- {name: chat, models: [tiny], endpoints: [{address: "10.0.0.1:8000"}, {address: "10.0.0.2:8000", events: {dial: "tcp://10.0.0.2:5557"}}]}
- {name: code, models: [big], endpoints: [{address: "10.0.0.3:8000"}]}
`
	tests := []struct {
		name, text string
		want       []Change
	}{
		{"the same", base, nil},
		{"other order and spelling", `
pools:
- {name: code, models: [big], adapters: [], endpoints: [{address: "[::ffff:10.0.0.3]:8000"}]}
- {name: chat, mode: on, models: [tiny], endpoints: [{address: "10.0.0.2:8000", events: {dial: "tcp://10.0.0.2:5557"}}, {address: "10.0.0.1:8000"}]}
`, nil},
		{"values", `
budget: 300ms
limits: {body: 8MiB}
pools:
- {name: chat, mode: off, models: [tiny, small], endpoints: [{address: "10.0.0.1:8000", drain: true}, {address: "10.0.0.2:8000", events: {dial: "tcp://10.0.0.2:5558"}}]}
- {name: code, models: [big], endpoints: [{address: "10.0.0.3:8000"}]}
`, []Change{
			{"budget", "budget", Changed},
			{"limits.body", "limits.body", Changed},
			{"pools[chat].models", "pools.models", Changed},
			{"pools[chat].mode", "pools.mode", Changed},
			{"pools[chat].endpoints[10.0.0.1:8000].drain", "pools.endpoints.drain", Changed},
			{"pools[chat].endpoints[10.0.0.2:8000].events.dial", "pools.endpoints.events.dial", Changed},
		}},
		{"lists in a pool", strings.Replace(base, "models: [tiny],", "models: [tiny], tiers: {host_weight: 0.7, media: [{name: s3, tier: disk}]}, adapter_ids: [{id: 3, name: sql}],", 1), []Change{
			{"pools[chat].tiers.media[s3]", "pools.tiers.media", Added},
			{"pools[chat].tiers.host_weight", "pools.tiers.host_weight", Changed},
			{"pools[chat].adapter_ids[3]", "pools.adapter_ids", Added},
		}},
		{"endpoints by IPv6 addresses", strings.ReplaceAll(base, "10.0.0.3:8000", "[fd00::3]:8000"), []Change{
			{"pools[code].endpoints[10.0.0.3:8000]", "pools.endpoints", Removed},
			{"pools[code].endpoints[[fd00::3]:8000]", "pools.endpoints", Added},
		}},
		{"endpoints and pools", `
pools:
- {name: chat, models: [tiny], endpoints: [{address: "10.0.0.4:8000"}, {address: "10.0.0.1:8000"}]}
- {name: other, models: [big], endpoints: [{address: "10.0.0.3:8000"}]}
`, []Change{
			{"pools[chat].endpoints[10.0.0.2:8000]", "pools.endpoints", Removed},
			{"pools[chat].endpoints[10.0.0.4:8000]", "pools.endpoints", Added},
			{"pools[code]", "pools", Removed},
			{"pools[other]", "pools", Added},
		}},
	}
	a, err := Parse("a.yaml", []byte(base))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		b, err := Parse("b.yaml", []byte(tt.text))
		if err != nil {
			t.Fatal(tt.name, err)
		}
		if diff := cmp.Diff(tt.want, Diff(a, b)); diff != "" {
			t.Errorf("%s (- want, + got):\n%s", tt.name, diff)
		}
	}
}

func TestChangeUnder(t *testing.T) {
	tests := []struct {
		of, under string
		want      bool
	}{
		{"listen", "listen", true},
		{"admin.listen", "admin", true},
		{"admin.listen", "listen", false},
		{"pools.mode", "pools", true},
		{"pools.fallback.to", "pools.fallback", true},
		{"pools", "pools.fallback", false},
		{"listener", "listen", false},
	}
	for _, tt := range tests {
		if got := (Change{Of: tt.of}).Under(tt.under); got != tt.want {
			t.Errorf("%q under %q: %v", tt.of, tt.under, got)
		}
	}
}
