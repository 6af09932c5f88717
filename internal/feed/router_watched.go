package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// Causes for which a router ends a stream.
var (
	errSilent  = errors.New("nothing was heard of the node for too long")
	errConnect = errors.New("no connection in time")
	errHello   = errors.New("no hello in time")
	errNoHello = errors.New("the node's first message is no hello")
	errVersion = errors.New("no version of the protocol in common")
	errAgain   = errors.New("all blocks are needed again")
)

// lookEvery is the least time between two looks at what is stale.
const lookEvery = 20 * time.Millisecond

// Announcements of a node are taken at this pace; those that come faster wait, and what is behind them.
const (
	announceBurst = 50
	announceEvery = 100 * time.Millisecond
)

// maxWarned bounds the refused endpoints of one node that are logged.
const maxWarned = 32

// watched is one node of a router.
type watched struct {
	r       *Router
	name    string // its Address, for the fleet, logs and metrics
	addr    netip.AddrPort
	log     *slog.Logger
	metrics *routerSeries
	out     *outbox
	ears    *ears

	peers int // guarded by origins.mu

	bytes  atomic.Uint64
	alone  atomic.Bool // the node has said that it has no other router
	allow  atomic.Pointer[[]netip.Prefix]
	cancel atomic.Pointer[context.CancelCauseFunc] // ends the stream; nil between two

	mu        sync.Mutex // held while a message is applied
	rec       *inbox
	hello     *feedpb.NodeHello // of the last stream
	connected bool
	closed    bool
	since     time.Time
	heard     time.Time
	problem   string
	streams   uint64
	timer     *time.Timer // looks for silence and for what is stale
	quiet     bool        // the node is stale and its loads are said to be

	// Of what is said in logs.
	short   int             // streams in a row that were short-lived
	said    string          // the last state; "" for none
	reasons map[string]bool // said since the last connection that was said
	warned  map[Refusal]bool
}

func newWatched(r *Router, addr netip.AddrPort, allow []netip.Prefix) *watched {
	name := addr.String()
	n := &watched{
		r: r, name: name, addr: addr, log: r.o.Log.With("node", name), metrics: r.o.Metrics.series(name), reasons: map[string]bool{},
		warned: map[Refusal]bool{},
	}
	n.out = newOutbox(n.metrics, &r.mail, func(name decisionName) { r.open.take(name) })
	n.ears = newEars(n.metrics)
	n.allow.Store(&allow)
	n.rec = newInbox(n)
	n.timer = time.AfterFunc(time.Hour, n.tick)
	n.timer.Stop()
	set(n.metrics.stale, true)
	return n
}

// rules are the address that endpoints without one have, and the further ones that the node may announce.
func (n *watched) rules() (dialled netip.Addr, allow []netip.Prefix) {
	return n.addr.Addr(), *n.allow.Load()
}

// again ends the stream so that another one brings all blocks. It may be called from any goroutine and waits for nothing.
func (n *watched) again() {
	if cancel := n.cancel.Load(); cancel != nil {
		(*cancel)(errAgain)
	}
}

// look takes over what the node may announce, and asks the fleet again for what it did not want.
func (n *watched) look(allow []netip.Prefix) {
	changed := !slices.Equal(*n.allow.Load(), allow)
	n.allow.Store(&allow)
	n.mu.Lock()
	missed := n.rec.reconsider()
	n.mu.Unlock()
	if changed || missed {
		n.again()
	}
}

// run watches the node until ctx ends. stays says whether the fleet is to hear then that the node is none any more.
func (n *watched) run(ctx context.Context, leaves func() bool) {
	defer func() { n.leave(leaves()) }()
	pace := n.r.retry
	for ctx.Err() == nil {
		if n.r.leaving.Load() {
			<-ctx.Done()
			return
		}
		lasted, err := n.converse(ctx)
		n.ended(ctx, lasted, err)
		if ctx.Err() != nil {
			return
		}
		pause(ctx, pace.after(lasted))
	}
}

