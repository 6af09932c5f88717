package extproc

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/router"
)

func chunk(eos bool, body string) *response {
	return bodyReply(&extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: []byte(body), EndOfStream: eos},
	}}})
}

func responseChunk(eos bool, body string) *response {
	c := chunk(eos, body).GetRequestBody()
	return &response{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: c}}
}

func TestPassthrough(t *testing.T) {
	const (
		none    = modev3.ProcessingMode_NONE
		stream  = modev3.ProcessingMode_STREAMED
		partial = modev3.ProcessingMode_BUFFERED_PARTIAL
		full    = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
		grpc    = modev3.ProcessingMode_GRPC
	)
	cleared := headersReply(decisionMutation("", ""))
	observed := headersIn(false)
	observed.ObservabilityMode = true
	bothWays := inMode(grpc, headersIn(false))
	bothWays.ProtocolConfig.ResponseBodyMode = grpc
	halfClose := bodyIn(true, "")
	halfClose.GetRequestBody().EndOfStreamWithoutMessage = true
	halfClosed := chunk(true, "")
	halfClosed.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().EndOfStreamWithoutMessage = true
	unknown := inMode(99, headersIn(false))

	tests := []struct {
		name  string
		label string
		steps []step
		end   func(*fake)
		want  outcome
	}{
		{"full duplex without request headers", "full_duplex_streamed", []step{says(inMode(full, bodyIn(true, "ab")), chunk(true, "ab"))}, nil, outcomePassthrough},
		{"grpc, half close without a message", "grpc", []step{says(inMode(grpc, headersIn(false)), cleared), says(halfClose, halfClosed)}, nil, outcomePassthrough},
		{"grpc both ways", "grpc", []step{
			says(bothWays, cleared),
			says(bodyIn(true, "ab"), chunk(true, "ab")),
			says(responseHeadersIn(), emptyReply(responseHeadersIn())),
			says(responseBodyIn(false, "12"), responseChunk(false, "12")),
			says(responseTrailersIn(), emptyReply(responseTrailersIn())),
		}, nil, outcomePassthrough},
		{"grpc, a message above 64 KiB stays one", "grpc", []step{
			says(inMode(grpc, headersIn(false)), cleared), says(bodyIn(true, big(100_000)), chunk(true, big(100_000))),
		}, nil, outcomePassthrough},
		{"grpc, window update", "grpc", []step{says(inMode(grpc, headersIn(false)), cleared), says(&request{}), says(bodyIn(true, "ab"), chunk(true, "ab"))}, nil, outcomePassthrough},
		{"grpc, closed midway", "grpc", []step{says(inMode(grpc, headersIn(false)), cleared), says(bodyIn(false, "ab"), chunk(false, "ab"))}, closeStream, outcomePassthrough},
		{"grpc, cancelled while echoing", "grpc", []step{says(inMode(grpc, headersIn(false)), cleared), says(bodyIn(false, "ab"))}, cancelStream, outcomePassthrough},
		{"streamed", "streamed", []step{
			says(inMode(stream, headersIn(false)), cleared), says(bodyIn(false, "ab"), bodyReply(nil)), says(bodyIn(true, "cd"), bodyReply(nil)),
		}, nil, outcomePassthrough},
		{"streamed, trailers", "streamed", []step{
			says(inMode(stream, headersIn(false)), cleared), says(bodyIn(false, "ab"), bodyReply(nil)), says(trailersIn(), emptyReply(trailersIn())),
		}, nil, outcomePassthrough},
		{"streamed, message of no kind", "streamed", []step{says(inMode(stream, headersIn(false)), cleared), says(&request{})}, nil, outcomeUnexpected},
		{"partial, body above the limit", "buffered_partial", []step{says(inMode(partial, headersIn(false)), cleared), says(bodyIn(false, "ab"), bodyReply(nil))}, nil, outcomePassthrough},
		{"no body mode", "none", []step{says(inMode(none, headersIn(false)), cleared)}, nil, outcomePassthrough},
		{"mode of the future", "unknown", []step{says(unknown, cleared), says(bodyIn(true, "ab"), bodyReply(nil))}, nil, outcomePassthrough},
		{"buffered without request headers", "no_request_headers", []step{says(inMode(buffered, bodyIn(true, "ab")), bodyReply(nil))}, nil, outcomePassthrough},
		{"response headers first", "no_request_headers", []step{says(inMode(buffered, responseHeadersIn()), emptyReply(responseHeadersIn()))}, nil, outcomePassthrough},
		{"message of no kind first", "no_request_headers", []step{says(inMode(buffered, &request{}))}, nil, outcomeUnexpected},
		{"observability mode", "observability", []step{says(observed)}, nil, outcomeObserved},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			s := newService(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Decider: deciderFunc(func(context.Context, router.Request) router.Decision {
				t.Error("decided")
				return router.Decision{}
			})})
			if o := play(t, s, tt.steps, tt.end); o != tt.want {
				t.Errorf("outcome %q, want %q", o, tt.want)
			}
			if n := testutil.ToFloat64(s.metrics.passthrough.WithLabelValues(tt.label)); n != 1 {
				t.Errorf("%v streams of mode %s counted", n, tt.label)
			}
			if !strings.Contains(log.String(), "mode="+tt.label) {
				t.Errorf("log %q", log.String())
			}
		})
	}
}

func TestPassthroughIsLoggedOncePerMode(t *testing.T) {
	var log bytes.Buffer
	s := newService(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Decider: always(decided())})
	for range 3 {
		for _, mode := range []bodyMode{modev3.ProcessingMode_NONE, modev3.ProcessingMode_STREAMED} {
			play(t, s, []step{says(inMode(mode, headersIn(true)), headersReply(decisionMutation("", "")))}, nil)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}
