package feed

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

const (
	connectWait   = 5 * time.Second // for the handshake of a connection, and for the hello of a stream
	stopGrace     = 500 * time.Millisecond
	refusedLog    = time.Minute // least time between two lines about refusals
	callsPerConn  = 16          // streams and fetches of one connection
	streamWindow  = 64 << 10    // what a router may send before it is read; gRPC's least
	connWindow    = 1 << 20
	maxHeaderList = 16 << 10
)

// Run serves on l, which it closes, until ctx ends, and then ends all streams. It returns nil after that, and an error when l fails before or must not be
// served in clear text.
func (n *Node) Run(ctx context.Context, l net.Listener) error {
	if n.o.TLS == nil && !n.o.Insecure && !loopback(l.Addr()) {
		l.Close()
		return fmt.Errorf("serve the feed on %s: clear text is spoken on loopback addresses only; set up TLS, or allow it with insecure", l.Addr())
	}
	s := &service{node: n, closing: make(chan struct{}), fetches: make(chan struct{}, maxFetches)}
	g := grpc.NewServer(
		s.transport(),
		grpc.ForceServerCodecV2(codec{}),
		grpc.StreamInterceptor(s.intercept),
		grpc.MaxRecvMsgSize(maxReceived),
		grpc.MaxConcurrentStreams(callsPerConn),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(connectWait),
		// Routers ping every 10 s; whoever pings more often than twice that is taken for an attacker.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// A router that vanished without closing would keep its stream, and its charges, for ever.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, MaxConnectionIdle: time.Minute}),
		grpc.WaitForHandlers(true),
	)
	feedpb.RegisterFeedServer(g, s)

	var failure error
	served := make(chan struct{})
	go func() {
		defer close(served)
		failure = g.Serve(newGuard(l, n))
	}()
	inner, cancel := context.WithCancel(context.Background())
	s.tasks.Go(func() { n.windows.run(inner) })
	s.tasks.Go(func() { n.watch(inner) })
	defer s.tasks.Wait()
	defer cancel()

	select {
	case <-served:
		close(s.closing)
		g.Stop()
		return fmt.Errorf("serve the feed on %s: %w", l.Addr(), failure)
	case <-ctx.Done():
	}
	close(s.closing)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		g.GracefulStop()
	}()
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-stopped:
	case <-t.C:
		g.Stop()
		<-stopped
	}
	<-served
	return nil
}

// loopback says whether only this host reaches an address.
func loopback(a net.Addr) bool {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.IP.IsLoopback()
	}
	return a.Network() == "unix"
}

// watch ends turns of streams whose routers do not read, and then those streams, until ctx ends. It has routers told of each other: not each time that one
// comes, since when all are restarted that would be as many messages as there are pairs of them.
func (n *Node) watch(ctx context.Context) {
	t := time.NewTicker(copyQuantum / 4)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			n.turns.expire(now)
			changed := n.others.Swap(false)
			for _, st := range n.streams() {
				if since := st.sending.Load(); since != 0 && now.UnixNano()-since > int64(n.o.Stall) {
					st.stall()
				}
				if changed {
					st.setPeers()
				}
			}
		}
	}
}

// service is the gRPC side of one Run.
type service struct {
	feedpb.UnimplementedFeedServer
	node    *Node
	closing chan struct{}
	fetches chan struct{} // has one element for each that is under way
	tasks   sync.WaitGroup
	last    atomic.Int64 // Unix nanoseconds of the last refusal logged
}

// refusal names why a stream was refused; a metric label.
type refusal string

const (
	refusedToken    refusal = "token"
	refusedStreams  refusal = "streams"  // there are MaxStreams
	refusedAddress  refusal = "address"  // there are MaxPerAddress from there
	refusedSilent   refusal = "silent"   // no hello in time
	refusedInvalid  refusal = "invalid"  // a message that no router sends
	refusedVersion  refusal = "version"  // no version that both speak
	refusedStalled  refusal = "stalled"  // nothing was read for too long
	refusedFetches  refusal = "fetches"  // too many at a time
	refusedTLS      refusal = "tls"      // the handshake failed
	refusedTooMany  refusal = "too_many" // connections
	refusedTooClose refusal = "too_many_of_address"
)

