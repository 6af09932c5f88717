package feed

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestTextOf has errors as gRPC words them.
func TestTextOf(t *testing.T) {
	for _, tt := range []struct{ name, wire, want string }{
		{"nobody listens", `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:9010: connect: connection refused"`, "dial tcp 127.0.0.1:9010: connect: connection refused"},
		{"a foreign certificate", `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate is valid for node.internal, not nope"`, "tls: failed to verify certificate: x509: certificate is valid for node.internal, not nope"},
		{"a quote in it", `connection error: desc = "transport: Error while dialing: lookup \"x\": no such host"`, `lookup "x": no such host`},
		{"a connection that breaks", "error reading from server: EOF", "EOF"},
		{"the node's own words", "the token is missing or wrong", "the token is missing or wrong"},
		{"not a quotation", "connection error: desc = nothing", "connection error: desc = nothing"},
	} {
		if got := textOf(status.Error(codes.Unavailable, tt.wire)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	for err, want := range map[error]string{io.EOF: "the node ended the stream", errSilent: errSilent.Error(), nil: ""} {
		if got := textOf(err); got != want {
			t.Errorf("%v: %q", err, got)
		}
	}
	if got := textOf(fmt.Errorf("dial: %w", errors.New("no"))); got != "dial: no" {
		t.Errorf("%q", got)
	}
}
