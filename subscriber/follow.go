package subscriber

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
)

// A replay costs the engine's publisher some 0.1 s in which it publishes nothing, so after a burst of askBurst one is asked for every
// askInterval.
const (
	askBurst    = 8
	askInterval = time.Second
)

// link is the connection with the engine's event socket.
type link struct {
	session  *session
	messages chan zmq4.Msg // closed at the end
	why      error         // it ended, set before messages is closed
}

// restore says that the fold's mirror is at p: it was filled from what an earlier process of ours kept. It is to be called before Run, or
// by its goroutine before the first connection. The Sink hears nothing of that mirror until a replay has proven that the engine
// is the same process still; what is not proven within Options.Keep is forgotten.
func (s *Subscriber) restore(p position) { s.restored = p }

// position returns how far the mirror is. It is for Run's goroutine.
func (s *Subscriber) position() position { return s.track.position() }

// follow is the loop of Run: all that the fold, the tracker and the Sink hear comes from here.
func (s *Subscriber) follow(ctx context.Context, from connector, wg *sync.WaitGroup) {
	sessions, ended := make(chan *session), make(chan struct{})
	wg.Go(func() { connect(ctx, from, sessions, ended) })
	ticker := time.NewTicker(s.track.pacing.tick)
	defer ticker.Stop()
	s.loadSaved()
	if s.restored.seen {
		s.heard = true
		s.track.restore(s.restored, s.o.Now())
		s.restored = position{}
	}
	var live *link
	var asked *replay
	for ctx.Err() == nil {
		var messages, replies <-chan zmq4.Msg
		if live != nil {
			messages = live.messages
		}
		if asked != nil {
			replies = asked.messages
		}
		select {
		case c := <-sessions:
			live = s.connected(ctx, c, wg)
		case m, ok := <-messages:
			for more := len(messages); ok && more > 0; more-- {
				s.message(live.session, m)
				m, ok = <-messages
			}
			if ok {
				s.message(live.session, m)
				break
			}
			s.disconnected(live)
			live = nil
			select {
			case ended <- struct{}{}:
			case <-ctx.Done():
			}
		case m, ok := <-replies:
			s.reply(asked, m, ok)
		case <-s.witnesses.ready:
			s.witness()
		case <-ticker.C:
			s.tick(asked)
			s.save(wg)
		case <-ctx.Done():
		}
		asked = s.ask(ctx, asked, wg)
	}
	if live != nil {
		_ = live.session.conn.end(errStopped)
		for range live.messages { // until it is closed
		}
		s.line(slog.LevelInfo, "engine left", "peer", live.session.conn.RemoteAddr().String())
	}
	s.saveLast()
	s.track.leave()
}

