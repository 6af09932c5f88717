package extproc

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/router"
)

type (
	request  = extprocv3.ProcessingRequest
	response = extprocv3.ProcessingResponse
)

// emptyReply is the reply that changes nothing, of the kind that Envoy expects for m; nil when m expects none.
func emptyReply(m *request) *response {
	switch m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return headersReply(nil)
	case *extprocv3.ProcessingRequest_RequestBody:
		return bodyReply(nil)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return &response{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return &response{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}
	case *extprocv3.ProcessingRequest_ResponseBody:
		return &response{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return &response{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
	}
	return nil
}

func headersReply(c *extprocv3.CommonResponse) *response {
	return &response{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: c}}}
}

func bodyReply(c *extprocv3.CommonResponse) *response {
	return &response{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}}}
}

// decisionReply answers a headers or body message with a decision whose addresses are valid.
func decisionReply(kind phase, d router.Decision) *response {
	reply := headersReply
	if kind == bodyPhase {
		reply = bodyReply
	}
	first, second := d.Endpoint, d.Second
	if !d.Steers() {
		first, second = "", ""
	}
	r := reply(decisionMutation(first, second))
	r.DynamicMetadata = metadata(d)
	pin(r, d)
	return r
}

// decisionMutation sets the headers of the endpoints there are and removes those of the others. The route cache is always cleared: in
// the compat layout the route depends on the first header, in the composite layout clearing changes nothing.
func decisionMutation(endpoint, second string) *extprocv3.CommonResponse {
	m := &extprocv3.HeaderMutation{}
	for _, h := range [...]struct{ name, value string }{{envoy.HeaderTarget, endpoint}, {envoy.HeaderSecond, second}} {
		if h.value == "" {
			m.RemoveHeaders = append(m.RemoveHeaders, h.name)
			continue
		}
		// Envoy takes raw_value alone: a header with only value set comes out empty. It overwrites whatever append_action says;
		// proxies that obey it must overwrite too.
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.name, RawValue: []byte(h.value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return &extprocv3.CommonResponse{HeaderMutation: m, ClearRouteCache: true}
}

// metadata describes a decision for the access log and for other filters.
func metadata(d router.Decision) *structpb.Struct {
	fields := map[string]*structpb.Value{
		envoy.KeyDecisionID: structpb.NewStringValue(d.ID),
		envoy.KeyPool:       structpb.NewStringValue(d.Pool),
		envoy.KeyMode:       structpb.NewStringValue(d.Mode.String()),
		envoy.KeyEndpoint:   structpb.NewStringValue(d.Endpoint),
		envoy.KeyRung:       structpb.NewStringValue(string(d.Rung)),
		envoy.KeyReason:     structpb.NewStringValue(string(d.Reason)),
		envoy.KeyMatched:    structpb.NewNumberValue(float64(d.Matched)),
		envoy.KeyPrompt:     structpb.NewNumberValue(float64(d.Prompt)),
	}
	if d.Pinned {
		fields[envoy.KeyRank] = structpb.NewNumberValue(float64(d.Rank))
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{envoy.MetadataNamespace: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}

// validate drops addresses that Envoy could not use, and reports whether it dropped one. Without a first choice there is no second.
func validate(d router.Decision) (router.Decision, bool) {
	dropped := false
	if d.Endpoint != "" && !usable(d.Endpoint) {
		d.Endpoint, dropped = "", true
	}
	if d.Second != "" && !usable(d.Second) {
		d.Second, dropped = "", true
	}
	if d.Endpoint == "" {
		d.Second, d.Matched = "", 0
	}
	return d, dropped
}

// usable reports whether an ORIGINAL_DST cluster can dial addr: an IP address without a zone and a port that is not 0.
func usable(addr string) bool {
	ap, err := netip.ParseAddrPort(addr)
	return err == nil && ap.Port() != 0 && ap.Addr().Zone() == ""
}

// echo answers a body chunk of a duplex mode with the chunk itself.
func echo(b *extprocv3.HttpBody) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{
			Body:                      b.GetBody(),
			EndOfStream:               b.GetEndOfStream(),
			EndOfStreamWithoutMessage: b.GetEndOfStreamWithoutMessage(),
			GrpcMessageCompressed:     b.GetGrpcMessageCompressed(),
		},
	}}}
}
