package admin

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/router"
)

func TestBlocks(t *testing.T) {
	f := newFleet()
	f.held = []router.HeldBlocks{
		{Rank: 0, Any: []uint64{3, 1, 0xfedcba9876543210}, Device: []uint64{1}},
		{Rank: 1, Any: []uint64{7}, Device: []uint64{7}},
	}
	const path = "/api/v1/endpoints/10.0.0.11:8000/blocks"
	const list = "0 device 0000000000000001\n0 any 0000000000000003\n0 any fedcba9876543210\n1 device 0000000000000007\n"
	tests := []struct {
		name    string
		request request
		held    error
		busy    bool
		status  int
		want    string
	}{
		{"list", request{method: "GET", path: path}, nil, false, http.StatusOK, list},
		{"unknown endpoint", request{method: "GET", path: "/api/v1/endpoints/10.0.0.1:1/blocks"}, nil, false, http.StatusNotFound, `there is no endpoint`},
		{"too many", request{method: "GET", path: path}, errors.New("rank 0 holds more"), false, http.StatusConflict, `{"error":"rank 0 holds more"}`},
		{"while another is made", request{method: "GET", path: path}, nil, true, http.StatusServiceUnavailable, "another bundle"},
		{"no command", request{method: "POST", path: path}, nil, false, http.StatusMethodNotAllowed, "this path is for GET"},
		{"from a web page", request{method: "GET", path: path, host: "evil.test"}, nil, false, http.StatusForbidden, "Host"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.unlisted = tt.held
			s, err := New(options(f))
			if err != nil {
				t.Fatal(err)
			}
			if tt.busy {
				s.packs <- struct{}{}
			}
			status, body, _ := tt.request.send(s.handler())
			if status != tt.status || !strings.Contains(body, tt.want) || status == http.StatusOK && body != tt.want {
				t.Errorf("status %d %q, want %d %q", status, body, tt.status, tt.want)
			}
		})
	}

	s, err := New(withToken(t, options(f), "0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	if status, body, _ := (request{method: "GET", path: path}).send(s.handler()); status != http.StatusUnauthorized || strings.Contains(body, "0000000") {
		t.Errorf("without the token: status %d %q", status, body)
	}
}
