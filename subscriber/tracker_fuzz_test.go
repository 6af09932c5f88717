package subscriber

import (
	"encoding/binary"
	"testing"
	"time"
)

// FuzzTracker has a relay do what it likes with the batches and the replays of engines, one byte for each thing that happens, and checks
// whatever is decided:
//
//   - a batch is applied to what was applied just before it, or to an empty mirror, and never twice;
//   - the history is complete only from batch 0 on;
//   - the Sink hears nothing while catching up; when it is told that the engine is connected, the mirror is as new as what was heard, or empty;
//   - requests come to an end, and what waits is bounded;
//   - when the relay is lawful again and the replay socket answers, everything is there.
func FuzzTracker(f *testing.F) {
	for _, seed := range []string{
		"\x00\x02\x02\x05\x06\x02", "\x01\x02\x02\x03\x02\x05\x06\x04\x02\x07\x00\x02\x05\x06", "\x81\x02\x02\x03\x02\x0a\x02\x0a\x02",
		"\x00\x02\x0b\x02\x0b\x02\x05\x06\x0c\x02\x0d\x05\x02\x06", "\x00\x05\x06\x02\x09\x02\x02\x08\x01\x05\x06\x02",
		"\x80\x02\x02\x03\x03\x0a\x02\x0e\x02\x02", "\x00\x02\x02\x05\x05\x0f\x05\x06\x03\x02\x05\x1c\x05\x06",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, script []byte, replays bool) {
		if len(script) > 400 {
			return
		}
		w := newRelayed(t, replays)
		for _, b := range script {
			w.step(b)
			w.check()
		}
		w.settle()
	})
}

// relayed is a tracker, an engine of which it hears through a relay, and what its mirror should have.
type relayed struct {
	t   *testing.T
	tr  *tracker
	now time.Time

	process, published uint64 // of the engine: batches 0 to published − 1
	late               []batchOf
	linked             bool
	top                uint64 // the newest batch heard on the connection, + 1

	// What the tracker has decided.
	begun    bool    // something was applied since the last reset
	last     batchOf // the batch applied last
	from     uint64  // the first since the last reset
	of       uint64  // its process
	complete bool
	isQuiet  bool
	isOnline bool

	garbled bool // the replay socket has given answers that are none, after which it is not asked again for its own sake

	// Of the replay under way.
	request int
	at      uint64 // the next reply
}

type batchOf struct{ process, seq uint64 }

func (b batchOf) payload() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, b.process), b.seq)
}

func newRelayed(t *testing.T, replays bool) *relayed {
	w := &relayed{t: t, now: time.Unix(1_800_000_000, 0)}
	w.tr = &tracker{do: w, replays: replays, pacing: newPacing(10 * time.Minute), pending: pending{limit: 4 * (16 + perPending)}}
	return w
}

func (w *relayed) apply(seq uint64, payload []byte, _ bool) bool {
	b := batchOf{binary.BigEndian.Uint64(payload), binary.BigEndian.Uint64(payload[8:])}
	switch {
	case b.seq != seq:
		w.t.Fatalf("batch %d applied as %d", b.seq, seq)
	case !w.begun:
		w.begun, w.from, w.of = true, seq, b.process
	case seq != w.last.seq+1:
		w.t.Fatalf("batch %d applied after %d", seq, w.last.seq)
	}
	w.last = b
	return true
}

func (w *relayed) reset(Cause)             { w.begun = false }
func (w *relayed) online(y bool)           { w.isOnline = y }
func (w *relayed) quiet(on bool)           { w.isQuiet = on }
func (w *relayed) history(c bool)          { w.complete = c }
func (w *relayed) gap(bool)                {}
func (w *relayed) replay(purpose, outcome) {}