func streamRefusals() []refusal {
	return []refusal{refusedToken, refusedStreams, refusedAddress, refusedSilent, refusedInvalid, refusedVersion, refusedStalled, refusedFetches}
}

func connectionRefusals() []refusal {
	return []refusal{refusedTLS, refusedTooMany, refusedTooClose}
}

// refuse counts and, once in a while, says that a stream was refused or ended, and returns the error for the router.
func (s *service) refuse(ctx context.Context, why refusal, code codes.Code, format string, args ...any) error {
	s.node.o.Metrics.refused[why].Inc()
	text := fmt.Sprintf(format, args...)
	now, last := time.Now().UnixNano(), s.last.Load()
	if (last == 0 || now-last >= int64(refusedLog)) && s.last.CompareAndSwap(last, now) {
		s.node.o.Log.Warn("a router is refused", "from", address(ctx), "reason", string(why), "error", text)
	}
	return status.Error(code, text)
}

// intercept lets calls in that bring the token.
func (s *service) intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if token := s.node.o.Token(); token != "" && !brought(stream.Context(), token) {
		return s.refuse(stream.Context(), refusedToken, codes.Unauthenticated, "the token is missing or wrong")
	}
	return handler(srv, stream)
}

// brought compares hashes, which are equally long, in constant time.
func brought(ctx context.Context, token string) bool {
	want := sha256.Sum256([]byte(token))
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		kind, text, ok := strings.Cut(v, " ")
		if !ok || !strings.EqualFold(kind, "bearer") {
			continue
		}
		got := sha256.Sum256([]byte(strings.TrimSpace(text)))
		return subtle.ConstantTimeCompare(got[:], want[:]) == 1
	}
	return false
}

// address is that of a caller.
func address(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return p.Addr.String()
}

// host is the address without the port.
func host(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return a.Addr().Unmap().WithZone("").String()
	}
	return address
}

// admit counts a stream in, before anything of it is read.
func (n *Node) admit(from string) refusal {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.admitted >= n.o.MaxStreams:
		return refusedStreams
	case n.addresses[from] >= n.o.MaxPerAddress:
		return refusedAddress
	}
	n.admitted++
	n.addresses[from]++
	return ""
}

func (n *Node) dismiss(from string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.admitted--
	if n.addresses[from]--; n.addresses[from] == 0 {
		delete(n.addresses, from)
	}
}

// transport is the option for what connections speak.
func (s *service) transport() grpc.ServerOption {
	if s.node.o.TLS == nil {
		return grpc.EmptyServerOption{}
	}
	return grpc.Creds(&secured{TransportCredentials: credentials.NewTLS(s.node.o.TLS), service: s})
}

// secured is TLS that counts and says whom it refuses.
type secured struct {
	credentials.TransportCredentials
	service *service
}

// ServerHandshake is called from a goroutine per connection, with a deadline set on conn.
func (t *secured) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := t.TransportCredentials.ServerHandshake(conn)
	if err == nil {
		return c, info, nil
	}
	s := t.service
	s.node.o.Metrics.refused[refusedTLS].Inc()
	now, last := time.Now().UnixNano(), s.last.Load()
	if (last == 0 || now-last >= int64(refusedLog)) && s.last.CompareAndSwap(last, now) {
		s.node.o.Log.Warn("a connection is refused", "from", conn.RemoteAddr().String(), "error", err)
	}
	return nil, nil, err
}

// Clone is asked for by clients only.
func (t *secured) Clone() credentials.TransportCredentials {
	return &secured{TransportCredentials: t.TransportCredentials.Clone(), service: t.service}
}

var errStalled = errors.New("nothing of the stream was read for too long")
