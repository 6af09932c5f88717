package extproc

import (
	"net/http"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvsteer/kvsteer/internal/router"
)

func TestDecisionReply(t *testing.T) {
	tests := []struct {
		name string
		at   phase
		d    router.Decision
		want string
	}{
		{
			name: "two choices in the body phase", at: bodyPhase, d: decided(),
			want: `request_body { response { clear_route_cache: true header_mutation {
				set_headers { header { key: "x-target-endpoint" raw_value: "10.0.0.11:8000" } append_action: OVERWRITE_IF_EXISTS_OR_ADD }
				set_headers { header { key: "x-target-endpoint-2" raw_value: "10.0.0.12:8000" } append_action: OVERWRITE_IF_EXISTS_OR_ADD }
			} } }
			dynamic_metadata { fields { key: "kvsteer" value { struct_value {
				fields { key: "decision_id" value { string_value: "r1-7" } }
				fields { key: "pool" value { string_value: "chat" } }
				fields { key: "mode" value { string_value: "on" } }
				fields { key: "endpoint" value { string_value: "10.0.0.11:8000" } }
				fields { key: "rung" value { string_value: "exact" } }
				fields { key: "reason" value { string_value: "matched" } }
				fields { key: "matched_tokens" value { number_value: 4096 } }
				fields { key: "prompt_tokens" value { number_value: 5000 } }
			} } } }`,
		},
		{
			name: "one choice in the headers phase", at: headersPhase, d: router.Decision{ID: "a", Endpoint: "[::1]:80", Rung: router.RungLoad, Reason: "least"},
			want: `request_headers { response { clear_route_cache: true header_mutation {
				set_headers { header { key: "x-target-endpoint" raw_value: "[::1]:80" } append_action: OVERWRITE_IF_EXISTS_OR_ADD }
				remove_headers: "x-target-endpoint-2"
			} } }
			dynamic_metadata { fields { key: "kvsteer" value { struct_value {
				fields { key: "decision_id" value { string_value: "a" } }
				fields { key: "pool" value { string_value: "" } }
				fields { key: "mode" value { string_value: "on" } }
				fields { key: "endpoint" value { string_value: "[::1]:80" } }
				fields { key: "rung" value { string_value: "load" } }
				fields { key: "reason" value { string_value: "least" } }
				fields { key: "matched_tokens" value { number_value: 0 } }
				fields { key: "prompt_tokens" value { number_value: 0 } }
			} } } }`,
		},
		{
			name: "observed only", at: headersPhase,
			d: router.Decision{ID: "c", Pool: "chat", Mode: router.ModeObserve, Endpoint: "[::1]:80", Second: "[::1]:81", Rung: router.RungExact, Reason: "prefix", Matched: 32, Prompt: 40},
			want: `request_headers { response { clear_route_cache: true header_mutation {
				remove_headers: "x-target-endpoint" remove_headers: "x-target-endpoint-2"
			} } }
			dynamic_metadata { fields { key: "kvsteer" value { struct_value {
				fields { key: "decision_id" value { string_value: "c" } }
				fields { key: "pool" value { string_value: "chat" } }
				fields { key: "mode" value { string_value: "observe" } }
				fields { key: "endpoint" value { string_value: "[::1]:80" } }
				fields { key: "rung" value { string_value: "exact" } }
				fields { key: "reason" value { string_value: "prefix" } }
				fields { key: "matched_tokens" value { number_value: 32 } }
				fields { key: "prompt_tokens" value { number_value: 40 } }
			} } } }`,
		},
		{
			name: "no decision", at: headersPhase, d: router.Decision{ID: "b", Pool: "chat", Rung: router.RungNone, Reason: "no_endpoint", Prompt: 7},
			want: `request_headers { response { clear_route_cache: true header_mutation {
				remove_headers: "x-target-endpoint" remove_headers: "x-target-endpoint-2"
			} } }
			dynamic_metadata { fields { key: "kvsteer" value { struct_value {
				fields { key: "decision_id" value { string_value: "b" } }
				fields { key: "pool" value { string_value: "chat" } }
				fields { key: "mode" value { string_value: "on" } }
				fields { key: "endpoint" value { string_value: "" } }
				fields { key: "rung" value { string_value: "none" } }
				fields { key: "reason" value { string_value: "no_endpoint" } }
				fields { key: "matched_tokens" value { number_value: 0 } }
				fields { key: "prompt_tokens" value { number_value: 7 } }
			} } } }`,
		},
		{
			name: "pinned to a rank", at: headersPhase, d: router.Decision{ID: "d", Pool: "chat", Endpoint: "[::1]:80", Pinned: true, Rank: 0, Rung: router.RungExact, Reason: "prefix"},
			want: `request_headers { response { clear_route_cache: true header_mutation {
				set_headers { header { key: "x-target-endpoint" raw_value: "[::1]:80" } append_action: OVERWRITE_IF_EXISTS_OR_ADD }
				set_headers { header { key: "x-data-parallel-rank" raw_value: "0" } append_action: OVERWRITE_IF_EXISTS_OR_ADD }
				remove_headers: "x-target-endpoint-2"
			} } }
			dynamic_metadata { fields { key: "kvsteer" value { struct_value {
				fields { key: "decision_id" value { string_value: "d" } }
				fields { key: "pool" value { string_value: "chat" } }
				fields { key: "mode" value { string_value: "on" } }
				fields { key: "endpoint" value { string_value: "[::1]:80" } }
				fields { key: "rung" value { string_value: "exact" } }
				fields { key: "reason" value { string_value: "prefix" } }
				fields { key: "matched_tokens" value { number_value: 0 } }
				fields { key: "prompt_tokens" value { number_value: 0 } }
				fields { key: "rank" value { number_value: 0 } }
			} } } }`,
		},
		{
			name: "a rank that is only observed", at: bodyPhase,
			d: router.Decision{ID: "e", Mode: router.ModeObserve, Endpoint: "[::1]:80", Pinned: true, Rank: 3, Rung: router.RungLoad, Reason: "load"},
			want: `request_body { response { clear_route_cache: true header_mutation {
				remove_headers: "x-target-endpoint" remove_headers: "x-target-endpoint-2"
			} } }
			dynamic_metadata { fields { key: "kvsteer" value { struct_value {
				fields { key: "decision_id" value { string_value: "e" } }
				fields { key: "pool" value { string_value: "" } }
				fields { key: "mode" value { string_value: "observe" } }
				fields { key: "endpoint" value { string_value: "[::1]:80" } }
				fields { key: "rung" value { string_value: "load" } }
				fields { key: "reason" value { string_value: "load" } }
				fields { key: "matched_tokens" value { number_value: 0 } }
				fields { key: "prompt_tokens" value { number_value: 0 } }
				fields { key: "rank" value { number_value: 3 } }
			} } } }`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := &extprocv3.ProcessingResponse{}
			if err := prototext.Unmarshal([]byte(tt.want), want); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, decisionReply(tt.at, tt.d), protocmp.Transform()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		endpoint, second         string
		wantEndpoint, wantSecond string
		dropped                  bool
	}{
		{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.1:80", "10.0.0.2:80", false},
		{"10.0.0.1:80", "", "10.0.0.1:80", "", false},
		{"[2001:db8::1]:65535", "", "[2001:db8::1]:65535", "", false},
		{"", "", "", "", false},
		{"", "10.0.0.2:80", "", "", false},
		{"10.0.0.1:80", "engine-2:80", "10.0.0.1:80", "", true},
		{"engine-1:80", "10.0.0.2:80", "", "", true},
		{"10.0.0.1", "", "", "", true},
		{"10.0.0.1:", "", "", "", true},
		{"10.0.0.1:0", "", "", "", true},
		{"10.0.0.1:99999", "", "", "", true},
		{"::1:80", "", "", "", true},
		{"[fe80::1%eth0]:80", "", "", "", true},
		{" 10.0.0.1:80", "", "", "", true},
		{"10.0.0.1:80,10.0.0.2:80", "", "", "", true},
		{"10.0.0.1:80\r\nx: y", "", "", "", true},
	}
	for _, tt := range tests {
		d, dropped := validate(router.Decision{Endpoint: tt.endpoint, Second: tt.second, Reason: "r", Matched: 16})
		if d.Endpoint != tt.wantEndpoint || d.Second != tt.wantSecond || dropped != tt.dropped {
			t.Errorf("%q, %q: got %q, %q, dropped %v", tt.endpoint, tt.second, d.Endpoint, d.Second, dropped)
		}
		if d.Endpoint == "" && d.Matched != 0 || d.Reason != "r" {
			t.Errorf("%q: matched %d, reason %q", tt.endpoint, d.Matched, d.Reason)
		}
	}
}

func TestReadHeaders(t *testing.T) {
	pair := func(key, value, raw string) *corev3.HeaderValue {
		h := &corev3.HeaderValue{Key: key, Value: value}
		if raw != "" {
			h.RawValue = []byte(raw)
		}
		return h
	}
	m := &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		pair(":method", "", "POST"), pair(":PATH", "/v1/x?a=1", ""), pair(":authority", "old", "llm.example"),
		pair("Content-Type", "", "application/json"), pair("content-type", "", "text/plain"), pair("content-encoding", "gzip", ""),
		pair("X-Tenant", "", "a"), pair("x-tenant", "", "b"), pair("x-empty", "", ""),
	}}
	req, declared, held := readHeaders(m)
	if req.Meta.Method != http.MethodPost || req.Meta.Path != "/v1/x?a=1" || req.Host != "llm.example" ||
		req.Meta.ContentType != "application/json" || req.Meta.ContentEncoding != "gzip" {
		t.Errorf("read %+v, host %q", req.Meta, req.Host)
	}
	for name, want := range map[string]string{"x-tenant": "a", "X-TENANT": "a", "x-empty": "", "x-none": "", ":path": "/v1/x?a=1"} {
		if got := req.Header(name); got != want {
			t.Errorf("header %s = %q, want %q", name, got, want)
		}
	}
	if declared != undeclared || held != 144 {
		t.Errorf("declared %d, held %d", declared, held)
	}

	lengths := []struct {
		value string
		want  int64
	}{
		{"0", 0},
		{"1234", 1234},
		{" 12 ", 12},
		{"9223372036854775807", 1<<63 - 1},
		{"", undeclared},
		{"-1", undeclared},
		{"+1", undeclared},
		{"1,1", undeclared},
		{"0x10", undeclared},
		{"9223372036854775808", undeclared},
		{"1e3", undeclared},
	}
	for _, l := range lengths {
		if _, got, _ := readHeaders(header("content-length", l.value)); got != l.want {
			t.Errorf("content-length %q: %d, want %d", l.value, got, l.want)
		}
	}
	if _, got, _ := readHeaders(nil); got != undeclared {
		t.Errorf("no headers: %d", got)
	}
}
