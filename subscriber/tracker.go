package subscriber

import "time"

// tracker decides what becomes of an engine's messages: which batch is applied when, what is asked again, and when everything has to be
// forgotten. Engines count batches from 0 per process, one number each, so a missing number is a lost batch.
//
// It is a pure core: messages, replies and the time in, calls of hands out. What it wants to be asked for stands in request.
//
// Without a replay socket it follows what it hears, and forgets at every gap and when the connection ends. With one it goes through
//
//	away       no connection; the mirror of the last one is kept for a while
//	catching   a connection, and a replay under way; live messages wait, the Sink hears nothing
//	following  live batches are applied as they come
type tracker struct {
	do      hands
	replays bool // the engine has a replay socket
	pacing  pacing

	// The mirror is what the engine held before the batch next; anchored says that there is such a number.
	next     uint64
	anchored bool
	start    uint64   // the batch from which on the mirror has all
	complete bool     // the mirror has followed from batch 0
	last     []byte   // payload of the batch before next, nil when digest has its digest
	digest   [16]byte // of the batch before next

	mode mode
	live uint64 // newest number heard on the connection
	// heard says that there is such a number, lively that one came since the last tick.
	heard, lively bool
	// top is the largest number heard of what seems to be one process. While doubtful, batches up to it may be late ones, which come
	// after batches that are applied or forgotten: they are of no use to an empty mirror.
	top      uint64
	doubtful bool
	pending  pending

	request request
	trigger purpose // of the first request of this catching up
	asked   int     // requests of this catching up
	spent   spent   // replies of this catching up, or to this request while following
	gapped  bool    // a gap in the live numbers is not closed yet
	// answered says that the engine has replayed a batch on this connection.
	answered bool
	// shy says that the last request got no answer. A gap or a new connection does not wait for the next one, then: it is asked beside.
	shy bool
	// missed says that the mirror lacks what a replay from 0 might bring.
	missed bool

	since time.Time     // of the connection's end, or of the last sign that the engine is not idle
	pause time.Duration // until the next look for a lost tail
	again time.Time     // when a replay from 0 is tried again; zero: to be set
	delay time.Duration // before the try after that
}

// hands do what a tracker decides.
type hands interface {
	// apply applies a batch to the mirror; false says that it could not be read and that the mirror was reset.
	apply(seq uint64, payload []byte, replayed bool) bool
	reset(cause Cause)
	online(yes bool)
	quiet(on bool)
	history(complete bool)
	// gap counts a gap in the live numbers, and replay a request that ended.
	gap(repaired bool)
	replay(p purpose, o outcome)
}

type mode uint8

const (
	away mode = iota
	catching
	following
)

// pacing is the times of a tracker and of its replays.
type pacing struct {
	tick    time.Duration // between two ticks
	keep    time.Duration // how long the mirror of a lost connection is kept
	silence time.Duration // without a message until the first look for a lost tail
	idle    time.Duration // between two looks, at most
	// Shortest and longest time until a replay from 0 that could not be had is tried again.
	retry, maxRetry time.Duration
	queue           time.Duration // for a place among the replays of the process
	reply           time.Duration // for the first reply and between two
	whole           time.Duration // for all replies to a request
}

func newPacing(keep time.Duration) pacing {
	return pacing{
		tick: time.Second, keep: keep,
		silence: 2 * time.Second, idle: 30 * time.Second,
		retry: 2 * time.Second, maxRetry: 5 * time.Minute,
		queue: 30 * time.Second, reply: 10 * time.Second, whole: time.Minute,
	}
}

// placed says that the mirror has a position that a replay can prove.
func (t *tracker) placed() bool { return t.replays && t.anchored && t.next > 0 }

// proof returns the number from which to ask for what comes after the mirror: the batch applied last comes with it, to show that it is of
// the same process. A live connection does not show that: its end can be read after the replies of the next process.
func (t *tracker) proof() uint64 { return t.next - min(t.next, 1) }

