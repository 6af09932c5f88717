package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvsteer/kvsteer/internal/router"
)

// nothing is an external-processing server that does nothing at all: what a conversation costs without us.
type nothing struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (nothing) Process(st extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return nil
		}
		if err := st.Send(emptyReply(m)); err != nil {
			return nil
		}
		if m.GetRequestBody() != nil {
			return nil
		}
	}
}

// BenchmarkConversation is one BUFFERED request over gRPC in memory with a decider that does nothing, alternated with a server that does
// nothing. Reported are the medians of the time to the routing reply, which is what Envoy waits for, and of the difference.
func BenchmarkConversation(b *testing.B) {
	for _, size := range []int{2 << 10, 32 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("body=%dKiB", size>>10), func(b *testing.B) {
			ours := dial(b, func(ctx context.Context, l net.Listener) error {
				s, err := New(Options{Decider: always(decided())})
				if err != nil {
					return err
				}
				return s.Run(ctx, l)
			})
			base := dial(b, func(ctx context.Context, l net.Listener) error {
				g := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
				extprocv3.RegisterExternalProcessorServer(g, nothing{})
				defer context.AfterFunc(ctx, g.Stop)()
				return g.Serve(l)
			})
			headers, body := benchHeaders(size), bodyIn(true, big(size))
			var with, without, added []float64
			b.ReportAllocs()
			for b.Loop() {
				x, y := timeToReply(b, ours, headers, body), timeToReply(b, base, headers, body)
				with, without, added = append(with, x), append(without, y), append(added, x-y)
			}
			b.ReportMetric(median(with), "kvsteer-p50-ns")
			b.ReportMetric(median(without), "nothing-p50-ns")
			b.ReportMetric(median(added), "added-p50-ns")
		})
	}
}

// dial serves in memory until the benchmark ends.
func dial(b *testing.B, serve func(context.Context, net.Listener) error) extprocv3.ExternalProcessorClient {
	b.Helper()
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, l) }()
	conn, err := grpc.NewClient("passthrough:bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		conn.Close()
		cancel()
		<-ended
	})
	return extprocv3.NewExternalProcessorClient(conn)
}

// timeToReply holds one conversation and gives the nanoseconds from its begin to the reply to the body.
func timeToReply(b *testing.B, c extprocv3.ExternalProcessorClient, headers, body *request) float64 {
	b.Helper()
	start := time.Now()
	st, err := c.Process(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	exchangeOne(b, st, headers)
	exchangeOne(b, st, body)
	d := time.Since(start)
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		b.Fatal(err)
	}
	return float64(d)
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkStream is the conversation alone, without gRPC and without its decoding, in both modes that are routed; in full duplex with the body in
// chunks of 16 KiB, as Envoy sends it.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{2 << 10, 32 << 10, 1 << 20} {
		for _, mode := range []bodyMode{buffered, fullDuplex} {
			b.Run(fmt.Sprintf("mode=%s/body=%dKiB", modeLabel(mode), size>>10), func(b *testing.B) {
				s := newService(b, Options{Decider: deciderFunc(func(context.Context, router.Request) router.Decision { return decided() })})
				c := &script{messages: []*request{inMode(mode, benchHeaders(size))}}
				if mode == buffered {
					c.messages = append(c.messages, bodyIn(true, big(size)))
				} else {
					for rest := size; rest > 0; rest -= 16 << 10 {
						c.messages = append(c.messages, bodyIn(false, big(min(rest, 16<<10))))
					}
					c.messages = append(c.messages, bodyIn(true, ""))
				}
				b.ReportAllocs()
				for b.Loop() {
					c.next, c.replies = 0, c.replies[:0]
					if o := s.converse(c); o != outcomeRouted {
						b.Fatal(o)
					}
				}
			})
		}
	}
}

// benchHeaders are the headers of an ordinary client behind Envoy.
func benchHeaders(size int) *request {
	return headersIn(false, "content-length", fmt.Sprint(size), "content-type", "application/json", "accept", "*/*", "accept-encoding", "gzip, deflate",
		"user-agent", "OpenAI/Python 2.9.0", "x-stainless-lang", "python", "x-stainless-os", "Linux", "x-stainless-arch", "x64", "x-stainless-runtime", "CPython",
		"x-request-id", "0b9f1c1e-7a54-4c5a-9a0e-0d4b8a5c2c11", "x-forwarded-proto", "http", "x-forwarded-for", "10.1.2.3")
}
