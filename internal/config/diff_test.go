package config

import (
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
			{"budget", Changed},
			{"limits.body", Changed},
			{"pools[chat].models", Changed},
			{"pools[chat].mode", Changed},
			{"pools[chat].endpoints[10.0.0.1:8000].drain", Changed},
			{"pools[chat].endpoints[10.0.0.2:8000].events.dial", Changed},
		}},
		{"endpoints and pools", `
pools:
- {name: chat, models: [tiny], endpoints: [{address: "10.0.0.4:8000"}, {address: "10.0.0.1:8000"}]}
- {name: other, models: [big], endpoints: [{address: "10.0.0.3:8000"}]}
`, []Change{
			{"pools[chat].endpoints[10.0.0.2:8000]", Removed},
			{"pools[chat].endpoints[10.0.0.4:8000]", Added},
			{"pools[code]", Removed},
			{"pools[other]", Added},
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
		key, under string
		want       bool
	}{
		{"listen", "listen", true},
		{"admin.listen", "admin", true},
		{"admin.listen", "listen", false},
		{"pools[chat].mode", "pools", true},
		{"listener", "listen", false},
	}
	for _, tt := range tests {
		if got := (Change{Key: tt.key}).Under(tt.under); got != tt.want {
			t.Errorf("%q under %q: %v", tt.key, tt.under, got)
		}
	}
}
