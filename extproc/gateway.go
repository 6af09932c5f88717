package extproc

import (
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/router"
)

// maxRanked is the number of endpoints in a ranked list.
const maxRanked = 8

// Gateway is how the endpoint-picker protocol is spoken. With On alone it names one endpoint and answers 503 where there is none.
type Gateway struct {
	// On lets the protocol be spoken. The other fields mean nothing without it.
	On bool

	// List names up to 8 endpoints, the choice first, for a cluster with the override_host policy, which tries them in turn. Otherwise the choice
	// alone is named, which an ORIGINAL_DST cluster needs.
	List bool

	// Pass lets a request go on where no endpoint can be named. Otherwise it is answered with 503, as the protocol has it.
	Pass bool

	// Shed is the backlog in prompt tokens above which, at every endpoint that a request may go to, it is answered with 429. 0 for never.
	Shed int

	// Leave ends a stream with its decision. Otherwise it stays open until the response headers, which tell who serves the request.
	Leave bool
}

// answer is the reply to the message of a phase that tells a gateway a decision.
func (g *Gateway) answer(at phase, d router.Decision, ranked bool) (*response, outcome) {
	switch {
	case d.Mode != router.ModeOn:
	case d.Overloaded:
		return refusal(typev3.StatusCode_TooManyRequests, "all engines are busy; try again later", "rate_limit_exceeded", "kvsteer_overloaded"), outcomeRefused
	case d.Endpoint == "" && !g.Pass:
		return refusal(typev3.StatusCode_ServiceUnavailable, "no engine is available for the request", "service_unavailable", "kvsteer_no_endpoint"), outcomeRefused
	}
	value, o := "", outcomeUnrouted
	if d.Steers() {
		value, o = d.Endpoint, outcomeRouted
		if g.List {
			value = list(d)
		}
	}
	r := at.reply(mutation(envoy.GatewayEndpoint, value))
	r.DynamicMetadata = metadata(d, ranked)
	pin(r, d)
	if value != "" {
		r.DynamicMetadata.Fields[envoy.GatewayNamespace] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			envoy.GatewayEndpoint: structpb.NewStringValue(value),
		}})
	}
	return r, o
}

// refusal answers the client in the shape of OpenAI's errors.
func refusal(code typev3.StatusCode, message, kind, details string) *response {
	headers := []*corev3.HeaderValueOption{{
		Header:       &corev3.HeaderValue{Key: "content-type", RawValue: []byte("application/json")},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}}
	if code == typev3.StatusCode_TooManyRequests {
		headers = append(headers, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: "retry-after", RawValue: []byte("1")},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return &response{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: code},
		Headers: &extprocv3.HeaderMutation{SetHeaders: headers},
		Body:    []byte(`{"error":{"message":"` + message + `","type":"` + kind + `","param":null,"code":null}}` + "\n"),
		Details: details,
	}}}
}

// subset reads which endpoints a request may go to, and the bytes that are held of them; nil when the gateway names no subset. A list that cannot
// be read is an empty one: the gateway restricts the request, and it is not known to what.
func subset(md *corev3.Metadata) (allowed func(addr string) bool, held int64) {
	v, ok := md.GetFilterMetadata()[envoy.GatewaySubsetNamespace].GetFields()[envoy.GatewaySubset]
	if !ok {
		return nil, 0
	}
	var names []string
	for _, item := range v.GetListValue().GetValues() {
		names = append(names, strings.Split(item.GetStringValue(), ",")...)
	}
	if names == nil {
		names = strings.Split(v.GetStringValue(), ",")
	}
	set := make(map[string]struct{}, len(names))
	for _, name := range names {
		name = strings.TrimSpace(name)
		held += int64(len(name))
		if addr := canonical(name); addr != "" {
			set[addr] = struct{}{}
		} else if ip, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil { // every port of a host
			set[ip.Unmap().String()] = struct{}{}
		}
	}
	return func(addr string) bool {
		if _, ok := set[addr]; ok {
			return true
		}
		ap, err := netip.ParseAddrPort(addr)
		if err != nil {
			return false
		}
		_, ok := set[ap.Addr().String()]
		return ok
	}, held
}

// canonical is the one spelling of ip:port, "" for what is none.
func canonical(addr string) string {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return ""
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
}

// attend stays after the decision until the response headers have come, or all of a response that must be sent back: a gateway tells in them who
// serves the request. It ends with the stream and in a drain.
func (x *exchange) attend(t *traffic) {
	if g := x.gateway; g == nil || g.Leave || !x.decision.Steers() {
		return
	}
	x.hold.force(0)
	for !t.resp.started {
		m, gaveUp, err := x.receiveUntil(nil)
		if gaveUp || err != nil {
			return
		}
		if answered, err := x.relayOne(m, t); err != nil || !answered && !duplex(t.req.mode) {
			return
		}
	}
	x.relay(nil, t)
}

// served takes note of who serves the request, as response headers of a gateway tell it.
func (x *exchange) served(m *request) {
	if x.gateway == nil || !x.decision.Steers() {
		return
	}
	addr := canonical(m.GetMetadataContext().GetFilterMetadata()[envoy.GatewayNamespace].GetFields()[envoy.GatewayServed].GetStringValue())
	by := servedByAnother
	switch addr {
	case "":
		by = servedByUnknown
	case x.decision.Endpoint:
		by = servedByChoice
	}
	x.metrics.served.WithLabelValues(string(by)).Inc()
	if by == servedByAnother && x.completer != nil {
		x.completer.Complete(router.Completion{ID: x.decision.ID, Pool: x.decision.Pool, Serving: true, Upstream: addr})
	}
}
