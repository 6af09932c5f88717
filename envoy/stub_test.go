package envoy

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// stub is an external-processing server that gives one decision to everybody.
type stub struct {
	addr  string
	grpc  *grpc.Server
	hang  atomic.Bool
	deaf  atomic.Bool // takes no records
	blind atomic.Bool // decides by the headers and ends the stream
	reads atomic.Bool // stays for the headers of the answer
	crash atomic.Bool // fails at the first chunk of a body

	chunks atomic.Int64 // of bodies in full duplex

	health *health.Server

	mu      sync.Mutex
	records []*datav3.HTTPAccessLogEntry
	target  string
	second  string
	ranking string   // the list, where it is not of the two
	served  []string // by the headers of answers

	dataRank string // the data-parallel rank
	headers  []map[string]string
}

func startStub(t testing.TB, address string, options ...grpc.ServerOption) *stub {
	t.Helper()
	network := "tcp"
	if file, unix := unixPath(address); unix {
		network, address = "unix", file
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := &stub{addr: l.Addr().String(), health: health.NewServer()}
	s.grpc = grpc.NewServer(append(options, grpc.MaxRecvMsgSize(64<<20), grpc.UnaryInterceptor(s.healthCheck))...)
	if network == "unix" {
		s.addr = "unix:" + address
	}
	extprocv3.RegisterExternalProcessorServer(s.grpc, s)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	accesslogv3.RegisterAccessLogServiceServer(s.grpc, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.grpc.Serve(l)
	}()
	t.Cleanup(func() { s.grpc.Stop(); <-done })
	return s
}

// healthCheck hangs as the rest does.
func (s *stub) healthCheck(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if s.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return next(ctx, req)
}

func (s *stub) decide(target, second string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target, s.second, s.ranking = target, second, ""
}

// rank decides for a list, whose first endpoint is the choice.
func (s *stub) rank(list ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target, s.second, s.ranking = list[0], "", strings.Join(list, ",")
}

// rankOf has the replies name a data-parallel rank.
func (s *stub) rankOf(rank string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dataRank = rank
}

// list is what the metadata says.
func (s *stub) list() string {
	if s.ranking != "" || s.second == "" {
		return cmp.Or(s.ranking, s.target)
	}
	return s.target + "," + s.second
}

// asked are the headers of the requests so far.
func (s *stub) asked() []map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]string(nil), s.headers...)
}

// Process answers as the router does: nothing until the body is there, then headers and metadata, then the end of the stream.
func (s *stub) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	duplex := false
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		if s.hang.Load() {
			<-stream.Context().Done()
			return nil
		}
		switch v := m.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			all := map[string]string{}
			for _, h := range v.RequestHeaders.Headers.Headers {
				all[h.Key] += string(h.RawValue) + h.Value
			}
			s.mu.Lock()
			s.headers = append(s.headers, all)
			s.mu.Unlock()
			duplex = m.GetProtocolConfig().GetRequestBodyMode() == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
			if duplex && !v.RequestHeaders.EndOfStream {
				if err := s.stream(stream); err != nil || !s.reads.Load() {
					return err
				}
				continue
			}
			reply := &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
			if v.RequestHeaders.EndOfStream || s.blind.Load() {
				reply.RequestHeaders.Response = s.response()
				if err := stream.Send(s.decorate(&extprocv3.ProcessingResponse{Response: reply})); err != nil || !s.reads.Load() {
					return err
				}
				continue
			}
			if err := stream.Send(&extprocv3.ProcessingResponse{Response: reply}); err != nil {
				return err
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			if err := stream.Send(s.decorate(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
				RequestBody: &extprocv3.BodyResponse{Response: s.response()},
			}})); err != nil || !s.reads.Load() {
				return err
			}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			s.mu.Lock()
			s.served = append(s.served, m.GetMetadataContext().GetFilterMetadata()[GatewayNamespace].GetFields()[GatewayServed].GetStringValue())
			s.mu.Unlock()
			return stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}})
		default:
			return fmt.Errorf("unexpected message %T", v)
		}
	}
}

// stream answers a body that comes in chunks: it decides when all is there, and then gives the body back.
func (s *stub) stream(stream extprocv3.ExternalProcessor_ProcessServer) error {
	var body []byte
	trailers := false
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		s.chunks.Add(1)
		if s.crash.Load() {
			return status.Error(codes.Internal, "crashed")
		}
		if b := m.GetRequestBody(); b != nil {
			body = append(body, b.Body...)
			if !b.EndOfStream {
				continue
			}
		} else if trailers = m.GetRequestTrailers() != nil; !trailers {
			return fmt.Errorf("unexpected message %T", m.Request)
		}
		break
	}
	replies := []*extprocv3.ProcessingResponse{s.decorate(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: s.response()},
	}})}
	for first := true; first || len(body) > 0; first = false {
		n := min(len(body), 60_000)
		replies = append(replies, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
			Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
				StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body[:n], EndOfStream: n == len(body) && !trailers},
			}}},
		}}})
		body = body[n:]
	}
	if trailers {
		replies = append(replies, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}})
	}
	for _, r := range replies {
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	return nil
}

// StreamAccessLogs keeps the records of Envoy's access log.
func (s *stub) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	if s.deaf.Load() {
		return status.Error(codes.Unimplemented, "unknown service")
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		s.mu.Lock()
		s.records = append(s.records, m.GetHttpLogs().GetLogEntry()...)
		s.mu.Unlock()
	}
}

// logged are the records so far.
func (s *stub) logged() []*datav3.HTTPAccessLogEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*datav3.HTTPAccessLogEntry(nil), s.records...)
}

func (s *stub) response() *extprocv3.CommonResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: &extprocv3.HeaderMutation{}}
	// authorization and x-extra break the filter's mutation rules.
	set := map[string]string{HeaderTarget: s.target, HeaderSecond: s.second, GatewayEndpoint: s.target, HeaderRank: s.dataRank, "x-extra": "1", "authorization": "forged"}
	for name, value := range set {
		if value == "" {
			r.HeaderMutation.RemoveHeaders = append(r.HeaderMutation.RemoveHeaders, name)
			continue
		}
		r.HeaderMutation.SetHeaders = append(r.HeaderMutation.SetHeaders, &corev3.HeaderValueOption{
			Header: &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		})
	}
	return r
}

func (s *stub) decorate(r *extprocv3.ProcessingResponse) *extprocv3.ProcessingResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	decision := map[string]any{
		KeyDecisionID: "r1-7", KeyPool: "chat", KeyEndpoint: s.target, KeyReason: "matched", KeyMatched: 512, KeyPrompt: 640, KeyMode: "on", KeyRung: "exact",
	}
	all := map[string]any{MetadataNamespace: decision}
	if list := s.list(); list != "" {
		decision[KeyRanked] = list
		all[GatewayNamespace] = map[string]any{GatewayEndpoint: list}
	}
	if m, err := structpb.NewStruct(all); err == nil {
		r.DynamicMetadata = m
	}
	return r
}
