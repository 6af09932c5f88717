package extproc_test

import (
	"context"
	"fmt"
	"net"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvsteer/kvsteer/extproc"
	"github.com/kvsteer/kvsteer/internal/router"
)

// fixed sends every request to one endpoint.
type fixed string

func (f fixed) Decide(_ context.Context, req router.Request) router.Decision {
	return router.Decision{ID: "1", Pool: req.Header("x-pool"), Endpoint: string(f), Reason: "fixed"}
}

// The client stands for Envoy, which asks about a request without a body.
func Example() {
	server, err := extproc.New(extproc.Options{Decider: fixed("10.0.0.11:8000")})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- server.Run(ctx, listener) }()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers:     &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":path", RawValue: []byte("/v1/models")}, {Key: "x-pool", RawValue: []byte("chat")}}},
		EndOfStream: true,
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	reply, err := stream.Recv()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, h := range reply.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		fmt.Printf("%s: %s\n", h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
	}
	fmt.Println("pool:", reply.GetDynamicMetadata().GetFields()["kvsteer"].GetStructValue().GetFields()["pool"].GetStringValue())

	conn.Close()
	stop()
	fmt.Println("ended:", <-ended)
	// Output:
	// x-target-endpoint: 10.0.0.11:8000
	// pool: chat
	// ended: <nil>
}
