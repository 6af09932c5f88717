package vllmdemo

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestPost(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /good", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	tests := []struct {
		path string
		d    time.Duration
		want string // "": done
	}{
		{"/good", time.Minute, ""},
		{"/none", time.Minute, "status 404"},
		{"/silent", 20 * time.Millisecond, "not within 20ms"},
	}
	for _, tt := range tests {
		err := post(t.Context(), s.URL+tt.path, tt.d)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.path, err, tt.want)
		}
	}
}
