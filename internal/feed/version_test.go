package feed

import (
	"strings"
	"testing"
)

func TestNegotiate(t *testing.T) {
	span := func(oldest, newest uint32) versions { return versions{oldest: oldest, newest: newest} }
	tests := []struct {
		name         string
		node, router versions
		want         uint32
		failure      string // in the error
	}{
		{"the same", span(1, 1), span(1, 1), 1, ""},
		{"a later router", span(1, 1), span(1, 3), 1, ""},
		{"a later node", span(1, 3), span(1, 2), 2, ""},
		{"overlapping", span(2, 4), span(3, 7), 4, ""},
		{"no oldest", span(1, 2), span(0, 2), 2, ""},
		{"an old router", span(3, 4), span(1, 2), 0, "the node speaks protocol 3 to 4, the router 1 to 2: upgrade the router"},
		{"an old node", span(1, 2), span(3, 3), 0, "the node speaks protocol 1 to 2, the router 3: upgrade the node"},
		{"no oldest, another version", span(1, 1), span(0, 2), 0, "upgrade the node"},
		{"nothing", span(1, 1), span(0, 0), 0, "names no version"},
		{"upside down", span(1, 9), span(5, 4), 0, "names no version"},
	}
	for _, tt := range tests {
		got, err := negotiate(tt.node, tt.router)
		if got != tt.want || (err == nil) != (tt.failure == "") || err != nil && !strings.Contains(err.Error(), tt.failure) {
			t.Errorf("%s: %d, %v, want %d, %q", tt.name, got, err, tt.want, tt.failure)
		}
	}
	_, err := negotiate(versions{3, 4, "v2.0.0"}, versions{1, 2, "v1.0.0"})
	if want := "the node speaks protocol 3 to 4 (release v2.0.0), the router 1 to 2 (release v1.0.0): upgrade the router"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