// converse leads one stream to its end. lasted is how long it went on after the hello.
func (n *watched) converse(ctx context.Context) (lasted time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() { err = causeOr(ctx, err) }()
	limit := time.AfterFunc(n.r.connectTimeout, func() { cancel(errConnect) })
	defer func() { limit.Stop() }()
	s, end, err := n.r.begin(ctx, n.addr, n.received)
	if err != nil {
		return 0, err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	defer func() { // what the sender waits for
		err = causeOr(ctx, err)
		cancel(err)
	}()
	if !limit.Stop() {
		return 0, errConnect
	}
	limit = time.AfterFunc(n.r.helloTimeout, func() { cancel(errHello) })
	own := spoken(n.r.o.Release)
	err = s.Send(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Hello{Hello: &feedpb.RouterHello{
		Protocol: own.newest, Oldest: own.oldest, Release: own.release, Instance: n.r.o.Instance,
	}}})
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv says why
		return 0, err
	}
	m, err := s.Recv()
	if err != nil {
		return 0, err
	}
	hello, err := checkNodeHello(m, own)
	if err != nil {
		return 0, err
	}
	if !limit.Stop() {
		return 0, errHello
	}
	began := time.Now()
	n.begin(hello, cancel)
	defer n.cancel.Store(nil)
	hashed := make(chan *feedpb.Witness)
	wg.Go(func() { n.ears.run(ctx, hashed) })
	wg.Go(func() { n.out.send(ctx, s, hashed, n.r.leaving.Load) })
	room := bucket{most: announceBurst, every: announceEvery}
	for {
		m, err := s.Recv()
		if err == nil && m.GetReplicas() != nil {
			pause(ctx, room.take(time.Now()))
		}
		if err == nil {
			err = n.receive(m)
		}
		if err != nil {
			return time.Since(began), err
		}
	}
}

// checkNodeHello reads a node's first message.
func checkNodeHello(m *feedpb.NodeMessage, own versions) (*feedpb.NodeHello, error) {
	h := m.GetHello()
	if h == nil {
		return nil, errNoHello
	}
	err := errors.Join(short("name", h.GetName(), maxName), short("release", h.GetRelease(), maxName), short("instance", h.GetInstance(), maxInstance))
	if err != nil {
		return nil, malformed("%v", err)
	}
	if !own.speaks(h.GetProtocol()) {
		_, err := negotiate(versions{h.GetProtocol(), h.GetProtocol(), h.GetRelease()}, own)
		return nil, fmt.Errorf("%w: %w", errVersion, err)
	}
	return h, nil
}

// received counts the bytes of a message.
func (n *watched) received(bytes int) {
	n.bytes.Add(uint64(bytes))
	n.metrics.bytes.Add(float64(bytes))
}

// begin starts a stream.
func (n *watched) begin(hello *feedpb.NodeHello, cancel context.CancelCauseFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.cancel.Store(&cancel)
	n.hello, n.connected, n.since, n.heard, n.problem = hello, true, now, now, ""
	n.streams++
	n.rec.begin()
	n.metrics.streams.Inc()
	set(n.metrics.up, true)
	n.armLocked(now)
	if n.short < 2 {
		n.sayLocked("connected")
	}
}

// receive applies a message. Its time counts from the end of the work on it: a busy router is not a silent node.
func (n *watched) receive(m *feedpb.NodeMessage) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	err := n.rec.apply(m, now)
	n.heard = time.Now()
	if m.GetEnd() != nil || m.GetReset_() != nil || m.GetReplicas() != nil {
		n.staleLocked(n.heard)
	}
	if n.said != "connected" && n.heard.Sub(n.since) >= n.r.retry.stable {
		n.sayLocked("connected")
	}
	return err
}

// ended takes note of the end of a stream, or of one that did not come about.
func (n *watched) ended(ctx context.Context, lasted time.Duration, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	greeted := n.connected
	reason := reasonOf(ctx, err, greeted)
	if n.r.leaving.Load() && errors.Is(err, io.EOF) {
		reason = endStopped
	}
	n.metrics.ended[string(reason)].Inc()
	if n.connected {
		n.connected, n.since = false, now
		set(n.metrics.up, false)
		n.rec.lost(n.heard, now)
		n.armLocked(now)
	}
	n.problem = string(reason) + ": " + clip(textOf(err))
	if hint := advice(n.problem, n.r.o.TLS != nil); hint != "" && (reason == endUnreachable || reason == endLost) {
		n.problem += " (" + hint + ")"
	}
	if reason == endAgain || reason == endStopped {
		return
	}
	switch {
	case lasted >= n.r.retry.stable:
		n.short = 0
	case greeted:
		n.short++
	}
	n.sayLocked(string(reason))
}

// sayLocked logs a state that differs from the last one logged, and each reason for having no connection once until there is one.
func (n *watched) sayLocked(state string) {
	if n.said == state || state != "connected" && n.reasons[state] {
		return
	}
	n.said = state
	if state == "connected" {
		clear(n.reasons)
		n.log.Info("node connected", "name", clip(n.hello.GetName()), "release", clip(n.hello.GetRelease()), "protocol", n.hello.GetProtocol())
		return
	}
	n.reasons[state] = true
	n.log.Warn("node not connected", "why", n.problem)
}

