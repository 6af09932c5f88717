// Nothing is an external-processing server that lets every request go on as it came. The overhead test compares it with kvsteer.
//
//	nothing SOCKET
package main

import (
	"log"
	"net"
	"os"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

type nothing struct {
	extprocv3.UnimplementedExternalProcessorServer
}

// Process answers headers and body with no changes, and ends.
func (nothing) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	common := &extprocv3.CommonResponse{}
	if err := stream.Send(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}},
	}); err != nil {
		return err
	}
	if m.GetRequestHeaders().GetEndOfStream() {
		return nil
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return stream.Send(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}},
	})
}

func main() {
	l, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	extprocv3.RegisterExternalProcessorServer(s, nothing{})
	healthpb.RegisterHealthServer(s, health.NewServer())
	log.Fatal(s.Serve(l))
}
