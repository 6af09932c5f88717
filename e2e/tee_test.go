package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// tee stands between Envoy and the router, passes every gRPC message on and keeps the bytes that Envoy sent.
type tee struct {
	addr   string
	server *grpc.Server

	mu     sync.Mutex
	router *grpc.ClientConn
	sent   [][]byte
}

func startTee(t *testing.T) *tee {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &tee{addr: l.Addr().String()}
	x.server = grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(x.forward), grpc.MaxRecvMsgSize(64<<20))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = x.server.Serve(l)
	}()
	t.Cleanup(func() {
		x.server.Stop()
		<-done
		if x.router != nil {
			x.router.Close()
		}
	})
	return x
}

// connect names the router; streams that came before it was named fail.
func (x *tee) connect(t *testing.T, address string) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.router = conn
}

// messages are what Envoy sent so far, health checks included.
func (x *tee) messages() [][]byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([][]byte(nil), x.sent...)
}

func (x *tee) contains(text string) bool {
	for _, m := range x.messages() {
		if bytes.Contains(m, []byte(text)) {
			return true
		}
	}
	return false
}

// forward is the handler of every method.
func (x *tee) forward(_ any, envoy grpc.ServerStream) error {
	x.mu.Lock()
	conn := x.router
	x.mu.Unlock()
	if conn == nil {
		return errors.New("no router yet")
	}
	method, _ := grpc.MethodFromServerStream(envoy)
	ctx, cancel := context.WithCancel(envoy.Context())
	defer cancel()
	router, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() { // ends with the handler, which ends envoy's receive
		for {
			var m []byte
			if envoy.RecvMsg(&m) != nil {
				_ = router.CloseSend()
				return
			}
			x.mu.Lock()
			x.sent = append(x.sent, m)
			x.mu.Unlock()
			if router.SendMsg(&m) != nil {
				return
			}
		}
	}()
	for {
		var m []byte
		if err := router.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := envoy.SendMsg(&m); err != nil {
			return err
		}
	}
}

// rawCodec leaves messages as they are.
type rawCodec struct{}

func (rawCodec) Name() string                       { return "raw" }
func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