// tick is what the timer does. It goes off each StaleAfter at the latest while the node is connected, so what becomes stale is seen in time.
func (n *watched) tick() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	now := time.Now()
	if cancel := n.cancel.Load(); n.connected && cancel != nil && now.Sub(n.heard) >= n.r.o.StaleAfter {
		(*cancel)(errSilent)
	}
	n.rec.tick(now)
	if n.rec.dropped(now) {
		n.again()
	}
	n.armLocked(now)
}

// armLocked sets the timer to when there is something to look at, and takes note of what is stale.
func (n *watched) armLocked(now time.Time) {
	n.staleLocked(now)
	due := n.rec.due()
	if silent := n.heard.Add(n.r.o.StaleAfter); !n.heard.IsZero() && silent.After(now) && (due.IsZero() || silent.Before(due)) {
		due = silent
	}
	if due.IsZero() {
		n.timer.Stop()
		return
	}
	n.timer.Reset(max(due.Sub(now), lookEvery))
}

// staleLocked says whether anything of the node is stale.
func (n *watched) staleLocked(now time.Time) {
	stale := n.isStaleLocked(now)
	set(n.metrics.stale, stale)
	silent := !n.connected && stale
	if silent && !n.quiet {
		n.rec.silence(now)
	}
	n.quiet = silent
}

func (n *watched) isStaleLocked(now time.Time) bool {
	return !n.connected && now.Sub(n.heard) >= n.r.o.StaleAfter || n.rec.stales > 0
}

// refusals takes note of what is refused that was not before.
func (n *watched) refusals(before, all []Refusal) {
	n.metrics.refused.Set(float64(len(all)))
	for _, refusal := range all {
		if slices.Contains(before, refusal) {
			continue
		}
		n.metrics.refusal[string(refusal.Reason)].Inc()
		if n.warned[refusal] || len(n.warned) >= maxWarned {
			continue
		}
		n.warned[refusal] = true
		n.log.Warn("an endpoint that a node announces is refused", "endpoint", clip(refusal.Endpoint), "pool", clip(refusal.Pool),
			"why", refusal.Reason, "owner", refusal.Owner)
	}
}

// leave ends the watch.
func (n *watched) leave(gone bool) {
	n.mu.Lock()
	n.closed = true
	n.timer.Stop()
	n.rec.leave(gone)
	n.mu.Unlock()
	n.r.open.forget(n)
	n.metrics.delete()
	if gone {
		n.log.Info("node is watched no more")
	}
}

func (n *watched) status() NodeStatus {
	peers := n.r.origins.count(n)
	n.mu.Lock()
	defer n.mu.Unlock()
	s := NodeStatus{
		Address: n.name, Name: n.hello.GetName(), Instance: n.hello.GetInstance(), Release: n.hello.GetRelease(), Protocol: n.hello.GetProtocol(),
		Connected: n.connected, Since: n.since, Heard: n.heard, Stale: n.isStaleLocked(time.Now()), Replicas: slices.Clone(n.rec.replicas),
		Refused: slices.Clone(n.rec.refused), Bytes: n.bytes.Load(), Peers: peers, Streams: n.streams, Problem: n.problem,
	}
	for _, h := range n.rec.held {
		s.Blocks += h.blocks
		if h.sink == nil {
			s.Unwanted++
		} else if n.connected && (h.copying || !h.begun) {
			s.Copies++
		}
	}
	return s
}

// reasonOf is why a stream ended with an error. greeted says that there was a hello.
func reasonOf(ctx context.Context, err error, greeted bool) endReason {
	switch {
	case ctx.Err() != nil:
		return endStopped
	case errors.Is(err, errAgain):
		return endAgain
	case errors.Is(err, errSilent):
		return endSilent
	case errors.Is(err, errInvalid):
		return endInvalid
	case errors.Is(err, errVersion):
		return endVersion
	case errors.Is(err, errHello), errors.Is(err, errNoHello):
		return endHello
	case errors.Is(err, errPlain):
		return endPlain
	case errors.Is(err, errConnect):
		return endUnreachable
	case errors.Is(err, io.EOF):
		return endClosed
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return endDenied
	case codes.FailedPrecondition, codes.Unimplemented:
		return endVersion
	case codes.ResourceExhausted:
		return endLimit
	}
	if greeted {
		return endLost
	}
	return endUnreachable
}

// maxText bounds what of a peer's words is logged and shown.
const maxText = 300

// clip shortens a text of a peer to what can be shown in one line.
func clip(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
}
