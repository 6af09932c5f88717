package envoy

import (
	"maps"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	streamlogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	filterHTTP    = "envoy.filters.network.http_connection_manager"
	filterBuffer  = "envoy.filters.http.buffer"
	filterExtProc = "envoy.filters.http.ext_proc"
	filterMove    = "envoy.filters.http.header_to_metadata"
	filterRouter  = "envoy.filters.http.router"
	earlyMutation = "envoy.http.early_header_mutation.header_mutation"
)

func (b *builder) listeners() []*listenerv3.Listener {
	return []*listenerv3.Listener{{
		Name:    ListenerName,
		Address: socketAddress(b.Listen),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       filterHTTP,
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: b.pack(b.connectionManager())},
		}}}},
	}}
}

func (b *builder) connectionManager() *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{
		StatPrefix:        StatPrefix,
		StreamIdleTimeout: duration(streamIdleTimeout),
		UseRemoteAddress:  yes(),
		NormalizePath:     yes(),
		MergeSlashes:      true,
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{
			IgnoreHttp_11Upgrade: []*matcherv3.StringMatcher{{
				MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: ".*"}},
			}},
		},
		EarlyHeaderMutationExtensions: b.earlyMutations(append(removals(b.clientHeaders()), removePrefix(internalPrefix))),
		AccessLog:                     append([]*accesslogv3.AccessLog{b.accessLog()}, b.accessLogService()...),
		LocalReplyConfig:              b.localReplies(),
		HttpFilters:                   b.httpFilters(),
		RouteSpecifier:                &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: b.routeTable()},
	}
}

func (b *builder) earlyMutations(ms []*mutationrulesv3.HeaderMutation) []*corev3.TypedExtensionConfig {
	return []*corev3.TypedExtensionConfig{{Name: earlyMutation, TypedConfig: b.pack(&earlyv3.HeaderMutation{Mutations: ms})}}
}

func (b *builder) httpFilters() []*hcmv3.HttpFilter {
	return append(b.ownFilters(), b.filter(filterRouter, &routerv3.Router{}))
}

// filter runs for every request of a whole configuration, and otherwise for those whose route says so.
func (b *builder) filter(kind string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{
		Name:       b.filterName(kind),
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: b.pack(config)},
		Disabled:   b.scope == filterOnly,
	}
}

// filterName is the kind of a filter, or a name of its own where others may have filters of the kind.
func (b *builder) filterName(kind string) string {
	if b.scope == filterOnly {
		return strings.Replace(kind, "envoy.filters.http.", "kvsteer.", 1)
	}
	return kind
}

// accessLog writes one JSON object per request. Nothing in it comes from a body.
func (b *builder) accessLog() *accesslogv3.AccessLog {
	line := map[string]string{
		"time":           "%START_TIME%",
		"method":         "%REQ(:METHOD)%",
		"path":           "%PATH(NQ:ORIG_OR_PATH)%",
		"protocol":       "%PROTOCOL%",
		"request_id":     "%REQ(X-REQUEST-ID)%",
		"code":           "%RESPONSE_CODE%",
		"flags":          "%RESPONSE_FLAGS%",
		"details":        "%RESPONSE_CODE_DETAILS%",
		"duration_ms":    "%DURATION%",
		"bytes_received": "%BYTES_RECEIVED%",
		"bytes_sent":     "%BYTES_SENT%",
		"route":          "%ROUTE_NAME%",
		"cluster":        "%UPSTREAM_CLUSTER%",
		"upstream":       "%UPSTREAM_HOST%",
		"attempts":       "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
	}
	maps.Copy(line, b.decisionFields())
	format := &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: stringStruct(line)},
	}

	name := "envoy.access_loggers.stdout"
	var config proto.Message = &streamlogv3.StdoutAccessLog{
		AccessLogFormat: &streamlogv3.StdoutAccessLog_LogFormat{LogFormat: format},
	}
	if b.AccessLog != "" {
		name = "envoy.access_loggers.file"
		config = &filelogv3.FileAccessLog{
			Path:            b.AccessLog,
			AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: format},
		}
	}
	return &accesslogv3.AccessLog{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: b.pack(config)}}
}

