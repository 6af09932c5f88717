package feed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

const (
	connectTimeout = 5 * time.Second // for one attempt to connect, TLS included
	helloTimeout   = 5 * time.Second // for the node's hello on a connection

	// A node whose host vanished is noticed by silence; keepalive is for connections that nothing is asked on, and for what stands in between.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
)

// conversation is the router's end of a stream. Send and Recv may be called at the same time, each by one goroutine. After CloseSend, which is called by
// the one that sends, the node ends the stream when it has read everything.
type conversation interface {
	Send(*feedpb.RouterMessage) error
	CloseSend() error
	Recv() (*feedpb.NodeMessage, error)
}

// errPlain says that a router does not speak to a node in clear text.
var errPlain = errors.New("the node is not on loopback and clear text is not allowed: set feed.tls, or feed.insecure: true")

// connection returns a client for one node. It connects when something is asked, and must be closed.
func (r *Router) connection(addr netip.AddrPort, received func(bytes int)) (*grpc.ClientConn, error) {
	o := r.o
	transport := insecure.NewCredentials()
	switch {
	case o.TLS != nil:
		c := o.TLS()
		if c == nil {
			return nil, errors.New("there is no TLS configuration at this time")
		}
		transport = credentials.NewTLS(bound(c, addr.Addr()))
	case !addr.Addr().IsLoopback() && !o.Insecure:
		return nil, errPlain
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return o.Dial(ctx, addr.String()) }),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSent), grpc.MaxCallSendMsgSize(maxReceived)),
		grpc.WithUserAgent("kvsteer/" + o.Release),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithStatsHandler(counter(received)),
	}
	if o.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(bearer{o.Token}))
	}
	c, err := grpc.NewClient("passthrough:///"+addr.String(), options...)
	if err != nil {
		return nil, fmt.Errorf("client for node %s: %w", addr, err)
	}
	return c, nil
}

// watch opens a stream. The function ends it.
func (r *Router) watch(ctx context.Context, addr netip.AddrPort, received func(bytes int)) (conversation, func(), error) {
	c, err := r.connection(addr, received)
	if err != nil {
		return nil, nil, err
	}
	s, err := feedpb.NewFeedClient(c).Watch(ctx)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return s, func() { c.Close() }, nil
}

// bound has a certificate with IP addresses be one of the dialled address, also where it is verified by another name.
func bound(c *tls.Config, ip netip.Addr) *tls.Config {
	c = c.Clone()
	before := c.VerifyConnection
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if before != nil {
			if err := before(s); err != nil {
				return err
			}
		}
		if len(s.PeerCertificates) == 0 {
			return errors.New("the node has no certificate")
		}
		ips := s.PeerCertificates[0].IPAddresses
		if len(ips) > 0 && !slices.ContainsFunc(ips, func(b net.IP) bool { a, ok := netip.AddrFromSlice(b); return ok && a.Unmap() == ip }) {
			return fmt.Errorf("the node's certificate is for the addresses %v and not for %s", ips, ip)
		}
		return nil
	}
	return c
}

// bearer sends a token with each call. Whether that is safe is decided when the connection is made.
type bearer struct{ token func() string }

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if t := b.token(); t != "" {
		return map[string]string{"authorization": "Bearer " + t}, nil
	}
	return nil, nil
}

func (b bearer) RequireTransportSecurity() bool { return false }

// counter is told the bytes of each message that comes in, as they were on the wire.
type counter func(bytes int)

func (c counter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (c counter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok {
		c(in.WireLength)
	}
}

func (c counter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c counter) HandleConn(context.Context, stats.ConnStats) {}
