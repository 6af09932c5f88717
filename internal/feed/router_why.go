package feed

import (
	"errors"
	"io"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
)

// textOf is what an error says, without what gRPC puts around it.
func textOf(err error) string {
	if errors.Is(err, io.EOF) {
		return "the node ended the stream"
	}
	if s, ok := status.FromError(err); ok && err != nil {
		return bare(s.Message())
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// bare takes off what gRPC says of its own layers: the error of the network or of TLS is what one can act on.
func bare(text string) string {
	if quoted, ok := strings.CutPrefix(text, "connection error: desc = "); ok {
		if inner, err := strconv.Unquote(quoted); err == nil {
			text = inner
		}
	}
	for _, layer := range []string{"transport: ", "Error while dialing: ", "authentication handshake failed: ", "error reading from server: "} {
		text = strings.TrimPrefix(text, layer)
	}
	return text
}

// advice says what to look at where two sides that speak differently meet; "" for nothing. secured says that this side speaks TLS.
func advice(text string, secured bool) string {
	cut := strings.Contains(text, "error reading server preface") || strings.Contains(text, "broken pipe") || strings.Contains(text, "connection reset")
	switch {
	case secured && strings.Contains(text, "first record does not look like a TLS handshake"):
		return "the node speaks clear text: set tls there, or take feed.tls out here"
	case secured && strings.Contains(text, "unknown authority"):
		return "feed.tls.ca_file lacks the authority of the node's certificate"
	case secured && (cut || strings.Contains(text, "certificate required")):
		return "the node may want a certificate of its tls.client_ca_file: feed.tls.cert_file and key_file"
	case !secured && cut:
		return "the node may speak TLS: feed.tls"
	}
	return ""
}