// position returns how far the mirror is. It has been seen only when a replay can prove it.
func (t *tracker) position() position {
	if !t.placed() {
		return position{}
	}
	if t.last != nil {
		t.digest, t.last = digestOf(t.last), nil
	}
	return position{seq: t.next - 1, digest: t.digest, seen: true, complete: t.complete, start: t.start}
}

// restore says that the mirror is at p. The Sink hears nothing of it before it is proven.
func (t *tracker) restore(p position, now time.Time) {
	if !p.seen {
		return
	}
	t.do.quiet(true)
	t.next, t.start, t.anchored, t.digest, t.last = p.seq+1, p.start, true, p.digest, nil
	t.since = now
	t.missed = t.replays && !p.complete // the process before may have been about to ask
	t.setComplete(p.complete)
}

// connect begins a connection.
func (t *tracker) connect(now time.Time) {
	t.heard, t.lively, t.answered, t.doubtful = false, false, false, false
	t.since, t.pause = now, t.pacing.silence
	switch {
	case !t.replays:
		t.forget(CauseDisconnect) // nothing, unless it was restored
		t.follow()
	case t.shy:
		t.forget(CauseDisconnect)
		t.follow()
		t.askBeside()
	case t.placed():
		t.catch(toProve, t.next-1)
	default:
		t.forget(CauseDisconnect)
		t.catch(toFill, 0)
	}
}

// disconnect ends a connection.
func (t *tracker) disconnect(now time.Time) {
	t.close(replayAbandoned)
	t.pending.clear()
	t.do.online(false)
	t.mode, t.since = away, now
	if !t.placed() {
		t.forget(CauseDisconnect)
		t.do.quiet(false)
	}
}

// leave forgets everything, at the end of Run.
func (t *tracker) leave() {
	t.close(replayAbandoned)
	t.pending.clear()
	t.do.online(false)
	t.forget(CauseDisconnect)
	t.do.quiet(false)
	*t = tracker{do: t.do, replays: t.replays, pacing: t.pacing, pending: pending{limit: t.pending.limit}, request: request{id: t.request.id}}
}

// message takes a live message.
func (t *tracker) message(seq uint64, payload []byte) {
	repeated := t.heard && seq <= t.live
	if !t.heard || seq > t.top {
		t.top, t.doubtful = seq, false
	}
	t.live, t.heard, t.lively = seq, true, true
	switch {
	case repeated:
		t.restart(seq, payload)
	case t.doubtful && (t.mode == catching || !t.anchored): // perhaps late; a replay that brings batch top brings it too
	case t.mode == catching:
		t.pending.add(seq, payload)
	case !t.anchored:
		t.anchor(seq)
		t.take(seq, payload, false)
	case seq == t.next:
		t.take(seq, payload, false)
	case seq > t.next:
		t.gap(seq, payload)
	default: // a replay brought it
	}
}

// garbled takes a live message whose number cannot be read.
func (t *tracker) garbled() {
	if !t.replays { // else the next one shows the gap
		t.forget(CauseUnreadable)
		t.heard = false
	}
}

// lateBatches is how far a number goes back at most when its batch is taken for one that a relay delivers late, or twice. An engine that was restarted
// behind a relay and had published no more is heard again from batch top + 1 on, unless it has a replay socket.
const lateBatches = 64

// restart takes a live message whose number goes back: it comes late, or the engine behind the connection counts from a fresh start.
func (t *tracker) restart(seq uint64, payload []byte) {
	if t.doubtful = t.top-seq < lateBatches; !t.doubtful {
		t.top = seq
	}
	t.close(replayAbandoned)
	t.pending.clear()
	t.unrepaired()
	t.forget(CauseBackwards)
	if t.mode == following && (!t.replays || t.shy || seq == 0 && !t.doubtful) {
		if !t.doubtful {
			t.anchor(seq)
			t.take(seq, payload, false)
		}
		if t.doubtful || seq > 0 {
			t.askBeside()
		}
		return
	}
	if !t.doubtful {
		t.pending.add(seq, payload)
	}
	t.catch(toFill, 0)
}