// step lets one thing happen.
func (w *relayed) step(b byte) {
	tr := w.tr
	arg := uint64(b >> 4)
	switch b & 15 {
	case 0:
		if !w.linked {
			w.linked, w.top = true, 0
			tr.connect(w.now)
		}
	case 1:
		if w.linked {
			w.linked = false
			w.late = nil
			tr.disconnect(w.now)
		}
	case 2: // a batch
		w.publish()
		w.deliver(batchOf{w.process, w.published - 1})
	case 3: // that is lost
		w.publish()
	case 4: // that is late
		w.publish()
		w.late = append(w.late, batchOf{w.process, w.published - 1})
	case 10: // and comes
		if len(w.late) > 0 {
			i := int(arg) % len(w.late)
			w.deliver(w.late[i])
			w.late = append(w.late[:i], w.late[i+1:]...)
		}
	case 11: // once more
		if w.published > 0 {
			w.deliver(batchOf{w.process, w.published - 1})
		}
	case 5: // some replies
		for range 1 + arg {
			w.reply(false)
		}
	case 15: // some are left out
		w.reply(true)
	case 6: // all of them
		w.answer()
	case 7:
		w.fail(replayTimeout)
	case 8:
		w.fail(replayUnreachable)
	case 9:
		w.garbled = w.garbled || tr.request.open
		w.fail(replayInvalid)
	case 12: // another process, of the engine or of ours, and the connection is lost
		if arg&1 != 0 {
			w.renew()
			return
		}
		w.process, w.published, w.late = w.process+1, 0, nil
		if w.linked {
			w.linked = false
			tr.disconnect(w.now)
		}
	case 13:
		w.now = w.now.Add(time.Duration(arg) * time.Second)
		tr.tick(w.now)
	case 14:
		w.now = w.now.Add(time.Duration(arg) * time.Minute)
		tr.tick(w.now)
	}
}

// renew replaces the tracker by one that takes up what the other had saved.
func (w *relayed) renew() {
	was, at, begun := w.tr, w.tr.position(), w.begun
	last, from, of := w.last, w.from, w.of
	w.linked, w.late, w.isOnline = false, nil, false
	was.leave()
	w.tr = &tracker{do: w, replays: was.replays, pacing: was.pacing, pending: pending{limit: was.pending.limit}}
	w.tr.request.id = was.request.id
	if at.seen {
		w.begun, w.last, w.from, w.of = begun, last, from, of
		w.tr.restore(at, w.now)
	}
}

func (w *relayed) publish() { w.published++ }

func (w *relayed) deliver(b batchOf) {
	if w.linked {
		w.top = max(w.top, b.seq+1)
		w.tr.message(b.seq, b.payload())
	}
}

// reply answers the request under way by one batch, or leaves one out.
func (w *relayed) reply(skip bool) {
	r := &w.tr.request
	if !r.open {
		return
	}
	if r.id != w.request {
		w.request, w.at = r.id, r.from
	}
	switch {
	case w.at >= w.published:
		w.tr.end()
	case skip:
		w.at++
	default:
		w.at++
		w.tr.reply(w.at-1, batchOf{w.process, w.at - 1}.payload())
	}
}

// answer answers requests in full until there is none.
func (w *relayed) answer() {
	for n := 0; w.tr.request.open; n++ {
		if n > 100*int(w.published+2) {
			w.t.Fatalf("requests without end: %+v", w.tr.request)
		}
		w.reply(false)
	}
}

func (w *relayed) fail(o outcome) {
	if w.tr.request.open {
		w.tr.failed(o)
	}
}

// check holds what must be so at any time.
func (w *relayed) check() {
	w.t.Helper()
	tr := w.tr
	switch {
	case w.complete && w.begun && w.from != 0:
		w.t.Fatalf("complete from batch %d on", w.from)
	case w.isOnline && (w.isQuiet || !w.linked || tr.mode != following):
		w.t.Fatalf("online, quiet %v, linked %v, mode %v", w.isQuiet, w.linked, tr.mode)
	case w.isOnline && w.begun && w.last.seq+1 < w.top:
		w.t.Fatalf("online at batch %d, heard were those before %d", w.last.seq, w.top)
	case tr.pending.size > tr.pending.limit:
		w.t.Fatalf("%d bytes wait", tr.pending.size)
	case tr.asked > maxAsked && tr.mode == catching:
		w.t.Fatalf("%d requests", tr.asked)
	}
}

// settle has the relay deliver what is late and the engine be silent, and the replay socket answer. Nothing may be missing then.
func (w *relayed) settle() {
	if !w.linked {
		w.step(0)
	}
	for len(w.late) > 0 {
		w.step(10)
		w.check()
	}
	if !w.tr.replays {
		return // nothing tells of a tail that is lost
	}
	for range 20 {
		w.answer()
		w.step(14 | 6<<4)
		w.check()
	}
	w.answer()
	w.check()
	if !w.isOnline || w.published > 0 && !w.garbled && (!w.begun || w.last != (batchOf{w.process, w.published - 1})) {
		w.t.Fatalf("online %v, the last batch applied is %+v, published are %d of %d", w.isOnline, w.last, w.published, w.process)
	}
	if w.begun && w.of != w.process {
		w.t.Fatalf("a batch of process %d is in the mirror of %d", w.of, w.process)
	}
}