// decisionFields are the fields of a log line that come from the router.
func (b *builder) decisionFields() map[string]string {
	fields := map[string]string{}
	for _, key := range []string{KeyDecisionID, KeyPool, KeyMode, KeyEndpoint, KeyRung, KeyReason, KeyMatched, KeyPrompt} {
		fields[key] = metadata(key)
	}
	if b.RankHeader {
		fields[KeyRank] = metadata(KeyRank)
	}
	return fields
}

// metadata is Envoy's command for one value of the decision.
func metadata(key string) string { return "%DYNAMIC_METADATA(" + MetadataNamespace + ":" + key + ")%" }

// accessLogService sends a record of each request that has ended to a router, without waiting for others to fill a buffer. In a
// configuration of somebody else's, the requests that the router did not decide are none of its business.
func (b *builder) accessLogService() []*accesslogv3.AccessLog {
	if !b.AccessLogService {
		return nil
	}
	l := &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.http_grpc",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: b.pack(&grpclogv3.HttpGrpcAccessLogConfig{
			CommonConfig: &grpclogv3.CommonGrpcAccessLogConfig{
				LogName:             AccessLogName,
				GrpcService:         routerService(),
				TransportApiVersion: corev3.ApiVersion_V3,
				BufferSizeBytes:     u32(0),
			},
		})},
	}
	if b.scope == filterOnly {
		l.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_MetadataFilter{MetadataFilter: &accesslogv3.MetadataFilter{
			Matcher: &matcherv3.MetadataMatcher{
				Filter: MetadataNamespace,
				Path:   []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: KeyDecisionID}}},
				Value:  &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}},
			},
			MatchIfKeyNotFound: wrapperspb.Bool(false),
		}}}
	}
	return []*accesslogv3.AccessLog{l}
}

func routerService() *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: ClusterRouter},
	}}
}

// localReplies gives what Envoy answers by itself the shape of OpenAI errors, so that client libraries can show it, and says more
// than "no healthy upstream" where the reason is the missing decision.
func (b *builder) localReplies() *hcmv3.LocalReplyConfig {
	errorObject := structpb.NewStructValue(stringStruct(map[string]string{
		"message": "%LOCAL_REPLY_BODY%",
		"type":    "gateway_error",
		"code":    "%RESPONSE_CODE%",
	}))
	c := &hcmv3.LocalReplyConfig{BodyFormat: &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_JsonFormat{
			JsonFormat: &structpb.Struct{Fields: map[string]*structpb.Value{"error": errorObject}},
		},
	}}
	if b.needsDecision() && b.layout != LayoutOverride {
		c.Mappers = []*hcmv3.ResponseMapper{{
			Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
				ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"UH"}},
			}},
			Body: inline("no engine was chosen: the router made no decision for this request, and nothing but its decision can place it " +
				"(no pool with a fallback matches its host, path and headers)"),
		}}
	}
	return c
}

func stringStruct(fields map[string]string) *structpb.Struct {
	s := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(fields))}
	for k, v := range fields {
		s.Fields[k] = structpb.NewStringValue(v)
	}
	return s
}

func inline(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

func exact(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}}
}

func removals(headers []string) []*mutationrulesv3.HeaderMutation {
	var ms []*mutationrulesv3.HeaderMutation
	for _, h := range headers {
		ms = append(ms, &mutationrulesv3.HeaderMutation{Action: &mutationrulesv3.HeaderMutation_Remove{Remove: h}})
	}
	return ms
}

func removePrefix(prefix string) *mutationrulesv3.HeaderMutation {
	return &mutationrulesv3.HeaderMutation{Action: &mutationrulesv3.HeaderMutation_RemoveOnMatch_{
		RemoveOnMatch: &mutationrulesv3.HeaderMutation_RemoveOnMatch{
			KeyMatcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}},
		},
	}}
}
