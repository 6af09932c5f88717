package extproc

import (
	"net/netip"
	"strings"

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

// answer is the reply to the message of a phase that tells Envoy a decision whose addresses are valid.
func (s *settings) answer(at phase, d router.Decision) (*response, outcome) {
	switch {
	case s.gateway != nil:
		return s.gateway.answer(at, d, s.ranked)
	case d.Steers():
		return s.reply(at, d), outcomeRouted
	}
	return s.reply(at, d), outcomeUnrouted
}

// reply tells a decision by our own headers.
func (s *settings) reply(at phase, d router.Decision) *response {
	first, second := d.Endpoint, d.Second
	if !d.Steers() {
		first, second = "", ""
	}
	r := at.reply(decisionMutation(first, second))
	r.DynamicMetadata = metadata(d, s.ranked)
	pin(r, d)
	return r
}

// reply answers the message of the phase.
func (at phase) reply(c *extprocv3.CommonResponse) *response {
	if at == bodyPhase {
		return bodyReply(c)
	}
	return headersReply(c)
}

// undecided is the mutation for a request of which nothing is decided: no client may set what we set.
func (s *settings) undecided() *extprocv3.CommonResponse {
	if s.gateway != nil {
		return mutation(envoy.GatewayEndpoint, "")
	}
	return decisionMutation("", "")
}

// decisionMutation sets the headers of the endpoints there are and removes those of the others.
func decisionMutation(endpoint, second string) *extprocv3.CommonResponse {
	return mutation(envoy.HeaderTarget, endpoint, envoy.HeaderSecond, second)
}

// mutation sets headers, given as names and values in turn, and removes those without a value. The route cache is always cleared: in the compat
// layout the route depends on the first header, elsewhere clearing changes nothing.
func mutation(headers ...string) *extprocv3.CommonResponse {
	m := &extprocv3.HeaderMutation{}
	for i := 0; i < len(headers); i += 2 {
		name, value := headers[i], headers[i+1]
		if value == "" {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
			continue
		}
		// Envoy takes raw_value alone: a header with only value set comes out empty. It overwrites whatever append_action says;
		// proxies that obey it must overwrite too.
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return &extprocv3.CommonResponse{HeaderMutation: m, ClearRouteCache: true}
}

// metadata describes a decision for the access log and for other filters, with the ranked list where it is wanted.
func metadata(d router.Decision, ranked bool) *structpb.Struct {
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
	if ranked && d.Steers() {
		fields[envoy.KeyRanked] = structpb.NewStringValue(list(d))
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{envoy.MetadataNamespace: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}

// list is the ranked list of a decision, at least its endpoint.
func list(d router.Decision) string {
	if len(d.Ranked) == 0 {
		return d.Endpoint
	}
	return strings.Join(d.Ranked, ",")
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
		d.Second, d.Matched, d.Ranked = "", 0, nil
	}
	for _, addr := range d.Ranked {
		if !usable(addr) {
			d.Ranked, dropped = nil, true
			break
		}
	}
	return d, dropped
}

// usable reports whether an ORIGINAL_DST cluster can dial addr: an IP address without a zone and a port that is not 0.
func usable(addr string) bool {
	ap, err := netip.ParseAddrPort(addr)
	return err == nil && ap.Port() != 0 && ap.Addr().Zone() == ""
}

// maxChunk is the longest body chunk that is sent in the FULL_DUPLEX_STREAMED mode: the API recommends no more than 64 KiB.
const maxChunk = 64 << 10

// streamed is a piece of a body that is sent back, with the flags that it came with where it is the last piece.
func streamed(body []byte, flags *extprocv3.HttpBody) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{
			Body:                      body,
			EndOfStream:               flags.GetEndOfStream(),
			EndOfStreamWithoutMessage: flags.GetEndOfStreamWithoutMessage(),
			GrpcMessageCompressed:     flags.GetGrpcMessageCompressed(),
		},
	}}}
}

// responseBodyReply answers a message with a part of the response body.
func responseBodyReply(c *extprocv3.CommonResponse) *response {
	return &response{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: c}}}
}
