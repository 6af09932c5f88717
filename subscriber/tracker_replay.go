package subscriber

// request is a replay that is asked for: the batches from a number on. There is one at a time.
type request struct {
	id   int // counts the requests
	open bool
	from uint64
	why  purpose

	// digest is that of batch from, when the reply to it is to show that the engine is the same process as before.
	digest [16]byte
	proves bool

	next    uint64 // number of the reply expected
	any     bool   // there was a reply
	news    bool   // there was one that the mirror had not seen
	partial bool   // the engine does not keep what was asked for first
}

// purpose says why a replay is asked for.
type purpose uint8

const (
	toFill   purpose = iota // an empty mirror
	toProve                 // that the engine is the process of the last connection, and to go on from there
	toRepair                // a gap
	toLook                  // whether the newest batches were lost or the engine is another process, in silence
	toRefill                // the mirror, while live batches are applied
	purposes
)

func (p purpose) String() string {
	return [purposes]string{"fill", "prove", "repair", "look", "refill"}[p]
}

// words are what was asked for, as the log says it.
func (p purpose) words() string {
	return [purposes]string{"all batches", "what came since the last connection", "a gap", "the newest batches", "all batches, again"}[p]
}

// outcome says how a replay ended. It is a label of kvsteer_subscriber_replays_total.
type outcome string

const (
	replayComplete    outcome = "complete"    // everything asked for came
	replayEmpty       outcome = "empty"       // there was nothing
	replayPartial     outcome = "partial"     // the engine does not keep what was asked for first
	replayHole        outcome = "hole"        // batches are missing in the middle
	replayNotProven   outcome = "not_proven"  // the engine is not the process of the last connection, or does not keep the batch that would show it
	replayUnreachable outcome = "unreachable" // no connection, or it ended
	replayTimeout     outcome = "timeout"     // no reply, or too many
	replayBusy        outcome = "busy"        // too many other replays for too long
	replayInvalid     outcome = "invalid"     // not the replies of an engine
	replayTooLarge    outcome = "too_large"   // more than a replay may have
	replayAbandoned   outcome = "abandoned"   // of no use any more
)

func outcomes() []outcome {
	return []outcome{replayComplete, replayEmpty, replayPartial, replayHole, replayNotProven, replayUnreachable, replayTimeout, replayBusy, replayInvalid, replayTooLarge, replayAbandoned}
}

// Bounds of one catching up.
const (
	// maxAsked bounds the requests. vLLM up to 0.32 left one or two holes in a replay of 9,000 batches, none below 1,500.
	maxAsked = 16
	// maxReplayed and maxReplayedBytes bound the batches replayed, a hundred times an engine's default buffer of 10,000, and their bytes.
	maxReplayed      = 1_000_000
	maxReplayedBytes = 8 << 30
)

// spent counts replies.
type spent struct{ batches, bytes int }

func (t *tracker) ask(p purpose, from uint64) {
	t.close(replayAbandoned)
	if t.mode == following {
		t.asked, t.spent = 0, spent{}
	}
	t.asked++
	t.request = request{id: t.request.id + 1, open: true, from: from, next: from, why: p}
	if at := t.position(); at.seen && from == at.seq {
		t.request.proves, t.request.digest = true, at.digest
	}
}

// askBeside asks for a replay from 0 while live batches are applied.
func (t *tracker) askBeside() {
	if !t.replays {
		return
	}
	t.missed = true
	if !t.request.open || t.request.why != toRefill {
		t.ask(toRefill, 0)
	}
}

// askMore asks for what is missing after a replay, or gives up.
func (t *tracker) askMore() {
	if t.asked >= maxAsked {
		t.missed = true // another time the engine may lose less
		t.giveUp(CauseLost)
		return
	}
	t.catch(toRepair, t.proof())
}

// close ends the request, if there is one.
func (t *tracker) close(o outcome) {
	if t.request.open {
		t.request.open = false
		t.do.replay(t.request.why, o)
	}
}

