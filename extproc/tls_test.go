package extproc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/logtest"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
)

func authority(t *testing.T) *lab.Authority {
	t.Helper()
	a, err := lab.NewAuthority(t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// secured is a server's TLS with client authorities, all of a's.
func secured(t *testing.T, a *lab.Authority) *tlsfiles.Files {
	t.Helper()
	certFile, keyFile := rotate(t, a, "first")
	files, err := tlsfiles.New(tlsfiles.Options{
		Listener: "extproc", Key: "tls", CertFile: certFile, KeyFile: keyFile, ClientCAFile: a.File, Settle: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// rotate writes a server's certificate and key. The last of the certificate's names tells which it is.
func rotate(t *testing.T, a *lab.Authority, which string) (certFile, keyFile string) {
	t.Helper()
	certFile, keyFile, err := a.Issue("router", "router.test", which)
	if err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile
}

// proxy is the TLS of a client such as Envoy: trusting one authority, with a certificate of another (nil: none).
func proxy(t *testing.T, trusts, from *lab.Authority) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(trusts.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	c := &tls.Config{RootCAs: roots, ServerName: "router.test"}
	if from == nil {
		return c
	}
	certFile, keyFile, err := from.Issue("envoy")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return c
}

// ask makes one decision over a connection of its own.
func ask(ctx context.Context, addr string, creds credentials.TransportCredentials) (string, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	st, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		return "", err
	}
	if err := st.Send(headersIn(true)); err != nil {
		return "", err
	}
	r, err := st.Recv()
	return target(r), err
}

func TestTLS(t *testing.T) {
	ours, theirs := authority(t), authority(t)
	files := secured(t, ours)
	tests := []struct {
		name  string
		creds credentials.TransportCredentials
		log   string // of the refusal; "" for none. What the client learns depends on when its write meets the closed connection
	}{
		{"mutual TLS", credentials.NewTLS(proxy(t, ours, ours)), ""},
		{"no client certificate", credentials.NewTLS(proxy(t, ours, nil)), "didn't provide a certificate"},
		{"a certificate of another authority", credentials.NewTLS(proxy(t, ours, theirs)), "unknown authority"},
		{"a client that does not trust us", credentials.NewTLS(proxy(t, theirs, ours)), "bad certificate"},
		{"clear text", insecure.NewCredentials(), "does not speak TLS"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			log := new(logtest.Buffer)
			l := listenTCP(t)
			r := run(t, l, Options{Decider: always(decided()), TLS: files.Config(), Log: slog.New(slog.NewTextHandler(log, nil))})
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			got, err := ask(ctx, l.Addr().String(), tt.creds)
			if tt.log == "" {
				if err != nil || got != decided().Endpoint {
					t.Errorf("target %q, %v", got, err)
				}
				if n := testutil.ToFloat64(r.metrics.refused); n != 0 {
					t.Errorf("%v connections refused", n)
				}
				return
			}
			if status.Code(err) != codes.Unavailable {
				t.Errorf("error %v", err)
			}
			// The server learns of it in its own time. Refusals are said once a minute, however many.
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for !strings.Contains(log.String(), tt.log) && ctx.Err() == nil {
				<-tick.C
			}
			if n := strings.Count(log.String(), "a connection is refused"); n != 1 || testutil.ToFloat64(r.metrics.refused) < 1 {
				t.Errorf("said %d times with %q:\n%s", n, tt.log, log)
			}
		})
	}
}

// TestRotationUnderLoad replaces the certificate while requests go on over old and fresh connections: none of them fails.
func TestRotationUnderLoad(t *testing.T) {
	ours := authority(t)
	files := secured(t, ours)
	l := listenTCP(t)
	run(t, l, Options{Decider: always(decided()), TLS: files.Config()})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	watching, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- files.Run(watching) }()

	var seen sync.Map // names of certificates served
	client := proxy(t, ours, ours)
	client.VerifyConnection = func(s tls.ConnectionState) error {
		names := s.PeerCertificates[0].DNSNames
		seen.Store(names[len(names)-1], true)
		return nil
	}
	kept, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(client)))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	var done atomic.Bool
	var asked atomic.Int64
	var load sync.WaitGroup
	for range 2 {
		load.Go(func() { // a connection for each request
			for !done.Load() {
				if got, err := ask(ctx, l.Addr().String(), credentials.NewTLS(client)); err != nil || got == "" {
					t.Errorf("over a connection of its own: %q, %v", got, err)
					return
				}
				asked.Add(1)
			}
		})
		load.Go(func() { // one connection for all
			for !done.Load() {
				st, err := extprocv3.NewExternalProcessorClient(kept).Process(ctx)
				if err == nil {
					err = st.Send(headersIn(true))
				}
				if err == nil {
					_, err = st.Recv()
				}
				if err == nil {
					_, _ = st.Recv() // the end of the stream
				}
				if err != nil {
					t.Errorf("over the old connection: %v", err)
					return
				}
				asked.Add(1)
			}
		})
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i, name := range []string{"second", "third", "fourth"} {
		rotate(t, ours, name)
		for served := false; !served || asked.Load() < int64(20*(i+1)); <-tick.C {
			if _, served = seen.Load(name); ctx.Err() != nil || t.Failed() {
				t.Errorf("the %s certificate was served: %v, after %d requests", name, served, asked.Load())
				break
			}
		}
	}
	done.Store(true)
	load.Wait()
	stop()
	if err := <-watched; err != nil {
		t.Error(err)
	}
}

// TestReflection holds that tools can list the services where that is asked for.
func TestReflection(t *testing.T) {
	r := run(t, listenTCP(t), Options{Decider: always(decided()), Reflection: true})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	asked, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := asked.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer, err := asked.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range answer.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	if !slices.Contains(names, "envoy.service.ext_proc.v3.ExternalProcessor") {
		t.Errorf("services %q", names)
	}
}

// TestOnlyOurServices holds that a peer finds nothing but what Envoy needs; reflection above all would describe it to anybody.
func TestOnlyOurServices(t *testing.T) {
	r := run(t, listenTCP(t), Options{Decider: always(decided())})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for _, method := range []string{
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
		"/grpc.channelz.v1.Channelz/GetServers", "/grpc.admin.v1.Admin/Any",
	} {
		err := r.conn.Invoke(ctx, method, &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", method, err)
		}
	}
	if _, err := healthpb.NewHealthClient(r.conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}
}
