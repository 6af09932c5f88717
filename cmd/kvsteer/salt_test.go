package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/config"
)

// TestSaltHeadersAreStripped has Envoy remove the salt header of each pool from what clients send, in a whole configuration and in pieces.
func TestSaltHeadersAreStripped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kvsteer.yaml")
	text := `pools:
- {name: a, models: [m], match: {host: a.test}, salt_header: X-Tenant-Salt, endpoints: [{address: "10.0.0.1:8000"}]}
- {name: b, models: [n], match: {host: b.test}, salt_header: x-tenant-salt, endpoints: [{address: "10.0.0.2:8000"}]}
- {name: c, models: [o], match: {host: c.test}, endpoints: [{address: "10.0.0.3:8000"}]}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := new(envoyCmd).options(cfg).StripHeaders; !slices.Equal(got, []string{"x-tenant-salt"}) {
		t.Errorf("stripped %q", got)
	}
	for _, pieces := range []bool{false, true} {
		var out bytes.Buffer
		if err := (&envoyCmd{Config: path, FilterOnly: pieces, Balance: "least_request"}).Run(&out); err != nil {
			t.Fatal(err)
		}
		_, early, _ := strings.Cut(out.String(), "early_header_mutation_extensions:")
		if !strings.Contains(early[:min(len(early), 1500)], "x-tenant-salt") {
			t.Errorf("pieces %v: the header is not removed early:\n%s", pieces, early[:min(len(early), 1500)])
		}
	}
}
