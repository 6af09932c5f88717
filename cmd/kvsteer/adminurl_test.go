package main

import (
	"strings"
	"testing"
)

func TestAdminURL(t *testing.T) {
	tests := []struct {
		listen string
		tls    bool
		want   string
	}{
		{"127.0.0.1:9003", false, "http://127.0.0.1:9003"},
		{"10.0.0.5:9003", true, "https://10.0.0.5:9003"},
		{"0.0.0.0:9003", true, "https://127.0.0.1:9003"},
		{"[::]:9003", false, "http://[::1]:9003"},
		{"[fd00::5]:9003", false, "http://[fd00::5]:9003"},
		{"127.0.0.1:0", false, ""},
		{"localhost:9003", false, ""},
		{"", true, ""},
	}
	for _, tt := range tests {
		if got := adminURL(tt.listen, tt.tls); got != tt.want {
			t.Errorf("%q, TLS %v: %q, want %q", tt.listen, tt.tls, got, tt.want)
		}
	}
}

func TestCheckURL(t *testing.T) {
	for _, good := range []string{"http://127.0.0.1:9003", "https://router.test:9003/", "http://[::1]:9003", "https://proxy.test/kvsteer"} {
		if err := checkURL("--admin", good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "127.0.0.1:9003", "ftp://a", "http://", "http://a:1/?token=hunter2", "http://a:1/#b", "http://\x7f"} {
		if err := checkURL("--admin", bad); err == nil || !strings.HasPrefix(err.Error(), "--admin: ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, secret := range []string{"http://ops:hunter2@a:1", "http://a:1/?token=hunter2"} {
		if err := checkURL("--admin", secret); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a password: %v", err)
		}
	}
}
