package feed

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// Watch is one stream. The handler waits for whatever ends it; a goroutine sends and one receives, and both end with it.
func (s *service) Watch(g grpc.BidiStreamingServer[feedpb.RouterMessage, feedpb.NodeMessage]) error {
	ctx, n := g.Context(), s.node
	from := host(address(ctx))
	if why := n.admit(from); why != "" {
		return s.refuse(ctx, why, codes.ResourceExhausted, "the node has as many streams as it takes")
	}
	defer n.dismiss(from)

	hello := make(chan *feedpb.RouterHello, 1)
	joined := make(chan *stream, 1)
	defer close(joined)
	received := make(chan error, 1)
	// Counted by the goroutine: gRPC ends the stream by itself when it cannot take a message.
	s.tasks.Go(func() { received <- s.ended(ctx, s.receive(g, hello, joined)) })

	timer := time.NewTimer(n.helloWait)
	defer timer.Stop()
	var h *feedpb.RouterHello
	select {
	case h = <-hello:
	case err := <-received:
		return err
	case <-timer.C:
		return s.refuse(ctx, refusedSilent, codes.DeadlineExceeded, "no hello within %v", n.helloWait)
	case <-s.closing:
		return errClosing
	case <-ctx.Done():
		return ctx.Err()
	}
	version, err := negotiate(n.speaks, versions{h.GetOldest(), h.GetProtocol(), h.GetRelease()})
	if err != nil {
		return s.refuse(ctx, refusedVersion, codes.FailedPrecondition, "%s", err.Error())
	}

	st := n.newStream(h.GetInstance(), h.GetRelease(), address(ctx))
	log := n.o.Log.With("router", st.instance, "from", st.address)
	log.Info("a router watches", "release", st.release, "protocol", version)
	n.join(st)
	sent := make(chan error, 1)
	s.tasks.Go(func() {
		defer st.end()
		sent <- s.send(ctx, g, st, &feedpb.NodeHello{Protocol: version, Release: n.o.Release, Name: n.o.Name, Instance: n.instance})
	})
	joined <- st
	defer n.leave(st)
	select {
	case err = <-received:
	case err = <-sent:
	case <-st.stalled:
		err = s.refuse(ctx, refusedStalled, codes.ResourceExhausted, "%s", errStalled)
	case <-s.closing:
		err = errClosing
	case <-ctx.Done():
		err = ctx.Err()
	}
	log.Info("a router watches no more", "why", reason(err), "after", time.Since(st.since).Round(time.Millisecond))
	return err
}

var errClosing = status.Error(codes.Unavailable, "the node stops")

// ended is a stream's status for what ended it.
func (s *service) ended(ctx context.Context, err error) error {
	var bad *invalid
	switch {
	case errors.As(err, &bad):
		return s.refuse(ctx, refusedInvalid, codes.InvalidArgument, "%s", bad.Error())
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case status.Code(err) == codes.ResourceExhausted, status.Code(err) == codes.Internal:
		// What gRPC says of a message that is too long or cannot be decoded.
		return s.refuse(ctx, refusedInvalid, status.Code(err), "%s", status.Convert(err).Message())
	}
	return err
}

func reason(err error) string {
	if err == nil {
		return "the router ended it"
	}
	return status.Convert(err).Message()
}

func (n *Node) newStream(instance, release, address string) *stream {
	return &stream{
		instance: instance, release: release, address: address, since: n.now(), turns: n.turns, metrics: n.o.Metrics, now: n.now,
		wake: make(chan struct{}, 1), stalled: make(chan struct{}), queue: queue{limit: n.o.QueueBytes}, known: make(map[uint32]*follower),
	}
}

// sender is what sending needs of a gRPC stream.
type sender interface{ SendMsg(m any) error }

// send sends what the stream is told until ctx ends or sending fails.
func (s *service) send(ctx context.Context, g sender, st *stream, hello *feedpb.NodeHello) error {
	n := s.node
	give := func(data []byte) error {
		st.sending.Store(n.now().UnixNano())
		err := g.SendMsg(encoded(data))
		st.sending.Store(0)
		n.o.Metrics.sent.Add(float64(len(data)))
		return err
	}
	if err := give(encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Hello{Hello: hello}})); err != nil {
		return err
	}
	alive := time.NewTimer(n.o.Alive)
	defer alive.Stop()
	last := n.now()
	for ctx.Err() == nil {
		copied := st.copy()
		m, peers, ok := st.next()
		switch {
		case peers:
			m.data = n.peers(st.instance)
		case ok:
		case copied:
			continue
		default:
			alive.Reset(n.o.Alive - n.now().Sub(last))
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-st.wake:
				continue
			case <-alive.C:
				m.data = encodeAlive()
			}
		}
		if err := give(m.data); err != nil {
			return err
		}
		last = n.now()
		n.o.Metrics.went(m)
	}
	return ctx.Err()
}
