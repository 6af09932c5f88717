package extproc

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// refusedLogEvery is the least time between two log lines about refused connections.
const refusedLogEvery = time.Minute

// transport is the option for what connections speak.
func (s *Server) transport() grpc.ServerOption {
	if s.tls == nil {
		return grpc.EmptyServerOption{}
	}
	return grpc.Creds(&guard{TransportCredentials: credentials.NewTLS(s.tls), log: s.log, metrics: s.metrics})
}

// guard is TLS that counts and says whom it refuses: gRPC keeps that to itself, and Envoy sees no more than a closed connection.
type guard struct {
	credentials.TransportCredentials
	log     *slog.Logger
	metrics *Metrics
	last    atomic.Int64 // Unix nanoseconds of the last refusal logged
}

// ServerHandshake is called from a goroutine per connection, with a deadline set on conn.
func (g *guard) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := g.TransportCredentials.ServerHandshake(conn)
	if err == nil {
		return secured, info, nil
	}
	g.metrics.refused.Inc()
	// Load balancers open connections and close them to see that somebody listens.
	if errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	now, last := time.Now().UnixNano(), g.last.Load()
	if (last == 0 || now-last >= int64(refusedLogEvery)) && g.last.CompareAndSwap(last, now) {
		why := err.Error()
		if e := new(tls.RecordHeaderError); errors.As(err, e) {
			why = "the client does not speak TLS"
		}
		g.log.Warn("a connection is refused", "from", conn.RemoteAddr().String(), "why", why)
	}
	return nil, nil, err
}

// Clone is asked for by clients only.
func (g *guard) Clone() credentials.TransportCredentials {
	return &guard{TransportCredentials: g.TransportCredentials.Clone(), log: g.log, metrics: g.metrics}
}