// reply takes one batch of the replay asked for.
func (t *tracker) reply(seq uint64, payload []byte) {
	r := &t.request
	if !r.open {
		return
	}
	t.spent.batches++
	t.spent.bytes += len(payload)
	first := !r.any
	r.any, t.answered = true, true
	switch {
	case t.spent.batches > maxReplayed || t.spent.bytes > maxReplayedBytes:
		t.failed(replayTooLarge)
		return
	case seq < r.next:
		t.failed(replayInvalid)
		return
	case first && !t.opens(seq, payload):
		return
	case seq > r.next:
		t.close(replayHole)
		t.askMore()
		return
	}
	r.next++
	if seq >= t.next { // else it was heard meanwhile, or is the proof
		r.news = true
		t.take(seq, payload, true)
	}
}

// opens judges the first batch of a replay and says whether the replay goes on.
func (t *tracker) opens(seq uint64, payload []byte) bool {
	r := &t.request
	switch {
	case r.proves && seq == r.from && digestOf(payload) != r.digest:
		t.startOver(CauseBackwards)
		return false
	case r.why == toProve && seq > r.from:
		t.startOver(CauseLost)
		return false
	case r.why == toLook && r.from < seq && seq < t.next: // so much has come meanwhile that nothing is lost
		t.close(replayPartial)
		return false
	case r.why == toLook && !r.proves && t.next > 0: // asked before the first batch: the process that was heard since may be another one than replies
		t.close(replayPartial)
		return false
	case r.why == toRefill && t.anchored && t.start <= seq && seq < t.next: // nothing that the mirror lacks
		t.missed = false
		t.close(replayPartial)
		return false
	case r.why != toFill && r.why != toRefill && seq == r.from:
		if !r.proves {
			t.hold() // live batches of one process and replies of another must not alternate
		}
		return true
	}
	// The mirror is empty before the batch. It may be a later one than was asked for: engines keep so many (buffer_steps) and
	// begin with the oldest.
	t.hold()
	t.unrepaired()
	t.forget(CauseLost)
	t.anchor(seq)
	t.missed = false
	r.next, r.partial = seq, seq > 0
	return true
}

// hold has live batches wait for the end of the replay.
func (t *tracker) hold() {
	if t.mode != catching {
		t.do.online(false)
		t.do.quiet(true)
		t.mode, t.trigger, t.asked = catching, toFill, 1
	}
}

// startOver begins with an empty mirror, since the engine is not the process that it was taken from.
func (t *tracker) startOver(cause Cause) {
	t.close(replayNotProven)
	if t.mode == following {
		t.heard = false // perhaps by the old one
	}
	t.forget(cause)
	t.catch(toFill, 0)
}

// end takes the mark at the end of a replay.
func (t *tracker) end() {
	r := &t.request
	t.shy = false
	switch {
	case r.partial:
		t.close(replayPartial)
	case r.news:
		t.close(replayComplete)
	case r.proves && !r.any && (r.why != toLook || t.answered): // the engine has not come as far
		t.startOver(CauseBackwards)
		return
	default:
		if !r.any && (r.why == toFill || r.why == toRefill && !t.heard && !t.anchored) { // nothing was published yet
			t.anchor(0)
			if t.mode == following {
				t.do.online(true)
			}
		}
		t.close(replayEmpty)
	}
	if r.why == toFill || r.why == toRefill {
		t.missed = r.why == toRefill && !r.any && t.heard // what was heard has been published: an empty answer is not whole
	}
	if r.news {
		t.pause = t.pacing.silence
	}
	if t.mode == catching {
		t.drain(true)
	}
}

// failed takes the failure of a replay.
func (t *tracker) failed(o outcome) {
	t.close(o)
	unheard := o == replayUnreachable || o == replayTimeout || o == replayBusy
	t.shy = t.shy || unheard
	if t.mode != catching {
		return
	}
	cause := CauseLost
	switch {
	case (o == replayUnreachable && t.request.any || o == replayTimeout && t.request.news) && t.asked < maxAsked: // it was there
		t.catch(toRepair, t.proof())
		return
	case !unheard:
	case t.trigger == toRepair:
		cause = CauseGap
	case t.trigger == toProve:
		cause = CauseDisconnect
	}
	t.missed = t.missed || unheard
	t.giveUp(cause)
}

// giveUp forgets what cannot be completed and goes on with what is heard.
func (t *tracker) giveUp(cause Cause) {
	t.unrepaired()
	t.forget(cause)
	t.drain(false)
}

// unrepaired counts a gap that will not be closed.
func (t *tracker) unrepaired() {
	if t.gapped {
		t.do.gap(false)
		t.gapped = false
	}
}