// gap takes a live message before which others are missing.
func (t *tracker) gap(seq uint64, payload []byte) {
	if t.replays && !t.shy {
		t.gapped = true
		t.pending.add(seq, payload)
		t.catch(toRepair, t.proof())
		return
	}
	t.do.gap(false)
	t.forget(CauseGap)
	t.anchor(seq)
	t.take(seq, payload, false)
	t.askBeside()
}

// take applies the batch next.
func (t *tracker) take(seq uint64, payload []byte, replayed bool) {
	t.next = seq + 1
	if t.replays {
		t.last = payload
	}
	if !t.do.apply(seq, payload, replayed) {
		t.start = t.next
		t.setComplete(false)
	}
}

// anchor says that the mirror is empty before the batch seq.
func (t *tracker) anchor(seq uint64) {
	t.next, t.start, t.anchored = seq, seq, true
	t.setComplete(seq == 0)
	if seq == 0 {
		t.missed = false
	}
}

// forget says that nothing is known of the engine.
func (t *tracker) forget(cause Cause) {
	t.next, t.anchored, t.last = 0, false, nil
	t.do.reset(cause)
	t.setComplete(false)
}

func (t *tracker) setComplete(yes bool) {
	if t.complete != yes {
		t.complete = yes
		t.do.history(yes)
	}
}

// catch begins to catch up, or goes on with it, by a request.
func (t *tracker) catch(p purpose, from uint64) {
	if t.mode != catching {
		t.do.online(false)
		t.do.quiet(true)
		t.mode, t.trigger, t.asked, t.spent = catching, p, 0, spent{}
	}
	t.ask(p, from)
}

// drain applies what was heard while catching up. Where something is missing in it, that is asked for if asking, else
// everything before is forgotten.
func (t *tracker) drain(asking bool) {
	for {
		seq, payload, ok := t.pending.first()
		switch {
		case !ok && (!t.heard || !t.anchored || t.live < t.next): // that is all
			t.pending.clear()
			if t.gapped && asking {
				t.do.gap(true)
			}
			t.gapped = false
			t.follow()
			return
		case ok && t.anchored && seq < t.next:
			t.pending.pop()
			continue
		case ok && t.anchored && seq == t.next:
		case asking && t.anchored:
			t.askMore()
			return
		case !ok: // what was heard last did not fit
			t.forget(CauseGap)
			t.missed = true
			continue
		case t.anchored:
			t.forget(CauseGap)
			t.anchor(seq)
			t.missed = true
		default:
			t.anchor(seq)
		}
		t.pending.pop()
		t.take(seq, payload, false)
	}
}

// follow ends catching up.
func (t *tracker) follow() {
	t.mode, t.doubtful = following, t.doubtful && !t.anchored
	t.do.quiet(false)
	t.do.online(true)
}

// tick lets time pass. It is to be called about every pacing.tick.
func (t *tracker) tick(now time.Time) {
	lively := t.lively
	t.lively = false
	switch {
	case t.mode == away:
		if t.anchored && now.Sub(t.since) >= t.pacing.keep {
			t.forget(CauseDisconnect)
			t.do.quiet(false)
		}
	case t.mode != following || !t.replays:
	case lively:
		t.since, t.pause = now, t.pacing.silence
		t.retry(now)
	case !t.retry(now) && t.anchored && !t.request.open && now.Sub(t.since) >= t.pause:
		t.since = now
		t.pause = min(2*t.pause, t.pacing.idle)
		t.ask(toLook, t.proof())
	}
}

// retry asks for a replay from 0 that could not be had, when it is time.
func (t *tracker) retry(now time.Time) bool {
	switch {
	case !t.missed:
		t.again, t.delay = time.Time{}, 0
		return false
	case t.request.open:
	case t.again.IsZero():
		t.delay = min(max(2*t.delay, t.pacing.retry), t.pacing.maxRetry)
		t.again = now.Add(t.delay)
	case !now.Before(t.again):
		t.again = time.Time{}
		t.askBeside()
	}
	return true
}