// connect yields the sessions of a connector, each after the one before has ended.
func connect(ctx context.Context, from connector, sessions chan<- *session, ended <-chan struct{}) {
	for {
		c, err := from.next(ctx)
		if err != nil {
			return
		}
		select {
		case sessions <- c:
		case <-ctx.Done():
			c.close(errStopped, false)
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

// connected begins a connection.
func (s *Subscriber) connected(ctx context.Context, c *session, wg *sync.WaitGroup) *link {
	s.line(slog.LevelInfo, "engine connected", "peer", c.conn.RemoteAddr().String())
	s.series.connections.Inc()
	l := &link{session: c, messages: make(chan zmq4.Msg, received)}
	wg.Go(func() {
		defer close(l.messages)
		defer context.AfterFunc(ctx, func() { _ = c.conn.end(errStopped) })()
		l.why = c.pump(l.messages, ctx.Done())
	})
	s.track.connect(s.o.Now())
	return l
}

// disconnected ends it.
func (s *Subscriber) disconnected(l *link) {
	s.track.disconnect(s.o.Now())
	peer := l.session.conn.RemoteAddr().String()
	var v violation
	switch {
	case errors.Is(l.why, errStopped):
	case errors.As(l.why, &v):
		s.refused("connection with the engine ended", peer, l.why)
	default:
		s.line(slog.LevelInfo, "engine disconnected", "peer", peer, "reason", l.why)
	}
}

// message takes one message of the event socket.
func (s *Subscriber) message(c *session, m zmq4.Msg) {
	defer c.release(m)
	if m.Type == zmq4.CmdMsg {
		c.command(m)
		return
	}
	s.series.batches.Inc()
	seq, payload, err := parseMessage(m.Frames)
	if err != nil {
		s.track.garbled()
		s.line(slog.LevelWarn, "message unreadable", "error", err)
		return
	}
	s.track.message(seq, payload)
}

// ask makes the replay under way the one that the tracker wants.
func (s *Subscriber) ask(ctx context.Context, r *replay, wg *sync.WaitGroup) *replay {
	want := s.track.request
	if r != nil && (!want.open || r.id != want.id) {
		r.stop()
		r = nil
	}
	if r != nil || !want.open || ctx.Err() != nil {
		return r
	}
	ctx, stop := context.WithCancel(ctx)
	r = &replay{id: want.id, from: want.from, stop: stop, messages: make(chan zmq4.Msg, received)}
	_, _, after := s.asks.take(s.o.Now())
	pacing := s.track.pacing
	wg.Go(func() {
		defer stop()
		r.run(ctx, after, s.o, pacing)
	})
	return r
}

// reply takes one message of the replay socket; ok is false at the connection's end.
func (s *Subscriber) reply(r *replay, m zmq4.Msg, ok bool) {
	for more := len(r.messages); ; more-- {
		if !ok {
			var v violation
			if errors.As(r.err, &v) {
				s.series.refuse(v)
			}
			s.failed(outcomeOf(r.err), r.err)
			return
		}
		r.heard = true
		s.replied(r, m)
		if more == 0 || !s.track.request.open || s.track.request.id != r.id {
			return
		}
		m, ok = <-r.messages
	}
}

func (s *Subscriber) replied(r *replay, m zmq4.Msg) {
	defer r.session.release(m)
	if m.Type == zmq4.CmdMsg {
		r.session.command(m)
		return
	}
	seq, payload, err := parseReply(m.Frames)
	switch {
	case err != nil:
		s.failed(replayInvalid, err)
	case seq == endOfReplay:
		s.track.end()
	default:
		s.track.reply(seq, payload)
	}
}

func (s *Subscriber) failed(o outcome, err error) {
	s.line(slog.LevelWarn, "missed batches could not be replayed", "replay", s.o.Replay, "outcome", string(o), "error", err)
	s.track.failed(o)
}

// errSilent says that a replay socket takes too long.
var errSilent = errors.New("no reply, or replies without end")

func (s *Subscriber) tick(r *replay) {
	now := s.o.Now()
	if r != nil && r.overdue(now, s.track.pacing) {
		s.failed(replayTimeout, errSilent)
	}
	s.track.tick(now)
	s.series.healing(s.fold.tick(now))
}

// witness looks at one prompt of those that were routed to the engine, so that events do not wait for many.
func (s *Subscriber) witness() {
	p, ok, dropped := s.witnesses.take()
	s.series.witnesses[witnessDropped].Add(float64(dropped))
	if !ok {
		return
	}
	s.witnesses.again()
	if p.hashes != nil {
		s.series.healing(s.fold.hashed(p.hashes, s.o.Now()))
		return
	}
	s.series.healing(s.fold.witness(p.Prompt, s.o.Now()))
}

// hand does what the tracker of a Subscriber decides.
type hand struct{ s *Subscriber }

func (h hand) apply(seq uint64, payload []byte, replayed bool) bool {
	s := h.s
	s.heard = true
	if replayed {
		s.series.replayed.Inc()
	}
	st, err := s.fold.fold(payload, s.o.Now())
	if err != nil {
		s.reset(CauseUnreadable)
		s.line(slog.LevelWarn, "batch unreadable", "seq", seq, "error", err)
		return false
	}
	s.series.batch(st, s.o.Now(), replayed)
	return true
}

func (h hand) reset(cause Cause) { h.s.reset(cause) }
func (h hand) online(yes bool) {
	if yes {
		h.s.proven(true)
	}
	h.s.fold.connected(yes)
}
func (h hand) quiet(on bool)         { h.s.fold.quiet(on) }
func (h hand) history(complete bool) { h.s.fold.history(complete) }

func (h hand) gap(repaired bool) {
	if repaired {
		h.s.series.repaired.Inc()
		return
	}
	h.s.series.unrepaired.Inc()
}

func (h hand) replay(why purpose, o outcome) {
	s := h.s
	s.series.replays[o].Inc()
	if why != toLook && o != replayAbandoned {
		s.line(slog.LevelInfo, "replay ended", "of", why.words(), "outcome", string(o))
	}
}
